"""A schema rewritten by keywords that backends know: `if`, `not`, `dependentRequired` and overlaps resolved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import jsonschema_rs

from headrace.schemas.backend_rewriting import rewritten
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.schema_bounds import DATA

BACKTRACK_LIMIT = 100_000  # steps of one pattern with look-around, as for the output check


def normalised(schema: JsonObject | bool) -> JsonObject | bool | None:
    """The schema in canonical form, accepting the same values; None where it has none that can be had.

    Properties keep the order of `schema`, for models write them in it; annotations are gone.

    It may take seconds of CPU and hundreds of megabytes for a schema of one kilobyte, so it is called only in
    the process that has limits for these, and in tests on small schemas.
    """
    try:
        form = jsonschema_rs.canonicalize(
            schema,
            # By default formats are dropped, and with them what they hold.
            validate_formats=True,
            offline=True,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT),
        ).to_json_schema()
    except Exception:  # noqa: BLE001 - ValidationError and those of `jsonschema_rs.canonical` have no other base
        return None
    if isinstance(form, bool):
        return form
    if not isinstance(form, dict) or not isinstance(schema, dict):
        return None
    order = _PropertyOrder(schema)
    return rewritten(cast("JsonObject", form), lambda place: order.restored(_closed(place)))


class _PropertyOrder:
    """The orders in which a schema's objects declare their properties."""

    def __init__(self, schema: JsonObject) -> None:
        self._orders = list(_orders(schema))
        self._ranks: dict[str, int] = {}
        for names in self._orders:
            for name in names:
                self._ranks.setdefault(name, len(self._ranks))

    def restored(self, place: JsonObject) -> JsonObject:
        """`place` with its properties in the order of the object that it is most like."""
        properties = place.get("properties")
        if isinstance(properties, dict):
            declared = cast("JsonObject", properties)
            place["properties"] = {name: declared[name] for name in self.sorted(list(declared))}
        return place

    def sorted(self, names: list[str]) -> list[str]:
        """`names` in the order of the object that has all of them, else in the order that they occur in."""
        nothing: JsonObject = {}
        shared = max(self._orders, key=lambda order: len(order.keys() & set(names)), default=nothing)
        ours = {name: rank for rank, name in enumerate(shared)}
        # Names of several objects stand in the document's order, as when an allOf has been merged.
        if len(ours.keys() & set(names)) == len(set(names)):
            return sorted(names, key=lambda name: ours[name])
        return sorted(names, key=lambda name: self._ranks.get(name, len(self._ranks)))


def _orders(value: JsonValue) -> Iterator[JsonObject]:
    if isinstance(value, dict):
        members = cast("JsonObject", value)
        properties = members.get("properties")
        if isinstance(properties, dict):
            yield cast("JsonObject", properties)
        for keyword, child in members.items():
            if keyword not in DATA:
                yield from _orders(child)
    elif isinstance(value, list):
        for child in cast("list[JsonValue]", value):
            yield from _orders(child)


def _closed(place: JsonObject) -> JsonObject:
    """`propertyNames` with the declared names turned back into `additionalProperties: false`, where it is that.

    The canonical form closes objects so, and guidance knows no `propertyNames`.
    """
    names = place.get("propertyNames")
    if not isinstance(names, dict):
        return place
    allowed = _allowed_names(cast("JsonObject", names))
    patterns = cast("JsonObject", place.get("patternProperties") or {})
    if allowed is None or not allowed.patterns <= patterns.keys():
        return place
    properties = cast("JsonObject", place.get("properties") or {})
    missing = [name for name in allowed.names if name not in properties]
    if patterns.keys() - allowed.patterns or "unevaluatedProperties" in place:
        return place
    others = place.get("additionalProperties", True)
    if others is not True and patterns:
        return place  # a missing name may match a pattern, and then it is not held to these
    closed = {keyword: value for keyword, value in place.items() if keyword != "propertyNames"}
    declared: JsonObject = {name: child for name, child in properties.items() if name in allowed.names}
    if len(declared) < len(properties) and patterns:
        return place  # the others may be allowed by a pattern
    declared |= dict.fromkeys(missing, others)
    if declared or "properties" in closed:
        closed["properties"] = declared
    closed["additionalProperties"] = False
    return closed


class _AllowedNames:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.patterns: set[str] = set()


def _allowed_names(schema: JsonObject) -> _AllowedNames | None:
    """The names and patterns that `propertyNames` lists; None where it says anything else."""
    allowed = _AllowedNames()
    branches = schema.get("anyOf")
    if isinstance(branches, list) and len(schema) == 1:
        todo = cast("list[JsonValue]", branches)
    else:
        todo = [cast("JsonValue", schema)]
    for branch in todo:
        if not isinstance(branch, dict):
            return None
        content: JsonObject = dict(cast("JsonObject", branch))
        if content.get("type") == "string":
            del content["type"]
        if len(content) != 1:
            return None
        ((keyword, value),) = content.items()
        if keyword == "pattern" and isinstance(value, str):
            allowed.patterns.add(value)
        elif keyword == "const" and isinstance(value, str):
            allowed.names.append(value)
        elif keyword == "enum" and isinstance(value, list):
            allowed.names.extend(name for name in cast("list[JsonValue]", value) if isinstance(name, str))
        else:
            return None
    return allowed
