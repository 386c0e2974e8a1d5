"""A worker that leaves: it gives away each unit as it is drained, and ends by itself."""

from __future__ import annotations

import pytest
from fake_kafka import FakeKafka
from fake_worker import NAMES, SOURCES, Clock, FakeWorker, RegistryCodec
from worker_turns import clock_by_hand, run, send, until_begun

from headrace.workers.moving import HEARD_WITHIN_S
from headrace.workers.pump import LAST_COMMITS_S

STANDARD, OTHER_UNIT = SOURCES[2], SOURCES[3]
BUDGET_S = 60.0  # of a drain


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clock_by_hand(monkeypatch)


@pytest.fixture
def kafka(clock: Clock) -> FakeKafka:
    return FakeKafka(SOURCES)


@pytest.fixture
def worker(kafka: FakeKafka) -> FakeWorker:
    return FakeWorker(kafka, RegistryCodec())


def begun(kafka: FakeKafka, worker: FakeWorker, requests: int = 2) -> None:
    """So many requests of unit 0 are in the loop."""
    for number in range(requests):
        send(kafka, STANDARD, f"r{number}")
    kafka.assign(STANDARD, worker.member)
    until_begun(worker, requests)


def give_back(worker: FakeWorker, works: int) -> None:
    """What the loop does when it is told to hold unit 0: the last so many had not begun."""
    assert worker.held == [frozenset({0})]
    worker.held.clear()
    worker.give_back(frozenset({0}), worker.works[len(worker.works) - works :])


def test_leaving_gives_units_away_as_they_are_drained_and_ends_by_itself(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 2)
    kafka.assign(OTHER_UNIT, worker.member)
    run(worker, clock)
    worker.pump.leave()
    worker.pump.turn()
    assert worker.member.leaving
    assert worker.held == [frozenset({0, 1})]
    worker.give_back(frozenset({0, 1}), [])
    run(worker, clock)
    assert worker.member.released == {1}, "the other is not drained yet"
    assert not worker.pump._finished()
    while worker.works:
        worker.finish(0)
    run(worker, clock)
    assert worker.pump._finished()
    assert kafka.committed[STANDARD].offset == 2
    worker.pump.run()
    assert worker.member.closed


def test_a_worker_does_not_go_before_its_last_units_are_given_away_but_waits_no_longer_than_that_takes(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    """Who gets them from one that has gone must end first what it may have left open."""
    begun(kafka, worker, 1)
    worker.member.group_hears = False
    worker.pump.leave()
    worker.pump.turn()
    give_back(worker, 0)
    worker.finish(0)
    run(worker, clock)
    assert worker.member.released == {0}
    assert not worker.pump._finished()
    worker.member.group_hears = True
    assert worker.pump._finished()
    worker.member.group_hears = False
    assert not worker.pump._finished()
    clock.now += HEARD_WITHIN_S + 1
    assert worker.pump._finished(), "the others may be gone, or frozen"


def test_what_is_assigned_to_a_worker_that_leaves_is_given_away_unread(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 1)
    worker.pump.leave()
    worker.pump.turn()
    give_back(worker, 0)
    send(kafka, OTHER_UNIT, "a")
    kafka.assign(OTHER_UNIT, worker.member)
    run(worker, clock)
    assert worker.held == [frozenset({1})]
    worker.give_back(frozenset({1}), [])
    worker.finish(0)
    run(worker, clock)
    assert worker.works == []
    assert worker.pump._finished()
    assert OTHER_UNIT not in kafka.committed
    assert [record.topic for record in kafka.published] == [NAMES.results]


def test_a_worker_without_a_unit_leaves_at_once(kafka: FakeKafka, worker: FakeWorker) -> None:
    worker.pump.turn()
    worker.pump.leave()
    worker.pump.turn()
    assert worker.pump._finished()


def test_a_worker_that_fails_while_it_leaves_commits_what_is_finished_and_waits_for_nothing_else(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 2)
    worker.pump.leave()
    run(worker, clock)
    worker.finish(0)
    worker.pump.finish(leave_group=True)
    assert not worker.pump._finished()
    run(worker, clock)
    assert worker.pump._finished()
    assert len(kafka.published) == 1


def test_leaving_ends_although_what_runs_is_never_given_back(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 1)
    worker.pump.leave()
    run(worker, clock)
    clock.now += BUDGET_S
    run(worker, clock)
    assert worker.aborted == [frozenset({0})] or worker.held, "it waits for the loop"
    assert not worker.pump._finished()
    clock.now += LAST_COMMITS_S + 1
    assert worker.pump._finished()


def test_what_is_assigned_to_a_worker_that_leaves_is_not_opened_nor_asked_for(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 1)
    windows = list(worker.windows)
    worker.pump.leave()
    worker.pump.turn()
    give_back(worker, 0)
    kafka.assign(OTHER_UNIT, worker.member)
    for _ in range(3):
        worker.pump.turn()
        clock.now += 0.2
    assert worker.ledger.epoch(OTHER_UNIT) is None
    assert worker.windows == windows


def test_results_that_could_wait_are_published_for_a_unit_that_moves(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    """Backfill's may, for a second: nothing else of the worker's hurries them, with other units at work."""
    worker.ledger._commit_interval_s = 60.0  # pyright: ignore[reportPrivateUsage]
    begun(kafka, worker, 1)
    send(kafka, OTHER_UNIT, "other")
    kafka.assign(OTHER_UNIT, worker.member)
    until_begun(worker, 2)
    worker.pump.leave()
    worker.pump.turn()
    assert worker.held == [frozenset({0, 1})]
    worker.give_back(frozenset({0, 1}), [])
    worker.finish(0)
    run(worker, clock, turns=4)
    assert kafka.committed[STANDARD].offset == 1, "before positions are looked at, once a second"
    run(worker, clock)
    assert worker.member.released == {0}
