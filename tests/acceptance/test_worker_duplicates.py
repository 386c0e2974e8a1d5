"""Who asks twice under one id gets the one answer: no second generation, no second result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until
from worker_processes import Callers, Scene, WorkerProcess, generations, long_text, scene

from headrace.schemas.messages import Location, Reply, Status

UNIT = 1
LONG: dict[str, Any] = long_text(200)  # 2 s


@pytest.fixture
def stage(kafka_bootstrap: str, unique_prefix: str, tmp_path: Path) -> Iterator[Scene]:
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as made:
        yield made


@pytest.fixture
def callers(stage: Scene) -> Iterator[Callers]:
    made = Callers(stage.bootstrap, stage.names)
    yield made
    made.close()


def ask(
    stage: Scene, callers: Callers, caller: str, request_id: str, lane: str = "standard", **fields: Any
) -> None:
    stage.seen.send_to(UNIT, request_id, lane, headers=callers.headers(caller), **fields)


def location_of(stage: Scene, request_id: str) -> Location:
    (record,) = (record for record, result in stage.seen.results if result.id == request_id)
    return Location(topic=record.topic, partition=record.partition, offset=record.offset)


def assert_duplicate(stage: Scene, reply: Reply) -> None:
    assert (reply.kind, reply.result, reply.location) == ("duplicate", None, location_of(stage, reply.id))


def status_of(reply: Reply) -> Status:
    assert reply.kind == "final", reply
    assert reply.result is not None
    return reply.result.status


def duplicates(worker: WorkerProcess) -> int:
    return round(worker.metric("headrace_duplicate_requests_total"))


def test_who_asks_again_while_it_runs_gets_the_reply_of_the_one_generation(
    stage: Scene, callers: Callers
) -> None:
    worker = stage.start(simulated_time_scale=1)
    ask(stage, callers, "first", "twice", **LONG)
    wait_until(lambda: generations(worker) == 1, 60, "it to run")
    ask(stage, callers, "second", "twice", **LONG)
    ask(stage, callers, "elsewhere", "twice", "interactive", **LONG)
    wait_until(lambda: duplicates(worker) == 2, 30, "the others to be seen")
    assert "twice" not in stage.seen.answered()
    replies = [callers.wait_for_last(each) for each in ("first", "second", "elsewhere")]
    assert [reply.kind for reply in replies] == ["final"] * 3
    (result,) = stage.seen.wait_for("twice")
    assert [reply.result for reply in replies] == [result] * 3

    ask(stage, callers, "late", "twice", **LONG)
    ask(stage, callers, "late elsewhere", "twice", "backfill", **LONG)
    for caller in ("late", "late elsewhere"):
        assert_duplicate(stage, callers.wait_for_last(caller))
    assert (generations(worker), duplicates(worker)) == (1, 4)
    assert stage.seen.wait_for("twice") == [result]


def test_what_was_answered_before_a_kill_is_known_to_the_next_life(stage: Scene, callers: Callers) -> None:
    first = stage.start()
    ask(stage, callers, "first", "again")
    assert callers.wait_for_last("first").kind == "final"
    first.kill()
    stage.seen.wait_for("again")
    ask(stage, callers, "second", "again")
    second = stage.start()
    assert_duplicate(stage, callers.wait_for_last("second"))
    ask(stage, callers, "third", "again", "interactive")
    assert_duplicate(stage, callers.wait_for_last("third"))
    ask(stage, callers, "fourth", "new")
    assert callers.wait_for_last("fourth").kind == "final"
    assert (duplicates(second), generations(second)) == (2, 1)
    assert stage.seen.wait_for("again", "new") == [result for _, result in stage.seen.results]


def test_a_malformed_message_does_not_answer_a_good_one_with_its_id_even_across_a_kill(
    stage: Scene, callers: Callers
) -> None:
    bad: dict[str, Any] = {"unknown": 1}
    first = stage.start(simulated_time_scale=1)
    ask(stage, callers, "bad one", "bad before", **bad)
    assert status_of(callers.wait_for_last("bad one")) == "rejected"
    ask(stage, callers, "good one", "bad before", **LONG)
    ask(stage, callers, "patient", "bad after", **LONG)
    ask(stage, callers, "hasty", "bad after", **bad)
    assert status_of(callers.wait_for_last("hasty")) == "rejected"
    wait_until(lambda: generations(first) == 2, 30, "both good ones to run")
    first.kill()
    stage.seen.read()
    assert {result.status for _, result in stage.seen.results} == {"rejected"}

    second = stage.start(simulated_time_scale=1)
    for caller in ("good one", "patient"):
        assert status_of(callers.wait_for_last(caller)) == "ok"
    stage.seen.wait_for_results(4)
    for request_id in ("bad before", "bad after"):
        ask(stage, callers, f"asks for {request_id}", request_id, **LONG)
        reply = callers.wait_for_last(f"asks for {request_id}")
        (place,) = (
            record
            for record, result in stage.seen.results
            if (result.id, result.status) == (request_id, "ok")
        )
        assert reply.kind == "duplicate"
        assert reply.location == Location(**place.location._asdict())
    assert generations(second) == 2
    statuses = sorted((result.id, result.status) for _, result in stage.seen.results)
    assert statuses == [
        (each, status) for each in ("bad after", "bad before") for status in ("ok", "rejected")
    ]
