"""The output's columns are fixed before the first row, and no value of a model can end the job."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from backfill_rows import KEPT, chunk_of, numbered, ok

from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.failures import JobInvalid
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.source import RowFault

ROW_COLUMNS = [
    "headrace_status", "headrace_error", "headrace_prompt_tokens", "headrace_completion_tokens", "headrace_version",
    "headrace_id",
]  # fmt: skip
TAGS = {
    "type": "object",
    "properties": {
        "genre": {"enum": ["drama", "comedy"]},
        "score": {"type": "number"},
        "size": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "lead": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"]}},
            "required": ["name"],
        },
    },
    "required": ["genre"],
    "additionalProperties": False,
}
TAGGED = {"genre": "drama", "score": 1, "size": 3, "tags": ["a", "b"], "lead": {"name": "Bo"}}


def one(schema: Any, value: Any, kept: pa.Schema = KEPT) -> dict[str, Any]:
    """The row that a value becomes."""
    columns = OutputColumns.of(kept, schema)
    chunk = chunk_of([{"Title": "t"}], kept=kept)
    table = columns.table(chunk, [ok(value)])
    assert table.schema.equals(columns.schema, check_metadata=True)
    table.validate(full=True)
    return table.to_pylist()[0]


def type_of(schema: Any) -> tuple[pa.DataType, bool]:
    """The type of a property with this schema, and whether it is marked as JSON text."""
    columns = OutputColumns.of(pa.schema([]), {"type": "object", "properties": {"it": schema}})
    field = columns.schema.field("it")
    return field.type, field.metadata == {b"headrace": b"json"}


def test_the_inputs_columns_come_first_then_the_properties_then_what_became_of_the_row() -> None:
    schema = OutputColumns.of(KEPT, TAGS).schema
    assert schema.names == ["Title", "Year", "genre", "score", "size", "tags", "lead", *ROW_COLUMNS]
    assert schema.field("lead").type == pa.struct([("name", pa.string()), ("age", pa.int64())])
    assert all(field.nullable for field in schema)


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ({"type": "string", "format": "date-time"}, pa.string()),
        ({"type": ["string", "null"]}, pa.string()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"const": 3}, pa.int64()),
        ({"type": "integer"}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        (
            {"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}},
            pa.list_(pa.bool_()),
        ),
        ({"type": "object", "properties": {"a": {"const": "x"}}}, pa.struct([("a", pa.string())])),
    ],
)
def test_a_schema_of_one_type_has_a_column_of_that_type(schema: Any, type_: pa.DataType) -> None:
    assert type_of(schema) == (type_, False)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": ["string", "integer"]},
        {"enum": ["a", 1]},
        {"type": "integer", "maximum": 2**70},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {}}]},
    ],
)
def test_whatever_has_several_types_is_json_text(schema: Any) -> None:
    assert type_of(schema) == (pa.string(), True)


def test_an_object_that_contains_itself_ends_in_json_text() -> None:
    schema = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"of": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}},
            }
        },
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}},
    }
    row = one(schema, {"tree": {"n": 1, "of": {"n": 2}}})
    assert row["tree"] == {"n": 1, "of": '{"n":2}'}


@pytest.mark.parametrize(
    ("schema", "value", "stored"),
    [
        (None, "plain", "plain"),
        ({"type": "string"}, "plain", "plain"),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2.0], [1, 2]),
        ({"type": "object"}, {"b": 1, "a": 2}, '{"b":1,"a":2}'),
        (True, "text", '"text"'),
    ],
)  # fmt: skip
def test_what_is_no_object_with_properties_is_one_column(schema: Any, value: Any, stored: Any) -> None:
    row = one(schema, value)
    assert list(row) == ["Title", "Year", "output", *ROW_COLUMNS]
    assert row["output"] == stored
    assert row["headrace_error"] is None


def test_what_is_absent_is_null() -> None:
    row = one(TAGS, {"genre": "drama"})
    assert row["genre"] == "drama"
    assert row["lead"] is row["tags"] is row["score"] is row["headrace_error"] is None


def test_a_name_that_the_input_has_in_any_case_gets_output_behind_it() -> None:
    properties = {
        "title": {"type": "string"},
        "title_output": {"type": "string"},
        "headrace_id": {"type": "string"},
    }
    columns = OutputColumns.of(KEPT, {"type": "object", "properties": properties})
    assert columns.names == {
        "title": "title_output", "title_output": "title_output_output", "headrace_id_output": "headrace_id_output",
    }  # fmt: skip
    row = columns.table(
        numbered(1), [ok({"title": "a", "title_output": "b", "headrace_id": "c"})]
    ).to_pylist()[0]
    assert [row[name] for name in columns.names.values()] == ["a", "b", "c"]


@pytest.mark.parametrize("names", [["headrace_status"], ["Headrace_Id"], ["a", "b", "a"]])
def test_an_input_whose_names_cannot_be_in_the_output_is_refused_with_what_to_do(names: list[str]) -> None:
    with pytest.raises(JobInvalid, match=r"leave (it|them) out by `keep`"):
        OutputColumns.of(pa.schema([(name, pa.string()) for name in names]), None)


def test_rows_without_an_output_have_null_and_the_reason() -> None:
    columns = OutputColumns.of(KEPT, TAGS)
    chunk = chunk_of([{"Title": "a", "Year": 1}, RowFault("bad_line", "no JSON", "{"), {"Title": "c"}])
    outcomes = [
        ok(TAGGED, prompt_tokens=5, completion_tokens=7, version="1.2.0", request_id="j.0.0.x"),
        Outcome("rejected", code="bad_line", error="no JSON", asked=False),
        Outcome("failed", value=TAGGED, code="engine_error", error="it broke"),
    ]
    first, second, third = columns.table(chunk, outcomes).to_pylist()
    assert first == {
        "Title": "a", "Year": 1, **TAGGED, "lead": {"name": "Bo", "age": None}, "headrace_status": "ok",
        "headrace_error": None, "headrace_prompt_tokens": 5, "headrace_completion_tokens": 7,
        "headrace_version": "1.2.0", "headrace_id": "j.0.0.x",
    }  # fmt: skip
    assert (second["Title"], second["headrace_status"]) == (None, "rejected")
    assert second["headrace_error"] == "bad_line: no JSON"
    assert (third["genre"], third["headrace_error"]) == (None, "engine_error: it broke")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"size": 10**30}, f"/size: {10**30} does not fit an integer of 64 bits"),
        ({"size": 1.5}, "/size: 1.5 does not fit an integer of 64 bits"),
        ({"score": 10**309}, "does not fit a double"),
        ({"score": float("nan")}, "/score: nan does not fit a double"),
        ({"genre": "\ud800"}, r"/genre: '\ud800' does not fit a string"),
        ({"tags": "a"}, '/tags: "a" does not fit a list'),
        ({"lead": {"name": True}}, "/lead/name: true does not fit a string"),
        ({"tags": [1] * 10}, '/tags/4: 1 does not fit a string; and 5 more'),
        ({"more": [1]}, "/more: [1] has no column"),
        ({"lead": {"name": "x", "b": 2, "a": 1}}, "/lead/a: 1 has no column; /lead/b: 2 has no column"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_null_and_told_and_the_rest_of_the_row_stands(
    change: dict[str, Any], error: str
) -> None:
    row = one(TAGS, {**TAGGED, **change})
    assert row["headrace_status"] == "ok"
    assert row["headrace_error"].startswith("output_does_not_fit: ")
    assert row["headrace_error"].endswith(error)
    unchanged = [name for name in TAGGED if name not in change and name != "lead"]
    assert {name: row[name] for name in unchanged} == {name: TAGGED[name] for name in unchanged}


@pytest.mark.parametrize("value", [[1], "text", 3, {"genre": object()}])
def test_a_value_of_another_kind_altogether_is_told(value: Any) -> None:
    row = one(TAGS, value)
    assert row["genre"] is None
    assert row["headrace_error"].startswith("output_does_not_fit: ")


def test_undeclared_properties_that_the_schema_speaks_of_have_a_column() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "additionalProperties": {"type": "integer"},
    }
    row = one(schema, {"z": 1, "a": "x", "b": 2})
    assert (row["a"], row["additional"], row["headrace_error"]) == ("x", '{"b":2,"z":1}', None)


def test_columns_of_an_earlier_output_are_put_in_as_they_stand_whatever_they_were_called() -> None:
    earlier = OutputColumns.of(pa.schema([("genre", pa.string())]), TAGS)
    table = earlier.table(chunk_of([{"genre": "?"}], kept=pa.schema([("genre", pa.string())])), [ok(TAGGED)])
    known = OutputColumns.of(pa.schema([]), TAGS).without_input(earlier.names)
    reused = known.columns_of(table.to_pylist()[0])
    columns = OutputColumns.of(KEPT, TAGS)
    outcomes = [Outcome("ok", columns=reused, asked=False), ok(TAGGED)]
    first, second = columns.table(numbered(2), outcomes).select(list(columns.names)).to_pylist()
    assert first == second


def test_an_earlier_output_of_another_type_is_told_and_does_not_end_the_job() -> None:
    columns = OutputColumns.of(KEPT, TAGS)
    outcomes = [ok(TAGGED), Outcome("ok", columns={"genre": "drama", "size": "many", "tags": [["a"]]})]
    first, second = columns.table(numbered(2), outcomes).to_pylist()
    assert (first["size"], first["headrace_error"]) == (3, None)
    assert (second["genre"], second["size"], second["tags"]) == ("drama", None, None)
    assert "does not fit int64" in second["headrace_error"]


def test_a_schema_whose_columns_would_be_too_many_has_json_text_instead() -> None:
    leaf = {"type": "object", "properties": {str(i): {"type": "string"} for i in range(40)}}
    defs = {"d0": leaf, **{f"d{n}": {"type": "object", "properties": {
        side: {"$ref": f"#/$defs/d{n - 1}"} for side in "lr"}} for n in range(1, 14)}}  # fmt: skip
    schema = {
        "type": "object",
        "properties": {"it": {"$ref": "#/$defs/d13"}, "n": {"type": "integer"}},
        "$defs": defs,
    }
    columns = OutputColumns.of(pa.schema([]), schema)
    assert columns.schema.names[:2] == ["it", "n"]
    text = str(columns.schema.field("it").type)
    assert text.count(": string") + text.count(": struct") < 2_100
