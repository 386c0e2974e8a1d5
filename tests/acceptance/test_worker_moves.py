"""Units move between workers: drained first by those that live, taken from those that do not."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until
from worker_processes import PARTITIONS, Scene, WorkerProcess, generations, long_text, scene, units

HANG = json.dumps([{"kind": "hang", "prompt_contains": "hang"}])
BUSY = 12  # requests in flight or waiting, where a test keeps its workers busy


class Stream:
    """Requests that keep coming, as many as keep the workers busy."""

    def __init__(self, stage: Scene, **fields: Any) -> None:
        self._stage = stage
        self._fields = fields
        self.sent: list[str] = []

    def go_on(self) -> int:
        """Read results and send what is due; how many results there are."""
        seen = self._stage.seen
        seen.read()
        while len(self.sent) < len(seen.results) + BUSY:
            self.send_one()
        return len(seen.results)

    def send_one(self) -> None:
        request_id = f"r{len(self.sent)}"
        self._stage.seen.send_to(len(self.sent) % PARTITIONS, request_id, **self._fields)
        self.sent.append(request_id)


def wait_for_shares(*workers: WorkerProcess) -> None:
    share = PARTITIONS // len(workers)
    for worker in workers:
        wait_until(lambda worker=worker: units(worker) == share, 60, f"{share} units")


def wait_for_in_flight(worker: WorkerProcess, count: int) -> None:
    wait_until(lambda: worker.metric("headrace_in_flight") == count, 30, f"{count} in flight")


def test_a_worker_that_joins_gets_units_and_no_generation_is_begun_twice(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:
        stream = Stream(stage, **long_text(100))
        first = stage.start("first", simulated_time_scale=1)
        wait_until(lambda: stream.go_on() > 0, 60, "a first result")
        second = stage.start("second", simulated_time_scale=1)

        def both_serve() -> bool:
            stream.go_on()
            return "second" in {result.provenance.slot for _, result in stage.seen.results}

        wait_until(both_serve, 60, "the second to answer")
        wait_for_shares(first, second)
        stage.seen.wait_for(*stream.sent)
        assert len(stage.seen.by_id()) == len(stream.sent) == generations(first, second)
        assert first.metric("headrace_given_up_generations_total") == 0
        assert first.metric("headrace_released_units_total") == PARTITIONS // 2


def test_units_that_are_drained_early_are_given_away_while_others_still_run(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:
        seen = stage.seen
        leaver = stage.start("leaver", simulated_time_scale=1, simulated_failures=HANG)
        stayer = stage.start("stayer", simulated_time_scale=1)
        wait_for_shares(leaver, stayer)
        held, free = stage.units_of("leaver", "stayer")["leaver"]
        seen.send_to(held, "hang")
        seen.send_to(held, "beside", **long_text(100))
        seen.send_to(free, "short", **long_text(100))
        wait_for_in_flight(leaver, 3)
        leaver.terminate()
        seen.send_to(free, "after")
        seen.send_to(held, "behind")
        (after,) = seen.wait_for("after")
        assert after.provenance.slot == "stayer"
        assert [each.provenance.slot for each in seen.wait_for("beside", "short")] == ["leaver"] * 2
        assert leaver.process.poll() is None, leaver.said()
        assert not {"hang", "behind"} & seen.answered().keys()
        begun = generations(leaver, stayer)
        seen.cancel("enough", id="hang")  # a drain does not keep a cancel from its request
        assert leaver.exit_code() == 0, leaver.said()
        hung, behind = seen.wait_for("hang", "behind")
        assert (hung.status, hung.provenance.slot) == ("cancelled", "leaver")
        assert (behind.status, behind.provenance.slot) == ("ok", "stayer")
        assert begun + 1 == len(seen.by_id()), "but for `behind` all were begun by then, and none twice"


def test_what_outlasts_the_drain_budget_is_counted_as_given_up_and_answered_by_the_other(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:
        first = stage.start("first", "--drain-budget", "1", simulated_failures=HANG)
        first.wait_ready(60)
        hung = [f"hang-{unit}" for unit in range(PARTITIONS)]
        for unit, request_id in enumerate(hung):
            stage.seen.send_to(unit, request_id)
        wait_for_in_flight(first, PARTITIONS)
        second = stage.start("second")
        moved = PARTITIONS // 2
        stage.seen.wait_for_results(moved)
        wait_for_shares(first, second)
        assert first.metric("headrace_given_up_generations_total") == moved
        aborted = f'headrace_released_units_total{{model="tagger",outcome="aborted"}} {moved}.0'
        assert aborted in first.get("/metrics")[1]
        wait_for_in_flight(first, PARTITIONS - moved)
        first.terminate()
        assert first.exit_code() == 0, first.said()
        results = stage.seen.wait_for(*hung)
        assert {(each.status, each.provenance.slot) for each in results} == {("ok", "second")}
        assert generations(second) == PARTITIONS


@pytest.mark.soak  # the nemesis does it too, and more
@pytest.mark.parametrize("seed", [20261130])
def test_workers_killed_amid_transactions_lose_and_double_nothing_and_are_named_by_who_takes_over(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:
        # A commit for whatever is finished: hardly a moment without an open transaction.
        brisk: dict[str, Any] = {"simulated_time_scale": 0.3, "commit_interval_ms": 1}
        workers = {slot: stage.start(slot, **brisk) for slot in ("a", "b")}
        stream = Stream(stage)
        for victim, survivor in (("a", "b"), ("b", "a")):
            wait_for_shares(*workers.values())
            until = len(stage.seen.results) + chance.randrange(30, 90)
            wait_until(lambda until=until: stream.go_on() >= until, 60, f"{until} results")
            workers[victim].kill()
            said_before = len(workers[survivor].said())
            stage.seen.wait_for(*stream.sent)
            for _ in range(PARTITIONS):
                stream.send_one()
            last = stage.seen.wait_for(*stream.sent[-PARTITIONS:])
            assert {result.provenance.slot for result in last} == {survivor}
            assert f"was last served by {victim}," in workers[survivor].said()[said_before:]
            workers[victim] = stage.start(victim, **brisk)
        results = stage.seen.by_id()
        assert results.keys() == set(stream.sent)
        assert {result.status for result in results.values()} == {"ok"}


def test_a_worker_that_was_silent_past_its_session_publishes_nothing_late_and_joins_again(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:
        zombie = stage.start("zombie", simulated_time_scale=1)
        other = stage.start("other", simulated_time_scale=1)
        wait_for_shares(zombie, other)
        stream = Stream(stage, **long_text(60))
        wait_until(lambda: stream.go_on() >= BUSY, 60, "some results")
        wait_until(lambda: zombie.metric("headrace_in_flight") > 0, 30, "some in flight")
        os.kill(zombie.process.pid, signal.SIGSTOP)
        try:
            stage.seen.wait_for(*stream.sent)
            for _ in range(PARTITIONS):
                stream.send_one()
            meanwhile = stage.seen.wait_for(*stream.sent[-PARTITIONS:])
        finally:
            os.kill(zombie.process.pid, signal.SIGCONT)
        assert {result.provenance.slot for result in meanwhile} == {"other"}

        def serves_again() -> bool:
            for _ in range(PARTITIONS):
                stream.send_one()
            last = stage.seen.wait_for(*stream.sent[-PARTITIONS:])
            return {result.provenance.slot for result in last} == {"zombie", "other"}

        wait_until(serves_again, 60, "both to serve")
        assert zombie.process.poll() is None, zombie.said()
        assert stage.seen.by_id().keys() == set(stream.sent)
