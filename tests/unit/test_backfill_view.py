"""What a terminal is told of a job that runs, and of one that has ended."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.ops.cli.backfill_run import JobsProcess, exit_code
from headrace.ops.cli.backfill_summary import Ended, as_json, rows_of
from headrace.ops.cli.backfill_view import (
    JobLine,
    duration,
    in_short,
    line_of,
    percent,
    reasons_of,
    said,
    size,
)
from headrace.producers.backfill.failures import BackfillError, BudgetSpent, JobTaken, TooManyFailures
from headrace.producers.backfill.job import job_of
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.job_process import Finished
from headrace.producers.backfill.progress import JobView
from headrace.producers.backfill.state import JobState, WrittenPart
from headrace.schemas.settings import Settings

STATE: dict[str, Any] = {
    "job": "tags-1a2b3c4d",
    "model": "tagger",
    "contract": 1,
    "identity": {},
    "rows": 100,
    "rows_per_part": 60,
    "lane_partitions": 1,
    "results_topic": "results",
    "offsets": {},
    "created_ms": 0,
    "updated_ms": 0,
    "busy_ms": 20_000,
    "input": "films.csv",
}


def seen(**changed: Any) -> JobView:
    """A job in its midst."""
    fields: dict[str, Any] = {
        "job": "tags-1a2b3c4d",
        "rows": 100,
        "settled": 40,
        "statuses": {"ok": 37, "failed": 3},
        "reasons": {"engine_error": 2, "timeout": 1},
        "outstanding": 30,
        "asked": 70,
        "reused": 0,
        "parts": 2,
        "parts_written": 0,
        "row_rate": 4.0,
        "prompt_tokens": 4_000,
        "completion_tokens": 1_000,
        "token_rate": 100.0,
        "eta_s": 15.0,
        "eta_basis": "of the last 10 s",
        "fleet_share": 0.8,
        "members": 2,
        "capacity": 64,
        "ahead": 30,
        "seconds": 10.0,
        "settled_here": 40,
    }
    return JobView(**(fields | changed))


def line(**changed: Any) -> str:
    return line_of(JobLine("tags", "tagger", seen(**changed)))


def a_part(number: int, rows: int, **statuses: int) -> WrittenPart:
    return WrittenPart(
        number=number,
        first_row=60 * number,
        rows=rows,
        file=f"part-{number:06d}.jsonl",
        bytes=100,
        sha256="",
        statuses=statuses,
        asked=rows,
        prompt_tokens=10 * rows,
        completion_tokens=rows,
        codes={name: count for name, count in statuses.items() if name != "ok"},
    )


def ended(tmp_path: Path, view: JobView | None, error: BackfillError | None = None, **state: Any) -> Ended:
    output = str(tmp_path / "tags.jsonl")
    spec = job_of({"model": "tagger", "input": "films.csv", "output": output}, tmp_path)
    return Ended(spec, Finished(JobState(**(STATE | state)), JobFiles(output), view, error))


def test_a_line_of_a_log_has_rows_rate_end_tokens_failures_and_the_share_of_the_fleet() -> None:
    assert line() == (
        "tags-1a2b3c4d: 40 of 100 rows (40 %); 4.0 rows/s, done in 15 s at the rate of the last 10 s; "
        "4,000 tokens of prompts, 1,000 generated (100 tok/s); 3 failed (engine_error 2, timeout 1); "
        "30 rows in flight, 2 workers take 64 at a time, 80 % of their answers are this job's"
    )


def test_what_keeps_a_job_from_going_on_is_said() -> None:
    assert "no worker serves tagger: 30 rows wait for one" in line(members=0)
    assert "no worker" not in line(members=0, is_lane_known=False), "nobody has looked yet"
    assert "no worker" not in line(members=0, outstanding=0), "no row waits"
    paused = line(state="paused", note="by ann@host")
    assert "paused by ann@host: `headrace backfill resume tags-1a2b3c4d` lets it go on" in paused
    assert "done in" not in paused
    assert "no telling when it is done: no answer yet" in line(eta_s=None, eta_basis="no answer yet")
    assert "waits for the last rows" in line(note="waits for the last rows of parts")
    assert said(JobLine("tags", "tagger", read=(1_500_000, 3_000_000))) == [
        "reads the input: 1.5 MB of 3.0 MB"
    ]
    assert said(JobLine("tags", "tagger", seen(), joined=60)) == ["puts the output together: 60 of 100 rows"]


def test_of_several_jobs_each_has_half_a_line() -> None:
    assert in_short(JobLine("tags", "tagger", seen())) == "40 of 100 rows (40 %); 3 failed; 4.0/s, 15 s left"
    waits = in_short(JobLine("tags", "tagger", seen(members=0)))
    assert waits == "40 of 100 rows (40 %); 3 failed; no worker serves tagger: 30 rows wait for one"
    assert in_short(JobLine("tags", "tagger", ended="done")) == "done"


def test_a_change_of_state_is_a_change_of_phase() -> None:
    job = JobLine("tags", "tagger", seen())
    running = job.phase
    job.view = seen(settled=41)
    assert job.phase == running
    for changed in ({"state": "paused", "note": "by ann"}, {"members": 0}, {"state": "putting together"}):
        job.view = seen(**changed)
        assert job.phase != running


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0 s"), (59.6, "1 min"), (750, "12 min 30 s"), (12_000, "3 h 20 min"), (187_200, "2 d 4 h")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_figures() -> None:
    assert (percent(0.9999), percent(1), percent(0)) == ("99 %", "100 %", "0 %")
    assert (size(812), size(3_100_000), size(450_000_000_000)) == ("812 bytes", "3.1 MB", "450 GB")
    assert reasons_of({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}) == "e 5, d 4, c 3, b 2 and 1 more reasons"


def test_the_counts_of_a_job_that_was_stopped_add_up_to_its_input(tmp_path: Path) -> None:
    found = ended(tmp_path, seen(), TooManyFailures("3 rows have failed"), status="stopped")
    assert found.statuses == {"ok": 37, "failed": 3, "no answer yet": 60}
    told = json.loads(as_json(found))
    assert sum(told["statuses"].values()) + told["no_answer"] == told["rows"] == 100
    assert told["error"] == {"code": "too_many_failures", "message": "3 rows have failed"}
    shown = {name.strip(): (count, text) for name, count, text in rows_of(found)}
    assert shown["job"][1] == "tags-1a2b3c4d, tagger@1: stopped: 3 rows have failed"
    assert shown["no answer yet"][0] == 60
    assert shown["failed"] == (3, "engine_error 2, timeout 1")
    assert shown["time"][1] == "10 s, 4.0 rows/s, 20 s with the runs before it"
    assert "max_failures" in shown["to go on"][1]
    assert exit_code(found) == 1


@pytest.mark.parametrize("error", [None, TooManyFailures("3 rows have failed"), BudgetSpent("spent")])
def test_a_job_that_was_begun_anew_goes_on_without_being_begun_once_more(
    tmp_path: Path, error: BackfillError | None
) -> None:
    found = ended(tmp_path, seen(), error, status="stopped")
    for each, is_said in ((found, False), (replace(found, anew=True), True)):
        [says] = [text for name, _, text in rows_of(each) if name == "to go on"]
        assert says.endswith(", without --anew") == is_said


@pytest.mark.parametrize("anew", [False, True])
def test_what_is_said_at_a_signal_does_not_begin_a_job_once_more(anew: bool) -> None:
    said: list[str] = []
    display: Any = SimpleNamespace(print=said.append)
    JobsProcess(Settings(), [], anew=anew)._stop(display)  # pyright: ignore[reportPrivateUsage]
    [sentence] = said
    assert ("Run the same command again to go on" in sentence) != anew
    assert ("Run the same command again, without --anew, to go on" in sentence) == anew


def test_a_job_that_is_done_is_counted_by_its_parts_and_says_how_to_ask_again(tmp_path: Path) -> None:
    parts = [a_part(0, 60, ok=58, truncated=2), a_part(1, 40, ok=39, rejected=1)]
    found = ended(tmp_path, seen(), status="done", parts=parts)
    (tmp_path / "tags.jsonl").write_text("x" * 1_234)
    assert found.statuses == {"ok": 97, "rejected": 1, "truncated": 2}
    rows = list(rows_of(found))
    again = [text for name, _, text in rows if name == "again"]
    assert again[0] == f"headrace backfill retry failed {tmp_path}/tags.jsonl"
    assert again[1].startswith("headrace backfill retry rejects ")
    assert ("output", None, f"{tmp_path}/tags.jsonl (1.2 kB)") in rows
    assert exit_code(found) == 0


def test_exit_codes_say_what_became_of_a_job(tmp_path: Path) -> None:
    nothing = ended(
        tmp_path, None, status="done", parts=[a_part(0, 60, failed=60), a_part(1, 40, rejected=40)]
    )
    assert nothing.has_all_failed
    assert exit_code(nothing) == 1
    taken = Ended(nothing.spec, failure=JobTaken("another process"))
    assert exit_code(taken) == 5
    assert json.loads(as_json(taken))["error"]["code"] == "job_taken"
    empty = ended(tmp_path, None, status="done", rows=0)
    assert exit_code(empty) == 0
