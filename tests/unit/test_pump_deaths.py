"""A death of the engine: who was in it is told to the next life, and one that was alone in it is convicted."""

from __future__ import annotations

import json

import pytest
from fake_kafka import FakeKafka
from fake_worker import NAMES, SOURCES, Clock, FakeWorker, RegistryCodec
from worker_turns import clock_by_hand, progress_of, run, send, suspect, until_begun

from headrace.consumers.suspicion import Suspicion
from headrace.schemas.codec import Codec
from headrace.schemas.errors import RegistryFailed
from headrace.schemas.messages import DeadLetter, Result
from headrace.workers.pump import LAST_COMMITS_S

STANDARD, OTHER = SOURCES[2], SOURCES[3]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clock_by_hand(monkeypatch)


@pytest.fixture
def kafka(clock: Clock) -> FakeKafka:
    return FakeKafka(SOURCES)


@pytest.fixture
def worker(kafka: FakeKafka) -> FakeWorker:
    return FakeWorker(kafka, RegistryCodec())


def test_who_was_in_the_engine_when_it_died_is_in_the_next_commits_metadata_and_nothing_is_begun_any_more(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    for number in range(3):
        send(kafka, STANDARD, f"r{number}")
    kafka.assign(STANDARD, worker.member)
    until_begun(worker, 3)
    send(kafka, STANDARD, "later")
    worker.finish(1)
    worker.pump.engine_died(frozenset((work.source, work.offset) for work in worker.works), "killed")
    in_engine = list(worker.works)
    run(worker, clock)
    assert worker.works == in_engine, "nothing was begun after it"
    assert kafka.committed[STANDARD].offset == 0
    after = progress_of(kafka, STANDARD)
    assert after.started == 0, "told, not to be found by the successor"
    assert [1 in run for run in after.done] == [True], "the one that was finished is published"
    assert dict(after.suspects) == {0: Suspicion(1), 2: Suspicion(1)}


def test_what_was_polled_and_not_begun_when_the_engine_died_is_not_begun_by_a_commit_after_it(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    send(kafka, STANDARD, "a")
    kafka.assign(STANDARD, worker.member)
    for _ in range(5):
        worker.pump.turn()
    assert worker.batch is not None, "its first mark is under way"
    worker.pump.engine_died(frozenset(), "killed")
    worker.pump.turn()
    worker.commit()
    run(worker, clock)
    assert worker.works == []
    assert dict(progress_of(kafka, STANDARD).suspects) == {}


def test_one_that_kills_the_engine_while_alone_in_it_is_convicted(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    suspect(kafka, STANDARD, {0: Suspicion(3)})
    send(kafka, STANDARD, "innocent")
    kafka.assign(STANDARD, worker.member)
    until_begun(worker)
    while worker.works and not worker.works[0].alone:
        worker.finish(0)
        run(worker, clock)
    assert [(work.offset, work.alone) for work in worker.works] == [(0, True)]
    worker.pump.engine_died(frozenset({(STANDARD, 0)}), "signal 9")
    run(worker, clock)
    assert kafka.committed[STANDARD].offset >= 1, "it is answered like any other"
    assert dict(progress_of(kafka, STANDARD).suspects) == {}
    dead = [
        Codec().decode(DeadLetter, each.value).message for each in kafka.published if each.topic == NAMES.dead
    ]
    results = [
        Codec().decode(Result, each.value).message for each in kafka.published if each.topic == NAMES.results
    ]
    assert [each.status for each in results if each.id == "innocent"] in ([], ["ok"])
    [poison] = [each for each in results if each.id == "r0"]
    assert poison.status == "failed"
    assert poison.error is not None
    assert poison.error.code == "poison_request"
    assert "signal 9" in poison.error.message
    assert [(each.id, each.code) for each in dead] == [("r0", "poison_request")]
    assert dead[0].value is not None
    assert json.loads(dead[0].value)["id"] == "r0", "with its bytes"


def test_where_a_conviction_cannot_be_written_everything_else_of_the_death_is(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was finished, and who was in the engine: the next owner convicts."""
    suspect(kafka, STANDARD, {0: Suspicion(3)})
    send(kafka, STANDARD, "innocent")
    kafka.assign(STANDARD, worker.member)
    until_begun(worker)
    while worker.works and not worker.works[0].alone:
        worker.finish(0)
        run(worker, clock)

    def unanswered(*_: object) -> None:
        raise RegistryFailed("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(worker.answers, "completion", unanswered)
        worker.pump.engine_died(frozenset({(STANDARD, 0)}), "signal 9")
        run(worker, clock)
    after = progress_of(kafka, STANDARD)
    assert kafka.committed[STANDARD].offset == 0
    assert after.suspects[0].deaths > 3
    assert [each.topic for each in kafka.published if each.topic == NAMES.dead] == []


def test_one_that_waits_to_be_alone_is_not_convicted_of_a_death_of_others(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    send(kafka, STANDARD, "beside it")
    kafka.assign(STANDARD, worker.member)
    until_begun(worker)
    suspect(kafka, OTHER, {0: Suspicion(3)})
    kafka.assign(OTHER, worker.member)
    run(worker, clock)
    worker.pump.engine_died(frozenset({(STANDARD, 0)}), "signal 9")
    run(worker, clock)
    assert kafka.published == []
    waits = progress_of(kafka, OTHER).suspects[0]
    assert (waits.deaths, waits.alone) == (3, 0)
    inside = progress_of(kafka, STANDARD).suspects
    assert inside[0].deaths == 1, "whoever was in it, or each life would end the same way"


def test_a_death_before_the_trial_has_begun_is_held_against_those_that_were_in_the_engine(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    suspect(kafka, STANDARD, {0: Suspicion(2), 1: Suspicion(2), 2: Suspicion(2)})
    send(kafka, STANDARD, "new")
    kafka.assign(STANDARD, worker.member)
    until_begun(worker)
    assert [work.offset for work in worker.works] == [3], "the trial waits for its commit"
    worker.pump.engine_died(frozenset({(STANDARD, 3)}), "signal 9")
    run(worker, clock)
    assert progress_of(kafka, STANDARD).suspects[3].deaths == 1


def test_one_that_was_alone_when_three_workers_vanished_is_convicted_when_it_is_polled(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    suspect(kafka, STANDARD, {0: Suspicion(6, alone=3), 1: Suspicion(5, alone=2)})
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    assert [work.offset for work in worker.works] == [1], "another chance"
    results = [
        Codec().decode(Result, each.value).message for each in kafka.published if each.topic == NAMES.results
    ]
    assert [(each.id, each.status) for each in results] == [("r0", "failed")]


def test_a_death_is_committed_before_the_consumer_thread_ends_though_nothing_else_is_pending(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    for number in range(3):
        send(kafka, STANDARD, f"r{number}")
    kafka.assign(STANDARD, worker.member)
    until_begun(worker, 3)
    worker.pump.engine_died(frozenset((STANDARD, offset) for offset in range(3)), "signal 9")
    worker.pump.finish(leave_group=True)
    assert not worker.pump._finished(), "it is taken, and not committed"
    worker.pump.turn()
    assert worker.batch is not None
    assert not worker.pump._finished(), "to leave the group now would have it refused"
    worker.commit()
    assert worker.pump._finished()
    assert dict(progress_of(kafka, STANDARD).suspects) == dict.fromkeys(range(3), Suspicion(1))


def test_a_death_that_cannot_be_committed_does_not_keep_the_consumer_thread_for_ever(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    send(kafka, STANDARD, "a")
    kafka.assign(STANDARD, worker.member)
    until_begun(worker)
    worker.pump.engine_died(frozenset({(STANDARD, 0)}), "signal 9")
    worker.pump.finish(leave_group=True)
    assert not worker.pump._finished()
    clock.now += LAST_COMMITS_S + 1
    assert worker.pump._finished()


def test_what_is_begun_again_knows_how_many_deaths_were_before(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    suspect(kafka, STANDARD, {0: Suspicion(1), 1: Suspicion(2)})
    kafka.assign(STANDARD, worker.member)
    until_begun(worker)
    assert [(work.offset, work.deaths, work.alone) for work in worker.works] == [(1, 2, True)]
    worker.finish(0)
    run(worker, clock)
    assert [(work.offset, work.deaths, work.alone) for work in worker.works] == [(0, 1, False)]
