"""The places of a schema that a value can be held to, and what can be asked about one of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from headrace.schemas.format_patterns import is_format
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.schema_bounds import NAMED_SUBSCHEMAS, REFERENCES, SUBSCHEMAS, SchemaMap, pointer_to

DEFINITIONS = frozenset({"$defs", "definitions"})
STRING_KEYWORDS = frozenset({"pattern", "minLength", "maxLength", "format"})
NUMBER_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
ARRAY_KEYWORDS = frozenset(
    {
        "items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems",
        "contains",
    }
)  # fmt: skip
OBJECT_KEYWORDS = frozenset(
    {
        "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
        "required", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies",
    }
)  # fmt: skip
COMBINING = frozenset({"allOf", "anyOf", "oneOf", "not", "if"})
# What holds a value to anything; all else in a schema is an annotation, or says more about one of these.
ASSERTIONS = (
    STRING_KEYWORDS
    | NUMBER_KEYWORDS
    | ARRAY_KEYWORDS
    | OBJECT_KEYWORDS
    | COMBINING
    | {"type", "enum", "const"}
    | frozenset(REFERENCES)
)
MAX_COMPARED_LEVELS = 8  # of two branches of a oneOf that are compared

# What a pattern may hold for xgrammar to take it as a validator does. Quotes, backslashes and control characters
# come out raw, so that the string ends or is no JSON; look-ahead and anchors in the middle are ignored.
_RAW = re.compile(
    r"""["\x00-\x1f]|\\["\\nrtfv0cbBAzZ]|\\x[01][0-9a-fA-F]|\\x22|\\x5[cC]|\\u00[01]|\\u0022|\\u005[cC]|\\u\{"""
    r"""|\(\?(?!:)|(?<!^)(?<!\[)\^"""
)
# The one spelling of "any character" in which no such character comes out, though it names some.
ANY_PLAIN_CHARACTER = r"[^\x00-\x1f]"
ANY_BUT_LINE_ENDS = r"[^\n\r\u2028\u2029]"


@dataclass(frozen=True, slots=True)
class Site:
    """A subschema that values are held to.

    `pointer` is where it stands, `schema` is never empty. `is_name`: it is held against the names of properties.
    """

    pointer: str
    schema: JsonObject
    draft: int
    is_name: bool
    places: SchemaMap

    def has(self, *keywords: str) -> bool:
        """Whether all of these stand here."""
        return all(keyword in self.schema for keyword in keywords)

    def has_any(self, *keywords: str) -> bool:
        """Whether one of these stands here."""
        return any(keyword in self.schema for keyword in keywords)

    @property
    def types(self) -> frozenset[str]:
        """The names under `type`; empty where there is none."""
        return _names(self.schema.get("type"))

    @property
    def assertions(self) -> frozenset[str]:
        """The keywords here that hold a value to something."""
        return frozenset(
            keyword for keyword in self.schema if keyword in ASSERTIONS and self._asserts(keyword)
        )

    def _asserts(self, keyword: str) -> bool:
        if keyword == "format":
            name = self.schema["format"]
            return isinstance(name, str) and is_format(name, self.draft)
        if keyword == "if":
            return self.has_any("then", "else")
        return True

    @property
    def patterns(self) -> tuple[str, ...]:
        """The regular expressions under `pattern` and `patternProperties`."""
        named = self.schema.get("patternProperties")
        pattern = self.schema.get("pattern")
        found = list(cast("JsonObject", named)) if isinstance(named, dict) else []
        return (*found, pattern) if isinstance(pattern, str) else tuple(found)

    @property
    def properties(self) -> JsonObject:
        """The schemas under `properties`; empty where there are none."""
        return _properties(self.schema)

    def branches(self, keyword: str) -> list[JsonValue]:
        """The schemas under anyOf, allOf, oneOf or items; empty where it is no list."""
        branches = self.schema.get(keyword)
        return cast("list[JsonValue]", branches) if isinstance(branches, list) else []


def sites_of(schema: JsonObject | bool) -> Iterator[Site]:
    """Every subschema that a value can be held to: the root and what it leads to, by keyword or reference.

    Definitions that nothing refers to are left out. Raises as `SchemaMap` does.
    """
    places = SchemaMap(schema)
    draft = draft_of(schema)
    children: dict[str, list[str]] = {}
    for pointer in places.subschemas:
        parent, keyword = _parent_of(pointer, places)
        if parent is not None and keyword in SUBSCHEMAS | NAMED_SUBSCHEMAS and keyword not in DEFINITIONS:
            children.setdefault(parent, []).append(pointer)
    seen: set[str] = set()
    todo = [""]
    while todo:
        pointer = todo.pop()
        place = places.subschemas.get(pointer)
        if place is None or pointer in seen:
            continue
        seen.add(pointer)
        if place.schema:
            yield Site(pointer, place.schema, draft, pointer.endswith("/propertyNames"), places)
        todo.extend(places.references_of(place))
        if not (
            "$ref" in place.schema and draft < 2019
        ):  # below, a reference stands for all that is beside it
            todo.extend(children.get(pointer, ()))


def draft_of(schema: JsonObject | bool) -> int:
    """4, 6, 7, 2019 or 2020: what `$schema` names, else the newest."""
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(declared, str):
        for name, draft in (("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019)):
            if name in declared:
                return draft
    return 2020


def comes_out_raw(pattern: str) -> bool:
    """Whether xgrammar takes a pattern for something else than a validator does, or may."""
    plain = pattern.replace(ANY_PLAIN_CHARACTER, "x").replace(ANY_BUT_LINE_ENDS, "x")
    return _RAW.search(plain) is not None


def with_javascript_dots(pattern: str) -> str:
    r"""A pattern in which Rust's engine reads `.` and `[` in a class as JavaScript's does.

    JSON Schema means JavaScript's dialect. There `.` matches no line end of Unicode, and `[[:alpha:]&&a]` is
    a class of single characters and then `]`; in Rust it matches U+2028, and the class is an intersection.
    """
    out: list[str] = []
    in_class = False
    index = 0
    while index < len(pattern):
        token = pattern[index : index + 2] if pattern[index] == "\\" else pattern[index]
        if in_class:
            in_class = token != "]"
            out.append(f"\\{token}" if token in "[&~" else token)
        elif token == "[":
            in_class = True
            out.append(token)
        else:
            out.append(ANY_BUT_LINE_ENDS if token == "." else token)
        index += len(token)
    return "".join(out)


def are_disjoint(site: Site, branches: list[JsonValue]) -> bool:
    """Whether it can be told from types, constants and required properties that no value is in two branches."""
    resolved = [_resolved(site, branch, index) for index, branch in enumerate(branches)]
    return all(
        _disjoint(site, one, other, 0)
        for index, one in enumerate(resolved)
        for other in resolved[index + 1 :]
    )


def _resolved(site: Site, branch: JsonValue, index: int) -> JsonValue:
    pointer = site.pointer + pointer_to(["oneOf", index])
    for _ in range(MAX_COMPARED_LEVELS):
        place = site.places.subschemas.get(pointer)
        if place is None or "$ref" not in place.schema:
            return place.schema if place else branch
        pointer = next(site.places.references_of(place))
    return branch


def _disjoint(site: Site, one: JsonValue, other: JsonValue, level: int) -> bool:
    if one is False or other is False:
        return True
    if not isinstance(one, dict) or not isinstance(other, dict) or level > MAX_COMPARED_LEVELS:
        return False
    return _schemas_disjoint(site, cast("JsonObject", one), cast("JsonObject", other), level)


def _schemas_disjoint(site: Site, one: JsonObject, other: JsonObject, level: int) -> bool:
    ours, theirs = _types_of(one), _types_of(other)
    if ours and theirs and not ours & theirs:
        return True
    values, others = _values_of(one), _values_of(other)
    if values is not None and others is not None:
        return all(value != another for value in values for another in others)
    if ours | theirs != frozenset({"object"}) or not ours or not theirs:
        return False
    return _objects_disjoint(site, one, other, level) or _objects_disjoint(site, other, one, level)


def _objects_disjoint(site: Site, one: JsonObject, other: JsonObject, level: int) -> bool:
    """Whether a property that `one` requires is another, or none, in `other`."""
    declared, theirs = _properties(one), _properties(other)
    is_closed = other.get("additionalProperties") is False and "patternProperties" not in other
    needed = _names(other.get("required"))
    for name in _names(one.get("required")):
        if (is_closed and name not in theirs) or theirs.get(name) is False:
            return True
        is_in_both = name in declared and name in theirs and name in needed
        if is_in_both and _disjoint(site, declared[name], theirs[name], level + 1):
            return True
    return False


def _properties(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    return cast("JsonObject", properties) if isinstance(properties, dict) else {}


def _names(value: JsonValue) -> frozenset[str]:
    if isinstance(value, str):
        return frozenset({value})
    members = cast("list[JsonValue]", value) if isinstance(value, list) else []
    return frozenset(member for member in members if isinstance(member, str))


def _values_of(schema: JsonObject) -> list[JsonValue] | None:
    if "const" in schema:
        return [schema["const"]]
    enum = schema.get("enum")
    return cast("list[JsonValue]", enum) if isinstance(enum, list) else None


def _types_of(schema: JsonObject) -> frozenset[str]:
    """The types of a value, `integer` counted as `number`; empty where any may be."""
    values = _values_of(schema)
    if values is not None:
        return frozenset(type_of(value) for value in values)
    return frozenset("number" if name == "integer" else name for name in _names(schema.get("type")))


def type_of(value: JsonValue) -> str:
    """The name of a value's JSON type; `number` for every number."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _parent_of(pointer: str, places: SchemaMap) -> tuple[str | None, str]:
    """The nearest subschema above, and the keyword under which this one stands in it."""
    steps = pointer.split("/")
    for length in (len(steps) - 1, len(steps) - 2):
        parent = "/".join(steps[:length])
        if (
            length > 0
            and parent in places.subschemas
            and _leads(places.subschemas[parent].schema, steps, length)
        ):
            return parent, steps[length]
    return None, ""


def _leads(schema: JsonObject, steps: list[str], length: int) -> bool:
    """Whether `steps` below `length` are a keyword's (`items`) or a keyword's and a name's (`properties`, `a`)."""
    value = schema.get(steps[length].replace("~1", "/").replace("~0", "~"))
    takes_a_name = steps[length] in NAMED_SUBSCHEMAS or isinstance(value, list)
    return len(steps) - length == (2 if takes_a_name else 1)
