"""A worker that vanishes at any moment costs nobody an answer, and nobody gets two."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from packages import write_package
from waiting import wait_until
from worker_processes import WorkerProcess, create_topics, traffic

from headrace.topics.names import ContractNames


@pytest.mark.parametrize(
    ("kills", "requests"), [(3, 150), pytest.param(10, 500, marks=pytest.mark.soak)], ids=["three", "ten"]
)
def test_kills_at_random_moments_lose_nothing_and_double_nothing(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path, kills: int, requests: int
) -> None:
    seed = 20261129
    chance = random.Random(seed)
    names = ContractNames(unique_prefix, "tagger", 1)
    create_topics(kafka_bootstrap, names)
    package = write_package(tmp_path / "package")  # free texts differ in length: they finish out of order
    ids = [f"r{number}" for number in range(requests)]
    # Kill once so many results are there, each time a random number later: in the middle of something.
    marks = sorted(chance.sample(range(1, requests - 20), kills))
    with traffic(kafka_bootstrap, names) as seen:
        seen.send_many(ids)
        for mark in marks:
            with start(kafka_bootstrap, package, names, tmp_path) as worker:

                def enough(mark: int = mark, worker: WorkerProcess = worker) -> bool:
                    assert worker.process.poll() is None, worker.said()
                    seen.read()
                    return len(seen.results) >= mark

                wait_until(enough, 60, f"{mark} results")
                worker.kill()
        with start(kafka_bootstrap, package, names, tmp_path) as worker:
            seen.wait_for_results(requests)
            worker.terminate()
            assert worker.exit_code() == 0, worker.said()
        seen.read()
        answered = seen.answered()
    assert [each for each in ids if each not in answered] == []
    assert {each: count for each, count in answered.items() if count > 1} == {}
    assert {result.status for _, result in seen.results} == {"ok"}


def start(bootstrap: str, package: Path, names: ContractNames, place: Path) -> WorkerProcess:
    """A worker in the one slot, slow enough that a kill finds something in flight."""
    return WorkerProcess(
        bootstrap,
        package,
        prefix=names.prefix,
        log=place / "worker.log",
        options=("--max-in-flight", "16"),
        HEADRACE_SIMULATED_TIME_SCALE="0.3",
    )
