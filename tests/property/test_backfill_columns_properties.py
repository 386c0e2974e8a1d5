"""What holds of a backfill's columns for real schemas and for made-up ones, whatever the values are."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backfill_rows import KEPT, numbered, ok
from hypothesis import given, settings
from hypothesis import strategies as st
from message_strategies import json_values, texts
from property_examples import EXAMPLES

from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.parts import about_file
from headrace.producers.backfill.source import Chunk
from headrace.producers.backfill.table_files import ParquetForm, json_lines, table_of_lines

REAL: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "real_schemas.jsonl").read_text("utf-8").splitlines()
]


# --- schemas and values valid under them --------------------------------------------------------------------------

int64s = st.integers(-(2**63), 2**63 - 1)
doubles = st.floats(allow_nan=False, allow_infinity=False)
Case = tuple[dict[str, Any], st.SearchStrategy[Any]]  # a schema, and its values
plain: list[Case] = [
    ({"type": "string"}, texts),
    ({"type": "string", "format": "date"}, st.dates().map(str)),
    ({"enum": ["a", "b"]}, st.sampled_from(["a", "b"])),
    ({"type": "boolean"}, st.booleans()),
    ({"type": "integer"}, int64s),
    ({"type": "integer", "maximum": 10**40}, st.integers(-(10**40), 10**40)),
    ({"type": "number"}, doubles),
    ({"const": 7}, st.just(7)),
    ({"enum": ["a", 1, None]}, st.sampled_from(["a", 1, None])),
    ({"type": ["string", "integer"]}, texts | st.integers()),
    ({"type": "object"}, st.dictionaries(texts, json_values, max_size=3)),
    ({}, json_values),
]


def nullable(case: Case) -> Case:
    return {"anyOf": [case[0], {"type": "null"}]}, st.none() | case[1]


def list_of(case: Case) -> Case:
    return {"type": "array", "items": case[0]}, st.lists(case[1], max_size=3)


@st.composite
def objects_of(draw: st.DrawFn, cases: st.SearchStrategy[Case]) -> Case:
    members = draw(st.dictionaries(texts, cases, min_size=1, max_size=4))
    required = draw(st.sets(st.sampled_from(sorted(members))))
    schema = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in members.items()},
        "required": sorted(required),
        "additionalProperties": False,
    }
    values = st.fixed_dictionaries(
        {name: value for name, (_, value) in members.items() if name in required},
        optional={name: value for name, (_, value) in members.items() if name not in required},
    )
    return schema, values


cases = st.recursive(
    st.sampled_from(plain),
    lambda inner: inner.map(nullable) | inner.map(list_of) | objects_of(inner),
    max_leaves=8,
)


def without_absent(schema: Any, value: Any) -> Any:
    """The value without optional members that are null: in a table null and absent are one. As doubles, where those."""
    if isinstance(value, dict) and "properties" in schema:
        members = {name: without_absent(schema["properties"][name], each) for name, each in value.items()}
        return {
            name: each for name, each in members.items() if each is not None or name in schema["required"]
        }
    if "anyOf" in schema and value is not None:
        return without_absent(schema["anyOf"][0], value)
    if isinstance(value, list) and "items" in schema:
        return [without_absent(schema["items"], each) for each in value]
    return value


def same(a: Any, b: Any) -> bool:
    """Equal as JSON values: 1 is 1.0, and neither is true."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


# --- through files and back ---------------------------------------------------------------------------------------


def read_back(columns: OutputColumns, chunk: Chunk, table: pa.Table) -> list[dict[str, Any]]:
    """The rows of the table's own columns, from both formats, which must agree."""
    file = pq.ParquetFile(io.BytesIO(ParquetForm(columns, about_file({})).encoded(table)))
    own = columns.own_schema
    read = file.read()
    assert read.schema.equals(columns.schema)
    lines = table_of_lines(columns, json_lines(columns, chunk, table), "lines")
    assert lines.equals(read.select(own.names))
    return list(columns.json_rows(read))


def outputs(columns: OutputColumns, row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[name] for key, name in columns.names.items()}


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases, st.data())
def test_values_of_made_up_schemas_come_back_from_both_formats(case: Case, data: st.DataObject) -> None:
    schema, values = case
    columns = OutputColumns.of(KEPT, schema)
    found = data.draw(st.lists(values, min_size=1, max_size=4))
    chunk = numbered(len(found))
    table = columns.table(chunk, [ok(value) for value in found])
    assert table.schema.equals(columns.schema, check_metadata=True)
    for row, value in zip(read_back(columns, chunk, table), found, strict=True):
        assert row["headrace_error"] is None
        whole = schema
        while "anyOf" in whole:
            whole = whole["anyOf"][0]
        if "properties" in whole:
            members = without_absent(whole, value) or {}
            assert same(
                list(outputs(columns, row).values()), [members.get(name) for name in whole["properties"]]
            )
        else:
            assert same(row["output"], without_absent(schema, value))


@pytest.mark.parametrize("real", REAL, ids=lambda real: real["name"])
def test_no_instance_of_a_real_schema_is_lost_unsaid(real: dict[str, Any]) -> None:
    columns = OutputColumns.of(KEPT, real["schema"])
    values = [test["data"] for test in real["tests"]]
    chunk = numbered(len(values))
    table = columns.table(chunk, [ok(value) for value in values])
    assert table.schema.equals(columns.schema, check_metadata=True)
    for row, test in zip(read_back(columns, chunk, table), real["tests"], strict=True):
        if test["valid"] and row["headrace_error"] is None:
            found = {name: each for name, each in outputs(columns, row).items() if each is not None}
            value = test["data"] if "output" not in columns.names else {"output": test["data"]}
            assert same(pruned(found | found.pop("additional", {})), pruned(value or {}))


def pruned(value: Any) -> Any:
    """Without members that are null."""
    if isinstance(value, dict):
        return {name: pruned(each) for name, each in value.items() if each is not None}
    return [pruned(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(REAL), cases, st.lists(json_values | doubles, min_size=1, max_size=4), st.booleans())
def test_whatever_the_values_are_the_table_has_its_columns(
    real: dict[str, Any], case: Case, values: list[Any], is_real: bool
) -> None:
    columns = OutputColumns.of(KEPT, real["schema"] if is_real else case[0])
    properties = list(columns.names)
    # Under the names of properties too, where values are looked at more closely.
    found = [*values, *(dict.fromkeys(properties, value) for value in values)]
    chunk = numbered(len(found))
    table = columns.table(chunk, [ok(value) for value in found])
    assert table.schema.equals(columns.schema, check_metadata=True)
    table.validate(full=True)
    read_back(columns, chunk, table)
