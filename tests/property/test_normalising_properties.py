"""The canonical form, and each rewriting that keeps a schema's meaning, accept what the schema accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.schemas.backend_rewriting import (
    with_format_patterns,
    with_javascript_patterns,
    with_length_patterns,
    with_number_bounds,
    without_annotations_as_formats,
)
from headrace.schemas.errors import InvalidSchema, OutputViolatesSchema
from headrace.schemas.format_patterns import FORMAT_PATTERNS
from headrace.schemas.normalising import normalised
from headrace.schemas.output_schema import OutputSchema

REAL: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "real_schemas.jsonl").read_text("utf-8").splitlines()
]
FORMS = [normalised(real["schema"]) for real in REAL]

NAMES = st.sampled_from(["a", "b", "ab"])
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "null"])
texts = st.sampled_from(["", "a", "ab", "2024-02-29", "2023-02-29", "10:00:60Z", "\u2028", "\n", "1.2.3.4"])
plain = st.none() | st.booleans() | st.integers(-3, 6) | st.sampled_from([1.5, 2.0]) | texts
values: st.SearchStrategy[Any] = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
keywords: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "minimum": st.integers(-2, 4),
        "exclusiveMaximum": st.integers(-2, 4),
        "multipleOf": st.integers(1, 3),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 3),
        "pattern": st.sampled_from(["^a", "b$", "^.$", "^[[a]$"]),
        "format": st.sampled_from(["date", "ipv4", "time", "colour"]),
        "minItems": st.integers(0, 2),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "minProperties": st.integers(0, 2),
        "enum": st.lists(plain, min_size=1, max_size=3, unique_by=repr),
        "additionalProperties": st.booleans(),
        "uniqueItems": st.booleans(),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=1), max_size=1),
    },
)


def combined(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    branches = st.lists(inner, min_size=1, max_size=2)
    more: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=1),
            "items": inner,
            "anyOf": branches,
            "oneOf": branches,
            "allOf": branches,
            "not": inner,
            "if": inner,
            "then": inner,
        },
    )
    return st.tuples(keywords, more).map(lambda both: {**both[0], **both[1]})


schemas = st.recursive(keywords, combined, max_leaves=4)


def accepts(schema: Any, value: Any) -> bool:
    try:
        OutputSchema.parse(schema).check_value(value)
    except OutputViolatesSchema:
        return False
    return True


@settings(max_examples=EXAMPLES, deadline=None)
@given(schemas, st.lists(values, min_size=1, max_size=8))
def test_the_canonical_form_accepts_the_same_values(schema: dict[str, Any], several: list[Any]) -> None:
    form = normalised(schema)
    if form is None:
        return
    try:
        OutputSchema.parse(form)
    except InvalidSchema:  # grown beyond the bounds: it is not tried
        return
    for value in several:
        assert accepts(form, value) == accepts(schema, value)


@st.composite
def changed_instances(draw: st.DrawFn) -> tuple[int, Any]:
    index = draw(st.integers(0, len(REAL) - 1))
    value: Any = json.loads(json.dumps(draw(st.sampled_from(REAL[index]["tests"]))["data"]))
    keys: list[str] = [*value] if hasattr(value, "keys") else []
    if keys:
        key = draw(st.sampled_from(keys))
        if draw(st.booleans()):
            value[key] = draw(values)
        elif draw(st.booleans()):
            del value[key]
    return index, value


@settings(max_examples=EXAMPLES, deadline=None)
@given(changed_instances())
def test_the_canonical_form_of_a_real_schema_accepts_the_same_values(case: tuple[int, Any]) -> None:
    index, value = case
    form = FORMS[index]
    if form is not None:
        assert accepts(form, value) == accepts(REAL[index]["schema"], value)


def is_positive(schema: Any) -> bool:
    """Whether nothing in it is negated: what narrows a part narrows the whole only then."""
    text = json.dumps(schema)
    return not any(f'"{keyword}"' in text for keyword in ("not", "if", "oneOf", "uniqueItems"))


@settings(max_examples=EXAMPLES, deadline=None)
@given(schemas.filter(is_positive), st.lists(values, min_size=1, max_size=8))
def test_what_narrows_never_accepts_more(schema: dict[str, Any], several: list[Any]) -> None:
    held = with_length_patterns(with_format_patterns(with_number_bounds(schema), FORMAT_PATTERNS))
    for value in several:
        assert accepts(schema, value) or not accepts(held, value)


@settings(max_examples=EXAMPLES, deadline=None)
@given(schemas, st.lists(values, min_size=1, max_size=8))
def test_what_is_spelt_otherwise_means_the_same(schema: dict[str, Any], several: list[Any]) -> None:
    other = without_annotations_as_formats(with_javascript_patterns(schema))
    for value in several:
        assert accepts(other, value) == accepts(schema, value)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_a_formats_pattern_admits_only_what_the_validator_takes_for_the_format(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(FORMAT_PATTERNS)))
    text = data.draw(st.from_regex(FORMAT_PATTERNS[name], fullmatch=True))
    if accepts({"type": "string", "pattern": FORMAT_PATTERNS[name]}, text):
        assert accepts({"type": "string", "format": name}, text)
