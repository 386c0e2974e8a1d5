"""Output schemas: what is refused, at which place, and what is told to the author."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.schemas.errors import InvalidSchema, OutputNotJson, OutputViolatesSchema, SchemaTooComplex
from headrace.schemas.output_schema import CACHED_SCHEMAS, OutputSchema, output_schema_of
from headrace.schemas.schema_bounds import MEMBER_LIMITS, NUMBER_LIMITS, check_bounds

REAL = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "real_schemas.jsonl").read_text("utf-8").splitlines()
]


def within(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": schema}, "additionalProperties": False}


def doubling(levels: int) -> dict[str, Any]:
    """A schema of a few kilobytes that is evaluated 2^levels times for each value."""
    definitions: dict[str, Any] = {
        f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{levels}": {"type": "integer"}}}


def chained(links: int) -> dict[str, Any]:
    """A schema whose validation recurses `links` times at each level of a value."""
    definitions: dict[str, Any] = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(links - 1)}
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{links - 1}": {"items": {"$ref": "#"}}}}


@pytest.mark.parametrize("real", REAL, ids=lambda real: real["name"])
def test_labelled_instances_of_real_schemas_get_the_right_verdict(real: Any) -> None:
    schema = OutputSchema.parse(real["schema"])
    for test in real["tests"]:
        text = json.dumps(test["data"])
        if test["valid"]:
            assert schema.check(text) == test["data"]
        else:
            with pytest.raises(OutputViolatesSchema):
                schema.check(text)


UNEVALUATED: dict[str, Any] = {}
for _ in range(9):
    UNEVALUATED = {"anyOf": [UNEVALUATED], "unevaluatedItems": False}
UUID = "3f2b6c1e-8d7a-4c5b-9e0f-1a2b3c4d5e6f"
NESTED: dict[str, Any] = {}
for _ in range(63):
    NESTED = {"items": NESTED}


@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        (within({"enum": list(range(2001))}), "/properties/v/enum", "enum"),
        ({"allOf": [{"enum": list(range(i, i + 1500))} for i in range(3)]}, "/allOf/2/enum", "enum"),
        (within({"anyOf": [True] * 129}), "/properties/v/anyOf", "anyOf"),
        (within({"oneOf": [True] * 129}), "/properties/v/oneOf", "oneOf"),
        (within({"allOf": [True] * 129}), "/properties/v/allOf", "allOf"),
        (within({"maxItems": 4097}), "/properties/v/maxItems", "maxItems"),
        (within({"minItems": 4097}), "/properties/v/minItems", "minItems"),
        (within({"maxLength": 1_000_001}), "/properties/v/maxLength", "maxLength"),
        (within({"multipleOf": 999_983}), "/properties/v/multipleOf", "multipleOf"),
        (within({"pattern": "a" * 1025}), "/properties/v/pattern", "pattern"),
        (within({"pattern": "^[a-z]{1,10000}$"}), "/properties/v/pattern", "quantifier"),
        (within({"pattern": "a{1001}"}), "/properties/v/pattern", "quantifier"),
        (within({"pattern": "a{" + "9" * 1000 + "}"}), "/properties/v/pattern", "quantifier"),
        ({"patternProperties": {"a{1001}": True}}, "/patternProperties/a{1001}", "quantifier"),
        ({"patternProperties": {f"p{i}": True for i in range(65)}}, "/patternProperties", "patternProperties"),
        ({"allOf": [{"pattern": "a"}] * 64 + [{"not": {"pattern": "a"}}] * 64, "pattern": "a"}, None, "patterns"),
        ({"properties": {f"p{i}": {"pattern": "a"} for i in range(129)}}, "/properties/p128/pattern", "patterns"),
        ({"properties": {f"p{i}": True for i in range(257)}}, "/properties", "optional"),
        ({"prefixItems": [True] * 4000}, "/prefixItems/3999", "subschemas"),
        ({"items": NESTED}, "", "levels"),
        ({"description": "x" * 256 * 1024}, "", "bytes"),
        ({"x": {"enum": list(range(2001))}, "$ref": "#/x"}, "/x/enum", "enum"),
        (doubling(8), "/$defs/a0", "subschemas for one value"),
        (doubling(60), None, "subschemas for one value"),
        (chained(15), "/$defs/a14/items", "a chain of"),
        (UNEVALUATED, "", "subschemas for one value"),
    ],
)  # fmt: skip
def test_beyond_the_bounds_is_refused_with_keyword_and_place(
    schema: Any, path: str | None, keyword: str | None
) -> None:
    with pytest.raises(SchemaTooComplex) as refusal:
        check_bounds(schema)
    if path is not None:
        assert refusal.value.path == path
    if keyword is not None:
        assert keyword in refusal.value.message


@pytest.mark.parametrize(
    "schema",
    [
        within({"enum": list(range(2000))}),
        {"anyOf": [True] * 128},
        within({"maxItems": 4096, "maxLength": 1_000_000, "multipleOf": 10_000}),
        within({"pattern": "a" * 1024}),
        within({"pattern": r"a{1000}\{9999\}\u{10000}"}),
        {"properties": {f"p{i}": True for i in range(256)}},
        {"properties": {f"p{i}": True for i in range(300)}, "required": [f"p{i}" for i in range(44)]},
        {"properties": {"maxItems": {"type": "integer"}, "enum": {"type": "array"}}},
        {"const": {"maxItems": 10**6, "x-guidance": 1}, "default": {"pattern": "a{9999}"}},
        NESTED,
        doubling(7),
        chained(14),
    ],
)
def test_what_is_just_within_the_bounds_is_held(schema: Any) -> None:
    check_bounds(schema)


def test_every_limit_of_the_tables_is_enforced() -> None:
    for keyword, (limit, _) in MEMBER_LIMITS.items():
        members = {str(i): True for i in range(limit + 1)}
        with pytest.raises(SchemaTooComplex):
            check_bounds({keyword: members if keyword == "patternProperties" else list(members)})
    for keyword, limit in NUMBER_LIMITS.items():
        with pytest.raises(SchemaTooComplex):
            check_bounds({keyword: limit + 1})


CIRCLE: dict[str, Any] = {}
CIRCLE["not"] = CIRCLE


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (within({"type": "strin"}), "/properties/v/type"),
        (within({"minimum": "1"}), "/properties/v/minimum"),
        (within({"pattern": "("}), "/properties/v/pattern"),
        ({"required": ["a", "a"]}, "/required"),
        ({"$schema": "http://example.com/mine"}, "/$schema"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema"),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": 3},
            "/exclusiveMinimum",
        ),
        (within({"$ref": "http://example.com/remote"}), "/properties/v/$ref"),
        (within({"$ref": "other.json#/a"}), "/properties/v/$ref"),
        (within({"$ref": "http://json-schema.org/draft-07/schema#"}), "/properties/v/$ref"),
        (within({"$ref": "http://[::1"}), "/properties/v/$ref"),
        (within({"$ref": "#/$defs/nope"}), "/properties/v/$ref"),
        (within({"$ref": "#nope"}), "/properties/v/$ref"),
        (within({"$ref": "#/properties/v/default", "default": {"type": "string"}}), "/properties/v/$ref"),
        ({"$ref": "#"}, ""),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}}, "/$defs/b"),
        ({"x-guidance": {"lenient": True}}, "/x-guidance"),
        (within({"x-guidance": {}}), "/properties/v/x-guidance"),
        ({1: 2}, ""),
        ({"const": float("nan")}, ""),
        ({"const": "\ud800"}, ""),
        ({"const": object()}, ""),
        (CIRCLE, ""),
        ("[1]", ""),
        ("{", ""),
        ('{"type": "string", "type": "integer"}', ""),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: Any, path: str) -> None:
    with pytest.raises(InvalidSchema) as refusal:
        OutputSchema.parse(schema)
    assert refusal.value.path == path


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "integer"}}}, "1", '"x"'),
        ({"$ref": "#/$defs/none", "$defs": {"none": True}}, "1", "{"),
        ({"$id": "http://x/a", "$defs": {"q": {"$id": "q", "type": "null"}}, "$ref": "http://x/q"}, "null", "1"),
        ({"$id": "urn:x:y", "$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "null", "1"),
        ({"items": {"$ref": "#"}, "type": "array"}, "[[],[[]]]", "[1]"),
        ({"$ref": "#n", "$defs": {"a": {"$anchor": "n", "type": "null"}}}, "null", "1"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "format": "uuid"}, f'"{UUID}"', f'"{UUID[1:]}"'),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "format": "duration"}, '"PT1H"', '"1 hour"'),
        ({"format": "date"}, '"2024-02-29"', '"2024-02-31"'),
        ({"pattern": "^(?=a)(a+)+$"}, '"aa"', '"' + "a" * 5000 + 'b"'),
        (True, "1", "nul"),
        ({"not": {}}, None, "1"),
    ],
)  # fmt: skip
def test_what_is_held(schema: Any, good: str | None, bad: str) -> None:
    output = OutputSchema.parse(schema)
    if good is not None:
        output.check(good)
    with pytest.raises((OutputNotJson, OutputViolatesSchema)):
        output.check(bad)


def test_a_violation_names_the_place_and_the_keyword() -> None:
    schema = OutputSchema.parse({"properties": {"a/b": {"items": {"maximum": 3}}}})
    with pytest.raises(OutputViolatesSchema) as violation:
        schema.check('{"a/b": [1, 2, 30]}')
    assert violation.value.path == "/a~1b/2"
    assert violation.value.message.startswith("maximum")


def test_the_reason_is_short_however_large_the_output() -> None:
    with pytest.raises(OutputViolatesSchema) as violation:
        OutputSchema.parse({"type": "integer"}).check(json.dumps("x" * 100_000))
    assert len(violation.value.message) < 400


def test_near_misses_and_unknown_formats_are_told() -> None:
    schema = {
        "additonalProperties": False,
        "maxlength": 3,
        "_uniqueItems": True,
        "x-note": {"requird": []},
        "properties": {"requird": {"format": "utc-millisec"}, "d": {"format": "date"}},
    }
    warnings = OutputSchema.parse(schema).warnings
    assert [warning.partition(":")[0] for warning in warnings] == [
        "/additonalProperties",
        "/maxlength",
        "/properties/requird/format",
    ]
    assert "did you mean additionalProperties?" in warnings[0]
    assert "did you mean maxLength?" in warnings[1]


def test_the_digest_is_the_same_whatever_the_order_and_the_order_is_kept() -> None:
    first = output_schema_of({"properties": {"why": {"type": "string"}, "answer": {"type": "integer"}}})
    second = output_schema_of({"properties": {"answer": {"type": "integer"}, "why": {"type": "string"}}})
    assert first.digest == second.digest
    assert list(first.schema["properties"]) == ["why", "answer"]  # type: ignore[index]
    assert list(second.schema["properties"]) == ["answer", "why"]  # type: ignore[index]


def test_compiled_schemas_are_kept_up_to_a_bound() -> None:
    kept = output_schema_of({"const": "kept"})
    assert output_schema_of({"const": "kept"}) is kept
    for number in range(CACHED_SCHEMAS):
        output_schema_of({"const": number})
    assert output_schema_of({"const": "kept"}) is not kept
    with pytest.raises(InvalidSchema):
        output_schema_of({"const": float("inf")})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9" * 5000, "digits"),
        ("-" + "9" * 310, "digits"),
        ("[1e999]", "range"),
        ("-1e999", "range"),
        ("NaN", "NaN"),
        ("-Infinity", "Infinity"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"\\udc00": 1}', "surrogate"),
        ('"\ud800"', "surrogate"),
        ('{"a": 1, "a": 2}', "twice"),
        ("[" * 100_000, "nested"),
        ("[" * 129 + "]" * 129, "nested"),
        ('{"a":' * 50_000, "nested"),
        ("[1e999, ", "JSON"),
        ("[1e999, " + "[" * 100_000, "nested"),
        ("", "JSON"),
        ("{'a': 1}", "JSON"),
        ('{"a": 1} trailing', "JSON"),
        ('"\x00"', "JSON"),
        ("\ufeff1", "JSON"),
    ],
)
def test_json_that_readers_disagree_about_is_refused(text: str, reason: str) -> None:
    with pytest.raises(OutputNotJson) as refusal:
        OutputSchema.parse(True).check(text)
    assert reason in refusal.value.message


@pytest.mark.parametrize(
    "text", ["9" * 300, "[" * 128 + "]" * 128, '"\\ud83d\\ude00"', '"\\\\ud800"', "1e-999"]
)
def test_json_that_all_readers_take_the_same_way_is_read(text: str) -> None:
    assert OutputSchema.parse(True).check(text) == json.loads(text)


def test_where_json_breaks_is_said_in_bytes() -> None:
    with pytest.raises(OutputNotJson) as refusal:
        OutputSchema.parse(True).check('["é" 1]')
    assert refusal.value.offset == 6


def test_the_longest_chain_and_the_deepest_output_together_are_checked() -> None:
    assert OutputSchema.parse(chained(14)).check("[" * 128 + "]" * 128)
