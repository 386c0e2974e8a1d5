"""JSON Lines and CSV as they come: what a bad line costs, which types columns have, what counts as a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.producers.backfill import input_lines, text_records
from headrace.producers.backfill.failures import InputFailed
from headrace.producers.backfill.input_lines import LineReader
from headrace.producers.backfill.opening import open_source
from headrace.producers.backfill.source import Chunk, RowFault


def _chunk(path: Path, content: bytes, **options: Any) -> Chunk:
    path.write_bytes(content)
    (chunk,) = open_source(str(path), **options).chunks(1000, lambda number: True)
    return chunk


def _messages(chunk: Chunk) -> list[Any]:
    return [row.message if isinstance(row, RowFault) else row for row in chunk.rows]


# --- JSON Lines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "not JSON: Expecting ',' delimiter (at byte 7)"),
        ('{"é": x}'.encode(), "not JSON: Expecting value (at byte 7)"),
        (b"[1]", "an array, and a row is an object"),
        (b"null", "null, and a row is an object"),
        (b'{"a": 1, "a": 2}', "this key is given twice (at /a)"),
        (b'{"a": {"b": NaN}}', "NaN is not JSON (at /a/b)"),
        (b'{"a": 1e999}', "1e999 is beyond a double's range (at /a)"),
        (b'{"a": ' + b"9" * 400 + b"}", "an integer of 400 digits is beyond a double's range (at /a)"),
        (b'{"a": "\\ud800"}', "a lone surrogate: half of a character (at /a)"),
        (b'{"a": "\xff"}', "bytes that are no UTF-8 (at byte 7)"),
        (b"[" * 100_000, "nested more than 128 deep"),
    ],
)
def test_a_line_that_is_no_row_is_a_fault_with_its_place_and_text(
    tmp_path: Path, line: bytes, message: str
) -> None:
    chunk = _chunk(tmp_path / "a.jsonl", b'{"a": 1}\n' + line + b'\n{"a": 2}\n')

    assert _messages(chunk) == [{"a": 1}, message, {"a": 2}]
    fault = chunk.rows[1]
    assert isinstance(fault, RowFault)
    assert (fault.code, fault.text) == ("undecodable", line.decode("utf-8", "replace")[:1000])
    assert chunk.kept.to_pylist() == [{"a": 1}, {"a": None}, {"a": 2}]


def test_blank_lines_marks_carriage_returns_and_a_missing_last_line_feed_are_no_rows(tmp_path: Path) -> None:
    chunk = _chunk(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \t\n{"a": 2}')
    assert chunk.rows == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("values", "kind", "kept"),
    [
        (["x", None], pa.string(), ["x", None]),
        ([True, None, False], pa.bool_(), [True, None, False]),
        ([1, None, -(2**63)], pa.int64(), [1, None, -(2**63)]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([None, None], pa.string(), [None, None]),
        ([1, "x", None], pa.string(), ["1", "x", None]),
        ([1, True], pa.string(), ["1", "true"]),
        ([{"é": [1, None]}], pa.string(), ['{"é":[1,null]}']),
        ([1, 2**63], pa.string(), ["1", "9223372036854775808"]),  # 64 bits do not hold it
        ([0.5, 2**53 + 1], pa.string(), ["0.5", "9007199254740993"]),  # a double does not
    ],
    ids=str,
)
def test_a_column_has_the_type_that_holds_every_row(
    tmp_path: Path, values: list[Any], kind: pa.DataType, kept: list[Any]
) -> None:
    rows = [{"id": "x", "v": value} for value in values]
    chunk = _chunk(tmp_path / "a.jsonl", "\n".join(json.dumps(row) for row in rows).encode())

    assert chunk.kept.schema.field("v").type == kind
    assert chunk.kept["v"].to_pylist() == kept
    assert chunk.rows == rows


def test_a_key_of_the_last_row_is_a_column_from_the_first_on(tmp_path: Path) -> None:
    chunk = _chunk(tmp_path / "a.jsonl", b'{"a": 1}\n{"b": "x"}\n')
    assert chunk.kept.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}]
    assert chunk.rows == [{"a": 1}, {"b": "x"}]


def test_keys_that_are_values_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"user-{number}": 1}}\n' for number in range(10_001)))
    with pytest.raises(InputFailed, match="more than 10000 different keys"):
        open_source(str(path))


def test_a_line_beyond_the_bound_is_a_fault_that_holds_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_lines, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(input_lines.LineReader.__init__, "__kwdefaults__", {"block_bytes": 64})
    long = b'{"a": "' + b"x" * 1000 + b'"}'
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([b'{"a": "b"}', long, *[b'{"a": "c"}'] * 1500, long]))
    source = open_source(str(path))

    (first,) = source.chunks(3, lambda number: number == 0)
    (last,) = source.chunks(2, lambda number: number == 751)

    assert _messages(first)[1].startswith("a line of 1009 bytes, and at most")
    assert [len(row.text) for row in first.rows if isinstance(row, RowFault)] == [100]
    assert _messages(first)[::2] == [{"a": "b"}, {"a": "c"}]
    assert source.row_count == 1503
    assert _messages(last)[0].startswith("a line of 1009 bytes")


@pytest.mark.parametrize("end", [b"", b"\n"], ids=["cut off", "with a line feed"])
@pytest.mark.parametrize(
    ("name", "head", "behind"),
    [
        ("a.jsonl", b'{"a": "b"}\n{"a": "%s"}\n', b'{"a": "%d"}'),
        ("a.csv", b"a\nb\n%s\n", b"%d"),
    ],
    ids=["jsonl", "csv"],
)
def test_lines_behind_an_overlong_one_in_the_last_block_are_rows_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, head: bytes, behind: bytes, end: bytes
) -> None:
    """What lies behind its line feed is all that is left of the file, and no block comes after it."""
    monkeypatch.setattr(input_lines, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(input_lines.LineReader.__init__, "__kwdefaults__", {"block_bytes": 64})
    path = tmp_path / name
    for length in range(1000, 1064):  # wherever the last block begins
        path.write_bytes(head % (b"x" * length) + b"\n".join(behind % row for row in range(3)) + end)
        source = open_source(str(path))

        (chunk,) = source.chunks(10, lambda number: True)

        assert source.row_count == 5
        assert chunk.rows[0] == {"a": "b"}
        assert isinstance(chunk.rows[1], RowFault)
        assert chunk.rows[2:] == [{"a": "0"}, {"a": "1"}, {"a": "2"}]


def test_what_is_left_behind_an_overlong_line_keeps_its_blank_lines_and_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_lines, "MAX_LINE_BYTES", 100)
    reader = LineReader(pa.BufferReader(b"x" * 200 + b"\na\n\nbc\n"), block_bytes=64)
    found: list[tuple[int, bytes]] = []
    while (line := reader.next_line()) is not None:
        found.append((reader.offset, line))
    assert found == [(201, b"x" * 100), (203, b"a"), (204, b""), (207, b"bc")]


def test_lines_keep_their_offsets_whatever_the_blocks_are() -> None:
    text = b"\xef\xbb\xbfa\n\nbcd\n" + b"e" * 50 + b"\nf"
    for block_bytes in range(3, 70):
        reader = LineReader(pa.BufferReader(text), block_bytes=block_bytes)
        found: list[tuple[int, bytes]] = []
        while True:
            offset = reader.offset if found else 3
            if (line := reader.next_line()) is None:
                break
            found.append((offset, line))
        assert found == [(3, b"a"), (5, b""), (6, b"bcd"), (10, b"e" * 50), (61, b"f")]


# --- CSV ------------------------------------------------------------------------------------------------------------


def test_every_value_of_csv_is_text_and_an_empty_field_null(tmp_path: Path) -> None:
    chunk = _chunk(
        tmp_path / "a.csv",
        b'\xef\xbb\xbfid,note\r\n01,"a ""b"", c"\r\n\r\n2,\r\n3,""\r\n4,"two\r\nlines"\r\n',
    )

    assert chunk.rows == [
        {"id": "01", "note": 'a "b", c'},
        {"id": "2", "note": None},
        {"id": "3", "note": None},
        {"id": "4", "note": "two\r\nlines"},
    ]
    assert chunk.kept.schema == pa.schema([("id", pa.string()), ("note", pa.string())])
    assert chunk.kept.to_pylist() == chunk.rows


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"9", "1 field, and the header has 2"),
        (b"9,x,y", "3 fields, and the header has 2"),
        (b'9,"x"y', "bad quoting: ',' expected after '\"'"),
        (b'9,"\nx\xff"', "bytes that are no UTF-8 (at byte 5)"),
        (b"9,x\ry", "bad quoting: new-line character seen in unquoted field"),
    ],
)
def test_a_bad_record_costs_itself_alone(tmp_path: Path, record: bytes, message: str) -> None:
    chunk = _chunk(tmp_path / "a.csv", b"id,note\n1,a\n" + record + b"\n2,b\n3,c\n")

    rows = _messages(chunk)
    assert [rows[0], *rows[2:]] == [
        {"id": "1", "note": "a"},
        {"id": "2", "note": "b"},
        {"id": "3", "note": "c"},
    ]
    assert rows[1].startswith(message)
    fault = chunk.rows[1]
    assert isinstance(fault, RowFault)
    assert fault.text == record.decode("utf-8", "replace")
    assert chunk.kept.to_pylist()[1] == {"id": None, "note": None}


@pytest.mark.parametrize("bound", [20, 1 << 20])  # met by the bound on a record, and by the end of the file
def test_a_quote_that_is_never_closed_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(text_records, "MAX_QUOTED_BYTES", bound)
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,note\n1,"a\n' + b"".join(b"%d,b\n" % number for number in range(2, 2500)))
    source = open_source(str(path))

    (first,) = source.chunks(2, lambda number: number == 0)
    (later,) = source.chunks(2, lambda number: number == 1200)

    assert source.row_count == 2499
    assert "quot" in _messages(first)[0]
    assert _messages(first)[1] == {"id": "2", "note": "b"}
    assert later.rows == [{"id": "2401", "note": "b"}, {"id": "2402", "note": "b"}]


def test_files_of_csv_may_have_their_columns_in_another_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,note\n1,a\n")
    (tmp_path / "b.csv").write_text("")  # an engine that had no rows to write
    (tmp_path / "c.csv").write_text("note,id\nb,2\n")
    (chunk,) = open_source(str(tmp_path)).chunks(10, lambda number: True)
    assert chunk.kept.to_pylist() == [{"id": "1", "note": "a"}, {"id": "2", "note": "b"}]


def test_a_column_without_a_name_is_called_by_its_place(tmp_path: Path) -> None:
    assert _chunk(tmp_path / "a.csv", b",title\n0,x\n").rows == [{"column_1": "0", "title": "x"}]


def test_a_field_may_be_longer_than_the_csv_module_thinks(tmp_path: Path) -> None:
    (row,) = _chunk(tmp_path / "a.csv", b"a,b\n1," + b"x" * 500_000 + b"\n").rows
    assert isinstance(row, dict)
    assert len(row["b"]) == 500_000
