"""Columns of Parquet and Arrow as a mapping sees them, and as the output keeps them."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.producers.backfill.opening import open_source
from headrace.producers.backfill.row_values import json_values
from headrace.producers.backfill.source import Chunk, RowFault

UTC = dt.UTC
MOMENT = dt.datetime(2024, 2, 29, 12, 30, 0, 250_000)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, None, 2**64 - 1], pa.uint64()), [1, None, 2**64 - 1]),
        (pa.array([True, None]), [True, None]),
        (pa.array([0.5, float("nan"), float("-inf"), None]), [0.5, None, None, None]),
        (pa.array([0.1, None], pa.float32()), [0.1, None]),
        (pa.array([1.5], pa.float16()), [1.5]),
        (pa.array([decimal.Decimal("12.50"), None, decimal.Decimal("-0.01")]), ["12.50", None, "-0.01"]),
        (pa.array([0], pa.decimal128(9, 8)), ["0.00000000"]),
        (pa.array([dt.date(2024, 2, 29), None]), ["2024-02-29", None]),
        (pa.array([MOMENT]), ["2024-02-29T12:30:00.25"]),
        (pa.array([MOMENT.replace(microsecond=0)], pa.timestamp("ns")), ["2024-02-29T12:30:00"]),
        (pa.array([1], pa.timestamp("ns", "Europe/Berlin")), ["1970-01-01T00:00:00.000000001Z"]),
        (pa.array([MOMENT.replace(tzinfo=UTC)]), ["2024-02-29T12:30:00.25Z"]),
        (pa.array([253402300800], pa.timestamp("s")), ["10000-01-01T00:00:00"]),  # a year that Python does not have
        (pa.array([dt.time(1, 2, 3)]), ["01:02:03"]),
        (pa.array([90_500, -1, None], pa.duration("ms")), ["PT90.5S", "-PT0.001S", None]),
        (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        (pa.array([None, None]), [None, None]),
        (pa.array([[1], None, [], [2, None]]), [[1], None, [], [2, None]]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, 4]]),
        (pa.array([[1], None, [2, 3]], pa.list_view(pa.int8())), [[1], None, [2, 3]]),
        (pa.array([{"a": float("nan"), "b": [MOMENT]}, None, {"a": 1.0}]),
         [{"a": None, "b": ["2024-02-29T12:30:00.25"]}, None, {"a": 1.0, "b": None}]),
        (pa.array([[(1, "x")], None, [], [(2, None), (3, "y")]], pa.map_(pa.int8(), pa.string())),
         [{"1": "x"}, None, {}, {"2": None, "3": "y"}]),
        (pa.array([b"\x01" * 16, None], pa.uuid()), ["01010101-0101-0101-0101-010101010101", None]),
        (pa.array(["a", None], pa.string_view()), ["a", None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_a_value_of_each_type_is_json_alone_and_in_a_slice(array: Any, expected: list[Any]) -> None:
    assert json_values(array) == expected
    for start in range(len(array)):
        assert json_values(array.slice(start, 2)) == expected[start : start + 2]


def _only_chunk(path: Path, **options: Any) -> Chunk:
    (chunk,) = open_source(str(path), **options).chunks(100, lambda number: True)
    return chunk


def test_binary_columns_are_kept_and_no_part_of_a_row(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"id": [1, 2], "image": [b"\xff", b"\x00"], "s": [[{"b": b"x"}], None]}),
        tmp_path / "a.parquet",
    )
    source = open_source(str(tmp_path / "a.parquet"), keep=["image", "id"])

    (chunk,) = source.chunks(10, lambda number: True)

    assert chunk.rows == [{"id": 1}, {"id": 2}]
    assert chunk.kept.to_pylist() == [{"image": b"\xff", "id": 1}, {"image": b"\x00", "id": 2}]
    assert source.columns == ["id"]
    assert source.unreadable["image"] == "binary is bytes, which no prompt can hold"
    assert set(source.unreadable) == {"image", "s"}


def test_dictionaries_are_decoded_so_that_all_parts_agree(tmp_path: Path) -> None:
    deep = pa.array(
        [[{"x": "u"}], None, []], pa.list_(pa.struct({"x": pa.dictionary(pa.int8(), pa.string())}))
    )
    table = pa.table({"genre": pa.array(["a", "b", None]).dictionary_encode(), "deep": deep})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)

    chunk = _only_chunk(tmp_path / "a.arrow")

    assert chunk.kept.schema.types == [pa.string(), pa.list_(pa.struct({"x": pa.string()}))]
    assert chunk.rows == chunk.kept.to_pylist() == table.to_pylist()


def test_text_that_is_no_utf_8_costs_its_row_alone(tmp_path: Path) -> None:
    column = pa.array([b"good", b"b\xffd", b"fine"]).cast(pa.string(), safe=False)
    table = pa.table({"id": [1, 2, 3], "text": column})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)

    chunk = _only_chunk(tmp_path / "a.arrow")

    first, fault, last = chunk.rows
    assert (first, last) == ({"id": 1, "text": "good"}, {"id": 3, "text": "fine"})
    assert isinstance(fault, RowFault)
    assert (fault.code, fault.message) == (
        "undecodable",
        "column `text`: bytes that are no UTF-8 (at byte 1)",
    )
    assert fault.text == '{"id":2,"text":null}'
    assert chunk.kept.to_pylist() == [first, {"id": None, "text": None}, last]


def test_types_that_are_kept_are_the_files_own(tmp_path: Path) -> None:
    table = pa.table({
        "when": pa.array([MOMENT], pa.timestamp("us", "Europe/Berlin")),
        "price": pa.array([decimal.Decimal("1.50")]),
        "tags": pa.array([["a"]]),
        "small": pa.array([1], pa.int8()),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")

    chunk = _only_chunk(tmp_path / "a.parquet")

    assert chunk.kept.schema == table.schema
    assert chunk.kept.equals(table)
