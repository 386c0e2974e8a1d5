"""A conviction explains the deaths: those who were suspected of them go on, once that is committed."""

from __future__ import annotations

import pytest
from dispatch_desk import Desk
from fake_kafka import FakeKafka
from fake_worker import SOURCES, Clock, FakeWorker, RegistryCodec
from worker_turns import clock_by_hand, progress_of, run, send, suspect, until_begun

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import CommitPoint
from headrace.consumers.suspicion import Suspicion

A, B = SOURCES[2], SOURCES[3]  # of units 0 and 1
GUILTY = Suspicion(6, alone=3)
LIMIT = 4096


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clock_by_hand(monkeypatch)


@pytest.fixture
def kafka(clock: Clock) -> FakeKafka:
    return FakeKafka(SOURCES)


@pytest.fixture
def worker(kafka: FakeKafka) -> FakeWorker:
    return FakeWorker(kafka, RegistryCodec())


# --- of one partition ---


def held_back(suspects: dict[int, Suspicion]) -> PartitionOffsets:
    """A tenure of suspects that earlier lives have committed; its first commit is made."""
    point = CommitPoint(0, offset_encoding.encode(0, Progress(0, suspects=suspects), LIMIT))
    offsets = PartitionOffsets(point, epoch=1, beginning=0, end=100, limit=LIMIT)
    for offset in range(max(suspects) + 1):
        offsets.polled(offset)
    offsets.committed(offsets.commit_point())
    return offsets


def test_the_exonerated_are_left_with_one_death_and_whoever_had_one_keeps_it() -> None:
    offsets = held_back({0: Suspicion(4, alone=1), 1: Suspicion(1), 3: Suspicion(2)})
    offsets.exonerate()
    assert dict(offsets.suspects()) == dict.fromkeys((0, 1, 3), Suspicion(1)), (
        "another death is no surprise then"
    )


def test_the_exonerated_do_not_begin_before_that_is_committed_or_their_death_would_not_be_counted() -> None:
    offsets = held_back({0: Suspicion(3)})
    before = offsets.commit_point()
    offsets.exonerate()
    assert not offsets.may_start(0)
    offsets.committed(before)  # that was under way, and says nothing of it
    assert not offsets.may_start(0)
    point = offsets.commit_point()
    offsets.committed(point)
    assert offsets.may_start(0)
    offsets.start(0)
    successor = PartitionOffsets(point, epoch=2, beginning=0, end=100, limit=LIMIT)
    assert successor.suspicion(0) == Suspicion(2)


# --- of a worker ---


def test_whoever_is_held_goes_on_in_order_after_the_commit_and_so_do_those_behind_them() -> None:
    desk = Desk(order_by_key=True)
    desk.assign(A, {0: Suspicion(2), 3: Suspicion(3)})
    desk.assign(B, {1: Suspicion(2)})
    desk.commit()
    desk.offer(A, 0, key=b"k")
    desk.offer(A, 3, key=b"other")
    desk.offer(A, 5, 6, key=b"k")
    desk.offer(B, 1)
    desk.dispatch.convicted()
    assert desk.begun() == []
    assert desk.ledger.due_in(0) == 0
    desk.commit()
    begun = desk.begun()
    assert sorted(begun) == [0, 1, 3, 5, 6]
    assert [offset for offset in begun if offset in (0, 5, 6)] == [0, 5, 6]
    desk.dispatch.begin_trial()
    assert desk.ledger.take() is None, "nobody is on trial"


def test_a_conviction_while_another_trial_has_not_begun_calls_it_off(desk: Desk) -> None:
    desk.assign(A, {0: Suspicion(2)})
    desk.assign(B)
    desk.commit()
    desk.offer(A, 0)
    desk.dispatch.begin_trial()
    desk.take()
    desk.dispatch.convicted()
    desk.end_commit()
    assert desk.begun() == []
    desk.commit()
    assert (desk.said(A), desk.said(B)) == (("open", []), ("open", []))
    desk.dispatch.deliver()
    assert [(work.offset, work.alone) for work in desk.delivered] == [(0, False)]


def test_one_that_is_being_tried_when_another_is_convicted_is_tried_to_its_end(desk: Desk) -> None:
    desk.assign(A, {0: Suspicion(2)})
    desk.assign(B)
    desk.commit()
    desk.offer(A, 0)
    desk.dispatch.begin_trial()
    desk.commit()
    assert desk.begun() == [0]
    desk.dispatch.convicted()
    alone = desk.dispatch.on_trial_alone()
    assert alone is not None, "if it kills the engine it is the killer"
    desk.finish(A, 0)
    desk.offer(B, 1)
    desk.commit()
    assert desk.begun() == [1]
    assert desk.said(B) == ("open", [])


def test_the_next_life_after_a_conviction_tries_nobody(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    suspect(kafka, A, {0: Suspicion(4), 1: Suspicion(3), 2: Suspicion(3)})
    suspect(kafka, B, {0: Suspicion(3)})
    kafka.assign(A, worker.member)
    kafka.assign(B, worker.member)
    until_begun(worker)
    assert [(work.source, work.offset, work.alone) for work in worker.works] == [(A, 0, True)]
    worker.pump.engine_died(frozenset({(A, 0)}), "signal 9")
    run(worker, clock)
    assert dict(progress_of(kafka, A).suspects) == {1: Suspicion(1), 2: Suspicion(1)}
    assert dict(progress_of(kafka, B).suspects) == {0: Suspicion(1)}
    kafka.expel(worker.member)
    after = FakeWorker(kafka, RegistryCodec())
    for tp in (A, B):
        kafka.assign(tp, after.member)
    until_begun(after, 3)
    assert sorted((work.source, work.offset) for work in after.works) == [(A, 1), (A, 2), (B, 0)], (
        "all at once"
    )
    assert progress_of(kafka, A).mode == "open"


def test_a_conviction_by_what_is_polled_lets_the_suspects_of_the_other_partitions_go_on(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    suspect(kafka, A, {0: Suspicion(2), 1: Suspicion(2)})
    suspect(kafka, B, {0: GUILTY})
    kafka.assign(A, worker.member)
    for _ in range(5):
        worker.pump.turn()
    kafka.assign(B, worker.member)
    run(worker, clock, turns=10)
    assert sorted(work.offset for work in worker.works) == [0, 1]
    assert {(tp, progress_of(kafka, tp).mode) for tp in (A, B)} == {(A, "open"), (B, "open")}
    assert kafka.committed[B].offset == 1, "it is answered"


# --- one that is to be alone ---


def test_nothing_is_begun_while_one_waits_to_be_alone_and_all_of_it_is_after_its_trial(desk: Desk) -> None:
    desk.assign(A, {3: Suspicion(2)})
    desk.assign(B)
    desk.commit()
    desk.offer(A, 0, 3)
    assert desk.begun() == [0]
    desk.dispatch.begin_trial()
    desk.offer(B, 7)
    desk.offer(A, 4)
    assert desk.begun() == [], "or there would always be something in flight"
    assert desk.ledger.due_in(0) is None
    desk.finish(A, 0)
    desk.dispatch.begin_trial()
    desk.commit()
    assert desk.said(A) == ("alone", [3]), "not said before nothing else was in flight"
    assert desk.begun() == [3]
    desk.finish(A, 3)
    desk.commit()
    assert sorted(desk.begun()) == [4, 7]


def test_an_alone_trial_that_is_given_back_by_a_drain_that_is_then_cancelled_is_held_and_tried_again(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    suspect(kafka, A, {0: Suspicion(2)})
    kafka.assign(A, worker.member)
    kafka.assign(B, worker.member)
    until_begun(worker)
    assert [work.alone for work in worker.works] == [True]
    worker.member.to_drain.add(0)
    worker.pump.turn()
    worker.give_back(frozenset({0}), list(worker.works))
    worker.member.to_drain.clear()
    send(kafka, B, "other")
    run(worker, clock, turns=3)
    assert worker.works != [], "no partition waits for it for ever"
    while worker.works:
        worker.finish(0)
        run(worker, clock)
    assert (kafka.committed[A].offset, kafka.committed[B].offset) == (1, 1)
    assert progress_of(kafka, A).mode == "open"


def test_the_commits_do_not_say_that_one_is_alone_in_the_engine_which_was_given_back(desk: Desk) -> None:
    desk.assign(A, {0: Suspicion(2)})
    desk.commit()
    desk.offer(A, 0)
    desk.dispatch.begin_trial()
    desk.commit()
    desk.dispatch.deliver()
    [alone] = desk.delivered
    desk.dispatch.drain(frozenset({0}))
    desk.dispatch.taken_back([alone])
    assert desk.dispatch.on_trial_alone() is None
    desk.commit()
    assert desk.said(A) == ("open", [])
