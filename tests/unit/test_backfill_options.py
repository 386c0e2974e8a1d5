"""A job by options, and options beside a job's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from headrace.ops.cli.backfill import run, specs_of
from headrace.producers.backfill.failures import JobInvalid
from headrace.producers.backfill.job import InputSpec, OutputSpec
from headrace.schemas.errors import UsageError

FILE = """\
model = "tagger"
input = { path = "films.txt", format = "csv" }
output = "tags.parquet"
max_failures = "1%"
[variables]
title = "Title"
[sampling]
max_tokens = 50
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "tags.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)


def given(*arguments: str) -> tuple[tuple[Path, ...], dict[str, Any]]:
    """The job files and the options that say what a job is."""
    context = run.make_context("run", list(arguments))
    own = ("jobs", "anew", "quiet", "as_json", "bootstrap_servers", "prefix")
    return context.params["jobs"], {name: value for name, value in context.params.items() if name not in own}


def test_options_alone_make_a_job(tmp_path: Path) -> None:
    [spec] = specs_of(
        *given(
            *("--model", "tagger@2", "--input", "films.txt", "--input-format", "csv", "--output", "tags/"),
            *("--keep", "a,b", "--keep", "c", "--variable", "title={{ row.Title }}", "--no-dedupe"),
            *("--sampling", "max_tokens=7", "--sampling", "stop=END", "--max-failures", "9"),
        )
    )
    assert (spec.model, spec.keep, spec.dedupe) == ("tagger@2", ["a", "b", "c"], False)
    assert spec.input == InputSpec(path=str(tmp_path / "films.txt"), format="csv")
    assert spec.output_path == f"{tmp_path}/tags/"
    assert spec.variables == {"title": "{{ row.Title }}"}
    assert (spec.sampling.max_tokens, spec.sampling.stop) == (7, ["END"])
    assert spec.breaker.rows == 9


def test_options_come_before_a_files_keys_and_count_from_here(tmp_path: Path) -> None:
    [spec] = specs_of(
        *given(
            *("jobs/tags.toml", "--output", "other.txt", "--output-format", "jsonl", "--max-failures", "5"),
            *("--variable", "year=Year", "--sampling", "temperature=0"),
        )
    )
    assert spec.output == OutputSpec(path=str(tmp_path / "other.txt"), format="jsonl")
    assert spec.input == InputSpec(path=str(tmp_path / "jobs" / "films.txt"), format="csv")
    assert spec.variables == {"title": "Title", "year": "Year"}
    assert (spec.sampling.max_tokens, spec.sampling.temperature) == (50, 0)
    assert spec.max_failures == "5"


def test_another_input_has_its_own_format(tmp_path: Path) -> None:
    [spec] = specs_of(*given("jobs/tags.toml", "--input", "films.parquet"))
    assert spec.input == str(tmp_path / "films.parquet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "tagger"), "--output: is missing: a job needs it"),
        (("--model", "a", "--input", "b", "--output", "c.xyz"), "--output: .xyz is no format"),
        (("jobs/tags.toml", "--max-failures", "x"), "--max-failures: 'x': give a share"),
        (("jobs/tags.toml", "--sampling", "tempo=1"), "--sampling tempo: is no key"),
        (("jobs/tags.toml", "--input-format", "xml"), "--input-format: must be 'parquet'"),
        (("jobs/tags.toml", "--prompt", "{{ Title }}"), "--prompt: goes without variables"),
        (("jobs/tags.toml", "--give-up-after", "soon"), "--give-up-after: 'soon' is no duration"),
    ],
)
def test_a_mistake_in_an_option_names_the_option(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(JobInvalid) as error:
        specs_of(*given(*arguments))
    assert str(error.value).startswith(message)


def test_a_mistake_in_the_file_names_the_file_beside_options(tmp_path: Path) -> None:
    file = tmp_path / "jobs" / "tags.toml"
    file.write_text(FILE.replace("50", '"many"'))
    with pytest.raises(JobInvalid, match=r"tags\.toml:8: sampling\.max_tokens"):
        specs_of(*given("jobs/tags.toml", "--sampling", "temperature=0"))


def test_what_makes_no_job_is_said() -> None:
    with pytest.raises(UsageError, match="give a JOB"):
        specs_of(*given())
    with pytest.raises(UsageError, match="--max-failures, --variable: options go with one job"):
        specs_of(*given("jobs/tags.toml", "jobs/tags.toml", "--max-failures", "1", "--variable", "a=b"))
    with pytest.raises(click.BadParameter, match="'title': write NAME=COLUMN"):
        given("--variable", "title")
    with pytest.raises(click.BadParameter, match="title is given twice"):
        given("--variable", "title=a", "--variable", "title=b")
