"""An input that cannot be used is refused before a row is asked, with what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.producers.backfill.failures import InputFailed
from headrace.producers.backfill.locations import without_secrets
from headrace.producers.backfill.opening import open_source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"title": ["a"], "year": [1]}), tmp_path / "films.parquet")
    (tmp_path / "films.csv").write_text("title,Release Date\nx,1999\n")
    (tmp_path / "films.jsonl").write_text('{"title": "x", "n": 1}\n')
    return tmp_path


def _refused(location: str, **options: object) -> str:
    with pytest.raises(InputFailed) as caught:
        open_source(location, **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_file_that_is_not_there_names_the_one_that_looks_like_it(folder: Path) -> None:
    assert _refused(f"{folder}/film.parquet") == f"there is no {folder}/film.parquet; is it `films.parquet`?"
    assert _refused(f"{folder}/x/y.csv") == f"there is no {folder}/x/y.csv"


def test_a_directory_or_pattern_without_files_is_refused(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "empty" / "_SUCCESS").touch()
    assert "empty has no files" in _refused(f"{folder}/empty")
    assert "no file fits" in _refused(f"{folder}/*.arrow")


def test_an_unknown_suffix_lists_the_known_ones_and_the_option(folder: Path) -> None:
    (folder / "films.json").write_text('{"title": "x"}\n')
    message = _refused(f"{folder}/films.json")
    assert ".parquet" in message
    assert "--input-format (parquet, arrow, csv, tsv, jsonl)" in message
    assert "if it has a row in each line, say jsonl" in message
    assert open_source(f"{folder}/films.json", format="jsonl").row_count == 1
    assert "`xml` is no format" in _refused(f"{folder}/films.json", format="xml")


def test_a_directory_of_several_formats_is_refused(folder: Path) -> None:
    message = _refused(f"{folder}")
    assert "films.csv is csv, films.jsonl is jsonl" in message


@pytest.mark.parametrize("name", ["films.csv", "films.jsonl", "films.parquet"])
def test_a_column_that_is_not_there_names_the_one_that_looks_like_it(folder: Path, name: str) -> None:
    assert (
        _refused(f"{folder}/{name}", keep=["Titel"])
        == f"{folder}/{name} has no column `Titel`; is it `title`?"
    )
    assert "there are `title`, " in _refused(f"{folder}/{name}", keep=["zzzzzzz"])
    assert "keep: two columns are called `title`" in _refused(f"{folder}/{name}", keep=["title", "title"])


def test_files_that_disagree_name_the_file_and_the_column(folder: Path) -> None:
    for name, table in {
        "type": pa.table({"title": ["a"], "year": ["1"]}),
        "more": pa.table({"title": ["a"], "year": [1], "extra": [1]}),
        "less": pa.table({"title": ["a"]}),
    }.items():
        (folder / name).mkdir()
        pq.write_table(table, folder / name / "z.parquet")
        (folder / name / "films.parquet").write_bytes((folder / "films.parquet").read_bytes())
    assert "column `year` is string in z.parquet and int64 in films.parquet" in _refused(f"{folder}/type")
    assert "column `extra` is int64 in z.parquet and missing in films.parquet" in _refused(f"{folder}/more")
    assert "column `year` is missing in z.parquet and int64 in films.parquet" in _refused(f"{folder}/less")
    (folder / "csv").mkdir()
    (folder / "csv" / "a.csv").write_text("a,b\n1,2\n")
    (folder / "csv" / "b.csv").write_text("a,c\n1,2\n")
    assert "b.csv: column `b` is in a.csv and not in b.csv" in _refused(f"{folder}/csv")


def test_files_in_different_kinds_of_folders_are_refused(folder: Path) -> None:
    for place in ("in/year=1", "in/month=1"):
        (folder / place).mkdir(parents=True)
        (folder / place / "a.jsonl").write_text("{}\n")
    assert "in folders of `month`, year=1/a.jsonl of `year`" in _refused(f"{folder}/in")


def test_a_column_in_the_files_and_in_the_folders_is_refused(folder: Path) -> None:
    (folder / "in" / "n=1").mkdir(parents=True)
    (folder / "in" / "n=1" / "films.jsonl").write_bytes((folder / "films.jsonl").read_bytes())
    assert "column `n` stands in the files and in the names of their folders" in _refused(f"{folder}/in")


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", b""), ("b.csv", b"title,year\n"), ("c.jsonl", b"\n \n"), ("d.jsonl", b"")],
)
def test_an_input_without_rows_is_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert _refused(f"{folder}/{name}") == f"{folder}/{name} has no rows"


def test_tables_without_rows_are_refused(folder: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int8())}), folder / "none.parquet")
    assert _refused(f"{folder}/none.parquet").endswith("none.parquet has no rows")


def test_two_columns_of_one_name_are_refused(folder: Path) -> None:
    (folder / "a.csv").write_text("a,b,a\n1,2,3\n")
    pq.write_table(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), folder / "a.parquet"
    )
    for name in ("a.csv", "a.parquet"):
        assert "two columns are called `a`" in _refused(f"{folder}/{name}")


def test_files_that_are_cut_off_are_refused(folder: Path) -> None:
    whole = (folder / "films.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[:-9])
    assert "cut.parquet: " in _refused(f"{folder}/cut.parquet")
    (folder / "none.arrow").write_bytes(b"")
    (folder / "text.arrow").write_bytes(b"title,year\nx,y\n")
    (folder / "cut.jsonl.gz").write_bytes(pa.compress(b'{"a": 1}\n' * 1000, codec="gzip", asbytes=True)[:-20])
    for name in ("none.arrow", "text.arrow", "cut.jsonl.gz"):
        assert f"{name}: " in _refused(f"{folder}/{name}")


def test_files_that_are_something_else_are_refused(folder: Path) -> None:
    (folder / "old.feather").write_bytes(b"FEA1" + b"\0" * 60)
    assert "Feather version 1" in _refused(f"{folder}/old.feather")
    (folder / "wide.csv").write_bytes("title,year\nx,y\n".encode("utf-16"))
    assert "it is UTF-16; UTF-8 is read" in _refused(f"{folder}/wide.csv")
    (folder / "array.jsonl").write_text('[\n  {"a": 1},\n]\n')
    assert "no row can be read as jsonl" in _refused(f"{folder}/array.jsonl", keep=["a"])
    (folder / "films.parquet.gz").write_bytes(b"x")
    assert "compressed as a whole" in _refused(f"{folder}/films.parquet.gz")


def test_a_file_that_changes_while_it_is_read_is_no_longer_the_input(folder: Path) -> None:
    path = folder / "films.jsonl"
    source = open_source(str(path))
    path.write_text('{"title": "x"}\n{"title": "y"}\n')
    with pytest.raises(InputFailed, match="has changed since it was opened"):
        list(source.chunks(10, lambda number: True))


@pytest.mark.parametrize("name", ["films.parquet", "films.jsonl.gz"])
@pytest.mark.parametrize("left", [0.6, 0.0])
def test_a_file_that_is_cut_off_after_it_was_opened_is_an_input_failure(
    folder: Path, name: str, left: float
) -> None:
    lines = b"".join(b'{"title": "%d"}\n' % number for number in range(9000))
    (folder / "films.jsonl.gz").write_bytes(pa.compress(lines, codec="gzip", asbytes=True))
    path = folder / name
    source = open_source(str(path))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * left)])

    with pytest.raises(InputFailed, match=name):
        list(source.chunks(1000, lambda number: True))


def test_another_table_in_the_place_of_the_one_that_was_opened_is_an_input_failure(folder: Path) -> None:
    source = open_source(f"{folder}/films.parquet")
    pq.write_table(pa.table({"year": [1]}), folder / "films.parquet")
    with pytest.raises(InputFailed, match="has changed since it was opened"):
        list(source.chunks(10, lambda number: True))


@pytest.mark.parametrize("rows", [3, 7], ids=["fewer rows", "more rows"])
def test_a_table_that_gets_other_rows_after_it_was_opened_is_an_input_failure(
    folder: Path, rows: int
) -> None:
    """Those of the files behind it would be counted from another place."""
    inside = folder / "tables"
    inside.mkdir()
    for name in ("a", "b"):
        pq.write_table(pa.table({"year": list(range(5))}), inside / f"{name}.parquet")
    source = open_source(str(inside))
    pq.write_table(pa.table({"year": list(range(rows))}), inside / "a.parquet")
    with pytest.raises(InputFailed, match=r"a\.parquet has changed since it was opened"):
        list(source.chunks(10, lambda number: True))


def test_an_unknown_scheme_or_option_of_a_uri_is_refused() -> None:
    assert "ftp://host/a.csv: " in _refused("ftp://host/a.csv")
    assert "Unexpected query parameter" in _refused("s3://bucket/a.csv?regoin=x")


def test_what_is_shown_of_a_uri_has_no_secrets() -> None:
    shown = without_secrets(
        "s3://key:se/cret@bucket/films?region=x&secret_key=abc&session_token=d&scheme=http"
    )
    assert shown == "s3://***@bucket/films?region=x&secret_key=***&session_token=***&scheme=http"
    assert without_secrets("/data/a@b.csv") == "/data/a@b.csv"
