"""`headrace dead`, run as an operator runs it, with workers that fail and one that does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_until
from worker_processes import PARTITIONS, Scene, generations, scene

from headrace.schemas import headers as header

ENOUGH = 90  # seconds
BROKEN = '[{"kind": "error", "prompt_contains": "broken"}]'

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def stage(kafka_bootstrap: str, unique_prefix: str, tmp_path: Path) -> Iterator[Scene]:
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as made:
        yield made


@pytest.fixture
def run(stage: Scene) -> Run:
    ours = {"HEADRACE_BOOTSTRAP_SERVERS": stage.bootstrap, "HEADRACE_PREFIX": stage.names.prefix}
    others = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}

    def dead(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace.ops.cli", "dead", command, stage.names.model, *arguments],
            capture_output=True,
            text=True,
            env=others | ours,
            timeout=ENOUGH,
        )

    return dead


def send(stage: Scene, *ids: str, prompt: str = "broken") -> None:
    for number, request_id in enumerate(ids):
        stage.seen.send_to(number % PARTITIONS, request_id, prompt=prompt, headers=[("x", b"\xff")])


def statuses(stage: Scene) -> list[tuple[str, str]]:
    stage.seen.read()
    return sorted((result.id, result.status) for _, result in stage.seen.results)


def test_what_failed_is_listed_counted_and_shown_with_its_bytes(
    stage: Scene, run: Run, tmp_path: Path
) -> None:
    assert run("list").stderr.startswith("nothing found in")
    stage.start(simulated_failures=BROKEN)
    send(stage, "a", "b")
    stage.seen.send(b"\xff\x00nonsense", key=b"k", partition=0)
    stage.seen.wait_for_dead(3)

    table = run("list")
    assert table.returncode == 0, table.stderr
    head, *rows = table.stdout.splitlines()
    assert head.split() == ["time", "code", "id", "dead", "at", "lay", "in", "message"]
    assert len(rows) == 3
    lines = [json.loads(line) for line in run("list", "--json").stdout.splitlines()]
    assert {line["id"] for line in lines} == {"a", "b", None}
    assert {line["model_version"] for line in lines} == {"1"}
    (code,) = {line["code"] for line in lines if line["id"]}
    counts = [json.loads(line) for line in run("list", "--counts", "--json").stdout.splitlines()]
    assert {each["code"]: each["count"] for each in counts} == {code: 2, "undecodable": 1}
    assert len(run("list", "--json", "--limit", "1").stdout.splitlines()) == 1
    for option, value, count in (
        ("--code", "undecodable", 1),
        ("--id", "a", 1),
        ("--model-version", "1", 3),
        ("--model-version", "2", 0),
        ("--since", "10m", 3),
        ("--until", "10m", 0),
    ):
        assert len(run("list", "--json", option, value).stdout.splitlines()) == count, option

    shown = run("show", "a")
    assert shown.returncode == 0, shown.stderr
    assert f"code           {code}\n" in shown.stdout
    assert "header         x: 0xff\n" in shown.stdout
    assert '"prompt": "broken"' in shown.stdout
    (undecodable,) = (line for line in lines if line["id"] is None)
    place, file = f"{undecodable['partition']}:{undecodable['offset']}", tmp_path / "raw"
    assert run("show", place, "--raw", str(file)).returncode == 0
    assert file.read_bytes() == b"\xff\x00nonsense"
    for missing in ("nobody", "0:99", "77:0"):
        none = run("show", missing)
        assert (none.returncode, none.stdout) == (1, "")
        assert missing in none.stderr
    assert run("list", "--since", "1m", "--until", "2m").returncode == 2


def test_raw_bytes_on_standard_output_stand_alone(stage: Scene, run: Run) -> None:
    stage.start(simulated_failures=BROKEN)
    send(stage, "a")
    stage.seen.wait_for_dead(1)
    shown = run("show", "a", "--raw", "-")
    assert json.loads(shown.stdout) == {"id": "a", "prompt": "broken"}
    assert "engine_error" in shown.stderr or "constraint_error" in shown.stderr


def test_a_replay_is_tried_dry_then_sent_and_then_has_nothing_left_to_send(stage: Scene, run: Run) -> None:
    ids = [f"r{number}" for number in range(8)]
    worker = stage.start(simulated_failures=BROKEN)
    send(stage, *ids)
    stage.seen.wait_for(*ids)
    stage.seen.wait_for_dead(8)

    dry = run("replay")
    assert dry.returncode == 0, dry.stderr
    assert "8 to be sent" in dry.stdout
    assert "--yes" in dry.stdout
    first = run("replay", "--yes", "--limit", "2")
    assert "2 sent" in first.stdout
    stage.seen.wait_for_results(10)  # that worker fails again
    stage.seen.wait_for_dead(10)
    worker.kill()

    stage.start()
    again = run("replay", "--yes")
    assert again.returncode == 0, again.stderr
    assert "2 of them left out: the same request has a newer one" in again.stdout
    assert "8 sent" in again.stdout
    stage.seen.wait_for_results(18)
    assert [status for _, status in statuses(stage) if status == "ok"] == ["ok"] * 8
    assert {request_id for request_id, status in statuses(stage) if status == "ok"} == set(ids)
    replays = [
        dict(record.headers)[header.REPLAY] for record, result in stage.seen.results if result.status == "ok"
    ]
    assert sorted(replay or b"" for replay in replays) == [b"1"] * 6 + [b"2"] * 2

    last = run("replay", "--yes")
    assert "8 requests left out: they have an `ok` result" in last.stdout
    assert "0 sent" in last.stdout
    assert len(statuses(stage)) == 18


@pytest.mark.parametrize("killed", [False, True])
def test_a_replay_that_was_sent_twice_has_one_ok_even_across_a_kill(stage: Scene, killed: bool) -> None:
    marks = [(header.REPLAY, b"1")]
    first = stage.start(simulated_failures='[{"kind": "error", "prompt_contains": "broken", "times": 1}]')
    stage.seen.send_to(1, "a", prompt="broken")
    stage.seen.wait_for("a")
    stage.seen.send_to(1, "a", prompt="broken")  # no replay: it was answered
    stage.seen.send_to(1, "a", "backfill", prompt="broken", headers=marks)
    stage.seen.wait_for_results(2)
    assert statuses(stage) == [("a", "failed"), ("a", "ok")]
    if killed:
        first.kill()
        first = stage.start()
    done = generations(first)
    for lane in ("interactive", "standard", "backfill"):
        stage.seen.send_to(1, "a", lane, prompt="broken", headers=marks)
    wait_until(lambda: first.metric("headrace_duplicate_requests_total") >= 3, ENOUGH, "they are seen")
    assert generations(first) == done
    assert statuses(stage) == [("a", "failed"), ("a", "ok")]
    stage.seen.send_to(1, "a", prompt="broken", headers=[*marks, (header.REPLAY_AGAIN, b"true")])
    stage.seen.wait_for_results(3)
    assert statuses(stage) == [("a", "failed"), ("a", "ok"), ("a", "ok")]


def test_a_replay_is_served_after_its_deadline(stage: Scene) -> None:
    stage.start()
    stage.seen.send_to(1, "late", deadline=1000)
    stage.seen.send_to(1, "replayed", deadline=1000, headers=[(header.REPLAY, b"1")])
    late, replayed = stage.seen.wait_for("late", "replayed")
    assert (late.status, replayed.status) == ("expired", "ok")
