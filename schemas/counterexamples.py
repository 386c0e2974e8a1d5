"""Instances that one JSON Schema accepts and another one rejects, found by trying what the two schemas suggest.

Pure, and a search: what it finds is right, since both validators have judged it; what it does not find may exist.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import cast
from urllib.parse import unquote

from headrace.schemas.digest import canonical_json
from headrace.schemas.errors import InvalidSchema, OutputViolatesSchema
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.output_schema import OutputSchema
from headrace.schemas.schema_example import example_of

BUDGET_S = 0.5  # CPU time of one search
MAX_CANDIDATES = 50_000  # of one search
MAX_AT_ONE_PLACE = 400  # values that are tried for one place within an instance
MAX_BRANCHES = 16  # of anyOf and oneOf
MAX_DEPTH = 10  # levels of values
LONGEST_STRING = 20_000  # characters
LONGEST_ARRAY = 300  # items
UNDECLARED = "undeclared"  # a property that hardly any schema names

ANNOTATIONS = frozenset({"$comment", "default", "deprecated", "description", "examples", "title"})

_TEXTS = (
    "", "a", "A", "aa", "abc", "ABC", "Abc", "some text", "0", "1", "12", "123", "-1", "1.5", "a1", "a-b", "a_b",
    "a b", " ", "ä", "\n", "a\n", "/", "true", "null", "2026-01-31", "2026-01-31T12:00:00Z", "12:00:00Z", "PT1H",
    "someone@example.com", "example.com", "192.0.2.1", "2001:db8::1", "https://example.com/", "/a/b", "#fff", "v1.2.3",
    "1.2.3", "en", "en-US", "USD", "00000000-0000-4000-8000-000000000000", "not a date, nor anything else",
)  # fmt: skip
_NUMBERS = (0, 1, -1, 2, 3, 10, 100, 0.5, -0.5, 1.5, 1_000_003, -1_000_003, 2**31, 2**53 + 2, 1e300)
_KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")
_ANY: tuple[JsonValue, ...] = ("a", 1, 0.5, True, None, [], {}, [1, 1], {"a": 1})
_CHARACTERS = "xXa0"
_BRACES = re.compile(r"[{,](\d{1,3})(?=[,}])")
_MISSING = re.compile(r'"(.*)" is a required property', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Counterexample:
    """`path` is a JSON pointer to what is rejected in `instance` (a missing property's own), `reason` why."""

    instance: JsonValue
    path: str
    reason: str


def counterexamples(
    accepting: OutputSchema, rejecting: OutputSchema, *, leads: Sequence[JsonObject | bool] = ()
) -> Iterator[Counterexample]:
    """Instances that `accepting` accepts and `rejecting` rejects: for each place and keyword the shortest, as tried.

    `leads` are schemas whose instances are tried first.
    """
    shortest: dict[tuple[str, str], Counterexample] = {}
    deadline = time.process_time() + BUDGET_S
    for instance in islice(_candidates(accepting, rejecting, leads, deadline), MAX_CANDIDATES):
        if time.process_time() > deadline:
            break
        found = _judged(instance, accepting, rejecting)
        if found is None:
            continue
        of = (re.sub(r"/\d+(?=/|$)", "/*", found.path), found.reason.partition(":")[0])
        if of not in shortest or _size(instance) < _size(shortest[of].instance):
            shortest[of] = found
    yield from shortest.values()


def with_definitions_of(root: JsonObject | bool, schema: JsonObject | bool) -> JsonObject | bool:
    """A subschema as a schema of its own, with its document's definitions and draft."""
    if isinstance(root, bool) or isinstance(schema, bool):
        return schema
    kept = {name: root[name] for name in ("$schema", "$defs", "definitions") if name in root}
    return {**kept, **schema}


def _judged(instance: JsonValue, accepting: OutputSchema, rejecting: OutputSchema) -> Counterexample | None:
    try:
        accepting.check_value(instance)
    except OutputViolatesSchema:
        return None
    try:
        rejecting.check_value(instance)
    except OutputViolatesSchema as error:
        path = error.path or ""
        missing = _MISSING.search(error.message) if error.message.startswith("required:") else None
        if missing is not None:
            path += "/" + missing[1].replace("~", "~0").replace("/", "~1")
        return Counterexample(instance, path, error.message)
    return None


def _size(instance: JsonValue) -> int:
    return len(canonical_json(instance))


def _candidates(
    accepting: OutputSchema, rejecting: OutputSchema, leads: Sequence[JsonObject | bool], deadline: float
) -> Iterator[JsonValue]:
    ours, theirs = accepting.schema, rejecting.schema
    for lead in leads:
        yield _likely(lead)
    for one, other in (*((lead, theirs) for lead in leads), (ours, theirs), (theirs, ours)):
        yield from _Values(one, other, deadline).of(one, other)


class _Values:
    """Values for a place of an instance, after the subschema that is to accept it and the one that is not to.

    One part of a value is varied at a time, so that what is tried grows with the schema and not with its power.
    """

    def __init__(self, accepting: JsonObject | bool, rejecting: JsonObject | bool, deadline: float) -> None:
        self._accepting = accepting
        self._rejecting = rejecting
        self._deadline = deadline  # of this process's CPU time, in s
        self._first: dict[int, tuple[JsonValue, JsonValue]] = {}  # id of a subschema: it, and its first value

    def of(
        self, accepting: JsonValue, rejecting: JsonValue, within: tuple[int, ...] = ()
    ) -> Iterator[JsonValue]:
        """The likeliest first; some more than once. `within`: the ids of the subschemas around this one."""
        depth, place = len(within), id(cast("object", accepting))
        if depth > MAX_DEPTH or time.process_time() > self._deadline:
            return
        is_recursive = isinstance(accepting, dict) and place in within
        if is_recursive or (depth and _says_nothing(accepting) and _says_nothing(rejecting)):
            yield from _ANY
            return
        theirs = _branches(rejecting, self._rejecting) or [{}]
        for ours in _branches(accepting, self._accepting):
            for other in theirs:
                yield from islice(
                    self._of_branch(ours, other, (*within, place)),
                    MAX_AT_ONE_PLACE if depth else None,
                )

    def _of_branch(
        self, ours: JsonObject, theirs: JsonObject, within: tuple[int, ...]
    ) -> Iterator[JsonValue]:
        yield from _named_values(ours)
        yield from _named_values(theirs)
        kinds = _kinds(ours)
        simple = {"boolean": (True, False), "null": (None,)}
        for kind in kinds:
            match kind:
                case "string":
                    yield from _strings(ours, theirs)
                case "integer" | "number":
                    yield from _numbers(ours, theirs)
                case "array":
                    yield from self._arrays(ours, theirs, within)
                case "object":
                    yield from self._objects(ours, theirs, within)
                case _:
                    yield from simple.get(kind, ())

    def _arrays(self, ours: JsonObject, theirs: JsonObject, within: tuple[int, ...]) -> Iterator[JsonValue]:
        first = _list(ours.get("prefixItems")) or _list(ours.get("items"))
        theirs_first = _list(theirs.get("prefixItems")) or _list(theirs.get("items"))
        rest, theirs_rest = _rest_of_items(ours), _rest_of_items(theirs)

        def item(at: int) -> Iterator[JsonValue]:
            accepting = first[at] if at < len(first) else rest
            rejecting = theirs_first[at] if at < len(theirs_first) else theirs_rest
            return self.of(accepting, rejecting, within)

        shortest = _whole(ours.get("minItems"), 0)
        common = self._first_accepted(rest, item(len(first)))
        base = [self._first_accepted(schema, item(at)) for at, schema in enumerate(first)][
            : max(shortest, len(first))
        ]
        base += [common] * min(max(0, shortest - len(base)), LONGEST_ARRAY)
        yield base
        for length in _lengths(ours, theirs, "Items", LONGEST_ARRAY):
            yield [*base, *([common] * (length - len(base)))][:length]
        for at in range(max(1, len(first), min(len(base), 1), len(theirs_first))):
            padded = [*base, *([common] * (at + 1 - len(base)))]
            for value in item(at):
                yield [*padded[:at], value, *padded[at + 1 :]]
        yield from self._distinct(item(len(first)), shortest)

    @staticmethod
    def _distinct(values: Iterator[JsonValue], shortest: int) -> Iterator[JsonValue]:
        distinct = {canonical_json(value): value for value in islice(values, MAX_AT_ONE_PLACE)}
        for length in dict.fromkeys((shortest, 1, 2, 3)):
            yield list(islice(distinct.values(), length))

    def _objects(self, ours: JsonObject, theirs: JsonObject, within: tuple[int, ...]) -> Iterator[JsonValue]:
        named, theirs_named = _members(ours.get("properties")), _members(theirs.get("properties"))
        required = [name for name in _list(ours.get("required")) if isinstance(name, str)]
        rest, theirs_rest = ours.get("additionalProperties", True), theirs.get("additionalProperties", True)

        def values(name: str) -> Iterator[JsonValue]:
            accepting = named.get(name, rest)
            return self.of(accepting, theirs_named.get(name, theirs_rest), within)

        def first(name: str) -> JsonValue:
            return self._first_accepted(named.get(name, rest), values(name))

        def is_same(name: str) -> bool:
            return named.get(name, rest) == theirs_named.get(name, theirs_rest)

        base: JsonObject = {name: first(name) for name in required}
        whole = {**base, **{name: first(name) for name in named if name not in base}}
        yield from (base, whole)
        names = dict.fromkeys([*named, *required, *theirs_named, *_list(theirs.get("required"))])
        for name in names:
            yield {key: value for key, value in whole.items() if key != name}
            yield {key: value for key, value in base.items() if key != name}
        # Where the two schemas say different things first: the search is bounded.
        for name in sorted((*map(str, names), UNDECLARED), key=is_same):
            for value in values(name):
                yield {**base, name: value}
                yield {**whole, name: value}
        for length in _lengths(ours, theirs, "Properties", LONGEST_ARRAY):
            more = {f"{UNDECLARED}{at}": first(UNDECLARED) for at in range(length - len(base))}
            yield dict(list({**base, **more}.items())[:length])

    def _first_accepted(self, schema: JsonValue, values: Iterator[JsonValue]) -> JsonValue:
        """The first value that the subschema accepts by itself, where that can be judged; else the first."""
        tried = list(islice(values, MAX_AT_ONE_PLACE))
        if not tried:
            return None
        try:
            alone = OutputSchema.parse(
                with_definitions_of(self._accepting, cast("JsonObject | bool", schema))
            )
        except InvalidSchema:
            return tried[0]
        return next((value for value in tried if _is_accepted(alone, value)), tried[0])


def _is_accepted(schema: OutputSchema, value: JsonValue) -> bool:
    try:
        schema.check_value(value)
    except OutputViolatesSchema:
        return False
    return True


# --- reading a schema ---------------------------------------------------------------------------------------------


def _branches(schema: JsonValue, root: JsonObject | bool) -> list[JsonObject]:
    """The schema with its references and `allOf` laid into it: one for each way through `anyOf` and `oneOf`."""
    if schema is True:
        return [{}]
    if not isinstance(schema, dict):
        return []
    done: list[JsonObject] = []
    todo: list[tuple[JsonObject, int]] = [(cast("JsonObject", schema), 0)]
    while todo and len(done) + len(todo) <= 4 * MAX_BRANCHES and len(done) < MAX_BRANCHES:
        members, depth = todo.pop(0)
        layers = [*_list(members.get("allOf"))]
        if isinstance(members.get("$ref"), str):
            layers.append(_target(members["$ref"], root))
        bare = {
            name: value for name, value in members.items() if name not in ("allOf", "$ref", "anyOf", "oneOf")
        }
        choices = _list(members.get("anyOf")) + _list(members.get("oneOf"))
        if depth > MAX_DEPTH or not (layers or choices):
            done.append(bare)
            continue
        for layer in layers:
            bare = _both(bare, layer)
        todo.extend((_both(bare, choice), depth + 1) for choice in choices or [{}])
    return done


def _both(members: JsonObject, layer: JsonValue) -> JsonObject:
    if not isinstance(layer, dict):
        return members
    over = cast("JsonObject", layer)
    both: JsonObject = {**over, **members}
    if "properties" in over and "properties" in members:
        both["properties"] = {**_members(over["properties"]), **_members(members["properties"])}
    for name in ("required", "allOf"):
        if name in over and name in members:
            both[name] = [*_list(members[name]), *_list(over[name])]
    return both


def _target(reference: str, root: JsonObject | bool) -> JsonValue:
    place: JsonValue = root
    if reference[:1] != "#":
        return None
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = cast("JsonObject", place).get(key)
        elif isinstance(place, list) and key.isdecimal() and int(key) < len(cast("list[JsonValue]", place)):
            place = cast("list[JsonValue]", place)[int(key)]
        else:
            return None
    return place


def _says_nothing(schema: JsonValue) -> bool:
    return schema is True or (
        isinstance(schema, dict) and not cast("JsonObject", schema).keys() - ANNOTATIONS
    )


def _members(value: JsonValue) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return cast("list[JsonValue]", value) if isinstance(value, list) else []


def _rest_of_items(schema: JsonObject) -> JsonValue:
    if isinstance(schema.get("items"), list):  # as drafts below 2020-12 have it
        return schema.get("additionalItems", True)
    return schema.get("items", True)


def _named_values(schema: JsonObject) -> Iterable[JsonValue]:
    """Values that stand in the schema itself."""
    single = [schema[name] for name in ("const", "default") if name in schema]
    return chain(_list(schema.get("examples")), single, _list(schema.get("enum")))


def _kinds(schema: JsonObject) -> Sequence[str]:
    given: JsonValue = schema.get("type")
    if isinstance(given, str):
        return (given,)
    if isinstance(given, list):
        return [kind for kind in cast("list[JsonValue]", given) if isinstance(kind, str)]
    if "properties" in schema or "required" in schema:
        return ("object", *(kind for kind in _KINDS if kind != "object"))
    return _KINDS


def _likely(schema: JsonObject | bool) -> JsonValue:
    try:
        return example_of(schema)
    except (OverflowError, ValueError):  # bounds near those of a double
        return None


def _strings(ours: JsonObject, theirs: JsonObject) -> Iterator[JsonValue]:
    likely = _likely({**ours, "type": "string"})
    text = likely if isinstance(likely, str) else "x"
    yield text
    for length in [*_lengths(ours, theirs, "Length", LONGEST_STRING), *_repetitions(ours, theirs)]:
        yield text[:length].ljust(length, text[-1:] or "x")
        yield from (character * length for character in _CHARACTERS)
    yield from _TEXTS


def _repetitions(ours: JsonObject, theirs: JsonObject) -> list[int]:
    """Lengths about the numbers in the braces of the two patterns."""
    patterns = f"{ours.get('pattern', '')} {theirs.get('pattern', '')}"
    numbers = [int(number) for number in _BRACES.findall(patterns)]
    return [
        near for number in dict.fromkeys(numbers) for near in (number, number + 1, number - 1) if near >= 0
    ]


def _numbers(ours: JsonObject, theirs: JsonObject) -> Iterator[JsonValue]:
    yield _likely({**ours, "type": "integer" if ours.get("type") == "integer" else "number"})
    steps = [
        each for each in (ours.get("multipleOf"), theirs.get("multipleOf")) if isinstance(each, (int, float))
    ]
    for schema in (theirs, ours):
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            bound: JsonValue = schema.get(name)
            if isinstance(bound, (int, float)) and not isinstance(bound, bool):
                near = (bound + sign * step for step in (0, 1, 0.5, *steps) for sign in (1, -1))
                yield from (each for each in near if math.isfinite(each))
    for step in steps:
        yield from (step, -step, 2 * step, step * 3)
    yield from _NUMBERS


def _lengths(ours: JsonObject, theirs: JsonObject, of: str, longest: int) -> list[int]:
    """The lengths at which the two schemas' bounds on `of` (Length, Items, Properties) may differ."""
    wanted = [
        _whole(ours.get(f"min{of}"), 0),
        _whole(ours.get(f"max{of}"), 1),
        _whole(theirs.get(f"min{of}"), 1) - 1,
        _whole(theirs.get(f"max{of}"), 0) + 1,
    ]
    return [length for length in dict.fromkeys(wanted) if 0 <= length <= longest]


def _whole(value: JsonValue, otherwise: int) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise
