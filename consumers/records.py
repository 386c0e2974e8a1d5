"""Plain types that the consumers and producers hand around; no Kafka client is imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class CommitPoint(NamedTuple):
    """What is committed for a partition: the next offset to read, and a string kept beside it."""

    offset: int
    metadata: str


class RecordLocation(NamedTuple):
    """Where a record lies in the log."""

    topic: str
    partition: int
    offset: int


class AnsweredId(NamedTuple):
    """The id of a request that was answered, the offset of its result, and whether that is `ok`."""

    request_id: str
    offset: int
    ok: bool


@dataclass(slots=True)
class Record:
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # since the epoch; -1: the log has none
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def location(self) -> RecordLocation:
        return RecordLocation(self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Who a member of a group is, for the broker to refuse its commits once the group has moved on.

    `generation` is -1 as long as the member has not joined: nothing may be committed then, since the broker
    accepts a commit with generation -1 and an empty member id from anyone, even for a group that has
    members.
    """

    group: str
    generation: int
    member_id: str
    slot: str | None  # the member's group.instance.id
    joins: int = 0  # that were completed: while one is under way the new generation's commits are refused

    @property
    def joined(self) -> bool:
        """Whether it names a member. Apache Kafka's first generation is 1, the embedded broker's 0."""
        return self.generation >= 0 and self.member_id != ""


@dataclass(slots=True)
class Poll:
    """What one poll brought, in the order in which it is to be handled: `revoked`, `assigned`, then the rest.

    A partition that is in both `revoked` and `assigned` was lost, or was released with its unit, and came back:
    a new tenure. It gives nothing until `start_at` is called for it again.
    `out_of_range` has the position of each partition whose log no longer holds it (retention removed it, or
    the log was cut back); such a partition gives nothing until `start_at` is called for it again.
    """

    revoked: frozenset[TopicPartition] = frozenset()
    assigned: frozenset[TopicPartition] = frozenset()
    records: Mapping[TopicPartition, list[Record]] = field(default_factory=dict[TopicPartition, list[Record]])
    out_of_range: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])

    def __bool__(self) -> bool:
        return bool(self.revoked or self.assigned or self.records or self.out_of_range)
