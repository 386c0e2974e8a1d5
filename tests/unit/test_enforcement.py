"""What is tried with a backend, and in which order."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace.schemas.backend_rewriting import LARGEST_EXACT_INTEGER, with_number_bounds
from headrace.schemas.enforcement import Backend, Enforcement, candidates, chosen_backend, foreseen
from headrace.schemas.errors import InvalidSchema
from headrace.schemas.messages import JsonObject
from headrace.schemas.output_schema import OutputSchema


def tried(schema: Any, backend: Backend = "guidance") -> list[Enforcement]:
    return list(candidates(OutputSchema.parse(schema), backend))


def test_a_schema_that_the_backend_holds_is_tried_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {"z": {"type": "string"}, "a": {"enum": [1]}},
        "required": ["z"],
    }
    assert tried(schema)[0] == Enforcement("enforced", schema)


@pytest.mark.parametrize(
    ("schema", "guidance", "xgrammar"),
    [
        ({"type": "string", "enum": ["a"]}, "enforced", "enforced"),
        ({"type": "string", "format": "date"}, "enforced_normalised", "enforced_normalised"),
        ({"type": "integer", "multipleOf": 5}, "enforced", None),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, None, None),
        (True, "enforced", "enforced"),
        (False, None, None),
    ],
)
def test_what_the_data_alone_foresees_is_what_is_tried_first_and_where_it_says_nothing_neither_do_we(
    schema: Any, guidance: str | None, xgrammar: str | None
) -> None:
    parsed = OutputSchema.parse(schema)
    backends: dict[Backend, str | None] = {"guidance": guidance, "xgrammar": xgrammar}
    for backend, tier in backends.items():
        found = foreseen(parsed, backend)
        assert (found.tier if found else None) == tier
        if found is not None:
            assert found in tried(schema, backend)


def test_the_last_resort_is_the_validation_alone() -> None:
    assert tried({"type": "string"})[-1] == Enforcement("validated_only", None)


def test_xgrammar_names_that_it_closes_objects() -> None:
    first = tried({"type": "object", "properties": {"a": {"type": "null"}}}, "xgrammar")[0]
    assert first.tier == "enforced"
    assert first.narrowed == ("additionalProperties absent",)


def test_a_keyword_that_xgrammar_ignores_is_never_called_enforced() -> None:
    schema = {"type": "string", "not": {"const": "x"}}
    assert {one.tier for one in tried(schema, "xgrammar")} == {"relaxed:not", "validated_only"}


def test_an_unknown_format_is_an_annotation_and_is_dropped() -> None:
    assert tried({"type": "string", "format": "colour"})[0] == Enforcement("enforced", {"type": "string"})


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
def test_a_format_that_is_held_loosely_becomes_a_pattern(backend: Backend) -> None:
    first = tried({"type": "string", "format": "date"}, backend)[0]
    assert first.tier == "enforced_normalised"
    assert first.narrowed == ("format",)
    assert isinstance(first.schema, dict)
    assert first.schema.keys() == {"type", "pattern"}


def test_a_format_without_a_pattern_is_left_to_the_validation() -> None:
    tiers = [one.tier for one in tried({"type": "string", "format": "regex"})]
    assert tiers[-2:] == ["relaxed:format", "validated_only"]


def test_guidance_is_lenient_only_where_keywords_are_given_up() -> None:
    for one in tried({"type": "array", "items": {"enum": [1]}, "uniqueItems": True}):
        is_lenient = isinstance(one.schema, dict) and "x-guidance" in one.schema
        assert is_lenient == one.tier.startswith("relaxed:")
        assert not one.tier.startswith("relaxed:") or one.tier == "relaxed:uniqueItems"


def test_numbers_without_bounds_get_those_that_every_reader_of_json_keeps() -> None:
    first, second = tried({"type": "integer", "minimum": 0})[:2]
    assert first.schema == {"type": "integer", "minimum": 0, "maximum": LARGEST_EXACT_INTEGER}
    assert first.narrowed == ("number bounds",)
    assert second.schema == {"type": "integer", "minimum": 0}
    assert second.narrowed == ()


def test_bounds_are_not_put_where_the_schema_asks_for_more() -> None:
    for schema in ({"type": "integer", "minimum": 2**60}, {"type": "integer", "enum": [2**60]}):
        assert with_number_bounds(dict(schema)) == schema


def test_the_order_of_properties_is_kept_throughout() -> None:
    names = ["reason", "answer", "b", "a"]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "if": {"required": ["a"]},
              "then": {"required": ["b"]}, "additionalProperties": False}  # fmt: skip
    for backend in ("guidance", "xgrammar"):
        for one in tried(schema, backend):
            text = json.dumps(one.schema)
            places = [text.index(f'"{name}": ') for name in names if f'"{name}": ' in text]
            assert places == sorted(places)


@pytest.mark.parametrize("place", ["", "a", "deep"])
def test_a_schema_that_could_switch_guidance_off_is_refused(place: str) -> None:
    inner: Any = {"x-guidance": {"lenient": True}}
    whole = {"": inner, "a": {"properties": {"a": inner}}, "deep": {"allOf": [{"items": inner}]}}[place]
    with pytest.raises(InvalidSchema, match="x-guidance") as raised:
        OutputSchema.parse(whole)
    assert raised.value.path is not None
    assert raised.value.path.endswith("/x-guidance")


def test_a_schema_that_accepts_nothing_is_left_to_the_validation() -> None:
    assert tried(False) == [Enforcement("validated_only", None)]
    assert tried(True)[0] == Enforcement("enforced", {})


@pytest.mark.parametrize(
    ("schema", "backend", "why"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, "xgrammar", "faster"),
        ({"type": "string", "pattern": "^[a-z]{1,9}$"}, "xgrammar", "faster"),
        ({"type": "string", "pattern": "^[a-z]{1,255}$"}, "guidance", "does not hold all"),
        ({"type": "integer", "multipleOf": 3}, "guidance", "does not hold all"),
        ({"type": "string", "pattern": "b"}, "guidance", "forbids more.*pattern without"),
        ({"type": "integer", "minimum": -(2**63)}, "xgrammar", "guidance may not"),
        ({"type": "integer", "maximum": 2**64}, "guidance", "does not hold all"),
        (None, "guidance", "of their own"),
    ],
)
def test_xgrammar_is_chosen_where_it_holds_all_and_forbids_no_more(
    schema: JsonObject | None, backend: Backend, why: str
) -> None:
    chosen, reason = chosen_backend(None if schema is None else OutputSchema.parse(schema))
    assert (chosen, bool(re.search(why, reason))) == (backend, True), reason


def test_optional_groups_are_counted_for_xgrammar_and_nothing_else_of_a_pattern_is_changed() -> None:
    pattern = r"^\)?[)?](?:a[0-9]+)?b?$"
    (first, *_) = candidates(OutputSchema.parse({"type": "string", "pattern": pattern}), "xgrammar")
    assert first.tier == "enforced_normalised"
    assert first.schema == {"type": "string", "pattern": r"^\)?[)?](?:a[0-9]+){0,1}b?$"}
