"""Of any two schemas: a yes has no counterexample, and every example shows what it is said to show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.schemas.containment import containment
from headrace.schemas.errors import InvalidSchema, OutputViolatesSchema
from headrace.schemas.output_schema import OutputSchema

REAL = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "real_schemas.jsonl").read_text().splitlines()
]
NAMES = ("a", "b", "c")
TEXTS = ("", "a", "ab", "abc", "2026-01-31", "x1")

numbers = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": st.integers(-2, 4),
        "maximum": st.integers(-1, 6),
        "multipleOf": st.sampled_from([2, 3]),
    },
)
strings = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 3),
        "maxLength": st.integers(0, 4),
        "pattern": st.sampled_from(["^a", "b$", "^[a-c]{1,2}$"]),
        "format": st.just("date"),
    },
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 7) | st.sampled_from([0.5, 1.5]) | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
enums = st.fixed_dictionaries({"enum": st.lists(values, min_size=1, max_size=3)})


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
            "required": st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
            "additionalProperties": inner,
            "maxProperties": st.integers(0, 3),
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner,
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 3),
            "uniqueItems": st.just(True),
        },
    )
    choices = st.fixed_dictionaries(
        {}, optional={"anyOf": st.lists(inner, min_size=1, max_size=2), "not": inner}
    )
    return objects | arrays | choices


schemas = st.recursive(st.booleans() | numbers | strings | enums, composed, max_leaves=5)


def accepts(schema: Any, value: Any) -> bool:
    try:
        OutputSchema(schema).check_value(value)
    except OutputViolatesSchema:
        return False
    return True


@settings(max_examples=EXAMPLES, deadline=None)
@given(schemas, schemas, st.lists(values, min_size=5, max_size=20))
def test_a_yes_has_no_counterexample_and_an_example_is_one(outer: Any, inner: Any, tried: list[Any]) -> None:
    told = containment(outer, inner)
    if told.verdict == "yes":
        assert not [value for value in tried if accepts(inner, value) and not accepts(outer, value)]
    else:
        assert told.differences
    for each in told.differences:
        if each.has_example:
            assert told.verdict == "no"
            assert accepts(inner, each.example)
            assert not accepts(outer, each.example)


@settings(max_examples=EXAMPLES, deadline=None)
@given(schemas)
def test_a_schema_is_not_refuted_against_itself(schema: Any) -> None:
    assert containment(schema, schema).verdict != "no"


def narrowed(schema: dict[str, Any], draw: Any) -> dict[str, Any] | None:
    """One place of a real schema made to accept less, or the same."""
    copied: dict[str, Any] = json.loads(json.dumps(schema))
    places: list[dict[str, Any]] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("type"), str):
                places.append(value)
            for inner in value.values():
                walk(inner)

    walk({name: value for name, value in copied.items() if name not in ("not", "if")})
    if not places:
        return None
    place = draw(st.sampled_from(places))
    match place["type"]:
        case "string":
            place["maxLength"] = min(place.get("maxLength", 9), 9)
        case "integer" | "number":
            place["maximum"] = min(place.get("maximum", 9), 9)
        case "object" if "additionalProperties" not in place:
            place["additionalProperties"] = False
        case _:
            return None
    return copied


@settings(max_examples=min(EXAMPLES, 60), deadline=None)
@given(st.data())
def test_examples_for_real_schemas_are_what_they_are_said_to_be(data: st.DataObject) -> None:
    schema = data.draw(st.sampled_from(REAL))["schema"]
    version = narrowed(schema, data.draw) if isinstance(schema, dict) else None
    assume(version is not None)
    assert version is not None
    try:
        OutputSchema(schema), OutputSchema(version)
    except InvalidSchema:
        assume(False)
    for outer, inner in ((schema, version), (version, schema)):
        for each in containment(outer, inner).differences:
            if each.has_example:
                assert accepts(inner, each.example)
                assert not accepts(outer, each.example)
