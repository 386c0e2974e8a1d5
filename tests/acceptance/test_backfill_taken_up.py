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

from headrace.consumers.backfill_jobs import JobId
from headrace.producers.backfill.orders import give_order

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


def test_an_order_that_came_too_late_for_a_job_does_not_hold_back_its_retry_for_good(desk: Desk) -> None:
    """It was given while the output was put together: the job is done, and the order is still there."""
    unlucky = [{"kind": "truncated", "prompt_contains": "Unlucky", "times": 1}]
    desk.stage.start(simulated_failures=json.dumps(unlucky))
    films, output = desk.films("films.jsonl", [*titles(ROWS), "Unlucky"]), desk.path("tags.jsonl")
    found = desk.run(
        "--model", MODEL, "--package", desk.path("package"), "--input", films, "--output", output
    )
    assert found["statuses"] == {"ok": ROWS, "truncated": 1}
    give_order(desk.stage.seen.settings, JobId(MODEL, 1, found["job"]), "cancel", "somebody")
    _, err = desk.said("retry", "failed", output, code=2)
    assert f"`headrace backfill resume {found['job']}` lets it go on" in err
    out, _ = desk.said("resume", found["job"])
    assert out == f"nothing holds {found['job']} back any more; it is done\n"
    _, err = desk.said("resume", found["job"], code=1)
    assert "is done: there is nothing to resume" in err
    out, _ = desk.said("retry", "failed", output, "--json")
    assert json.loads(out)["statuses"] == {"ok": ROWS + 1}


def test_the_job_that_makes_room_is_reused_by_its_id_or_by_its_output_and_estimated_before(
    desk: Desk,
) -> None:
    desk.stage.start()
    films, output = desk.films("films.jsonl", titles(ROWS)), desk.path("tags.jsonl")
    command = ("--model", MODEL, "--package", desk.path("package"), "--input", films, "--output", output)
    first = desk.run(*command)
    more = desk.films("films.jsonl", titles(ROWS + 3))
    command = ("--model", MODEL, "--package", desk.path("package"), "--input", more, "--output", output)
    for reuse in (first["job"], output):
        seen = json.loads(desk.said("estimate", *command, "--reuse", reuse, "--json")[0])
        assert (seen["rows"], seen["requests"]) == (ROWS + 3, 3)
    found = desk.run(*command, "--anew", "--reuse", output)
    assert (found["statuses"], found["this_process"]["reused"]) == ({"ok": ROWS + 3}, ROWS)
    seen = json.loads(desk.said("estimate", *command, "--reuse", first["job"], "--json")[0])
    assert seen["rows"] == ROWS + 3


def test_a_job_goes_on_though_what_it_was_to_reuse_is_gone(desk: Desk) -> None:
    films, other = desk.films("films.jsonl", titles(ROWS)), desk.path("other.jsonl")
    output = desk.path("tags.jsonl")
    where = ("--model", MODEL, "--package", desk.path("package"), "--input", films)
    worker = desk.stage.start()
    desk.run(*where, "--output", other)
    worker.kill()
    more = desk.films("more.jsonl", titles(ROWS + 3))
    command = (*where[:-1], more, "--output", output, "--reuse", other)
    process = desk.start("run", *command, "--json")
    assert process.stderr is not None
    next(each for each in process.stderr if "rows wait" in each)
    process.send_signal(signal.SIGINT)
    desk.ended(process, code=130)
    for path in desk.place.glob("other.jsonl*"):
        path.rename(desk.place / f"gone-{path.name}")
    desk.stage.start()
    out, err = desk.said("run", *command, "--json")
    assert "goes on without the answers of" in err
    assert json.loads(out)["statuses"] == {"ok": ROWS + 3}
