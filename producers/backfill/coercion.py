"""A table's values as the types that a JSON Schema wants, where nothing is lost by it. Pure.

Tables write a year as a number and a count as a text. What is coerced reads back to what it was; what does not is left
as it is, for the schema to refuse.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject, JsonValue

Types = frozenset[str]  # of JSON; whatever takes any number takes whole ones too, and has both names

_EXACT: Final = 2**53  # up to here a double holds every whole number
_DEPTH: Final = 8  # of references that are followed
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,308})", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,308})(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_PYTHON_TYPES: Final[dict[str, type]] = {
    "null": type(None), "boolean": bool, "integer": int, "number": float, "string": str, "array": list, "object": dict,
}  # fmt: skip
_NULL: Final = frozenset({"null"})
_STRING: Final = frozenset({"string"})


def types_of(schema: JsonValue, root: JsonValue, depth: int = _DEPTH) -> Types | None:
    """The types that a schema may accept, as far as that can be told from a few keywords; None: any.

    `root` is the whole schema, in which references lead.
    """
    if not isinstance(schema, dict):
        return frozenset() if schema is False else None
    keywords = cast("JsonObject", schema)
    found: list[Types | None] = [_declared(keywords.get("type"))]
    if isinstance(values := keywords.get("enum"), list):
        found.append(_any_of([_types_of_value(value) for value in cast("list[JsonValue]", values)]))
    if "const" in keywords:
        found.append(_types_of_value(keywords["const"]))
    if depth:
        for keyword in ("anyOf", "oneOf"):
            if isinstance(branches := keywords.get(keyword), list):
                found.append(
                    _any_of([types_of(each, root, depth - 1) for each in cast("list[JsonValue]", branches)])
                )
        if isinstance(branches := keywords.get("allOf"), list):
            found += [types_of(each, root, depth - 1) for each in cast("list[JsonValue]", branches)]
        if isinstance(reference := keywords.get("$ref"), str):
            found.append(types_of(_referred(reference, root), root, depth - 1))
    said = [types for types in found if types is not None]
    if not said:
        return None
    return frozenset(name for name in said[0] if all(name in types for types in said))


def kept_types(types: Types | None) -> frozenset[type]:
    """The Python types whose values need no coercion. Nulls do, unless the schema names them."""
    if types is None:
        return frozenset(_PYTHON_TYPES.values()) - {type(None)}
    return frozenset(_PYTHON_TYPES[name] for name in types if name in _PYTHON_TYPES)


def coerced(value: JsonValue, types: Types) -> JsonValue:
    """A value that is of none of the types as one that is; the value itself where that would lose something."""
    if isinstance(value, str):
        return _of_text(value, types)
    if "integer" in types and _is_whole(value):
        return int(value)
    if types - _NULL == _STRING and isinstance(value, (bool, int, float)):
        return _as_text(value)
    return value


def _of_text(text: str, types: Types) -> JsonValue:
    if "integer" in types and _INTEGER.fullmatch(text) and text != "-0":
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        number = float(text)
        if math.isfinite(number) and Decimal(text) == Decimal(repr(number)):
            return number
    if "boolean" in types and text in ("true", "false"):
        return text == "true"
    return text


def _as_text(value: bool | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # Tables hold whole numbers as doubles where some are missing: 1995.0 is the year 1995.
    return str(int(value)) if _is_whole(value) else repr(value)


def _is_whole(value: JsonValue) -> bool:
    """Whether it is a double that a whole number says as well. -0.0 is none: the sign would be lost."""
    if not isinstance(value, float) or not value.is_integer() or abs(value) > _EXACT:
        return False
    return value != 0.0 or math.copysign(1, value) > 0


def _declared(given: JsonValue) -> Types | None:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list):
        return None
    found = frozenset(name for name in cast("list[JsonValue]", names) if isinstance(name, str))
    return found | {"integer"} if "number" in found else found


def _types_of_value(value: JsonValue) -> Types:
    """Of whatever equals the value: 1 and 1.0 are one number to JSON Schema."""
    name = next(name for name, kind in _PYTHON_TYPES.items() if type(value) is kind)
    if name == "integer" or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    return frozenset({name})


def _any_of(branches: list[Types | None]) -> Types | None:
    union: Types = frozenset()
    for types in branches:
        if types is None:
            return None
        union |= types
    return union


def _referred(reference: str, root: JsonValue) -> JsonValue:
    """What a reference within the schema leads to; True, which accepts anything, where that cannot be told."""
    if not reference.startswith("#"):
        return True
    place: JsonValue = root
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, dict) or key not in place:
            return True
        place = cast("JsonObject", place)[key]
    return place
