"""What every input promises, whatever its format: chunks by row number, holes, types and a digest of what it holds."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from backfill_inputs import WRITERS, write_files

from headrace.producers.backfill.opening import open_source

ROWS = [{"title": f"Film {number}", "year": f"{1900 + number}"} for number in range(25)]
FORMATS = pytest.mark.parametrize("suffix", list(WRITERS))


@FORMATS
def test_chunks_are_cut_by_row_number_across_file_borders(tmp_path: Path, suffix: str) -> None:
    source = open_source(str(write_files(tmp_path / "in", suffix, ROWS, [4, 5, 20])))

    chunks = list(source.chunks(7, lambda number: True))

    assert source.row_count == 25
    assert [(chunk.number, chunk.first_row, len(chunk)) for chunk in chunks] == [
        (0, 0, 7), (1, 7, 7), (2, 14, 7), (3, 21, 4),
    ]  # fmt: skip
    assert [row for chunk in chunks for row in chunk.rows] == ROWS
    assert pa.concat_tables(chunk.kept for chunk in chunks).to_pylist() == ROWS
    assert all(chunk.kept.schema == source.schema for chunk in chunks)


@FORMATS
def test_unwanted_chunks_are_passed_over(tmp_path: Path, suffix: str) -> None:
    source = open_source(str(write_files(tmp_path / "in", suffix, ROWS, [4, 20])))
    asked: list[int] = []

    def wanted(number: int) -> bool:
        asked.append(number)
        return number in {1, 4, 7}

    chunks = source.chunks(3, wanted)

    first = next(chunks)
    assert (first.number, first.rows, asked) == (1, ROWS[3:6], [0, 1])  # asked just before it would be read
    assert [(chunk.number, chunk.rows) for chunk in chunks] == [(4, ROWS[12:15]), (7, ROWS[21:24])]
    assert asked == list(range(9))


@FORMATS
def test_the_columns_kept_are_the_ones_asked_for_in_that_order(tmp_path: Path, suffix: str) -> None:
    source = open_source(str(write_files(tmp_path / "in", suffix, ROWS)), keep=["year"])

    (chunk,) = source.chunks(100, lambda number: True)

    assert chunk.kept.column_names == source.schema.names == ["year"]
    assert chunk.rows == ROWS


@FORMATS
def test_the_same_files_elsewhere_have_the_same_digest(tmp_path: Path, suffix: str) -> None:
    here = write_files(tmp_path / "here", suffix, ROWS, [10])
    there = tmp_path / "elsewhere" / "other"
    there.mkdir(parents=True)
    for file in here.iterdir():
        (there / f"x{file.name}").write_bytes(file.read_bytes())
        os.utime(there / f"x{file.name}", (0, 0))

    assert open_source(str(here)).digest == open_source(str(there)).digest


@FORMATS
@pytest.mark.parametrize("row", [0, 24])
def test_another_value_is_another_digest(tmp_path: Path, suffix: str, row: int) -> None:
    rows = [dict(each) for each in ROWS]
    before = open_source(str(write_files(tmp_path / "before", suffix, rows))).digest
    rows[row]["title"] = "Film X"

    assert before.startswith("sha256:")
    assert open_source(str(write_files(tmp_path / "after", suffix, rows))).digest != before


@FORMATS
def test_folders_named_as_hive_does_give_columns(tmp_path: Path, suffix: str) -> None:
    for country, month, rows in (("US", "01", ROWS[:4]), ("__HIVE_DEFAULT_PARTITION__", "12", ROWS[4:6])):
        write_files(tmp_path / "in" / f"n={len(rows)}" / f"country={country}" / f"m={month}", suffix, rows)
    source = open_source(str(tmp_path / "in"))

    (chunk,) = source.chunks(100, lambda number: True)

    names = {"n": [2, 2, 4, 4, 4, 4], "country": [None] * 2 + ["US"] * 4, "m": ["12"] * 2 + ["01"] * 4}
    assert chunk.rows == [
        {**row, **{name: values[index] for name, values in names.items()}}
        for index, row in enumerate(ROWS[4:6] + ROWS[:4])
    ]
    assert chunk.kept.to_pylist() == chunk.rows
    types = dict(zip(source.schema.names, source.schema.types, strict=True))
    assert (types["n"], types["country"], types["m"]) == (pa.int64(), pa.string(), pa.string())


def test_the_value_of_a_partition_is_part_of_the_digest(tmp_path: Path) -> None:
    digests = set[str]()
    for year in ("2023", "2024"):
        write_files(tmp_path / year / f"year={year}", "jsonl", [{"a": "1"}])
        digests.add(open_source(str(tmp_path / year)).digest)
    assert len(digests) == 2


def test_files_are_read_in_the_order_of_their_names_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for name in (
        "b.jsonl",
        "a/z.jsonl",
        "c.jsonl",
        "_old.jsonl",
        ".c.jsonl.swp",
        "_temporary/d.jsonl",
        "_SUCCESS",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'{{"in": "{name}"}}\n')

    def read(location: str) -> list[object]:
        (chunk,) = open_source(location).chunks(10, lambda number: True)
        return [row["in"] for row in chunk.rows if isinstance(row, dict)]

    assert read(f"{tmp_path}") == ["a/z.jsonl", "b.jsonl", "c.jsonl"]
    assert read(f"{tmp_path}/*.jsonl") == ["b.jsonl", "c.jsonl"]
    assert read(f"{tmp_path}/**/*.jsonl") == ["a/z.jsonl", "b.jsonl", "c.jsonl"]
    assert read(f"file://{tmp_path}/[ab].jsonl") == ["b.jsonl"]
    assert read(f"file://{tmp_path}/a/z.jsonl") == ["a/z.jsonl"]


def test_a_large_file_is_digested_by_its_size_and_pieces_with_the_last_one(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(range(9_000_000), pa.int64())})
    path = tmp_path / "big.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1_000_000)
    told: list[tuple[int, int | None]] = []
    before = open_source(str(path), progress=lambda read, total: told.append((read, total))).digest
    size = path.stat().st_size
    assert size > 64 << 20
    assert told[-1] == (size, size)

    def digest_with(position: int) -> str:
        with path.open("r+b") as file:
            file.seek(position)
            old = file.read(1)
            file.seek(position)
            file.write(bytes([old[0] ^ 1]))
            file.flush()
            changed = open_source(str(path)).digest
            file.seek(position)
            file.write(old)
        return changed

    assert digest_with(1000) != before
    assert digest_with(size - (1 << 20) + 1) != before


def test_text_is_compressed_or_not_and_the_same_input(tmp_path: Path) -> None:
    plain = write_files(tmp_path / "plain", "csv", ROWS)
    packed = write_files(tmp_path / "packed", "csv.gz", ROWS)
    assert open_source(str(plain)).digest == open_source(str(packed)).digest


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "jsonl.zst"])
def test_a_hole_of_many_rows_is_jumped(tmp_path: Path, suffix: str) -> None:
    rows = [{"n": f"{number}", "text": "a\nb" if number % 3 else 'say "x"'} for number in range(5000)]
    source = open_source(str(write_files(tmp_path / "in", suffix, rows, [2000, 2001])))

    chunks = list(source.chunks(3, lambda number: number in {0, 200, 201, 666, 1600}))

    assert [chunk.rows for chunk in chunks] == [
        rows[start : start + 3] for start in (0, 600, 603, 1998, 4800)
    ]
