"""Laws of the output check: nothing but our errors, and never kinder than another validator."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.schemas.errors import InvalidSchema, OutputError, OutputNotJson
from headrace.schemas.messages import OutputConstraint
from headrace.schemas.output_json import parse_output
from headrace.schemas.output_schema import OutputCheck, OutputSchema

REAL: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "real_schemas.jsonl").read_text("utf-8").splitlines()
]
COMPILED = [OutputSchema.parse(real["schema"]) for real in REAL]

any_text = st.text(st.characters(exclude_categories=()))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | any_text
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)
# Pieces of JSON put together: nearer to JSON than plain text, and wrong in its ways.
pieces = st.lists(
    st.sampled_from(
        ["{", "}", "[", "]", ",", ":", '"', '"a"', '"a":', "1", "1e999", "-", "NaN", "Infinity", "\\", "\\ud800",
         "\\udc00", "\ud800", "9" * 400, "9" * 5000, "[" * 200, "]" * 200, '{"a":' * 200, "\x00", " ", "null", "true",
         "\ufeff"]
    ),
    max_size=12,
).map("".join)  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None)
@given(any_text | pieces)
def test_parsing_raises_nothing_but_output_not_json_and_its_values_can_be_written(text: str) -> None:
    with contextlib.suppress(OutputNotJson):
        json.dumps(parse_output(text), allow_nan=False, ensure_ascii=False).encode()


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(COMPILED), values.map(json.dumps) | pieces)
def test_checking_raises_nothing_but_output_errors(schema: OutputSchema, text: str) -> None:
    with contextlib.suppress(OutputError):
        schema.check(text)


keywords = st.sampled_from(
    ["type", "properties", "items", "anyOf", "$ref", "$id", "id", "$anchor", "pattern", "patternProperties", "enum",
     "required", "$schema", "format", "not", "dependencies", "minimum", "multipleOf", "maxLength", "$defs"]
)  # fmt: skip
schema_like = st.recursive(
    scalars | st.sampled_from(["#", "#/$defs", "object", "string", "http://x/#a", "date", "(", "a{3}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords | any_text, inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(schema_like)
def test_parsing_a_schema_raises_nothing_but_invalid_schema(schema: Any) -> None:
    with contextlib.suppress(InvalidSchema):
        OutputSchema.parse(schema)


@settings(max_examples=EXAMPLES, deadline=None)
@given(any_text, any_text)
def test_a_regex_raises_nothing_but_invalid_schema_and_output_errors(regex: str, text: str) -> None:
    with contextlib.suppress(InvalidSchema, OutputError):
        OutputCheck(OutputConstraint(regex=regex)).check(text)


@st.composite
def mutated_instances(draw: st.DrawFn) -> tuple[int, Any]:
    """A real schema's index and one of its instances, with one place in it changed."""
    index = draw(st.integers(0, len(REAL) - 1))
    value = json.loads(json.dumps(draw(st.sampled_from(REAL[index]["tests"]))["data"]))
    place: Any = value
    for _ in range(draw(st.integers(0, 4))):
        keys = (
            list(place)
            if isinstance(place, dict)
            else list(range(len(place)))
            if isinstance(place, list)
            else []
        )
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or not place[key] or draw(st.booleans()):
            if isinstance(place, dict) and draw(st.booleans()):
                del place[key]
            else:
                place[key] = draw(values)
            break
        place = place[key]
    return index, value


@settings(max_examples=EXAMPLES, deadline=None)
@given(mutated_instances())
def test_whatever_the_check_accepts_jsonschema_accepts_too(case: tuple[int, Any]) -> None:
    index, value = case
    try:
        accepted = COMPILED[index].check(json.dumps(value))
    except OutputError:
        return
    schema = REAL[index]["schema"]
    validator: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    assert validator(schema).is_valid(accepted)
