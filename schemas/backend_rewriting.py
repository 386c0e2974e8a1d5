"""Rewritings that give a backend a schema it can hold. Pure.

Each keeps what the schema accepts, or narrows it, except `without` and `lenient`, which give keywords up.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping
from typing import cast

from headrace.schemas.format_patterns import FORMAT_PATTERNS, is_format
from headrace.schemas.keyword_sites import (
    ANY_PLAIN_CHARACTER,
    NUMBER_KEYWORDS,
    draft_of,
    with_javascript_dots,
)
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.schema_bounds import DATA, NAMED_SUBSCHEMAS, SUBSCHEMAS

LARGEST_EXACT_INTEGER = 2**53 - 1  # larger ones are not the same number to every reader of JSON
# xgrammar compiles {1,128} of a pattern, but {1,129} raised "invalid repetition" in vLLM's compiler.
MAX_REPEATED_CHARACTER = 128
# Or what is to be left alone: an escape, a class.
_OPTIONAL_GROUP = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\)\?", re.DOTALL)

Change = Callable[[JsonObject], JsonObject]


def rewritten(schema: JsonObject, change: Change) -> JsonObject:
    """A copy in which `change` has been applied to every subschema, the innermost first; order is kept.

    `change` is given a copy that it may alter.
    """
    result: JsonObject = {}
    for keyword, value in schema.items():
        if keyword in DATA:
            result[keyword] = value
        elif keyword in NAMED_SUBSCHEMAS and isinstance(value, dict):
            named = cast("JsonObject", value)
            result[keyword] = {name: _below(child, change) for name, child in named.items()}
        elif keyword in SUBSCHEMAS and isinstance(value, list):
            result[keyword] = [_below(child, change) for child in cast("list[JsonValue]", value)]
        else:
            result[keyword] = _below(value, change) if keyword in SUBSCHEMAS else value
    return change(result)


def _below(value: JsonValue, change: Change) -> JsonValue:
    return rewritten(cast("JsonObject", value), change) if isinstance(value, dict) else value


def without_annotations_as_formats(schema: JsonObject) -> JsonObject:
    """Without the formats that the validator does not know: they hold nothing, and backends refuse them."""
    draft = draft_of(schema)

    def change(place: JsonObject) -> JsonObject:
        name = place.get("format")
        if isinstance(name, str) and not is_format(name, draft):
            del place["format"]
        return place

    return rewritten(schema, change)


def with_number_bounds(schema: JsonObject) -> JsonObject:
    """With a bound of +-(2**53 - 1) wherever an integer or number has none on that side.

    So integers fit into 64 bits and no number is `1e999`, which a grammar of unbounded numbers admits and no
    double can hold: a backend writes bounded numbers without exponents.
    """
    return rewritten(schema, _bound)


def _bound(place: JsonObject) -> JsonObject:
    types = place.get("type")
    names = cast("list[JsonValue]", types) if isinstance(types, list) else [types]
    if not {"integer", "number"} & {name for name in names if isinstance(name, str)}:
        return place
    # Multiples of a bounded number are enforced for positive ones alone.
    if "enum" in place or "const" in place or "multipleOf" in place:
        return place
    bounds = [place.get(keyword) for keyword in NUMBER_KEYWORDS]
    if any(isinstance(bound, (int, float)) and abs(bound) >= LARGEST_EXACT_INTEGER for bound in bounds):
        return place
    if "minimum" not in place and not _is_number(place.get("exclusiveMinimum")):
        place["minimum"] = -LARGEST_EXACT_INTEGER
    if "maximum" not in place and not _is_number(place.get("exclusiveMaximum")):
        place["maximum"] = LARGEST_EXACT_INTEGER
    return place


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def with_javascript_patterns(schema: JsonObject) -> JsonObject:
    """With patterns that mean to Rust's engine what they mean to JavaScript's, and so to the validator."""
    return _with_patterns(schema, with_javascript_dots)


def with_counted_optionals(schema: JsonObject) -> JsonObject:
    """With `{0,1}` for the `?` of groups in patterns: xgrammar takes parts of a group that has `?`."""
    return _with_patterns(schema, lambda pattern: _OPTIONAL_GROUP.sub(_counted, pattern))


def _counted(found: re.Match[str]) -> str:
    return "){0,1}" if found[0] == ")?" else found[0]


def _with_patterns(schema: JsonObject, spelt: Callable[[str], str]) -> JsonObject:
    def change(place: JsonObject) -> JsonObject:
        pattern, named = place.get("pattern"), place.get("patternProperties")
        if isinstance(pattern, str):
            place["pattern"] = spelt(pattern)
        if isinstance(named, dict):
            patterns = cast("JsonObject", named)
            changed = {spelt(pattern): child for pattern, child in patterns.items()}
            if len(changed) == len(patterns):
                place["patternProperties"] = changed
        return place

    return rewritten(schema, change)


def with_format_patterns(schema: JsonObject, formats: Collection[str]) -> JsonObject:
    """With a pattern in place of each of these formats: one that admits only what the validator does."""

    def change(place: JsonObject) -> JsonObject:
        name = place.get("format")
        if not isinstance(name, str) or name not in formats or name not in FORMAT_PATTERNS:
            return place
        pattern = FORMAT_PATTERNS[name]
        del place["format"]
        if "pattern" not in place:
            place["pattern"] = pattern
        else:
            branches = place.get("allOf")
            place["allOf"] = [
                *(cast("list[JsonValue]", branches) if isinstance(branches, list) else []),
                {"pattern": pattern},
            ]
        return place

    return rewritten(schema, change)


def with_length_patterns(schema: JsonObject) -> JsonObject:
    """With a pattern in place of a string's lengths: xgrammar lets raw control characters through beside these."""

    def change(place: JsonObject) -> JsonObject:
        low, high = place.get("minLength", 0), place.get("maxLength")
        has_lengths = "minLength" in place or "maxLength" in place
        if not has_lengths or "pattern" in place or "format" in place:
            return place
        if not isinstance(low, int) or not isinstance(high, (int, type(None))):
            return place
        if max(low, high or 0) > MAX_REPEATED_CHARACTER or (high is not None and high < low):
            return place
        place.pop("minLength", None)
        place.pop("maxLength", None)
        place["pattern"] = f"^{ANY_PLAIN_CHARACTER}{{{low},{'' if high is None else high}}}$"
        return place

    return rewritten(schema, change)


def without(schema: JsonObject, keywords: Mapping[str, Collection[str]]) -> JsonObject:
    """A copy without these keywords of the subschemas at these pointers."""
    copied = copy.deepcopy(schema)
    # The deepest first: what stands below a dropped keyword is gone.
    for pointer in sorted(keywords, key=lambda pointer: -pointer.count("/")):
        place: JsonValue = copied
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, list):
                place = cast("list[JsonValue]", place)[int(name)]
            else:
                place = cast("JsonObject", place)[name]
        for keyword in keywords[pointer]:
            del cast("JsonObject", place)[keyword]
    return copied


def lenient(schema: JsonObject) -> JsonObject:
    """With guidance told to pass over keywords that it does not implement. A schema of a caller may not say so."""
    return {**schema, "x-guidance": {"lenient": True}}
