"""A job as it is written: what it says, what it may not say, and how it is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.producers.backfill.failures import JobInvalid
from headrace.producers.backfill.job import JobSpec, job_of, load_job

LEAST = 'model = "tagger"\ninput = "films.csv"\noutput = "tags.parquet"\n'
BATCH = 'openai_batch = "calls.jsonl"\noutput = "answers.jsonl"\n'


def loaded(directory: Path, text: str) -> JobSpec:
    (directory / "job.toml").write_text(text)
    return load_job(directory / "job.toml")


def refused(directory: Path, text: str) -> str:
    """What is said, behind the file's name."""
    with pytest.raises(JobInvalid) as raised:
        loaded(directory, text)
    assert raised.value.exit_code == 2
    return str(raised.value).removeprefix(str(directory / "job.toml"))


def test_a_job_of_three_lines_has_defaults_for_all_else(tmp_path: Path) -> None:
    job = loaded(tmp_path, LEAST)
    assert (job.job_name, job.output_format, job.lane, job.dedupe) == ("tags", "parquet", "backfill", True)
    assert (job.rows_per_part, str(job.breaker), job.token_budget, job.give_up_after_s) == (
        10_000, "5%", None, None,
    )  # fmt: skip
    assert job.variables is None


def test_paths_count_from_the_jobs_file_and_locations_elsewhere_stay_as_they_are(tmp_path: Path) -> None:
    job = loaded(
        tmp_path,
        'model = "tagger"\ninput = { path = "../films/", format = "csv" }\noutput = "s3://bucket/tags.jsonl"\n'
        'package = "/srv/tagger"\nreuse = "old/tags.parquet"\n',
    )
    assert job.input_path == f"{tmp_path}/../films/"
    assert (job.output_path, job.output_format, job.package) == (
        "s3://bucket/tags.jsonl", "jsonl", "/srv/tagger",
    )  # fmt: skip
    assert job.reuse == f"{tmp_path}/old/tags.parquet"
    assert loaded(tmp_path, LEAST + 'reuse = "tags-7f3a9c21"').reuse == "tags-7f3a9c21"


def test_a_folder_is_an_output_whatever_stands_in_its_name(tmp_path: Path) -> None:
    job = loaded(tmp_path, LEAST.replace("tags.parquet", "tags.v2/"))
    assert (job.output_path, job.output_format) == (f"{tmp_path}/tags.v2/", "parquet")


def test_texts_that_a_job_names_are_read_with_it(tmp_path: Path) -> None:
    (tmp_path / "prompt.jinja").write_text("Tag {{ Title }}.")
    (tmp_path / "out.json").write_text('{"type": "object"}')
    job = loaded(tmp_path, LEAST + 'prompt_file = "prompt.jinja"\noutput_schema = "out.json"\n')
    assert (job.prompt, job.output_schema) == ("Tag {{ Title }}.", {"type": "object"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LEAST + 'promt = "x"', ":4: promt: is no key of a job; did you mean prompt?"),
        (LEAST + "[sampling]\nmax_tokns = 2", ":5: sampling.max_tokns: is no key of a job; did you mean max_tokens?"),
        (LEAST + "[variables.title]\ncolum = 'a'", ":5: variables.title.colum: is no key of a job; did you"),
        (LEAST + "stream = true", ":4: stream: is no key of a job: results of a backfill come whole"),
        (LEAST + "temperature = 0.5", ":4: temperature: is no key of a job: set it under [sampling]"),
        (LEAST + "[sampling]\nn = 2", ":5: sampling.n: each row has one answer: leave it out"),
        ('model = "tagger"\noutput = "o"', ": input: is missing: a job needs it"),
        (LEAST.replace("tags.parquet", "tags.csv"), ":3: output: .csv is no format of an output"),
        (LEAST + 'prompt = "x"\n[variables]\na = "b"', ":4: prompt: goes without variables"),
        (LEAST + 'prompt = "x"\nprompt_file = "y"', ":5: prompt_file: either prompt or prompt_file"),
        (LEAST + 'system = "x"', ":4: system: goes with prompt"),
        (LEAST + "rows_per_part = 1_000_001", ":4: rows_per_part: must be less than or equal to 1000000"),
        (LEAST + "token_budget = 0", ":4: token_budget: must be greater than 0"),
        (LEAST + 'max_failures = "some"', ":4: max_failures: 'some': give a share"),
        (LEAST + 'max_failures = "inf"', ":4: max_failures: "),
        (LEAST + 'lane = "interactive"', ":4: lane: must be 'backfill' or 'standard'"),
        (LEAST + 'give_up_after = "2 hours"', ":4: give_up_after: '2 hours' is no duration"),
        (LEAST + 'name = "a b"', ":4: name: must be of letters, digits"),
        (LEAST + 'keep = ["a", "a"]', ":4: keep: names the column 'a' twice"),
        (LEAST + "variables = {title = {column = 'a', value = 1}}", ":4: variables.title: needs exactly one of"),
        (LEAST + 'prompt_file = "none"', ":4: prompt_file: there is no file"),
        (LEAST + '[output_schema]\ntype = "strng"', ":4: output_schema: no JSON Schema"),
        (BATCH + 'input = "x"', ":1: openai_batch: goes without input"),
        (BATCH + "[sampling]\nseed = 1", ":3: sampling: goes without openai_batch"),
        (BATCH.replace("answers.jsonl", "answers.parquet"), ":2: output: the answers to"),
        (BATCH.replace('"answers.jsonl"', '{ path = "a", format = "parquet" }'), ":2: output.format: the answers"),
        ("a = = b", ":1: not TOML"),
    ],
)  # fmt: skip
def test_what_a_job_may_not_say_is_told_with_file_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    assert refused(tmp_path, text).startswith(said)


def test_a_batch_file_needs_no_model_and_is_answered_in_lines(tmp_path: Path) -> None:
    job = loaded(tmp_path, BATCH)
    assert (job.model, job.input_path, job.output_format) == (None, f"{tmp_path}/calls.jsonl", "jsonl")


@pytest.mark.parametrize("output", ['"answers/"', '"answers"', '{ path = "answers.txt", format = "jsonl" }'])
def test_the_answers_to_a_batch_file_are_lines_in_a_folder_too_and_under_any_name(
    tmp_path: Path, output: str
) -> None:
    assert loaded(tmp_path, BATCH.replace('"answers.jsonl"', output)).output_format == "jsonl"


@pytest.mark.parametrize("server", ["region=eu-west-1", "endpoint_override=host:9000&scheme=http"])
def test_what_a_uri_says_of_its_server_is_no_part_of_the_outputs_name(tmp_path: Path, server: str) -> None:
    job = loaded(tmp_path, LEAST.replace("tags.parquet", f"s3://bucket/tags.jsonl?{server}"))
    assert (job.job_name, job.output_format) == ("tags", "jsonl")
    job = loaded(tmp_path, LEAST.replace("tags.parquet", f"s3://bucket/tags.v2/?{server}"))
    assert (job.job_name, job.output_format) == ("tags", "parquet")


def test_a_job_can_be_made_of_a_commands_options(tmp_path: Path) -> None:
    given = {
        "model": "tagger",
        "input": "films.csv",
        "output": "tags.jsonl",
        "give_up_after": "1.5h",
        "prompt": None,
    }
    job = job_of(given, tmp_path)
    assert (job.input_path, job.give_up_after_s) == (f"{tmp_path}/films.csv", 5400)
    with pytest.raises(JobInvalid, match=r"^token_budget: must be greater than 0$"):
        job_of(given | {"token_budget": -1}, tmp_path)
    with pytest.raises(JobInvalid, match=r"^variables\.title: there is none$"):
        raise job.fault("there is none", "variables", "title")


def test_a_job_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(JobInvalid, match="there is no file"):
        load_job(tmp_path / "job.toml")
