"""A JSON value as the type that a parameter has. Each raises ApiError, with `param`, where it is of another type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from headrace.producers.http.refusing import invalid, unknown
from headrace.producers.http.suggesting import suggestion

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.schemas.messages import JsonObject, JsonValue


_KINDS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "true or false"), ((int, float), "a number"), (str, "a string"), (list, "an array"), (dict, "an object"),
)  # fmt: skip


def as_object(value: JsonValue, param: str) -> JsonObject:
    """The value, an object."""
    if not isinstance(value, dict):
        raise invalid(param, f"must be an object; given: {_kind(value)}")
    return cast("JsonObject", value)


def as_list(value: JsonValue, param: str) -> list[JsonValue]:
    """The value, an array."""
    if not isinstance(value, list):
        raise invalid(param, f"must be an array; given: {_kind(value)}")
    return cast("list[JsonValue]", value)


def as_text(value: JsonValue, param: str, *, longest: int | None = None) -> str:
    """The value, a string of at most `longest` characters."""
    if not isinstance(value, str):
        raise invalid(param, f"must be a string; given: {_kind(value)}")
    if longest is not None and len(value) > longest:
        raise invalid(param, f"must have at most {longest} characters; given: {len(value)}")
    return value


def as_flag(value: JsonValue, param: str) -> bool:
    """The value, true or false."""
    if not isinstance(value, bool):
        raise invalid(param, f"must be true or false; given: {_kind(value)}")
    return value


def as_one_of(value: JsonValue, names: Collection[str], param: str) -> str:
    """The value, one of `names`."""
    if not isinstance(value, str) or value not in names:
        raise invalid(param, f"must be one of {', '.join(repr(name) for name in names)}")
    return value


def without_nulls(value: JsonObject) -> JsonObject:
    """The members that are there: null means absent."""
    return {name: member for name, member in value.items() if member is not None}


def members(value: JsonValue, param: str, known: Collection[str]) -> JsonObject:
    """The members of an object that may have `known` ones only, without nulls."""
    found = without_nulls(as_object(value, param))
    for name in found:
        if name not in known:
            raise unknown(*suggestion(name, known, within=param))
    return found


def _kind(value: object) -> str:
    for kinds, name in _KINDS:
        if isinstance(value, kinds):
            return name
    return "null"
