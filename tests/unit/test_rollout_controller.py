"""The controller of rollouts: who decides after a refusal, and what one look that fails costs."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from fake_kafka import FakeKafka, FakeMember

from headrace.consumers.control import ControlRecords
from headrace.consumers.group_members import GroupMembers, Member
from headrace.consumers.records import Poll, TopicPartition
from headrace.consumers.rollouts import Limits, Planned, Progress, Rollout, Value, rollout_record
from headrace.ops.rollouts import controller as controller_module
from headrace.ops.rollouts.controller import Controller, Looked
from headrace.ops.rollouts.steps import GroupSeen, Seen
from headrace.ops.rollouts.watching import Answer, Watch
from headrace.producers.kafka import CommitBatch
from headrace.schemas.errors import KafkaUnavailable, StaleGeneration
from headrace.schemas.settings import Settings
from headrace.topics.names import control_topic

SETTINGS = Settings(prefix="p")
TP = TopicPartition(control_topic("p"), 0)
GROUP, ID = "p.tagger.1", "4.now"
ROLLOUT = Rollout(
    model="tagger",
    contract=1,
    to="4",
    before={"3": 1},
    steps=[50, 100],
    hold_s=0,
    limits=Limits(),
    by="me",
    at=1,
)
POLLS = 50  # after which a controller that has not got there never will


@dataclass
class Control:
    """The control topic, read as soon as it is written."""

    records: ControlRecords = field(default_factory=ControlRecords)
    end: int = 0
    ready: bool = True

    def append(self, key: bytes | None, value: bytes | None) -> None:
        assert self.records.take(key, value, self.end) is None
        self.end += 1

    def say(self, *values: Value) -> None:
        for value in values:
            self.append(*rollout_record((GROUP, ID), value))

    def asked(self, ask: Callable[[ControlRecords], Any]) -> Any:
        return ask(self.records)

    def stop(self) -> None:
        """Nothing runs."""


@dataclass
class Transaction:
    """Refuses the first of its batches, as brokers do while the group moves on between a poll and the commit."""

    control: Control
    refused: int = 0

    def commit(self, batch: CommitBatch) -> None:
        if not self.refused:
            self.refused += 1
            raise StaleGeneration("the group has moved on")
        for record in batch.records:
            self.control.append(record.key, record.value)


class Alone(FakeMember):
    """A group's only member, which is given again what it lets go, as the real one is."""

    polls = 0
    stop: Callable[[], None] = staticmethod(lambda: None)

    def poll(self, timeout_s: float, max_records: int) -> Poll:
        self.polls += 1
        if self.polls > POLLS:
            self.stop()
        return super().poll(timeout_s, max_records)

    def release(self, units: Collection[int]) -> None:
        super().release(units)
        self.to_lose.add(TP)
        self.to_gain.add(TP)

    def rejoin(self) -> None:
        """With the same claims a join gives what was there before: nothing is lost and nothing gained."""


class Watched:
    """A rollout whose new version lives and has nothing yet."""

    def __init__(self, *_: object) -> None:
        self.watch = Watch("4")

    def look(self, state: object) -> Seen:
        group = GroupSeen(4, {"3": 4}, {"3": 1, "4": 1}, {})
        self.watch.follow(cast("Any", state))
        return self.watch.look(group, 1000, caught_up=True)

    def close(self) -> None:
        """Nothing is open."""


def test_a_controller_that_was_refused_and_keeps_its_place_decides_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_module, "TICK_S", 0.0)
    monkeypatch.setattr(controller_module, "_Watched", Watched)
    control = Control()
    control.say(ROLLOUT, Planned(shares={"3": 1}, step=0, at=1))
    kafka = FakeKafka([TP])
    member = Alone(kafka)
    kafka.assign(TP, member)
    transaction = Transaction(control)
    deciding = Controller(SETTINGS, lambda _: deciding.stop())
    deciding._control = cast("Any", control)
    member.stop = deciding.stop
    deciding._serve(cast("Any", member), cast("Any", transaction))
    assert transaction.refused == 1
    assert deciding.active
    state = control.records.rollouts.groups[GROUP][ID]
    assert state.progress is not None, "what was refused is decided anew and written"
    assert state.progress.state == "moving"


# --- what is seen of one rollout ---


class Reader:
    """Results, read when the test says so."""

    def __init__(self, *_: object) -> None:
        self.caught_up = threading.Event()
        self.read: list[Answer] = []
        self.closed = False

    def take(self) -> list[Answer]:
        taken, self.read = self.read, []
        return taken

    def close(self) -> None:
        self.closed = True


class Looker:
    """A group whose new version has requests waiting; the looks that are to fail are counted down."""

    def __init__(self) -> None:
        self.failures = 0
        self.opened = 0

    @contextmanager
    def open(self, *_: object) -> Generator[Looker]:
        self.opened += 1
        yield self

    def look(self) -> GroupMembers:
        if self.failures:
            self.failures -= 1
            raise KafkaUnavailable("no broker")
        members = [
            Member("old", "3", 8, frozenset({0, 1}), leaving=False),
            Member("new", "4", 8, frozenset({2, 3}), leaving=False),
        ]
        return GroupMembers(members, 4, is_stable=True, waiting={3: 5})


@dataclass
class Seeing:
    """A controller, what it looked at, and its clock."""

    controller: Controller
    looker: Looker
    looked: list[Looked]
    control: Control
    now_s: float = 1000.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def look(self) -> None:
        self.controller._look_at_all(cast("Any", None), cast("Any", None))

    @property
    def reader(self) -> Any:
        (watched,) = self.controller._watched.values()
        return watched._reader

    @property
    def asked_since_ms(self) -> int | None:
        return self.looked[-1].seen.asked_since_ms


@pytest.fixture
def seeing(monkeypatch: pytest.MonkeyPatch) -> Seeing:
    control, looker, looked = Control(), Looker(), list[Looked]()
    holding = Progress(step=0, state="holding", since=1_000_000)
    control.say(ROLLOUT.model_copy(update={"hold_s": 600.0}), Planned(shares={"3": 1, "4": 1}, step=0, at=1))
    control.say(holding)
    controller = Controller(SETTINGS, looked.append)
    controller._control = cast("Any", control)
    made = Seeing(controller, looker, looked, control)
    monkeypatch.setattr(controller_module, "AnswerReader", Reader)
    monkeypatch.setattr(controller_module, "look_at_group", looker.open)
    monkeypatch.setattr(controller_module, "time", made)
    return made


def test_a_controller_that_takes_over_calls_nothing_silent_before_it_has_read_what_was_answered(
    seeing: Seeing,
) -> None:
    seeing.look()
    seeing.now_s += 60
    seeing.look()
    assert seeing.control.records.rollouts.groups[GROUP][ID].rollback is None
    assert seeing.asked_since_ms is None
    seeing.reader.caught_up.set()
    seeing.look()
    assert seeing.asked_since_ms == 1_060_000


def test_a_look_that_fails_costs_neither_what_was_read_nor_the_new_version_its_patience(
    seeing: Seeing,
) -> None:
    seeing.look()
    reader = seeing.reader
    reader.caught_up.set()
    reader.read.append(Answer("4", "ok", 100.0, 5, 1_000_000))
    seeing.look()
    seeing.looker.failures = 1
    seeing.now_s += 60
    seeing.look()
    seeing.look()
    assert seeing.reader is reader
    assert not reader.closed
    assert seeing.looker.opened == 2, "the connections that failed are made anew"
    assert seeing.looked[-1].seen.new.answers == 1
    assert seeing.asked_since_ms == 1_060_000
