"""How values of an output schema stand in a table: the type of each place, and values there and back. Pure.

| in the output schema                                     | in the table                                        |
|----------------------------------------------------------|-----------------------------------------------------|
| string; enumerated strings; dates and times              | string                                              |
| integer                                                  | int64; JSON text where its bounds are beyond 64 bits |
| number, boolean                                          | double, bool                                        |
| array                                                    | list                                                |
| object whose properties are all named                    | struct                                              |
| other objects, several types, anything, an object within | a string of JSON text: its field has the metadata   |
| itself                                                   | `headrace` of `json`                                |

As in Avro (schemas/avro_form.py), but for maps, which few who read tables know. What does not fit the type of its
place all the same (an integer without bounds that is beyond 64 bits, an undeclared property, a hook's doing) is null
there, and said. So is null what is absent.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import pyarrow as pa

from headrace.schemas.avro_shape import ANYTHING, Kind, Node, Place, Shape, Shapes
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.strict_json import JsonFault, dump, pointer

MAX_LEVELS: Final = 20  # of lists and structs within each other; below them stands JSON text
MAX_LEAVES: Final = 1_000  # of one column; a place with more is JSON text
MAX_LEAVES_IN_ALL: Final = 4_000  # with more, every column of several is JSON text
MAX_TEXT: Final = (
    400  # characters of a value that an error repeats: every integer, and the beginning of others
)
JSON_MARK: Final = {"headrace": "json"}

_INT64: Final = 2**63
Path = tuple[str | int, ...]


@dataclass(slots=True)
class Losses:
    """What of one value does not stand in its columns, each a sentence with its place."""

    said: list[str]

    def note(self, path: Path, value: JsonValue, why: str) -> None:
        """Note a value that is left out."""
        try:
            text = dump(value)
        except JsonFault:
            text = repr(value).encode("ascii", "backslashreplace").decode()
        if len(text) > MAX_TEXT:
            text = text[:MAX_TEXT] + "…"
        place = pointer(path)
        self.said.append(f"{text} {why}" if place is None else f"{place}: {text} {why}")


class Form(Protocol):
    """The type of one place. `levels` of lists and structs; `leaves`: columns that Parquet makes of it."""

    @property
    def type(self) -> pa.DataType: ...
    @property
    def levels(self) -> int: ...
    @property
    def leaves(self) -> int: ...

    def stored(self, value: JsonValue, path: Path, losses: Losses) -> Any:
        """A value, other than null, as pyarrow takes it for the type; None where it does not fit, and then noted."""
        ...

    def restored(self, stored: Any) -> JsonValue:
        """The value of what `stored` returned, other than None, and of what pyarrow gives back."""
        ...


def stored_or_none(form: Form, value: JsonValue, path: Path, losses: Losses) -> Any:
    """As `Form.stored`, null being None."""
    return None if value is None else form.stored(value, path, losses)


def restored_or_none(form: Form, stored: Any) -> JsonValue:
    """As `Form.restored`, None being null."""
    return None if stored is None else form.restored(stored)


# --- the forms ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plain:
    """What is one value in JSON and in the table."""

    type: pa.DataType
    levels: int = 0
    leaves: int = 1

    def restored(self, stored: Any) -> JsonValue:
        return stored


class _Text(_Plain):
    __slots__ = ()

    def stored(self, value: JsonValue, path: Path, losses: Losses) -> Any:
        if isinstance(value, str) and (value.isascii() or _is_unicode(value)):
            return value
        return losses.note(path, value, "does not fit a string")


class _Boolean(_Plain):
    __slots__ = ()

    def stored(self, value: JsonValue, path: Path, losses: Losses) -> Any:
        return value if isinstance(value, bool) else losses.note(path, value, "does not fit a boolean")


class _Integer(_Plain):
    __slots__ = ()

    def stored(self, value: JsonValue, path: Path, losses: Losses) -> Any:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(whole, int) and not isinstance(whole, bool) and -_INT64 <= whole < _INT64:
            return whole
        return losses.note(path, value, "does not fit an integer of 64 bits")


class _Number(_Plain):
    __slots__ = ()

    def stored(self, value: JsonValue, path: Path, losses: Losses) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        return losses.note(path, value, "does not fit a double")


class _JsonText(_Plain):
    __slots__ = ()

    def stored(self, value: JsonValue, path: Path, losses: Losses) -> Any:
        try:
            return dump(value)
        except JsonFault as fault:
            return losses.note(path, value, f"is {fault.reason}")

    def restored(self, stored: Any) -> JsonValue:
        return json.loads(stored)


@dataclass(frozen=True, slots=True)
class _List:
    items: Form
    type: pa.DataType
    levels: int
    leaves: int

    def stored(self, value: JsonValue, path: Path, losses: Losses) -> Any:
        if not isinstance(value, list):
            return losses.note(path, value, "does not fit a list")
        return [
            stored_or_none(self.items, each, (*path, index), losses)
            for index, each in enumerate(cast("list[JsonValue]", value))
        ]

    def restored(self, stored: Any) -> JsonValue:
        return [restored_or_none(self.items, each) for each in stored]


@dataclass(frozen=True, slots=True)
class _Struct:
    fields: dict[str, Form]
    required: frozenset[str]
    type: pa.DataType
    levels: int
    leaves: int

    def stored(self, value: JsonValue, path: Path, losses: Losses) -> Any:
        if not isinstance(value, dict):
            return losses.note(path, value, "does not fit a struct")
        members = cast("JsonObject", value)
        for name in sorted(members.keys() - self.fields.keys()):
            losses.note((*path, name), members[name], "has no column")
        return {
            name: stored_or_none(form, members.get(name), (*path, name), losses)
            for name, form in self.fields.items()
        }

    def restored(self, stored: Any) -> JsonValue:
        return {
            name: restored_or_none(form, stored[name])
            for name, form in self.fields.items()
            if stored[name] is not None or name in self.required
        }


TEXT: Final[Form] = _Text(pa.string())
JSON_TEXT: Final[Form] = _JsonText(pa.string())
_BOOLEAN: Final[Form] = _Boolean(pa.bool_())
_INTEGER: Final[Form] = _Integer(pa.int64())
_NUMBER: Final[Form] = _Number(pa.float64())


def field_of(name: str, form: Form) -> pa.Field[Any]:
    """The field of a form: it may always be null."""
    return pa.field(name, form.type, metadata=JSON_MARK if form is JSON_TEXT else None)


def _list_of(items: Form) -> Form:
    return _List(items, pa.list_(field_of("element", items)), items.levels + 1, items.leaves)


def _struct_of(fields: dict[str, Form], required: frozenset[str]) -> Form:
    type_ = pa.struct([field_of(name, form) for name, form in fields.items()])
    levels = max(form.levels for form in fields.values()) + 1
    return _Struct(fields, required, type_, levels, sum(form.leaves for form in fields.values()))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- from a schema ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputForms:
    """The forms of an output. `properties`: by name, of an object whose properties are named; else `whole` has it.

    `is_open`: whether the schema names no end of properties and says so, so that others need a column too.
    """

    properties: dict[str, Form]
    whole: Form | None = None
    is_open: bool = False


def forms_of(output: JsonObject | bool | None) -> OutputForms:
    """The forms of an output schema; of plain text for None. Raises InvalidSchema for what is no schema."""
    if output is None:
        return OutputForms({}, TEXT)
    return _Builder(output).root()


class _Builder:
    def __init__(self, output: JsonObject | bool) -> None:
        self._output = output
        self._shapes = Shapes(output)
        self._known: dict[Node, Form] = {}
        self._begun: set[Node] = set()

    def root(self) -> OutputForms:
        node, _ = self._shapes.meant(self._shapes.root)
        shape = self._shapes.of(node)
        named = self._named(shape)
        if "object" not in shape.kinds or shape.kinds - {"object", "null"} or not named:
            return OutputForms({}, self._form(node, 0))
        self._begun.add(node)
        properties = {name: self._form(child, 0) for name, child in named.items()}
        if sum(form.leaves for form in properties.values()) > MAX_LEAVES_IN_ALL:
            properties = {name: form if form.levels == 0 else JSON_TEXT for name, form in properties.items()}
        return OutputForms(properties, is_open=self._is_open(node, shape))

    def _form(self, node: Node, level: int) -> Form:
        """The form of what stands at `node`, `level` deep."""
        node, _ = self._shapes.meant(node)
        shape = self._shapes.of(node)
        kinds = shape.kinds - {"null"}
        if kinds and kinds <= {"integer", "fraction"}:
            if "fraction" in kinds:
                return _NUMBER
            return JSON_TEXT if _is_wide(shape) else _INTEGER
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        if kind == "string":
            return TEXT
        if kind == "boolean":
            return _BOOLEAN
        if kind not in ("array", "object") or level >= MAX_LEVELS or node in self._begun:
            return JSON_TEXT
        if node not in self._known:
            self._begun.add(node)
            self._known[node] = self._composite(node, shape, kind, level)
            self._begun.remove(node)
        form = self._known[node]
        return form if level + form.levels <= MAX_LEVELS else JSON_TEXT

    def _composite(self, node: Node, shape: Shape, kind: Kind, level: int) -> Form:
        if kind == "array":
            return _list_of(self._form(shape.items, level + 1))
        named = self._named(shape)
        if not named or self._is_open(node, shape):
            return JSON_TEXT
        fields: dict[str, Form] = {}
        leaves = 0
        for name, child in named.items():
            fields[name] = self._form(child, level + 1)
            leaves += fields[name].leaves
            if leaves > MAX_LEAVES:
                return JSON_TEXT
        return _struct_of(fields, shape.required)

    def _named(self, shape: Shape) -> dict[str, Node]:
        return {name: node for name, node in shape.properties.items() if self._shapes.of(node).kinds}

    def _is_open(self, node: Node, shape: Shape) -> bool:
        """Whether undeclared properties are meant to be, and not merely not forbidden."""
        if shape.values is None:
            return False
        if shape.values != ANYTHING:
            return True
        schema = self._schema_at(node.pointer) if isinstance(node, Place) else None
        return isinstance(schema, dict) and cast("JsonObject", schema).get("additionalProperties") is True

    def _schema_at(self, place: str) -> JsonValue:
        found: JsonValue = self._output
        for step in place.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = cast("list[JsonValue]", found)[int(key)]
            else:
                found = cast("JsonObject", found)[key]
        return found


def _is_wide(shape: Shape) -> bool:
    return any(bound is not None and not -_INT64 <= bound < _INT64 for bound in (shape.lower, shape.upper))
