"""A job that is taken up where something else has changed meanwhile: its topic, its output."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from backfill_desk import MODEL, Desk, lines_of, titles
from packages import TAGS_SCHEMA
from worker_processes import scene

ROWS = 30


@pytest.fixture
def desk(
    kafka_bootstrap: str,
    unique_prefix: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Desk]:
    """A contract without a worker until a test starts one."""
    monkeypatch.chdir(tmp_path)
    with scene(kafka_bootstrap, unique_prefix, tmp_path, output=TAGS_SCHEMA) as stage, ExitStack() as stack:
        made = Desk(stage, tmp_path, capsys)
        stack.callback(made.close)
        yield made


def test_answers_are_found_in_a_topic_that_ends_before_where_the_job_had_read_to(desk: Desk) -> None:
    """As one does that was deleted and made anew, or that a broker in memory lost when it was started again."""
    films, output = desk.films("films.jsonl", titles(ROWS)), desk.path("tags.jsonl")
    command = ("--model", MODEL, "--package", desk.path("package"), "--input", films, "--output", output)
    process = desk.start("run", *command, "--json")
    assert process.stderr is not None
    next(each for each in process.stderr if "rows wait" in each)
    process.send_signal(signal.SIGINT)
    desk.ended(process, code=130)
    desk.stage.start()
    desk.stage.seen.wait_for_results(ROWS)
    file = desk.place / "tags.jsonl.headrace" / "state.json"
    state = json.loads(file.read_text())
    state["offsets"] = {at: offset + 50_000 for at, offset in state["offsets"].items()}
    file.write_text(json.dumps(state))
    found = desk.run(*command)
    assert (found["statuses"], found["this_process"]["asked"]) == ({"ok": ROWS}, 0)


def test_a_job_that_reused_what_lay_in_its_own_output_can_be_retried(desk: Desk) -> None:
    unlucky = [{"kind": "truncated", "prompt_contains": "Unlucky", "times": 2}]
    desk.stage.start(simulated_failures=json.dumps(unlucky))
    films, output = desk.films("films.jsonl", [*titles(ROWS), "Unlucky"]), desk.path("tags.jsonl")
    command = ("--model", MODEL, "--package", desk.path("package"), "--input", films, "--output", output)
    first = desk.run(*command)
    assert first["statuses"] == {"ok": ROWS, "truncated": 1}
    second = desk.run(*command, "--keep", "number", "--anew", "--reuse", first["job"])
    assert (second["statuses"], second["this_process"]["reused"]) == ({"ok": ROWS, "truncated": 1}, ROWS)
    out, _ = desk.said("retry", "failed", output, "--json")
    assert json.loads(out)["statuses"] == {"ok": ROWS + 1}
    assert [row["headrace_status"] for row in lines_of(output)] == ["ok"] * (ROWS + 1)
