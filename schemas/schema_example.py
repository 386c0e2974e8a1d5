"""A value that a JSON Schema is likely to accept, for people to look at. Pure.

It follows what schemas usually say, not all that they can: whoever needs to know validates the value.
"""

from __future__ import annotations

from typing import cast
from urllib.parse import unquote

from headrace.schemas.messages import JsonObject, JsonValue

MAX_DEPTH = 16  # levels of subschemas; what is deeper becomes null

_BY_FORMAT = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "duration": "PT1H",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "time": "12:00:00Z",
    "uri": "https://example.com/",
    "uuid": "3f2b6c1e-8d7a-4c5b-9e0f-1a2b3c4d5e6f",
}


def example_of(schema: JsonObject | bool) -> JsonValue:
    """A value for a schema: its own examples, default or enum first, else made from its keywords."""
    return _example(schema, schema, 0)


def _example(schema: JsonValue, root: JsonObject | bool, depth: int) -> JsonValue:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    members = _merged(cast("JsonObject", schema), root)
    for keyword in ("examples", "enum"):
        if members.get(keyword):
            return members[keyword][0]
    for keyword in ("const", "default"):
        if keyword in members:
            return members[keyword]
    match _kind(members):
        case "object":
            return _object(members, root, depth)
        case "array":
            return _array(members, root, depth)
        case "string":
            return _string(members)
        case "integer" | "number":
            return _number(members)
        case "boolean":
            return True
        case _:
            return None


def _merged(schema: JsonObject, root: JsonObject | bool) -> JsonObject:
    """The schema with what it refers to, `allOf`, and the first of `anyOf` and `oneOf` laid into it."""
    members = schema
    for _ in range(MAX_DEPTH):
        layers: list[JsonValue] = [
            *(members.get("allOf") or []),
            *(members.get("anyOf") or [])[:1],
            *(members.get("oneOf") or [])[:1],
        ]
        if isinstance(members.get("$ref"), str):
            layers.append(_target(members["$ref"], root))
        members = {
            name: value for name, value in members.items() if name not in ("allOf", "anyOf", "oneOf", "$ref")
        }
        if not layers:
            break
        for layer in layers:
            if isinstance(layer, dict):
                members = _laid_over(members, cast("JsonObject", layer))
    return members


def _laid_over(members: JsonObject, layer: JsonObject) -> JsonObject:
    both = {**layer, **members}
    if "properties" in layer and "properties" in members:
        both["properties"] = {**layer["properties"], **members["properties"]}
    if "required" in layer and "required" in members:
        both["required"] = [*members["required"], *layer["required"]]
    return both


def _target(reference: str, root: JsonObject | bool) -> JsonValue:
    place: JsonValue = root
    for part in unquote(reference.removeprefix("#")).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = cast("JsonObject", place).get(key)
        elif isinstance(place, list) and key.isdecimal():
            members = cast("list[JsonValue]", place)
            place = members[int(key)] if int(key) < len(members) else None
    return cast("JsonValue", place)


def _kind(members: JsonObject) -> str:
    given: JsonValue = members.get("type")
    if isinstance(given, list):
        kinds = cast("list[str]", given)
        return kinds[0] if kinds else "null"
    if isinstance(given, str):
        return given
    if "properties" in members or "required" in members:
        return "object"
    if "items" in members or "prefixItems" in members:
        return "array"
    return "integer" if "minimum" in members or "maximum" in members else "string"


def _object(members: JsonObject, root: JsonObject | bool, depth: int) -> JsonObject:
    properties: JsonObject = members.get("properties") or {}
    required: list[str] = members.get("required") or []
    wanted = required or list(properties)
    return {name: _example(properties.get(name, {}), root, depth + 1) for name in dict.fromkeys(wanted)}


def _array(members: JsonObject, root: JsonObject | bool, depth: int) -> list[JsonValue]:
    first = cast("list[JsonValue]", members.get("prefixItems") or [])
    count = max(int(members.get("minItems", 0)), 0 if members.get("maxItems") == 0 else 1)
    rest: JsonValue = members.get("items", {})
    schemas = [*first, *([rest] * min(count, 100))][: max(count, len(first))]
    return [_example(schema, root, depth + 1) for schema in schemas]


def _string(members: JsonObject) -> str:
    text = _BY_FORMAT.get(str(members.get("format")), "some text")
    shortest, longest = int(members.get("minLength", 0)), int(members.get("maxLength", 1_000))
    return text.ljust(min(shortest, 1_000), "x")[:longest]


def _number(members: JsonObject) -> int | float:
    whole = members.get("type") == "integer"
    step = members.get("multipleOf") or 1
    low, high = members.get("minimum"), members.get("maximum")
    for keyword, sign in (("exclusiveMinimum", 1), ("exclusiveMaximum", -1)):
        bound = members.get(keyword)
        if isinstance(bound, (int, float)) and not isinstance(bound, bool):
            beyond = bound + sign * (step if whole else step / 2)
            low, high = (beyond, high) if sign > 0 else (low, beyond)
    value = low if low is not None else min(high, 1) if high is not None else 1
    value = -(-value // step) * step
    return int(value) if whole else value
