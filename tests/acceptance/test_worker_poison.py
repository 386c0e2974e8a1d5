"""A request that kills whatever serves it is found, and costs the others nothing but time."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until
from worker_processes import PARTITIONS, Scene, WorkerProcess, generations, long_text, scene

KILLS_AFTER_S = 0.6  # long enough for the stream, too short for what is in flight beside the guilty one
SLOW: dict[str, Any] = long_text(90)
STREAM = 2 * PARTITIONS  # short requests that each life finds


class Supervisor:
    """Starts a worker again and again until all is answered, with fresh requests for each life."""

    def __init__(self, stage: Scene, kind: str, dies_with: int) -> None:
        rule = {"kind": kind, "prompt_contains": "guilty", "after_s": KILLS_AFTER_S}
        self._environment: dict[str, Any] = {
            "simulated_time_scale": 1,
            "simulated_failures": json.dumps([rule]),
        }
        self._stage = stage
        self._dies_with = dies_with
        self.lives = 0
        self.silent_lives = 0  # in which nothing of their stream was answered
        self.most_suspects = 0
        self.streamed: list[str] = []

    def run(self, wanted: list[str], most_lives: int) -> WorkerProcess:
        """Until all wanted ones and all of the streams are answered; the worker that lives."""
        seen = self._stage.seen
        while True:
            self.lives += 1
            assert self.lives <= most_lives, f"{self.lives} lives; without an answer: {self._open(wanted)}"
            fresh = [f"stream-{self.lives}-{number}" for number in range(STREAM)]
            for number, request_id in enumerate(fresh):
                seen.send_to(number % PARTITIONS, request_id, sampling={"max_tokens": 1})
            self.streamed += fresh
            worker = self._stage.start(**self._environment)

            def over(worker: WorkerProcess = worker) -> bool:
                ended = worker.process.poll() is not None  # before the last look
                seen.read()
                self.most_suspects = max(self.most_suspects, round(worker.metric("headrace_suspects")))
                return ended or not self._open(wanted)

            wait_until(over, 60, "the worker's end, or the last answer")
            if not self._open(wanted):
                return worker
            assert worker.exit_code() == self._dies_with, worker.said()
            self.silent_lives += not seen.answered().keys() & set(fresh)

    def _open(self, wanted: list[str]) -> set[str]:
        return {*wanted, *self.streamed} - self._stage.seen.answered().keys()


@pytest.mark.parametrize(
    ("kind", "dies_with", "requests", "deaths_alone"),
    [
        # An engine that says why it died convicts at once who was alone in it.
        ("die", 4, 30, 1),
        pytest.param("vanish", -signal.SIGKILL, 6, 3, marks=pytest.mark.soak),
    ],
)
def test_the_guilty_one_is_found_by_bisection_while_others_are_served(
    kafka_bootstrap: str,
    unique_prefix: str,
    tmp_path: Path,
    kind: str,
    dies_with: int,
    requests: int,
    deaths_alone: int,
) -> None:
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:
        innocent = [f"innocent-{number}" for number in range(requests - 1)]
        stage.seen.send_to(0, "guilty", **SLOW)  # the first: in the half that is tried first, each time
        for number, request_id in enumerate(innocent):
            stage.seen.send_to(number % PARTITIONS, request_id, **SLOW)
        supervisor = Supervisor(stage, kind, dies_with)
        # Two deaths make suspects, each further one leaves half of them; then it is alone.
        deaths = 2 + math.ceil(math.log2(requests)) + deaths_alone
        last = supervisor.run([*innocent, "guilty"], most_lives=deaths + 1)
        results = stage.seen.by_id()
        guilty = results.pop("guilty")
        assert guilty.error is not None
        assert (guilty.status, guilty.error.code) == ("failed", "poison_request")
        assert {result.status for result in results.values()} == {"ok"}
        assert results.keys() == {*innocent, *supervisor.streamed}
        stage.seen.wait_for_dead(1)
        ((_, letter),) = stage.seen.dead
        assert (letter.id, letter.code) == ("guilty", "poison_request")
        assert json.loads(letter.value or b"")["id"] == "guilty"
        assert supervisor.most_suspects > 0, "they are shown"
        assert supervisor.silent_lives <= deaths_alone, "who is tried alone has the engine to itself"
        assert supervisor.lives > 2 + deaths_alone + 1, "and before that, trials went on beside the stream"
        wait_until(lambda: last.metric("headrace_suspects") == 0, 20, "nobody to be suspect")
        last.terminate()
        assert last.exit_code() == 0, last.said()


def test_a_first_death_suspects_nobody(kafka_bootstrap: str, unique_prefix: str, tmp_path: Path) -> None:
    ids = [f"r{number}" for number in range(30)]
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:

        def start_and_wait_for_all_in_flight() -> WorkerProcess:
            worker = stage.start(simulated_time_scale=2)
            wait_until(lambda: worker.metric("headrace_in_flight") == len(ids), 60, "all in flight")
            return worker

        for number, request_id in enumerate(ids):
            stage.seen.send_to(number % PARTITIONS, request_id, **long_text(200))
        start_and_wait_for_all_in_flight().kill()
        second = start_and_wait_for_all_in_flight()
        assert second.metric("headrace_suspects") == 0
        deaths = 'headrace_worker_deaths_total{cause="predecessor",model="tagger"}'
        assert f"{deaths} {PARTITIONS}.0" in second.get("/metrics")[1]
        stage.seen.wait_for(*ids)
        assert generations(second) == len(ids) == len(stage.seen.by_id())
