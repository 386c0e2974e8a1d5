"""How far two versions say the same of the same requests: by output field, or as texts. Pure.

A field is a leaf of the output's JSON value, named by its pointer. Objects are gone into; an array is one field, equal
where all of it is, in the same order: by index, one element too many would make all those behind it differ. Numbers
are equal by their value (1 and 1.0), as JSON Schema has it. A field that one side does not have is not equal.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.schemas.strict_json import pointer

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonValue, Output

MOST_FIELDS = 500  # of their own; an object with keys of the model's choosing may have any number
OTHER_FIELDS = "(other fields)"
TOOL_CALLS = "(tool calls)"
WHOLE = "(whole value)"
SHOWN = 200  # characters of a value in an example
COMPARED_WORDS = 300  # of each text, the first: what a similarity costs grows with their square
ABSENT: Final = "(absent)"

_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A request to which the two said different things; each cut to `SHOWN` characters."""

    request_id: str
    live: str
    shadow: str

    def as_json(self) -> dict[str, str]:
        """As `rollout compare --json` prints it."""
        return {"id": self.request_id, "live": self.live, "shadow": self.shadow}


@dataclass(slots=True)
class FieldAgreement:
    """Of one field."""

    compared: int = 0
    equal: int = 0
    examples: list[Example] = field(default_factory=list[Example])

    @property
    def part(self) -> float | None:
        """The part that is equal; None: nothing was compared."""
        return self.equal / self.compared if self.compared else None


class Agreement:
    """Of all pairs of outputs. Keeps `examples` disagreements of each field, the first ones."""

    def __init__(self, examples: int) -> None:
        self._examples = examples
        self.fields: dict[str, FieldAgreement] = {}
        self.values = FieldAgreement()  # of JSON values as a whole
        self.texts = FieldAgreement()  # of outputs that have no JSON value
        self._similarities: list[float] = []

    @property
    def median_similarity(self) -> float | None:
        """Of texts, from 0 to 1 (the same): difflib's ratio of their words; None: there were none."""
        return statistics.median(self._similarities) if self._similarities else None

    def add(self, request_id: str, live: Sequence[Output], shadow: Sequence[Output]) -> None:
        """Two answers to a request, choice by choice."""
        for one, other in zip(live, shadow, strict=False):
            if one.tool_calls or other.tool_calls:
                self._add_field(TOOL_CALLS, request_id, _calls(one), _calls(other))
            elif one.value is None or other.value is None:
                self._add_text(request_id, one.text, other.text)
            else:
                self._add_value(request_id, one.value, other.value)

    def _add_value(self, request_id: str, live: JsonValue, shadow: JsonValue) -> None:
        self._count(self.values, request_id, live, shadow, equal=same(live, shadow))
        for path, one, other in leaves(live, shadow):
            self._add_field(pointer(path) or WHOLE, request_id, one, other)

    def _add_field(self, name: str, request_id: str, live: JsonValue, shadow: JsonValue) -> None:
        if name not in self.fields and len(self.fields) >= MOST_FIELDS:
            name = OTHER_FIELDS
        found = self.fields.setdefault(name, FieldAgreement())
        self._count(found, request_id, live, shadow, equal=same(live, shadow))

    def _add_text(self, request_id: str, live: str, shadow: str) -> None:
        self._count(self.texts, request_id, live, shadow, equal=live == shadow)
        self._similarities.append(similarity(live, shadow))

    def _count(
        self, of: FieldAgreement, request_id: str, live: JsonValue, shadow: JsonValue, *, equal: bool
    ) -> None:
        of.compared += 1
        of.equal += equal
        if not equal and len(of.examples) < self._examples:
            of.examples.append(Example(request_id, _shown(live), _shown(shadow)))


class _Absent:
    """In the place of a field that one side does not have; equal to nothing that JSON has."""


_ABSENT: Final = _Absent()


def leaves(
    live: JsonValue, shadow: JsonValue, path: _Path = ()
) -> Iterator[tuple[_Path, JsonValue, JsonValue]]:
    """The fields of both, each with its path and its two values, of which one may be absent; keys in order."""
    if not (isinstance(live, dict) and isinstance(shadow, dict)):
        yield path, live, shadow
        return
    one, other = cast("dict[str, Any]", live), cast("dict[str, Any]", shadow)
    if not one and not other:
        yield path, one, other
    for key in sorted({*one, *other}):
        yield from leaves(one.get(key, _ABSENT), other.get(key, _ABSENT), (*path, key))


def same(live: JsonValue, shadow: JsonValue) -> bool:
    """Whether two JSON values are equal. In Python True is 1; in JSON it is not."""
    if isinstance(live, bool) or isinstance(shadow, bool):
        return live is shadow
    if isinstance(live, dict) and isinstance(shadow, dict):
        one, other = cast("dict[str, Any]", live), cast("dict[str, Any]", shadow)
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(live, list) and isinstance(shadow, list):
        first, second = cast("list[Any]", live), cast("list[Any]", shadow)
        return len(first) == len(second) and all(map(same, first, second))
    return live == shadow


def similarity(live: str, shadow: str) -> float:
    """How alike the beginnings of two texts are, word by word, from 0 to 1: difflib's ratio."""
    if live == shadow:
        return 1.0
    one, other = live.split()[:COMPARED_WORDS], shadow.split()[:COMPARED_WORDS]
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _calls(output: Output) -> JsonValue:
    """The calls as they count: their ids are chance, and arguments are JSON text that may be written in many ways."""
    return [
        {"name": each.function.name, "arguments": _arguments(each.function.arguments)}
        for each in output.tool_calls or ()
    ]


def _arguments(text: str) -> JsonValue:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _shown(value: JsonValue) -> str:
    if isinstance(value, _Absent):
        return ABSENT
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "\N{HORIZONTAL ELLIPSIS}"
