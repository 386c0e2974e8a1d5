"""A job whose input would have the job's own files in it is refused before anything is written or asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.ops.cli import main
from headrace.producers.backfill import preparing
from headrace.producers.backfill.failures import JobInvalid
from headrace.producers.backfill.job import JobSpec, job_of, load_job
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.locations import place_of
from headrace.producers.backfill.preparing import files_of_job, own_file_in_input, prepare
from headrace.schemas.settings import Settings

NOWHERE = Settings(bootstrap_servers="nowhere:1")
SERVER = "endpoint_override=host:9000&scheme=http"


def a_job(input_: Any, output: Any, **fields: Any) -> JobSpec:
    return job_of({"model": "tagger", "input": input_, "output": output, **fields}, Path("/jobs"))


@pytest.mark.parametrize(
    ("input_", "output"),
    [
        ("films.jsonl", "tags.parquet"),  # the ordinary case: beside each other
        ("data/films.jsonl", "data/tags.jsonl"),
        ("data/films.parquet", "data/"),
        ("data/", "tags.parquet"),
        ("data/", "data.parquet"),
        ("data", "data2/tags.parquet"),
        ("data/in/", "data/tags.parquet"),
        ("data/in/", "data/"),
        ("data/", "data/_out/tags.parquet"),  # passed over by every reader
        ("data/", "data/.out/"),
        ("logs/*.jsonl", "logs/tags/"),
        ("logs/*/*.jsonl", "logs/tags.jsonl"),
        ("logs/**/*.csv", "logs/tags.parquet"),
        ("logs/202?-*.jsonl", "logs/tags.jsonl"),
        ("s3://bucket/films.jsonl", "s3://bucket/tags.parquet"),
        ("s3://bucket/data/", "s3://bucket/tags/"),
        ("s3://bucket/data/", "s3://other/data/tags.parquet"),
        ("s3://bucket/data/", f"s3://bucket/data/tags.parquet?{SERVER}"),  # another server's bucket
        ("s3://bucket/data/", "gs://bucket/data/tags.parquet"),
        ("/bucket/data/", "s3://bucket/data/tags.parquet"),
    ],
)
def test_an_input_that_would_not_have_the_jobs_files_is_not_refused(input_: str, output: str) -> None:
    assert own_file_in_input(a_job(input_, output)) is None


@pytest.mark.parametrize(
    ("input_", "output"),
    [
        ("tags.jsonl", "tags.jsonl"),
        ("./x/../tags.jsonl", "/jobs/tags.jsonl"),
        ("tags.jsonl", "file:///jobs/tags.jsonl"),
        ("tags.jsonl.rejects.jsonl", "tags.jsonl"),  # taken away at the end
        ("tags/_headrace/rejects.jsonl", "tags/"),
        ("data/", "data/tags.parquet"),
        ("data", "data/a/b/tags.parquet"),
        ("data", "data/"),
        ("data/", "data"),
        ("data/", "data/tags/"),
        ("data/part-000000.parquet", "data/"),
        ("tags.parquet.headrace/", "tags.parquet"),
        ("tags.parquet.headrace/former/", "tags.parquet"),
        ("/", "tags.parquet"),
        ("logs/*", "logs/tags.parquet"),
        ("logs/*.jsonl", "logs/tags.jsonl"),
        ("logs/**", "logs/x/tags.jsonl"),
        ("logs/*/*.jsonl", "logs/x/tags.jsonl"),
        ("logs/**/*.jsonl", "logs/tags.parquet"),  # it has its rejects in lines
        ("logs/*.jsonl", "logs/tags.parquet"),  # and beside it
        ("logs/**/*.parquet", "logs/tags/"),
        ("data/part-*.parquet", "data/"),
        ("*/*.json", "tags.parquet"),  # its state
        ("s3://bucket/data/", "s3://bucket/data/tags.parquet"),
        ("s3://key:se/cret@bucket/data/?region=x", "s3://bucket/data/tags.parquet?region=y"),
        (f"s3://bucket/data/?{SERVER}", f"s3://bucket/data/tags/?{SERVER}"),
        ("s3://bucket/a%20b/*.jsonl?region=x", "s3://bucket/a%20b/tags.jsonl"),
        ("s3://bucket", "s3://bucket/tags.jsonl"),
        ("gs://bucket/tags.jsonl", "gcs://bucket/tags.jsonl"),
        ("hdfs://node:8020/data/", "hdfs://node:8020/data/tags.jsonl"),
    ],
)
def test_an_input_that_would_have_the_jobs_files_is_found(input_: str, output: str) -> None:
    assert own_file_in_input(a_job(input_, output)) is not None


def test_formats_that_are_said_count_and_so_do_the_files_of_a_batch() -> None:
    lines = {"path": "logs/tags/", "format": "jsonl"}
    assert own_file_in_input(a_job("logs/**/part-*.jsonl", lines)) is not None
    assert own_file_in_input(a_job("logs/**/part-*.jsonl", "logs/tags/")) is None
    calls = job_of({"openai_batch": "calls/", "output": "calls/answers.jsonl"}, Path("/jobs"))
    assert own_file_in_input(calls) is not None


def test_a_link_to_the_inputs_folder_leads_into_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert own_file_in_input(a_job(f"{tmp_path}/data/", f"{tmp_path}/link/tags.parquet")) is not None
    assert own_file_in_input(a_job(f"{tmp_path}/link/*.jsonl", f"{tmp_path}/data/tags.jsonl")) is not None


def test_a_file_whose_name_looks_like_a_pattern_is_that_file_alone(tmp_path: Path) -> None:
    assert own_file_in_input(a_job(f"{tmp_path}/film*.jsonl", f"{tmp_path}/films.jsonl")) is not None
    (tmp_path / "film*.jsonl").touch()
    assert own_file_in_input(a_job(f"{tmp_path}/film*.jsonl", f"{tmp_path}/films.jsonl")) is None


@pytest.mark.parametrize("output", ["tags.parquet", "tags.jsonl", "tags/"])
def test_the_files_that_are_looked_for_are_where_the_job_has_them(tmp_path: Path, output: str) -> None:
    spec = job_of({"model": "tagger", "input": "films.csv", "output": output}, tmp_path)
    files = JobFiles.of(spec)
    known = {place.path for place in files_of_job(spec)}
    part = f"part-000000.{spec.output_format}"
    for folder, name in (
        (files.places.parts, part),
        (files.places.waiting, part),
        (files.places.rejects, "rejects-000000.jsonl"),
        (files.own, "state.json"),
        (files.own, "manifest.json"),
        (files.own, "former/state.json"),
    ):
        assert place_of(folder.shown(name)).path in known
    assert files.is_directory or place_of(files.shown).path in known


# --- before anything is done ----------------------------------------------------------------------------------------


def test_a_job_that_would_read_its_own_files_is_refused_with_both_places(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "films.jsonl").write_text('{"title": "x"}\n')
    (tmp_path / "job.toml").write_text('model = "tagger"\ninput = "data/"\noutput = "data/tags.parquet"\n')
    with pytest.raises(JobInvalid) as raised:
        prepare(NOWHERE, load_job(tmp_path / "job.toml"))
    assert str(raised.value) == (
        f"{tmp_path}/job.toml:3: output: the job's own file {tmp_path}/data/tags.parquet would be part of its input "
        f"{tmp_path}/data/: give an output elsewhere than {tmp_path}/data/tags.parquet"
    )
    assert raised.value.exit_code == 2


def test_secrets_of_places_are_not_repeated() -> None:
    job = a_job("s3://key:hush@bucket/data/", "s3://key:hush@bucket/data/tags.parquet")
    with pytest.raises(JobInvalid) as raised:
        prepare(NOWHERE, job)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("command", ["run", "estimate"])
def test_an_output_that_is_the_input_is_refused_and_the_input_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    films = tmp_path / "films.jsonl"
    films.write_text(json.dumps({"title": "x"}) + "\n")
    arguments = ["--model", "tagger", "--input", str(films), "--output", str(films)]
    with pytest.raises(SystemExit) as ended:
        main(["backfill", command, *arguments, "--bootstrap-servers", "nowhere:1"])
    assert ended.value.code == 2
    assert f"error: --output: {films} is the input itself: give another output" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["films.jsonl"]
    assert films.read_text() == '{"title": "x"}\n'


@pytest.mark.parametrize(
    ("batch", "output"),
    [
        ("answers.errors.jsonl", "answers.jsonl"),  # replaced by the errors, or taken away
        ("calls/*.jsonl", {"path": "calls/answers.out", "format": "jsonl"}),
        ("answers/_headrace/errors.jsonl", "answers/"),
    ],
)
def test_the_errors_of_a_batch_are_among_its_files(batch: str, output: Any) -> None:
    job = job_of({"openai_batch": batch, "output": output}, Path("/jobs"))
    found = own_file_in_input(job)
    assert found is not None
    assert found.path.endswith("errors.jsonl")


@pytest.mark.parametrize("kept", [None, ["title", "poster"]])
def test_bytes_that_lines_of_json_would_have_as_null_are_refused_before_anything_is_asked(
    tmp_path: Path, kept: list[str] | None
) -> None:
    pq.write_table(pa.table({"title": ["Heat"], "poster": [b"\x89PNG"]}), tmp_path / "films.parquet")
    job = {"model": "tagger", "input": "films.parquet", "output": "tags.jsonl", "keep": kept}
    with pytest.raises(JobInvalid) as raised:
        prepare(NOWHERE, job_of(job, tmp_path))
    assert str(raised.value) == (
        "keep: lines of JSON cannot keep the column `poster`: binary is bytes, which no prompt can hold. "
        "Leave it out, or write Parquet"
    )


class Reached(Exception):
    """The contract is looked up."""


@pytest.mark.parametrize(("output", "keep"), [("tags.parquet", None), ("tags.jsonl", ["title"])])
def test_bytes_go_to_parquet_or_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, keep: list[str] | None
) -> None:
    def reached(*_: Any) -> None:
        raise Reached

    monkeypatch.setattr(preparing, "read_contract_view", reached)
    pq.write_table(pa.table({"title": ["Heat"], "poster": [b"\x89PNG"]}), tmp_path / "films.parquet")
    job = {"model": "tagger", "input": "films.parquet", "output": output, "keep": keep}
    with pytest.raises(Reached):
        prepare(NOWHERE, job_of(job, tmp_path))
