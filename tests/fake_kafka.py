"""A Kafka in memory for the worker's consumer thread and commit thread: logs, a group, transactions, all by hand.

It has what matters to them: real offsets, generations that fence, partitions that go and come back, offsets that
cannot be read while a transaction is open over them, logs that retention shortens. Nothing moves by itself, and no
call waits: a test decides what happens next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.consumers.records import (
    CommitPoint,
    GroupMetadata,
    Poll,
    Record,
    RecordLocation,
    TopicPartition,
)
from headrace.consumers.starting import Acceptance
from headrace.producers.kafka import CommitBatch, OutgoingRecord
from headrace.schemas.errors import HeadraceError, KafkaFailed, KafkaUnavailable, StaleGeneration


@dataclass(slots=True)
class Message:
    """One record of a log; without a value: a transaction marker, which no reader is given."""

    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class FakeKafka:
    """The broker: logs, committed offsets, what was published, and a group."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.known: set[TopicPartition] = set()  # what `control` knows to have had offsets
        self.accepted: dict[TopicPartition, Acceptance] = {}
        self.control_revision = 0
        self.logs: dict[TopicPartition, list[Message]] = {tp: [] for tp in partitions}
        self.beginnings: dict[TopicPartition, int] = dict.fromkeys(self.logs, 0)
        self.committed: dict[TopicPartition, CommitPoint] = {}
        self.published: list[OutgoingRecord] = []
        self.generation = 1
        self.owners: dict[TopicPartition, FakeMember | None] = dict.fromkeys(self.logs)
        self.open_transactions: list[CommitBatch] = []  # whose offsets the group has accepted

    def append(self, tp: TopicPartition, message: Message) -> int:
        """Add a record; its offset."""
        self.logs[tp].append(message)
        return len(self.logs[tp]) - 1

    def assign(self, tp: TopicPartition, member: FakeMember) -> None:
        """Give a partition that nobody has to a member, which learns of it with its next poll."""
        assert self.owners[tp] is None, "a partition is given away once its owner has let it go"
        self.owners[tp] = member
        member.to_gain.add(tp)
        self.generation += 1

    def revoke(self, tp: TopicPartition) -> None:
        """Ask a member to let a partition go: it does with its next poll."""
        member = self.owners[tp]
        assert member is not None
        member.to_lose.add(tp)
        self.generation += 1

    def expel(self, member: FakeMember) -> None:
        """Its session has timed out: what it had is free at once, and it learns of that with its next poll."""
        for tp, owner in self.owners.items():
            if owner is member:
                self.owners[tp] = None
        member.to_lose |= set(member.positions) | member.to_gain
        member.to_gain.clear()
        self.generation += 1

    def accept_offsets(self, batch: CommitBatch, member: FakeMember) -> bool:
        """The group takes a transaction's offsets, if they come from a member of its generation."""
        if member.gone or batch.group.generation != self.generation:
            return False
        self.open_transactions.append(batch)
        return True

    def end_transaction(self, batch: CommitBatch, *, commit: bool) -> list[RecordLocation | None]:
        """Commit or abort a transaction whose offsets were accepted."""
        self.open_transactions.remove(batch)
        if not commit:
            return []
        self.committed.update(batch.offsets)
        first = len(self.published)
        self.published += batch.records
        return [
            RecordLocation(record.topic, record.partition or 0, first + index)
            for index, record in enumerate(batch.records)
        ]


@dataclass(eq=False, slots=True)
class FakeControl:
    """A `Control` that is always up to date."""

    kafka: FakeKafka
    ready: bool = True

    @property
    def revision(self) -> int:
        return self.kafka.control_revision

    def is_known(self, tp: TopicPartition) -> bool:
        return tp in self.kafka.known

    def accepted(self, tp: TopicPartition) -> Acceptance | None:
        return self.kafka.accepted.get(tp)

    def know(self, committed: Mapping[TopicPartition, CommitPoint]) -> None:
        self.kafka.known |= committed.keys()


@dataclass(eq=False, slots=True)
class FakeMember:
    """A `RequestSource`: one member's consumer."""

    kafka: FakeKafka
    positions: dict[TopicPartition, int | None] = field(default_factory=dict[TopicPartition, int | None])
    paused: set[TopicPartition] = field(default_factory=set[TopicPartition])
    to_gain: set[TopicPartition] = field(default_factory=set[TopicPartition])
    to_lose: set[TopicPartition] = field(default_factory=set[TopicPartition])
    generation: int = -1
    joins: int = 0  # that were completed
    gone: bool = False
    closed: bool = False
    to_drain: set[int] = field(default_factory=set[int])  # units
    released: set[int] = field(default_factory=set[int])
    leaving: bool = False
    group_hears: bool = True  # of what is released
    predecessors: dict[int, str] = field(default_factory=dict[int, str])

    def draining(self) -> frozenset[int]:
        """What the latest assignment says."""
        return frozenset(self.to_drain)

    def release(self, units: Collection[int]) -> None:
        """Nothing of them is returned any more; the group gives them away when it likes."""
        self.released |= set(units)
        self.to_drain -= set(units)

    def leave(self) -> None:
        """Everything is to be given away."""
        self.leaving = True

    def claims_are_known(self) -> bool:
        """The group hears at once of what is released, unless the test says otherwise."""
        return self.group_hears

    def predecessor(self, unit: int) -> str | None:
        """Whoever had the unit last, and is gone."""
        return self.predecessors.get(unit)

    def lowest_offset_format(self) -> int:
        """All read the newest."""
        return 2

    def poll(self, timeout_s: float, max_records: int) -> Poll:
        """What has changed and what has come; in no time."""
        revoked = frozenset(self.to_lose & set(self.positions))
        for tp in self.to_lose:
            self.positions.pop(tp, None)
            self.paused.discard(tp)
            if self.kafka.owners[tp] is self and tp not in self.to_gain:
                self.kafka.owners[tp] = None
        self.to_lose.clear()
        assigned, self.to_gain = frozenset(self.to_gain), set()
        self.released -= {tp.partition for tp in assigned}
        self.positions.update(dict.fromkeys(assigned))
        self.generation = self.kafka.generation
        out_of_range: dict[TopicPartition, int] = {}
        records: dict[TopicPartition, list[Record]] = {}
        left = max_records
        for tp, position in self.positions.items():
            if position is None or tp in self.paused or tp.partition in self.released:
                continue
            if not self.kafka.beginnings[tp] <= position <= len(self.kafka.logs[tp]):
                out_of_range[tp] = position
                self.positions[tp] = None
                continue
            found = self._read(tp, position, left)
            left -= len(found)
            if found:
                records[tp] = found
        return Poll(revoked, assigned, records, out_of_range)

    def _read(self, tp: TopicPartition, position: int, most: int) -> list[Record]:
        found: list[Record] = []
        log = self.kafka.logs[tp]
        while position < len(log) and len(found) < most:
            message = log[position]
            if message.value is not None:
                found.append(Record(*tp, position, 0, None, message.value, message.headers))
            position += 1
        self.positions[tp] = position
        return found

    def wake_up(self) -> None:
        """No poll waits."""

    def committed(
        self, partitions: Collection[TopicPartition], deadline_s: float
    ) -> dict[TopicPartition, CommitPoint | None]:
        """Not while a transaction is open over any of them."""
        for batch in self.kafka.open_transactions:
            if not batch.offsets.keys().isdisjoint(partitions):
                raise KafkaUnavailable("a transaction is open over these offsets")
        return {tp: self.kafka.committed.get(tp) for tp in partitions}

    def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Where each log begins."""
        return {tp: self.kafka.beginnings[tp] for tp in partitions}

    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Where each log ends."""
        return {tp: len(self.kafka.logs[tp]) for tp in partitions}

    def start_at(self, tp: TopicPartition, offset: int) -> None:
        """As the real one: only what is assigned."""
        if tp not in self.positions:
            raise KafkaFailed(f"{tp} is not assigned")
        self.positions[tp] = offset

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Those not assigned are passed over."""
        self.paused |= set(partitions) & set(self.positions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        self.paused -= set(partitions)

    def position(self, tp: TopicPartition) -> int | None:
        """The offset that is read next."""
        return self.positions.get(tp)

    def lag(self, tp: TopicPartition) -> int | None:
        """What is not read yet."""
        position = self.positions.get(tp)
        return None if position is None else len(self.kafka.logs[tp]) - position

    def group_metadata(self) -> GroupMetadata:
        """As of the latest poll."""
        return GroupMetadata("group", self.generation, "member", "slot", self.joins)

    def close(self, leave_group: bool) -> None:
        """Nothing is left to do."""
        self.closed = True


@dataclass(eq=False, slots=True)
class FakeTransactions:
    """A `Transactions` of one member. `fail_next` is raised instead of the next commit."""

    member: FakeMember
    fail_next: Callable[[CommitBatch], HeadraceError] | None = None

    def commit(self, batch: CommitBatch) -> list[RecordLocation | None]:
        """Publish and commit, or raise as the real one does."""
        kafka = self.member.kafka
        accepted = any(each is batch for each in kafka.open_transactions)
        if self.fail_next is not None:
            if accepted:
                kafka.end_transaction(batch, commit=False)
            fail, self.fail_next = self.fail_next, None
            raise fail(batch)
        if not accepted and not kafka.accept_offsets(batch, self.member):
            raise StaleGeneration("the group has moved on")
        return kafka.end_transaction(batch, commit=True)
