"""From a partition's assignment to its first poll: what is waited for, in which order, and what parks it."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future

import pytest
from fake_kafka import FakeControl, FakeKafka, FakeMember
from fake_worker import METADATA_LIMIT, NAMES, SOURCES, Clock
from worker_turns import accept, clock_by_hand, send

from headrace.consumers.records import AnsweredId, CommitPoint, TopicPartition
from headrace.consumers.starting import Acceptance
from headrace.producers.kafka import CommitBatch
from headrace.schemas.errors import KafkaUnavailable
from headrace.workers import openings as openings_module
from headrace.workers.ledger import Ledger
from headrace.workers.openings import Openings

STANDARD, INTERACTIVE, OTHER_UNIT = SOURCES[2], SOURCES[0], SOURCES[3]


class Member(FakeMember):
    """Notes what is asked of it."""

    def committed(
        self, partitions: Collection[TopicPartition], deadline_s: float
    ) -> dict[TopicPartition, CommitPoint | None]:
        LOG.append(f"offsets of {len(partitions)}")
        return super().committed(partitions, deadline_s)

    def start_at(self, tp: TopicPartition, offset: int) -> None:
        LOG.append(f"start at {offset}")
        super().start_at(tp, offset)


LOG: list[str] = []


class Counted:
    """In the place of a counter."""

    value = 0.0

    def labels(self, *_: str) -> Counted:
        return self

    def inc(self, by: float) -> None:
        self.value += by


class Told(FakeControl):
    """Notes what it is told."""

    def know(self, committed: dict[TopicPartition, CommitPoint]) -> None:
        LOG.append(f"know {sorted(committed)}")
        super().know(committed)


class Door:
    """Openings of one member, and all that they wait for in the hands of the test."""

    def __init__(self, kafka: FakeKafka) -> None:
        LOG.clear()
        self.kafka = kafka
        self.member = Member(kafka)
        self.ledger = Ledger(commit_interval_s=0.1, metadata_limit=METADATA_LIMIT)
        self.control = Told(kafka)
        self.told: dict[int, list[AnsweredId]] = {}
        self.endings: dict[str, Future[None]] = {}
        self.openings = Openings(
            source=self.member,
            ledger=self.ledger,
            names=NAMES,
            control=self.control,
            windows=self,
            end_transaction_of=self._end,
            metadata_limit=METADATA_LIMIT,
        )

    def _end(self, slot: str) -> Future[None]:
        LOG.append(f"end {slot}")
        self.endings[slot] = Future()
        return self.endings[slot]

    def ask(self, unit: int) -> None:
        LOG.append(f"window {unit}")
        self.told.pop(unit, None)

    def forget(self, unit: int) -> None:
        LOG.append(f"no window {unit}")
        self.told.pop(unit, None)

    def take(self, unit: int, ids: list[AnsweredId]) -> bool:
        return self.told.pop(unit, None) is ids

    def window_is_read(self, unit: int, *ids: AnsweredId) -> None:
        self.told[unit] = list(ids)
        self.openings.window_read(unit, self.told[unit])

    def assign(self, *partitions: TopicPartition) -> None:
        for tp in partitions:
            self.kafka.assign(tp, self.member)
        for tp in self.member.poll(0, 0).assigned:
            self.openings.add(tp)

    def commit(self) -> None:
        batch = self.ledger.take()
        assert batch is not None
        self.kafka.committed.update(batch.points)
        self.ledger.committed([None] * len(batch.completions))
        self.openings.committed(batch.points)

    def open_completely(self, *units: int) -> None:
        """As far as they can go with their windows read."""
        for _ in range(2):
            self.openings.advance()
            for unit in units:
                self.window_is_read(unit)
        self.openings.advance()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clock_by_hand(monkeypatch)


@pytest.fixture
def kafka(clock: Clock) -> FakeKafka:
    return FakeKafka(SOURCES)


@pytest.fixture
def door(kafka: FakeKafka) -> Door:
    return Door(kafka)


# --- what is waited for ---


def test_what_the_last_owner_left_open_is_ended_before_it_is_asked_where_it_stood(door: Door) -> None:
    door.member.predecessors[0] = "slot-7"
    door.assign(STANDARD, INTERACTIVE)
    assert LOG == ["end slot-7"], "once for a unit"
    assert not door.openings.advance()
    assert LOG == ["end slot-7"], "nobody knows yet where it stood"
    door.endings["slot-7"].set_result(None)
    door.openings.advance()
    assert LOG[1:] == ["offsets of 2", "window 0"]


def test_what_cannot_be_ended_is_left_to_the_broker_and_asked_for_again_until_it_is(
    door: Door, clock: Clock
) -> None:
    left_open = CommitBatch([], {STANDARD: CommitPoint(1, "")}, door.member.group_metadata())
    door.kafka.open_transactions.append(left_open)
    door.member.predecessors[0] = "slot-7"
    door.assign(STANDARD)
    door.endings["slot-7"].set_exception(KafkaUnavailable("no broker answers"))
    for _ in range(3):
        door.openings.advance()
    assert LOG[1:] == ["offsets of 1"], "not again at once"
    send(door.kafka, STANDARD, "a")
    door.kafka.end_transaction(left_open, commit=True)
    clock.now += openings_module.RETRY_S
    door.open_completely(0)
    assert door.member.positions[STANDARD] == 1, "where it stood in the end"


def test_a_unit_whose_last_owner_lives_waits_for_nobodys_transaction(door: Door) -> None:
    door.assign(STANDARD)
    door.openings.advance()
    assert LOG == ["offsets of 1", "window 0"]


def test_one_unit_whose_predecessor_is_being_ended_does_not_hold_up_another(door: Door) -> None:
    door.member.predecessors[0] = "slot-7"
    door.assign(STANDARD, OTHER_UNIT)
    door.open_completely(1)
    assert door.ledger.partitions == [OTHER_UNIT]


def test_the_window_is_read_after_the_offsets_and_before_the_first_poll(door: Door) -> None:
    door.assign(STANDARD, INTERACTIVE)
    assert not door.openings.advance()
    assert LOG == ["offsets of 2", "window 0"], "one for all lanes of a unit"
    assert not door.openings.advance()
    assert door.member.positions == {STANDARD: None, INTERACTIVE: None}
    door.window_is_read(0, AnsweredId("r1", 5, ok=True))
    assert door.openings.advance()
    assert LOG[2:] == ["start at 0", "start at 0"]
    seen = door.ledger.ask(STANDARD, "r1", 0, None)
    assert seen is not None
    assert seen.answered


def test_a_window_that_comes_after_its_unit_has_gone_and_come_back_is_that_of_its_own_tenure(
    door: Door,
) -> None:
    door.assign(STANDARD)
    door.openings.advance()
    before = door.told[0] = [AnsweredId("r1", 5, ok=True)]  # it is on its way
    door.openings.forget(STANDARD)
    assert LOG[-1] == "no window 0"
    door.openings.window_read(0, before)
    assert not door.ledger.has_window(0), "another owner may answer since then"
    door.openings.add(STANDARD)
    door.openings.advance()
    assert LOG[-1] == "window 0", "asked for anew"
    door.openings.window_read(0, before)
    assert not door.ledger.has_window(0), "that is the one of before"
    door.window_is_read(0)
    assert door.ledger.has_window(0)


def test_offsets_are_not_asked_for_while_a_transaction_of_ours_may_move_them(door: Door) -> None:
    door.assign(OTHER_UNIT)
    door.open_completely(1)
    assert door.ledger.take() is not None
    LOG.clear()
    door.assign(STANDARD)
    door.openings.advance()
    assert LOG == []
    door.ledger.committed([])
    door.openings.advance()
    assert LOG == ["offsets of 1", "window 0"]


def test_nothing_is_opened_before_all_of_the_control_topic_is_read(door: Door) -> None:
    door.control.ready = False
    door.assign(STANDARD)
    door.open_completely(0)
    assert LOG == []
    door.control.ready = True
    door.open_completely(0)
    assert door.ledger.partitions == [STANDARD]


# --- known, and parked ---


def test_control_is_told_once_that_a_partition_is_known_after_its_first_commit(door: Door) -> None:
    door.assign(STANDARD)
    door.open_completely(0)
    assert not any(each.startswith("know") for each in LOG)
    door.commit()
    assert LOG[-1] == f"know {[STANDARD]}"
    door.ledger.advanced(STANDARD, 1)
    door.commit()
    assert sum(each.startswith("know") for each in LOG) == 1


def test_a_partition_that_is_not_known_begins_at_the_beginning_and_a_known_one_without_an_offset_is_parked(
    door: Door,
) -> None:
    for tp in (STANDARD, OTHER_UNIT):
        send(door.kafka, tp, "a")
    door.kafka.known.add(STANDARD)
    door.assign(STANDARD, OTHER_UNIT)
    door.open_completely(0, 1)
    assert list(door.openings.parked) == [STANDARD]
    assert door.member.positions == {STANDARD: None, OTHER_UNIT: 0}


def test_a_parked_partition_is_served_once_exactly_its_state_is_accepted(door: Door) -> None:
    for number in range(9):
        send(door.kafka, STANDARD, f"r{number}")
    door.kafka.beginnings[STANDARD] = 5
    door.kafka.committed[STANDARD] = CommitPoint(2, "")
    door.assign(STANDARD)
    door.open_completely(0)
    assert list(door.openings.parked) == [STANDARD]
    door.kafka.accepted[STANDARD] = Acceptance(CommitPoint(1, ""), 5, "a@b", 0)
    door.kafka.control_revision += 1
    door.open_completely(0)
    assert list(door.openings.parked) == [STANDARD], "that was of another state"
    accept(door.kafka, STANDARD)
    door.open_completely(0)
    assert list(door.openings.parked) == []
    assert door.member.positions[STANDARD] == 5


def test_a_parked_partition_asks_for_nothing_as_long_as_control_says_nothing_new(door: Door) -> None:
    send(door.kafka, STANDARD, "a")
    door.kafka.known.add(STANDARD)
    door.assign(STANDARD)
    door.open_completely(0)
    LOG.clear()
    for _ in range(5):
        door.openings.advance()
    assert LOG == []


def test_an_acceptance_of_another_state_does_not_make_a_parked_partition_ask_again_and_again(
    door: Door,
) -> None:
    send(door.kafka, STANDARD, "a")
    door.kafka.known.add(STANDARD)
    door.kafka.accepted[STANDARD] = Acceptance(CommitPoint(1, ""), 5, "a@b", 0)  # of an earlier loss
    door.assign(STANDARD)
    door.open_completely(0)
    assert list(door.openings.parked) == [STANDARD]
    LOG.clear()
    for _ in range(20):
        door.openings.advance()
    assert len(LOG) <= 2


def test_an_acceptance_that_comes_between_the_look_at_a_partition_and_its_parking_is_not_missed(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(door.kafka, STANDARD, "a")
    door.kafka.known.add(STANDARD)
    accepted = FakeControl.accepted
    looks: list[TopicPartition] = []

    def as_it_comes(self: FakeControl, tp: TopicPartition) -> Acceptance | None:
        looks.append(tp)
        found = accepted(self, tp)
        if len(looks) == 1:
            accept(self.kafka, tp)  # the operator's word comes just now
        return found

    monkeypatch.setattr(FakeControl, "accepted", as_it_comes)
    door.assign(STANDARD)
    door.open_completely(0)
    door.open_completely(0)
    assert list(door.openings.parked) == []
    assert door.member.positions[STANDARD] == 0


def test_a_parked_partition_that_goes_is_forgotten(door: Door) -> None:
    send(door.kafka, STANDARD, "a")
    door.kafka.known.add(STANDARD)
    door.assign(STANDARD)
    door.open_completely(0)
    door.openings.forget(STANDARD)
    accept(door.kafka, STANDARD)
    door.open_completely(0)
    assert door.ledger.partitions == []
    assert list(door.openings.waiting) == []


# --- a unit that drains ---


def test_a_unit_that_drains_is_neither_asked_for_nor_opened_until_its_drain_is_cancelled(door: Door) -> None:
    door.assign(STANDARD, OTHER_UNIT)
    door.openings.hold_back(frozenset({0}))
    door.open_completely(1)
    assert door.ledger.partitions == [OTHER_UNIT]
    assert "window 0" not in LOG
    assert "offsets of 2" not in LOG
    door.openings.hold_back(frozenset())
    door.open_completely(0)
    assert sorted(door.ledger.partitions) == [STANDARD, OTHER_UNIT]


def test_records_that_are_lost_are_counted_once_however_often_their_partition_is_parked(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Counted()
    monkeypatch.setattr(openings_module.metrics, "LOST_RECORDS", lost)
    for number in range(5):
        send(door.kafka, STANDARD, f"r{number}")
    door.kafka.committed[STANDARD] = CommitPoint(1, "")
    door.kafka.beginnings[STANDARD] = 4
    door.assign(STANDARD)
    for _ in range(3):
        door.open_completely(0)
        assert list(door.openings.parked) == [STANDARD]
        door.openings.forget(STANDARD)
        door.openings.add(STANDARD)
    assert lost.value == 3
    door.kafka.beginnings[STANDARD] = 5
    door.open_completely(0)
    assert lost.value == 3 + 4, "another range is another loss"


def test_a_unit_whose_drain_begins_while_its_window_is_read_is_not_opened(door: Door) -> None:
    door.assign(STANDARD)
    door.openings.advance()
    door.openings.advance()
    door.openings.hold_back(frozenset({0}))
    door.window_is_read(0)
    door.openings.advance()
    assert door.ledger.partitions == []
    door.openings.hold_back(frozenset())
    door.openings.advance()
    assert door.ledger.partitions == [STANDARD]
