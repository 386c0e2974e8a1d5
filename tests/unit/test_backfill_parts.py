"""Parts are the same whenever they are written, and one file of them reads as they do."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backfill_rows import KEPT, chunk_of, numbered, ok, places_in

from headrace.producers.backfill.assembly import AssembledFile, Places, assemble, remove_parts, unpack
from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.failures import JobInvalid, OutputFailed
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.parts import Part, PartWriter, read_part
from headrace.producers.backfill.source import Chunk, RowFault
from headrace.producers.backfill.table_files import FileFormat

SCHEMA = {
    "type": "object",
    "properties": {
        "Title": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "lead": {"type": "object", "properties": {"name": {"type": "string"}, "born": {"type": "integer"}}},
        "more": {},
    },
}
COLUMNS = OutputColumns.of(KEPT, SCHEMA)
ABOUT = {"job": "tags-1", "model": "movie-tagger", "contract": "1"}
FILES = ["tags.parquet", "tags.jsonl"]


def format_in(places: Places) -> FileFormat:
    return "parquet" if places.file.endswith(".parquet") else "jsonl"


def written_to(places: Places, chunk: Chunk, outcomes: Sequence[Outcome]) -> Part:
    return writer_to(places).write(places.parts, places.rejects, chunk, outcomes)


def writer_to(places: Places) -> PartWriter:
    return PartWriter(COLUMNS, format_in(places), ABOUT)


def outcomes_for(chunk: Chunk, bad: bool = False) -> list[Outcome]:
    """An outcome for each row; with `bad`, the second one's request failed."""
    found = [
        ok(
            {"Title": "T", "tags": ["a", "é"], "lead": {"name": f"n{i}"}, "more": {"x": [1, None]}},
            prompt_tokens=3,
            completion_tokens=2,
            version="1.0.0",
            request_id=f"tags-1.{chunk.first_row + i}.0.d",
        )
        for i in range(len(chunk))
    ]
    if bad:
        found[1] = Outcome("failed", code="engine_error", error="it broke", request_id="tags-1.1.0.d")
    return found


def written(places: Places) -> list[Part]:
    """Three parts of 25 rows, the first and the last with a reject."""
    chunks = [numbered(10, 0), numbered(10, 1), numbered(5, 2)]
    return [written_to(places, chunk, outcomes_for(chunk, bad=chunk.number != 1)) for chunk in chunks]


def files_under(directory: Path) -> dict[str, str]:
    """The digests of all files."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("file", FILES)
def test_a_part_that_is_written_again_has_the_same_bytes(tmp_path: Path, file: str) -> None:
    parts = written(places_in(tmp_path / "a", file))
    assert written(places_in(tmp_path / "a", file)) == parts
    assert written(places_in(tmp_path / "b", file)) == parts
    assert files_under(tmp_path / "a") == files_under(tmp_path / "b")
    assert {part.sha256 for part in parts} <= set(files_under(tmp_path / "a").values())


def test_a_part_says_what_is_in_it(tmp_path: Path) -> None:
    chunk = numbered(4, 3)
    outcomes = outcomes_for(chunk, bad=True)
    outcomes[3] = Outcome("ok", {}, prompt_tokens=3, completion_tokens=2, version="1.1.0", asked=False)
    part = written_to(places_in(tmp_path, "tags.parquet"), chunk, outcomes)
    assert (part.number, part.first_row, part.rows, part.file) == (3, 30, 4, "part-000003.parquet")
    assert (part.statuses, part.codes) == ({"failed": 1, "ok": 3}, {"engine_error": 1})
    assert (part.prompt_tokens, part.completion_tokens, part.asked) == (6, 4, 3)
    assert part.versions == {"1.0.0": 2, "1.1.0": 1}
    assert part.bytes == (tmp_path / "tags.parquet.headrace/parts/part-000003.parquet").stat().st_size


def test_rows_without_an_output_are_listed_with_reason_and_row(tmp_path: Path) -> None:
    places = places_in(tmp_path, "tags.jsonl")
    chunk = chunk_of(
        [{"Title": "a", "Nan": float("nan")}, RowFault("bad_line", "no JSON", "{tit"), {"Title": "c"}], 2
    )
    outcomes = [
        Outcome("truncated", code="truncated", error="too long", request_id="i"),
        Outcome("rejected"),
        ok({}),
    ]
    written_to(places, chunk, outcomes)
    lines = (places.rejects.read("rejects-000002.jsonl") or b"").decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"row_index": 20, "status": "truncated", "code": "truncated", "reason": "too long", "id": "i",
         "input": {"Title": "a", "Nan": None}},
        {"row_index": 21, "status": "rejected", "code": "bad_line", "reason": "no JSON", "id": None, "input": "{tit"},
    ]  # fmt: skip
    written_to(places, chunk, [ok({}), ok({}), ok({})])
    assert places.rejects.names() == []


def test_a_line_of_jsonl_has_the_columns_in_order_and_json_as_json(tmp_path: Path) -> None:
    places = places_in(tmp_path, "tags.jsonl")
    chunk = chunk_of([{"Year": 1999, "Title": "Ünder", "Country": "dropped"}])
    value = {"more": {"x": [1, None]}, "Title": "T", "lead": {"name": "Bo"}}
    written_to(places, chunk, [ok(value, prompt_tokens=3, version="1", request_id="i")])
    assert (places.parts.read("part-000000.jsonl") or b"").decode() == (
        '{"Title":"Ünder","Year":1999,"Title_output":"T","tags":null,"lead":{"name":"Bo"},"more":{"x":[1,null]},'
        '"headrace_status":"ok","headrace_error":null,"headrace_prompt_tokens":3,"headrace_completion_tokens":0,'
        '"headrace_version":"1","headrace_id":"i"}\n'
    )


def test_parquet_says_which_job_wrote_it(tmp_path: Path) -> None:
    places = places_in(tmp_path, "tags.parquet")
    assemble(places, written(places), COLUMNS, ABOUT)
    for path in tmp_path.rglob("*.parquet"):
        metadata = pq.ParquetFile(path).schema_arrow.metadata
        assert metadata.items() >= {b"headrace.job": b"tags-1", b"headrace.contract": b"1"}.items()
        assert b"headrace.release" in metadata
        assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("file", FILES)
def test_what_was_written_is_read_by_part_before_and_after_it_is_put_together(
    tmp_path: Path, file: str
) -> None:
    places = places_in(tmp_path, file)
    parts = written(places)
    chunk = numbered(10, 1)
    whole = COLUMNS.table(chunk, outcomes_for(chunk))
    assert read_part(places.parts, parts[1], COLUMNS).equals(whole.select(COLUMNS.own_schema.names))
    before = [read_part(places.parts, part, COLUMNS) for part in parts]
    assemble(places, parts, COLUMNS, ABOUT)
    with AssembledFile.opened(places.folder, file, parts, COLUMNS) as assembled:
        assert [assembled.table(part) for part in reversed(parts)] == before[::-1]


@pytest.mark.parametrize("file", FILES)
def test_the_assembled_file_has_every_row_in_order_and_the_rejects_beside_it(
    tmp_path: Path, file: str
) -> None:
    places = places_in(tmp_path, file)
    parts = written(places)
    rows: list[int] = []
    assembled = assemble(places, parts[::-1], COLUMNS, ABOUT, rows.append)
    assert rows == [10, 20, 25]
    data = (tmp_path / file).read_bytes()
    assert (assembled.bytes, assembled.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert (assembled.rows, assembled.rejects) == (25, 2)
    if file.endswith(".parquet"):
        assert pq.ParquetFile(tmp_path / file).num_row_groups == 3
        titles = pq.read_table(tmp_path / file)["Title"].to_pylist()
    else:
        titles = [json.loads(line)["Title"] for line in data.splitlines()]
    assert titles == [f"film {i}" for i in range(25)]
    rejects = [json.loads(line) for line in (tmp_path / "tags.rejects.jsonl").read_text("utf-8").splitlines()]
    assert [each["row_index"] for each in rejects] == [1, 21]
    remove_parts(places, parts)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [file, "tags.rejects.jsonl"]
    assert list((tmp_path / f"{file}.headrace").iterdir()) == []


@pytest.mark.parametrize("file", FILES)
def test_without_rejects_an_old_file_of_them_is_removed(tmp_path: Path, file: str) -> None:
    places = places_in(tmp_path, file)
    (tmp_path / "tags.rejects.jsonl").write_text("{}\n")
    chunk = numbered(3)
    assembled = assemble(places, [written_to(places, chunk, outcomes_for(chunk))], COLUMNS, ABOUT)
    assert assembled.rejects == 0
    assert not (tmp_path / "tags.rejects.jsonl").exists()


@pytest.mark.parametrize("file", FILES)
def test_an_input_without_rows_gives_a_file_without_rows(tmp_path: Path, file: str) -> None:
    assert assemble(places_in(tmp_path, file), [], COLUMNS, ABOUT).rows == 0
    if file.endswith(".parquet"):
        assert pq.read_table(tmp_path / file).schema.equals(COLUMNS.schema)
    else:
        assert (tmp_path / file).read_bytes() == b""


@pytest.mark.parametrize(
    ("file", "said"), [("tags.txt", "jsonl"), ("tags.txt", "parquet"), ("tags.parquet", "jsonl")]
)
def test_a_file_has_the_format_that_the_job_says_whatever_its_name(
    tmp_path: Path, file: str, said: FileFormat
) -> None:
    """Parts have it in their names; `output = { path, format }` and `--output-format` say it."""
    places = places_in(tmp_path, file)
    writer = PartWriter(COLUMNS, said, ABOUT)
    chunks = [numbered(10, 0), numbered(5, 1)]
    parts = [writer.write(places.parts, places.rejects, each, outcomes_for(each)) for each in chunks]
    before = [read_part(places.parts, part, COLUMNS) for part in parts]

    assemble(places, parts, COLUMNS, ABOUT)

    if said == "parquet":
        titles = pq.read_table(tmp_path / file)["Title"].to_pylist()
    else:
        titles = [json.loads(line)["Title"] for line in (tmp_path / file).read_bytes().splitlines()]
    assert titles == [f"film {i}" for i in range(15)]
    with AssembledFile.opened(places.folder, file, parts, COLUMNS) as assembled:
        assert [assembled.table(part) for part in parts] == before
    remove_parts(places, parts)
    assert [each.sha256 for each in unpack(places, parts, COLUMNS, ABOUT)] == [part.sha256 for part in parts]


def test_without_rows_a_file_whose_name_says_no_format_is_empty(tmp_path: Path) -> None:
    assert assemble(places_in(tmp_path, "tags.txt"), [], COLUMNS, ABOUT).rows == 0
    assert (tmp_path / "tags.txt").read_bytes() == b""


@pytest.mark.parametrize("file", FILES)
def test_parts_laid_out_again_are_as_they_were_and_those_that_stand_stay(tmp_path: Path, file: str) -> None:
    places = places_in(tmp_path, file)
    parts = written(places)
    before = files_under(tmp_path)
    assemble(places, parts, COLUMNS, ABOUT)
    remove_parts(places, parts)
    unpacked = unpack(places, parts, COLUMNS, ABOUT)
    next(unpacked)
    unpacked.close()  # killed here
    assert [(each.number, each.sha256) for each in unpack(places, parts, COLUMNS, ABOUT)] == [
        (part.number, part.sha256) for part in parts[1:]
    ]
    assert files_under(tmp_path).items() >= before.items()


@pytest.mark.parametrize("file", FILES)
def test_a_missing_or_damaged_part_leaves_the_former_output_as_it_was(tmp_path: Path, file: str) -> None:
    places = places_in(tmp_path, file)
    parts = written(places)
    assemble(places, parts, COLUMNS, ABOUT)
    former = files_under(tmp_path)[file]
    with pytest.raises(OutputFailed, match="not all parts are there yet"):
        assemble(places, parts[1:], COLUMNS, ABOUT)
    places.parts.write(parts[1].file, (places.parts.read(parts[1].file) or b"")[:-1])
    with pytest.raises(OutputFailed, match=r"part-000001.* is not as it was written"):
        assemble(places, parts, COLUMNS, ABOUT)
    places.parts.delete(parts[1].file)
    with pytest.raises(OutputFailed, match=r"part-000001.* is gone"):
        assemble(places, parts, COLUMNS, ABOUT)
    assert files_under(tmp_path)[file] == former
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".partial")] == []


@pytest.mark.parametrize("file", FILES)
def test_an_assembled_file_that_somebody_changed_is_not_read(tmp_path: Path, file: str) -> None:
    places = places_in(tmp_path, file)
    parts = written(places)
    assemble(places, parts, COLUMNS, ABOUT)
    if file.endswith(".parquet"):
        pq.write_table(pq.read_table(tmp_path / file), tmp_path / file)
    else:
        (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[::-1])
    with (
        pytest.raises(OutputFailed, match="is not as it was written"),
        AssembledFile.opened(places.folder, file, parts, COLUMNS) as assembled,
    ):
        assembled.table(parts[0])


def test_an_input_column_that_parquet_does_not_have_is_refused_before_anything_is_asked() -> None:
    columns = OutputColumns.of(pa.schema([("span", pa.month_day_nano_interval())]), None)
    with pytest.raises(JobInvalid, match=r"column 'span' .* leave it out by `keep`, or write JSONL"):
        PartWriter(columns, "parquet", ABOUT)
    PartWriter(columns, "jsonl", ABOUT)


CHILD = """
    import sys
    from pathlib import Path
    from backfill_rows import places_in
    from test_backfill_parts import ABOUT, COLUMNS, assemble, large_parts
    places = places_in(Path(sys.argv[1]), sys.argv[2])
    while True:
        parts = []
        for part in large_parts(places):
            parts.append(part)
            print(part.number, flush=True)
        assemble(places, parts, COLUMNS, ABOUT)
"""


def large_parts(places: Places) -> Iterator[Part]:
    """Six parts of 400 rows, each with a reject."""
    for number in range(6):
        chunk = numbered(400, number, 400)
        yield written_to(places, chunk, outcomes_for(chunk, bad=True))


def write_and_kill(directory: Path, file: str, part: int, seconds: float) -> None:
    """Let a process write parts and put them together again and again; kill it so long after it has written one."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(directory), file]
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        for _ in range(part + 1):
            assert process.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()


@pytest.mark.parametrize("file", FILES)
def test_whenever_the_writer_is_killed_every_file_is_whole(tmp_path: Path, file: str) -> None:
    undisturbed, killed = places_in(tmp_path / "undisturbed", file), places_in(tmp_path / "killed", file)
    assemble(undisturbed, list(large_parts(undisturbed)), COLUMNS, ABOUT)
    whole = files_under(tmp_path / "undisturbed")
    chance = random.Random()
    for last in (0, 5, 5):  # after the sixth part they are put together
        write_and_kill(tmp_path / "killed", file, last, chance.uniform(0, 0.04))
        for folder in (killed.parts, killed.rejects, killed.folder):
            folder.sweep()
        found = files_under(tmp_path / "killed")
        assert found.items() <= whole.items()
        assert len(found) >= 2 * (last + 1)
