"""What a JSON Schema may ask for, and where in it its subschemas stand.

Grammar compilers and validators have been brought down by small schemas: `^[a-z]{1,10000}$` (109 bytes)
kept one busy for half a minute, and sixty definitions that each name the next one twice are evaluated 2^60
times. The limits refuse 0.2 % of 11,305 schemas collected from real projects. Nothing here recurses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urldefrag, urljoin

from headrace.schemas.errors import InvalidSchema, SchemaTooComplex
from headrace.schemas.messages import JsonObject, JsonValue

MAX_BYTES = 256 * 1024  # of the schema as JSON text
MAX_DEPTH = 64  # levels of arrays and objects in the schema itself
MAX_SUBSCHEMAS = 4_000
MAX_ENUM_VALUES_IN_ALL = 4_000
MAX_OPTIONAL_PROPERTIES = 256  # of one object
MAX_PATTERNS = 128
MAX_PATTERN_CHARACTERS = 1_024
MAX_QUANTIFIER = 1_000  # the largest number in a {m,n} of a pattern
MAX_EVALUATIONS = (
    1_000  # of subschemas at one place of a value, $ref and allOf followed; real ones stay below 50
)
# Subschemas that lead to each other at one place of a value, again and again at each level of it: the validator
# recurses for each, and 127 levels of 500 were seen to overflow the stack, which ends the process. Real ones have 5.
MAX_CHAIN = 16

# keyword: (the most members it may have, what they are called)
MEMBER_LIMITS = {
    "enum": (2_000, "values"),
    "anyOf": (128, "branches"),
    "oneOf": (128, "branches"),
    "allOf": (128, "branches"),
    "patternProperties": (64, "patterns"),
}
# keyword: the largest number it may have
NUMBER_LIMITS = {
    "minItems": 4_096,
    "maxItems": 4_096,
    "minLength": 1_000_000,
    "maxLength": 1_000_000,
    "multipleOf": 10_000,
}

NAMED_SUBSCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
DATA = frozenset({"enum", "const", "default", "examples", "required", "type", "dependentRequired"})
SUBSCHEMAS = frozenset(
    {
        "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema", "else",
        "if", "items", "not", "oneOf", "prefixItems", "propertyNames", "then", "unevaluatedItems",
        "unevaluatedProperties",
    }
)  # fmt: skip
IN_PLACE = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)
UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

# What is escaped or a code point (\{, \u{10000}) is skipped; what is left in braces is a quantifier.
_QUANTIFIER = re.compile(r"\\[uxpP]\{[^}]*\}|\\.|\{(\d+)(?:,(\d*))?\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Subschema:
    """One place in a schema where a schema stands.

    `base` is the URI that its references are resolved against. `is_known` is False below a keyword that no
    draft has, where only a reference makes a schema of what stands there. `in_place_of` is the pointer of the
    subschema that is applied to the same value, None where this one is applied to a part of it or to nothing.
    """

    pointer: str
    schema: JsonObject
    base: str
    is_known: bool
    in_place_of: str | None


def pointer_to(path: Iterable[str | int]) -> str:
    """The JSON pointer (RFC 6901) of a path of keys and indices, whole; the root's is empty."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


class SchemaMap:
    """All subschemas of a schema by pointer, in document order, with what their references refer to.

    Raises InvalidSchema for what is no JSON or refers to nothing in this document, SchemaTooComplex beyond
    the bounds.
    """

    def __init__(self, schema: JsonValue) -> None:
        _check_size(schema)
        self.subschemas: dict[str, Subschema] = {}
        self._places: set[str] = set()  # the subschemas' pointers, those of `true` and `false` as well
        declared = cast("JsonObject", schema).get("$schema") if isinstance(schema, dict) else None
        self._id = "id" if isinstance(declared, str) and "draft-04" in declared else "$id"
        self._resources: dict[str, str] = {"": ""}  # URI: pointer
        self._anchors: dict[tuple[str, str], str] = {}  # (URI, name): pointer
        self._walk(schema)
        self._check_bounds()
        self._check_evaluations()

    def _walk(self, schema: JsonValue) -> None:
        todo: list[tuple[list[str | int], JsonValue, str, bool, str | None]] = [([], schema, "", True, None)]
        while todo:
            path, value, base, is_known, in_place_of = todo.pop()
            pointer = pointer_to(path)
            self._places.add(pointer)
            if len(self._places) > MAX_SUBSCHEMAS:
                raise _too_many(f"{len(self._places):,} subschemas", MAX_SUBSCHEMAS, pointer)
            if not isinstance(value, dict):
                continue
            members = cast("JsonObject", value)
            base = self._enter(pointer, members, base)
            self.subschemas[pointer] = Subschema(pointer, members, base, is_known, in_place_of)
            children = [
                (path + steps, child, base, is_known and known, pointer if in_place else None)
                for steps, child, known, in_place in _children(members)
            ]
            todo.extend(reversed(children))

    def _enter(self, pointer: str, schema: JsonObject, base: str) -> str:
        """Note the resource and anchors that begin here; the base URI that holds from here on."""
        identifier = schema.get(self._id)
        if isinstance(identifier, str):
            uri, fragment = _join(base, identifier, f"{pointer}/{self._id}")
            if fragment:
                self._anchors[uri, fragment] = pointer
            else:
                self._resources[uri] = pointer
                base = uri
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                self._anchors[base, anchor] = pointer
        return base

    def references_of(self, subschema: Subschema) -> Iterator[str]:
        """The pointers that `subschema` refers to. Raises InvalidSchema where no schema stands there."""
        for keyword in REFERENCES:
            reference = subschema.schema.get(keyword)
            if isinstance(reference, str):
                yield self._resolve(reference, subschema.base, f"{subschema.pointer}/{keyword}")

    def _resolve(self, reference: str, base: str, path: str) -> str:
        uri, fragment = _join(base, reference, path)
        resource = self._resources.get(uri)
        if resource is None:
            raise InvalidSchema(
                f"{reference!r} refers to another document, and none is fetched: copy it into $defs",
                path=path,
            )
        target = (
            resource + fragment if not fragment or fragment[0] == "/" else self._anchors.get((uri, fragment))
        )
        if target is None or target not in self._places:
            raise InvalidSchema(f"{reference!r} refers to no schema in this document", path=path)
        return target

    def _check_bounds(self) -> None:
        values = patterns = 0
        for subschema in self.subschemas.values():
            _check_keywords(subschema)
            enum = subschema.schema.get("enum")
            values += len(cast("list[JsonValue]", enum)) if isinstance(enum, list) else 0
            if values > MAX_ENUM_VALUES_IN_ALL:
                path = f"{subschema.pointer}/enum"
                raise _too_many(f"enum: {values:,} values in all", MAX_ENUM_VALUES_IN_ALL, path)
            for path, pattern in _patterns(subschema):
                patterns += 1
                if patterns > MAX_PATTERNS:
                    raise _too_many(f"{patterns:,} patterns", MAX_PATTERNS, path)
                check_pattern(pattern, path)

    def _check_evaluations(self) -> None:
        """Count how often subschemas are evaluated at one place of a value; refuse loops and explosions."""
        in_place: dict[str, list[str]] = {pointer: [] for pointer in self.subschemas}
        for subschema in self.subschemas.values():
            if subschema.in_place_of is not None:
                in_place[subschema.in_place_of].append(subschema.pointer)
            targets = self.references_of(subschema)
            in_place[subschema.pointer].extend(target for target in targets if target in in_place)
        evaluations: dict[str, int] = {}
        chain: dict[str, int] = {}
        begun: set[str] = set()
        todo = list(in_place)
        while todo:
            pointer = todo[-1]
            missing = [child for child in in_place[pointer] if child not in evaluations]
            if pointer in evaluations:
                todo.pop()
            elif not missing:
                todo.pop()
                # The validator goes through these once more to learn what they have evaluated.
                times = 2 if self.subschemas[pointer].schema.keys() & UNEVALUATED else 1
                evaluations[pointer] = 1 + times * sum(evaluations[child] for child in in_place[pointer])
                chain[pointer] = 1 + max((chain[child] for child in in_place[pointer]), default=0)
                if evaluations[pointer] > MAX_EVALUATIONS:
                    raise _too_many(
                        f"{evaluations[pointer]:,} subschemas for one value", MAX_EVALUATIONS, pointer
                    )
                if chain[pointer] > MAX_CHAIN:
                    raise _too_many(
                        f"a chain of {chain[pointer]} subschemas for one value", MAX_CHAIN, pointer
                    )
            elif pointer in begun:
                raise InvalidSchema("refers to itself without going deeper into the value", path=pointer)
            else:
                begun.add(pointer)
                todo.extend(missing)


def check_bounds(schema: JsonValue) -> None:
    """Raises SchemaTooComplex, with the keyword and its pointer, where a schema asks for more than is held.

    Raises InvalidSchema for what is no JSON, and for references that lead out of the document, nowhere or in
    a circle.
    """
    SchemaMap(schema)


def check_pattern(pattern: str, path: str) -> None:
    """Raises SchemaTooComplex for a pattern that is too long or repeats too often."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise _too_many(f"pattern: {len(pattern):,} characters", MAX_PATTERN_CHARACTERS, path)
    for match in _QUANTIFIER.finditer(pattern):
        for number in match.groups():
            # Compared by length first: int() refuses thousands of digits.
            if number and (len(number) > 9 or int(number) > MAX_QUANTIFIER):
                raise SchemaTooComplex(
                    f"pattern: the quantifier {match[0][:20]} is beyond {MAX_QUANTIFIER:,}", path=path
                )


def _check_size(schema: JsonValue) -> None:
    todo: list[tuple[JsonValue, int]] = [(schema, 1)]
    count = 0
    while todo:
        value, depth = todo.pop()
        count += 1
        _check_is_json(value)
        if depth > MAX_DEPTH and isinstance(value, (dict, list)):
            raise SchemaTooComplex(f"the schema is nested more than {MAX_DEPTH} levels deep", path="")
        # Each value takes a byte at least, so this many cannot fit. It ends values that hold themselves.
        if count > MAX_BYTES:
            raise _too_many(f"{count:,} values", MAX_BYTES, "")
        todo.extend((child, depth + 1) for child in _members(value))
    try:
        size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode())
    except ValueError as error:  # NaN, an infinity, or a lone surrogate
        raise InvalidSchema(f"not JSON: {error}", path="") from None
    if size > MAX_BYTES:
        raise _too_many(f"{size:,} bytes", MAX_BYTES, "")


def _members(value: JsonValue) -> Iterable[JsonValue]:
    if isinstance(value, dict):
        return cast("JsonObject", value).values()
    return cast("list[JsonValue]", value) if isinstance(value, list) else ()


def _check_is_json(value: JsonValue) -> None:
    if isinstance(value, dict):
        for key in cast("dict[Any, JsonValue]", value):
            if not isinstance(key, str):
                raise InvalidSchema(f"not JSON: the key {key!r} is no string", path="")
    elif value is not None and not isinstance(value, (str, int, float, list)):
        raise InvalidSchema(f"not JSON: {value!r} is a {type(value).__name__}", path="")


def _check_keywords(subschema: Subschema) -> None:
    schema, pointer = subschema.schema, subschema.pointer
    if "x-guidance" in schema:
        raise InvalidSchema(
            "x-guidance is refused: it can switch the enforcement of a schema off",
            path=f"{pointer}/x-guidance",
        )
    for keyword, (limit, what) in MEMBER_LIMITS.items():
        members = schema.get(keyword)
        if isinstance(members, (list, dict)):
            count = len(cast("list[JsonValue] | JsonObject", members))
            if count > limit:
                raise _too_many(f"{keyword}: {count:,} {what}", limit, f"{pointer}/{keyword}")
    for keyword, limit in NUMBER_LIMITS.items():
        number = schema.get(keyword)
        if isinstance(number, (int, float)) and number > limit:
            raise SchemaTooComplex(f"{keyword} is larger than {limit:,}", path=f"{pointer}/{keyword}")
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        names = (
            {name for name in cast("list[JsonValue]", required) if isinstance(name, str)}
            if isinstance(required, list)
            else set[str]()
        )
        optional = len(cast("JsonObject", properties).keys() - names)
        if optional > MAX_OPTIONAL_PROPERTIES:
            what = f"properties: {optional:,} optional ones"
            raise _too_many(what, MAX_OPTIONAL_PROPERTIES, f"{pointer}/properties")


def _patterns(subschema: Subschema) -> Iterator[tuple[str, str]]:
    pattern, named = subschema.schema.get("pattern"), subschema.schema.get("patternProperties")
    if isinstance(pattern, str):
        yield f"{subschema.pointer}/pattern", pattern
    if isinstance(named, dict):
        for name in cast("JsonObject", named):
            yield subschema.pointer + pointer_to(["patternProperties", name]), name


def _children(schema: JsonObject) -> Iterator[tuple[list[str | int], JsonValue, bool, bool]]:
    """Where subschemas stand: the steps, the schema, whether its keyword is known and applies in place."""
    for keyword, value in schema.items():
        if keyword in DATA:
            continue
        known, in_place = keyword in SUBSCHEMAS or keyword in NAMED_SUBSCHEMAS, keyword in IN_PLACE
        if isinstance(value, list):
            for index, child in enumerate(cast("list[JsonValue]", value)):
                if isinstance(child, (dict, bool)):
                    yield [keyword, index], child, known, in_place
        elif isinstance(value, dict) and keyword in NAMED_SUBSCHEMAS:
            for name, child in cast("JsonObject", value).items():
                if isinstance(child, (dict, bool)):
                    yield [keyword, name], child, known, in_place
        elif isinstance(value, dict) or (known and isinstance(value, bool)):
            yield [keyword], cast("JsonValue", value), known, in_place


def _join(base: str, reference: str, path: str) -> tuple[str, str]:
    """(URI, fragment) of a reference. urljoin drops the base of a mere fragment where the base is a URN."""
    try:
        uri, fragment = urldefrag(base + reference if reference.startswith("#") else urljoin(base, reference))
        return uri, unquote(fragment)
    except ValueError as error:
        raise InvalidSchema(f"{reference!r} is no URI reference: {error}", path=path) from None


def _too_many(what: str, limit: int, path: str) -> SchemaTooComplex:
    return SchemaTooComplex(f"{what}, and at most {limit:,} are held", path=path)
