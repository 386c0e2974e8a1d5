"""Thousands of messages as they should not be: none ends the worker, and each has its answer or its dead letter."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from mutations import WAYS, Mutated, mutated_requests
from waiting import wait_until
from worker_processes import PARTITIONS, Scene, scene

from headrace.schemas.messages import DeadLetter

COUNT = 10_000
SEED = 20261130
WITHIN_S = 240.0
STOPPED_WITHIN_S = 60.0
REAL: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "real_schemas.jsonl").read_text("utf-8").splitlines()
]


def duplicates(worker: Any) -> int:
    """Requests whose id was seen before: a message may have been changed into the id of another."""
    return round(worker.metric("headrace_duplicate_requests_total"))


def send_all(stage: Scene) -> dict[tuple[int, int], Mutated]:
    """By partition and offset in the standard lane's topic."""
    sent: Counter[int] = Counter()
    placed: dict[tuple[int, int], Mutated] = {}
    for number, mutated in enumerate(mutated_requests(SEED, COUNT, [real["schema"] for real in REAL])):
        unit = number % PARTITIONS
        stage.seen.send(mutated.value, partition=unit, headers=mutated.headers)
        placed[unit, sent[unit]] = mutated
        sent[unit] += 1
    return placed


def test_ten_thousand_mutated_messages_end_no_worker_and_none_is_lost(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    with scene(kafka_bootstrap, unique_prefix, tmp_path, output=None) as stage:
        placed = send_all(stage)
        worker = stage.start()
        statuses: dict[tuple[int, int], str] = {}
        letters: dict[tuple[int, int], DeadLetter] = {}
        seen = stage.seen

        def decided() -> bool:
            assert worker.process.poll() is None, worker.said()
            seen.read()
            for _, result in seen.results[len(statuses) :]:
                origin = result.provenance
                statuses[origin.source_partition, origin.source_offset] = result.status
            for _, letter in seen.dead[len(letters) :]:
                letters[letter.source.partition, letter.source.offset] = letter
            return len(statuses.keys() | letters.keys()) + duplicates(worker) >= COUNT

        wait_until(decided, WITHIN_S, "a result, a dead letter or a duplicate for each")
        assert (len(seen.results), len(seen.dead)) == (len(statuses), len(letters)), "one of each at most"
        assert len(statuses.keys() | letters.keys()) + duplicates(worker) == COUNT
        for place, letter in letters.items():
            mutated = placed[place]
            assert letter.value == mutated.value, f"{mutated.how}: other bytes in the dead letter"
            assert [(each.key, each.value) for each in letter.headers] == mutated.headers
            assert letter.code != "internal_error", f"{mutated.how}: {letter.message}"
        not_ok = {place for place, status in statuses.items() if status != "ok"}
        assert not_ok <= letters.keys(), "everything but ok has a dead letter"
        fine = Counter(placed[place].how for place in statuses.keys() - not_ok)
        assert fine["as it should be"] > COUNT / len(WAYS) / 2, (
            f"most of those that are as they should be: {fine}"
        )
        assert {placed[place].how for place in letters} >= WAYS.keys() - {"as it should be", "odd headers"}
        worker.stop(STOPPED_WITHIN_S)
