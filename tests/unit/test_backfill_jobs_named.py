"""Which job is meant by an id, how it stands, and what signals do to those that run here."""

from __future__ import annotations

import io
import logging
import os
import signal
from pathlib import Path

import pytest
from backfill_inputs import write_files
from rich.console import Console

from headrace.consumers.backfill_jobs import (
    BackfillRecords,
    JobId,
    Order,
    RunningJob,
    job_record,
    order_record,
)
from headrace.ops.cli import backfill_run
from headrace.ops.cli.backfill_display import Display
from headrace.ops.cli.backfill_jobs import find_job, now_ms, spec_of
from headrace.ops.cli.backfill_listing import status_lines
from headrace.ops.cli.backfill_view import JobLine
from headrace.producers.backfill.job import job_of
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.state import JobState
from headrace.schemas.errors import UsageError
from headrace.schemas.settings import Settings

SETTINGS = Settings(bootstrap_servers="nowhere:1")
NOW = now_ms()


def records(**jobs: str) -> BackfillRecords:
    """Jobs by the last word of their process, which was said just now; `silent`: `running`, three minutes ago."""
    found = BackfillRecords()
    for job, status in jobs.items():
        said = RunningJob.model_validate(
            {
                "incarnation": "1",
                "host": "host:1",
                "output": f"/nowhere/{job}.parquet",
                "status": "running" if status == "silent" else status,
                "rows": 100,
                "settled": 50,
                "failed": 2,
                "at": NOW - 180_000 if status == "silent" else NOW,
            }
        )
        found.take(*job_record(JobId("tagger", 1, job.replace("_", "-")), said))
    return found


def test_an_id_or_its_beginning_names_a_job() -> None:
    known = records(tags_1a="running", plots_2b="paused")
    assert find_job(SETTINGS, "tags-1a", known).id.job == "tags-1a"
    assert find_job(SETTINGS, "plots", known).id.job == "plots-2b"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("tags", "several jobs are called tags...: tags-1a, tags-1b; give more of the id"),
        ("tag-1a", "no job is called 'tag-1a': did you mean tags-1a"),
        ("plots-9f", "did you mean plots-2b?"),
        ("nothing", "`headrace backfill list --all` has all"),
    ],
)
def test_what_names_no_job_or_several_is_said_with_those_that_there_are(named: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        find_job(SETTINGS, named, records(tags_1a="running", tags_1b="done", plots_2b="running"))
    assert said in str(error.value)


def test_a_path_without_a_job_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no job beside"):
        find_job(SETTINGS, str(tmp_path / "tags.parquet"), records())


@pytest.mark.parametrize(
    ("status", "order", "stage"),
    [
        ("running", None, "running"),
        ("paused", "pause", "paused"),
        ("silent", None, "silent for 3 min"),
        ("silent", "pause", "paused"),
        ("stopped", None, "stopped"),
        ("stopped", "cancel", "cancelled"),
        ("running", "cancel", "running"),
        ("done", "pause", "done"),
    ],
)
def test_how_a_job_stands(status: str, order: str | None, stage: str) -> None:
    known = records(tags="" + status)
    if order is not None:
        given = Order.model_validate({"order": order, "by": "ann@host", "at": NOW})
        known.take(*order_record(JobId("tagger", 1, "tags"), given))
    job = find_job(SETTINGS, "tags", known)
    assert job.stage(NOW) == stage
    assert job.as_json(NOW)["stage"] == stage
    lines = dict(status_lines(job, NOW))
    assert lines["rows"] == "50 of 100 are through (50 %), 2 failed"
    assert ("order" in lines) == (order is not None and stage != "done")


def test_a_job_is_run_again_from_its_state_where_its_output_was_moved_to(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("A film called {{ Title }} is")
    spec = job_of(
        {
            "model": "tagger",
            "input": {"path": "films.txt", "format": "csv"},
            "output": {"path": "tags.txt", "format": "jsonl"},
            "prompt_file": "prompt.txt",
            "sampling": {"temperature": 0.5},
        },
        tmp_path,
    )
    moved = tmp_path / "elsewhere" / "tags.txt"
    files = JobFiles(str(moved))
    files.save(
        JobState(
            job="tags-1a",
            model="tagger",
            contract=1,
            identity={},
            rows=1,
            rows_per_part=1,
            lane_partitions=1,
            results_topic="results",
            offsets={},
            created_ms=0,
            updated_ms=0,
            job_file=spec.model_dump(mode="json", exclude_unset=True),
        )
    )
    again = spec_of(find_job(SETTINGS, str(moved), records(tags_1a="stopped")))
    assert (again.output_path, again.output_format) == (str(moved), "jsonl")
    assert (again.input, again.prompt, again.sampling) == (spec.input, spec.prompt, spec.sampling)


def test_the_first_signal_stops_the_jobs_and_the_second_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        """The process."""

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(backfill_run.os, "_exit", end)
    process = backfill_run.JobsProcess(SETTINGS, [], quiet=True)
    before = signal.getsignal(signal.SIGTERM)
    with process.signals(Display([], quiet=True)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert process.signalled == signal.SIGTERM
        with pytest.raises(Ended, match=str(128 + signal.SIGINT)):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_job_that_reads_its_input_is_interrupted_too(tmp_path: Path, suffix: str) -> None:
    films = str(write_files(tmp_path / "films", suffix, [{"title": "Heat"}]))
    spec = job_of({"model": "tagger", "input": films, "output": "tags.jsonl"}, tmp_path)
    process = backfill_run.JobsProcess(SETTINGS, [spec], quiet=True, signalled=signal.SIGINT)
    [ended] = process.run()
    assert isinstance(ended.error, backfill_run.Interrupted)
    assert not list(tmp_path.glob("tags*"))


def test_a_log_has_a_line_where_something_changes_and_a_terminal_has_bars() -> None:
    for is_terminal in (False, True):
        file = io.StringIO()
        console = Console(file=file, force_terminal=is_terminal, width=100)
        with Display([JobLine("tags", "tagger")], quiet=False, console=console) as display:
            display.say(0, "begins")
            logging.getLogger("headrace.anything").warning("trying on")
        text = file.getvalue()
        assert "tags: begins" in text
        assert "warning: trying on" in text
        assert ("\N{BOX DRAWINGS HEAVY HORIZONTAL}" in text) == is_terminal
