"""Units that leave a worker: told to drain, drained, let go; or served on after all."""

from __future__ import annotations

import pytest
from fake_kafka import FakeKafka
from fake_worker import SOURCES, Clock, FakeWorker, RegistryCodec
from worker_turns import clock_by_hand, progress_of, run, send, suspect, until_begun

from headrace.consumers.suspicion import Suspicion
from headrace.schemas.errors import StaleGeneration
from headrace.workers import drains as drains_module

INTERACTIVE, STANDARD, OTHER_UNIT = SOURCES[0], SOURCES[2], SOURCES[3]
BUDGET_S = 60.0


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


def next_owner(kafka: FakeKafka, worker: FakeWorker) -> FakeWorker:
    """Who is given unit 0 once it has been let go."""
    assert worker.member.released == {0}
    kafka.revoke(STANDARD)
    worker.pump.turn()
    after = FakeWorker(kafka, RegistryCodec())
    kafka.assign(STANDARD, after.member)
    return after


def test_a_unit_that_drains_is_let_go_once_what_runs_is_finished_and_committed_and_no_generation_is_lost(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 3)
    worker.member.to_drain.add(0)
    run(worker, clock)
    give_back(worker, 1)
    send(kafka, STANDARD, "later")
    run(worker, clock)
    assert [work.offset for work in worker.works] == [0, 1], (
        "it goes on with what has begun, and begins nothing"
    )
    assert STANDARD in worker.member.paused
    worker.finish(1)
    run(worker, clock)
    assert worker.member.released == set()
    worker.finish(0)
    worker.pump.turn()
    worker.pump.turn()
    assert worker.member.released == set(), "its last result is not committed"
    run(worker, clock)
    assert worker.member.released == {0}
    assert worker.aborted == []
    assert progress_of(kafka, STANDARD).started == kafka.committed[STANDARD].offset == 2
    after = next_owner(kafka, worker)
    run(after, clock)
    assert [work.offset for work in after.works] == [2, 3]
    assert after.ledger.suspicion(STANDARD, 2).deaths == 0, "nobody has died"


def test_a_unit_is_not_let_go_before_the_loop_has_said_what_it_has_of_it(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    worker.member.to_drain.add(0)
    run(worker, clock)
    assert worker.member.released == set()
    give_back(worker, 0)
    run(worker, clock)
    assert worker.member.released == {0}


def test_a_refused_commit_of_its_last_result_keeps_a_unit_until_the_next_one(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 1)
    worker.member.to_drain.add(0)
    worker.pump.turn()
    give_back(worker, 0)
    worker.finish(0)
    worker.pump.turn()
    worker.pump.turn()
    assert worker.batch is not None
    worker.transactions.fail_next = lambda batch: StaleGeneration("for no reason that is known")
    worker.commit()
    for _ in range(3):
        worker.pump.turn()
    assert worker.member.released == set()
    run(worker, clock, turns=10)
    assert worker.member.released == {0}
    assert len(kafka.published) == 1


def test_a_drain_cancelled_before_the_unit_is_withdrawn_goes_on_in_the_same_tenure(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 3)
    epoch = worker.ledger.epoch(STANDARD)
    worker.member.to_drain.add(0)
    worker.pump.turn()
    give_back(worker, 2)
    worker.pump.turn()
    assert [work.offset for work in worker.works] == [0]
    worker.member.to_drain.clear()
    send(kafka, STANDARD, "later")
    run(worker, clock)
    assert [work.offset for work in worker.works] == [0, 1, 2, 3], "what was given back, and what is new"
    assert worker.ledger.epoch(STANDARD) == epoch
    assert worker.lost == set()
    assert worker.member.released == set()


def test_a_drain_cancelled_before_the_loop_has_answered_loses_nothing(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 2)
    worker.member.to_drain.add(0)
    worker.pump.turn()
    worker.member.to_drain.clear()
    worker.pump.turn()
    give_back(worker, 1)  # as it was told, before it heard more
    run(worker, clock)
    assert [work.offset for work in worker.works] == [0, 1]


def test_a_drain_cancelled_after_the_unit_is_withdrawn_begins_a_new_tenure_and_serves_on(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 1)
    epoch = worker.ledger.epoch(STANDARD)
    worker.member.to_drain.add(0)
    worker.pump.turn()
    give_back(worker, 1)
    worker.pump.turn()
    worker.pump.turn()
    assert worker.batch is not None, "it says that nothing is in flight"
    assert worker.works == []
    worker.member.to_drain.clear()
    run(worker, clock)
    assert worker.ledger.epoch(STANDARD) not in (epoch, None)
    assert [work.offset for work in worker.works] == [0], "read again, and begun"
    worker.finish(0)
    run(worker, clock)
    assert kafka.committed[STANDARD].offset == 1
    assert len(kafka.published) == 1


def test_a_unit_that_was_drained_and_is_told_to_drain_again_is_drained_anew(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 1)
    for _ in range(2):
        worker.member.to_drain.add(0)
        worker.pump.turn()
        give_back(worker, 1)
        worker.pump.turn()
        worker.pump.turn()
        worker.member.to_drain.clear()
        run(worker, clock)
        assert [work.offset for work in worker.works] == [0]
    assert worker.member.released == set()


def test_past_the_budget_what_runs_is_aborted_once_and_given_back_before_the_unit_is_let_go(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 2)
    worker.member.to_drain.add(0)
    worker.pump.turn()
    give_back(worker, 0)
    worker.finish(1)
    run(worker, clock)
    assert worker.aborted == []
    clock.now += BUDGET_S
    run(worker, clock)
    assert worker.aborted == [frozenset({0})]
    assert worker.member.released == set(), "the engine may still have it"
    worker.give_back(frozenset({0}), list(worker.works))
    run(worker, clock)
    assert worker.aborted == [frozenset({0})]
    assert worker.member.released == {0}
    after = next_owner(kafka, worker)
    run(after, clock)
    assert [work.offset for work in after.works] == [0], "done anew; the other was published"
    assert after.ledger.suspicion(STANDARD, 0).deaths == 0


def test_what_is_finished_while_it_is_being_aborted_is_published_once(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 2)
    worker.member.to_drain.add(0)
    worker.pump.turn()
    give_back(worker, 0)
    clock.now += BUDGET_S
    for _ in range(2):
        worker.pump.turn()
    assert worker.aborted == [frozenset({0})]
    aborted = list(worker.works)
    worker.finish(0)  # its completion was on its way
    worker.pump.handed_back(frozenset({0}), aborted)
    worker.works.clear()
    run(worker, clock)
    assert worker.member.released == {0}
    assert len(kafka.published) == 1
    after = next_owner(kafka, worker)
    run(after, clock)
    assert [work.offset for work in after.works] == [1]


def test_a_unit_that_was_let_go_and_comes_back_is_read_again(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 1)
    worker.member.to_drain.add(0)
    worker.pump.turn()
    give_back(worker, 1)
    run(worker, clock)
    assert worker.member.released == {0}
    kafka.revoke(STANDARD)
    worker.pump.turn()
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    assert STANDARD not in worker.member.paused
    assert [work.offset for work in worker.works] == [0]


def test_the_other_units_never_notice(kafka: FakeKafka, worker: FakeWorker, clock: Clock) -> None:
    begun(kafka, worker, 1)
    kafka.assign(OTHER_UNIT, worker.member)
    run(worker, clock)
    worker.member.to_drain.add(0)
    for number in range(3):
        send(kafka, OTHER_UNIT, f"other {number}")
        run(worker, clock, turns=3)
        worker.finish(len(worker.works) - 1)
    run(worker, clock)
    assert kafka.committed[OTHER_UNIT].offset == 3
    assert [work.source for work in worker.works] == [STANDARD]


def test_units_that_are_drained_close_to_each_other_are_let_go_in_one_rebalance(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[set[int]] = []
    monkeypatch.setattr(
        type(worker.member), "release", lambda self, units: released.append(set(units)), raising=True
    )
    for tp in (STANDARD, OTHER_UNIT):
        kafka.assign(tp, worker.member)
    run(worker, clock)
    worker.member.to_drain |= {0, 1}
    worker.pump.turn()
    worker.give_back(frozenset({0}), [])
    for _ in range(4):
        worker.pump.turn()
        if worker.batch is not None:
            worker.commit()
    assert released == [], "the other may be ready in a moment"
    worker.give_back(frozenset({1}), [])
    for _ in range(4):
        worker.pump.turn()
        if worker.batch is not None:
            worker.commit()
    assert released == [{0, 1}]
    assert clock.now < 1000 + 6 * 0.2 + drains_module.COALESCE_S


def test_a_unit_that_is_not_open_yet_is_let_go_at_once(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    worker.control.ready = False
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    worker.member.to_drain.add(0)
    worker.pump.turn()
    give_back(worker, 0)
    worker.control.ready = True
    run(worker, clock)
    assert worker.member.released == {0}


def test_a_parked_partition_does_not_keep_its_unit(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    kafka.known.add(STANDARD)
    send(kafka, STANDARD, "a")
    kafka.assign(STANDARD, worker.member)
    kafka.assign(INTERACTIVE, worker.member)
    run(worker, clock)
    assert list(worker.openings.parked) == [STANDARD]
    worker.member.to_drain.add(0)
    worker.pump.turn()
    give_back(worker, 0)
    run(worker, clock)
    assert worker.member.released == {0}
    assert list(worker.openings.parked) == []


def test_a_suspect_that_is_held_back_does_not_keep_its_unit(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    suspect(kafka, STANDARD, {0: Suspicion(2)})
    kafka.assign(STANDARD, worker.member)
    worker.member.to_drain.add(0)
    run(worker, clock)
    give_back(worker, 0)
    run(worker, clock)
    assert worker.member.released == {0}
    assert dict(progress_of(kafka, STANDARD).suspects) == {0: Suspicion(2)}, "the next owner tries it"


def test_a_unit_that_is_taken_and_given_back_while_it_drains_is_let_go_as_it_is_found(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 1)
    worker.member.to_drain.add(0)
    worker.pump.turn()
    give_back(worker, 1)
    worker.pump.turn()
    worker.pump.turn()
    assert worker.batch is not None, "it says that nothing is in flight"
    kafka.expel(worker.member)
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    if worker.held:
        give_back(worker, 0)
    found = kafka.committed[STANDARD]
    run(worker, clock, turns=10)
    assert worker.member.released == {0}
    assert kafka.committed[STANDARD] == found, "nothing of it was begun in its second tenure, nor said of it"


def test_a_unit_that_is_lost_while_it_drains_and_comes_back_to_be_drained_is_drained_anew(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    begun(kafka, worker, 1)
    worker.member.to_drain.add(0)
    worker.pump.turn()
    give_back(worker, 0)
    kafka.expel(worker.member)
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    assert worker.member.released == set()
    give_back(worker, 0)
    run(worker, clock)
    assert worker.member.released == {0}
