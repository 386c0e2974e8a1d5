"""`headrace backfill estimate`, on a broker with a simulated worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from packages import TAGS_SCHEMA
from waiting import wait_until
from worker_processes import Scene, scene

from headrace.consumers.catalogue import read_catalogue
from headrace.ops.cli.backfill import backfill
from headrace.producers.backfill.failures import JobInvalid
from headrace.producers.backfill.results_feed import end_of_results
from headrace.schemas.settings import Settings

ROWS = 300
FAULTY = 5  # of them without a title


@pytest.fixture(scope="module")
def stage(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A worker that serves films to tag."""
    place = tmp_path_factory.mktemp("estimate")
    prefix = f"t{place.name}{id(place):x}"
    with scene(kafka_bootstrap, prefix, place, output=TAGS_SCHEMA) as made:
        made.start()
        settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=prefix)
        wait_until(lambda: read_catalogue(settings).known == [("tagger", 1)], 60, "what is served")
        yield made


def films(directory: Path, faulty: int = FAULTY) -> Path:
    """Rows of which every tenth asks what the first one asks, and the last ones have no title."""
    rows: list[dict[str, Any]] = [
        {"title": "film 0" if number % 10 == 0 else f"film {number}", "year": 1900 + number}
        for number in range(ROWS)
    ]
    for row in rows[ROWS - faulty :]:
        row["title"] = None
    file = directory / "films.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def estimate(stage: Scene, input_: Path, *options: str, model: str = "tagger") -> Result:
    broker = ["--bootstrap-servers", stage.bootstrap, "--prefix", stage.names.prefix]
    job = ["--model", model, "--input", str(input_), "--output", str(input_.parent / "tags.parquet")]
    return CliRunner().invoke(backfill, ["estimate", *job, *broker, *options], standalone_mode=False)


def test_it_says_what_the_job_will_come_to_and_writes_nothing(stage: Scene, tmp_path: Path) -> None:
    file = films(tmp_path)
    ended = estimate(stage, file, "--json", "--token-budget", "1000")
    assert ended.exception is None
    assert ended.return_value == 0, ended.output
    found = json.loads(ended.stdout)
    assert (found["rows"], found["rejects"]["rows"], found["identical"]) == (ROWS, FAULTY, 29)
    assert found["rejects"]["codes"] == {"missing_variable": FAULTY}
    assert [each["row_index"] for each in found["rejects"]["examples"]] == [295, 296, 297]
    requests = ROWS - FAULTY - 29
    assert found["requests"] == requests
    assert found["tried"]["statuses"] == {"ok": 20}
    assert found["tried"]["job"].startswith("estimate-tags-")
    assert found["tried"]["problem"] is None
    # The simulated engine counts tokens of four characters; a title has 6 to 8 of them.
    prompts, answers, total = found["prompt_tokens"], found["completion_tokens"], found["tokens"]
    assert prompts["low"] <= prompts["value"] <= prompts["high"]
    assert 0 < answers["low"] < answers["value"] < answers["high"]
    assert total["value"] == pytest.approx(prompts["value"] + answers["value"], abs=2)
    assert found["token_budget_is_enough"] is False
    assert 0 < found["requests_within_budget"] < requests
    assert found["workers"] == 1
    assert 0 < found["hours"]["low"] <= found["hours"]["high"]
    assert found["kafka_bytes"]["results"]["value"] > found["kafka_bytes"]["requests"]["value"] > 1_000
    assert len(found["examples"]) == 3
    for each in found["examples"]:
        assert set(each["output"]) == {"mood", "score", "tags"}
        assert each["input"]["title"].startswith("film ")
    assert [path.name for path in tmp_path.iterdir()] == ["films.jsonl"]


def test_a_person_reads_figures_reasons_and_outputs_beside_their_inputs(stage: Scene, tmp_path: Path) -> None:
    ended = estimate(stage, films(tmp_path), "--rows", "4")
    assert ended.return_value == 0, ended.output
    said = " ".join(ended.stdout.split())
    assert "rows 300" in said
    assert "refused 5 missing_variable 5; max_failures is 5%" in said
    assert "29 rows ask the same as another and share its answer" in said
    assert "a guess: 1 worker takes" in said
    assert "the column 'title' is null" in said
    assert "title: film" in said
    assert '"mood":' in said
    assert said.endswith("It can run")


def test_a_job_that_max_failures_would_stop_is_told_so(stage: Scene, tmp_path: Path) -> None:
    ended = estimate(stage, films(tmp_path, faulty=60), "--rows", "0")
    assert ended.return_value == 1
    assert (
        "It cannot run as it stands: 51 of the first 291 rows have failed, and max_failures is 5%: the job would stop "
        "at row 290"
    ) in " ".join(ended.stdout.split())


def test_a_job_all_of_whose_rows_are_refused_is_told_so(stage: Scene, tmp_path: Path) -> None:
    ended = estimate(stage, films(tmp_path, faulty=ROWS), "--max-failures", "100%")
    assert ended.return_value == 1
    assert "all rows are refused: there is nothing to ask" in ended.stdout


def test_where_no_worker_serves_it_says_what_can_be_said_and_asks_nothing(
    stage: Scene, tmp_path: Path, kafka_bootstrap: str, unique_prefix: str
) -> None:
    package = stage.names.model
    with scene(kafka_bootstrap, unique_prefix, tmp_path, output=TAGS_SCHEMA) as alone:
        ended = estimate(alone, films(tmp_path), "--package", str(tmp_path / "package"), model=package)
        topic = alone.names.requests("backfill")
        asked = end_of_results(alone.seen.settings, topic)
    assert ended.exception is None
    assert ended.return_value == 0
    said = " ".join(ended.stdout.split())
    assert "no worker serves tagger@1, so nothing was asked" in said
    assert "refused 5" in said
    assert "taking a token for 2.5 to 5.5 of them, which is a rule of thumb" in said
    assert set(asked.values()) == {0}


def test_several_jobs_and_no_job_at_all_are_refused(stage: Scene, tmp_path: Path) -> None:
    ended = CliRunner().invoke(backfill, ["estimate"], standalone_mode=False)
    assert ended.exception is not None
    assert "give a JOB.toml" in str(ended.exception)
    ended = estimate(stage, films(tmp_path), model="no-such-model")
    assert isinstance(ended.exception, JobInvalid)
