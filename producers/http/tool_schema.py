"""The JSON Schema that a call of any one of several tools is held to. Pure.

The schema of a tool's arguments is a document of its own, with references into itself. Where several become one
document, references are written anew as pointers, and what would set another base for them (`$id`, `$anchor`) is left
out. A document has one draft, so tools whose schemas mean different things in different drafts cannot share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast
from urllib.parse import quote

from headrace.schemas.errors import InvalidSchema
from headrace.schemas.keyword_sites import ASSERTIONS, draft_of
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.schema_bounds import SchemaMap, Subschema, pointer_to

_FRAGMENT: Final = "/~!$&'()*+,;=:@?"  # what a URI's fragment holds unescaped, beside letters and digits
_LEFT_OUT: Final = frozenset(
    {"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"}
)
_DYNAMIC: Final = ("$dynamicRef", "$recursiveRef")
_OF_SOME_DRAFTS: Final = frozenset(
    {
        "additionalItems", "dependencies", "dependentRequired", "dependentSchemas", "maxContains", "minContains",
        "prefixItems", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
_NOT_BEFORE_DRAFT_7: Final = frozenset({"const", "contains", "if", "propertyNames"})


def any_call_schema(functions: Sequence[tuple[str, JsonObject]]) -> JsonObject:
    """The schema of `{"name": ..., "arguments": ...}` over (name, schema of the arguments), in that order.

    Raises InvalidToolSchema where a schema is no JSON Schema of this document alone, or its draft not the others'.
    """
    maps = [_map(index, schema) for index, (_, schema) in enumerate(functions)]
    declared = _common_draft([schema for _, schema in functions], maps)
    older: JsonObject = {"$schema": declared} if declared else {}
    draft = draft_of(older)
    kept_under = "$defs" if draft >= 2019 else "definitions"
    branches: list[JsonObject] = []
    definitions: JsonObject = {}
    for index, ((name, arguments), places) in enumerate(zip(functions, maps, strict=True)):
        # A place that a pointer leads to through objects alone: xgrammar follows none through an array.
        place = pointer_to([kept_under, f"arguments{index}"])
        definitions[f"arguments{index}"] = cast(
            "JsonObject", _Move(arguments, places, place).copy(arguments, "")
        )
        branches.append(
            {
                "type": "object",
                "properties": {
                    "name": {"enum": [name]} if draft == 4 else {"const": name},
                    "arguments": {"$ref": f"#{place}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {**older, "anyOf": branches, kept_under: definitions}


class InvalidToolSchema(InvalidSchema):
    """The schema of the function `index` cannot be held; `path` is a pointer into it."""

    def __init__(self, index: int, message: str, path: str | None) -> None:
        super().__init__(message, path=path)
        self.index = index


# --- drafts ---------------------------------------------------------------------------------------------------------


def _common_draft(schemas: Sequence[JsonObject], maps: Sequence[SchemaMap]) -> str | None:
    """The `$schema` that the document is to have; None for the newest draft.

    Many generators write draft 7 at the head of what means the same in the newest: such a schema has no say.
    """
    told_apart = _OF_SOME_DRAFTS
    if any(draft_of(schema) < 7 for schema in schemas):
        told_apart |= _NOT_BEFORE_DRAFT_7
    found: dict[int, str | None] = {}
    for index, (schema, places) in enumerate(zip(schemas, maps, strict=True)):
        draft = draft_of(schema)
        for place in places.subschemas.values():
            keyword = _depends(place.schema, told_apart)
            if keyword is not None and found and draft not in found:
                sentence = "means another thing in the draft of JSON Schema that a tool before it has"
                raise InvalidToolSchema(index, f"{keyword} {sentence}", place.pointer)
            if keyword is not None:
                found[draft] = cast("str | None", schema.get("$schema"))
    return next(iter(found.values()), None)


def _map(index: int, schema: JsonObject) -> SchemaMap:
    try:
        places = SchemaMap(schema)
    except InvalidSchema as error:
        raise InvalidToolSchema(index, error.message, error.path) from None
    for place in places.subschemas.values():
        for keyword in _DYNAMIC:
            if keyword in place.schema:
                raise InvalidToolSchema(
                    index, f"{keyword} is not held where several tools may be called", place.pointer
                )
    return places


def _depends(schema: JsonObject, told_apart: frozenset[str]) -> str | None:
    """A keyword that not all drafts take alike; None where there is none."""
    if isinstance(schema.get("items"), list):
        return "items as a list"
    if any(isinstance(schema.get(bound), bool) for bound in ("exclusiveMinimum", "exclusiveMaximum")):
        return "a boolean bound"
    if "$ref" in schema and len(schema.keys() & ASSERTIONS) > 1:
        return "$ref beside other keywords"
    return min(schema.keys() & told_apart, default=None)


# --- references -----------------------------------------------------------------------------------------------------


class _Move:
    """A schema, as it reads at the pointer `prefix` of another document."""

    def __init__(self, schema: JsonObject, places: SchemaMap, prefix: str) -> None:
        self._places = places
        self._prefix = prefix
        self._left_out = _LEFT_OUT | ({"id"} if draft_of(schema) == 4 else set[str]())

    def copy(self, value: JsonValue, pointer: str) -> JsonValue:
        """What stands at `pointer`. It recurses, and a SchemaMap takes no deep schemas."""
        if isinstance(value, list):
            items = cast("list[JsonValue]", value)
            return [self.copy(item, f"{pointer}/{index}") for index, item in enumerate(items)]
        if not isinstance(value, dict):
            return value
        place = self._places.subschemas.get(pointer)
        copied: JsonObject = {}
        for name, member in cast("JsonObject", value).items():
            if place is None or name not in self._left_out:  # else it is a property's name, or data
                copied[name] = self.copy(member, pointer + pointer_to([name]))
        if place is not None and isinstance(copied.get("$ref"), str):
            copied["$ref"] = self._reference(place)
        return copied

    def _reference(self, place: Subschema) -> str:
        given: str = place.schema["$ref"]
        if not place.base and (given == "#" or given.startswith("#/")):
            return f"#{self._prefix}{given[1:]}"  # as its author spelt it: not every backend reads %20
        return "#" + quote(self._prefix + next(self._places.references_of(place)), safe=_FRAGMENT)
