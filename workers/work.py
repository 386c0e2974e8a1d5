"""What goes from one part of the worker to the next: one dataclass for each hop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.consumers.records import AnsweredId, TopicPartition
from headrace.producers.kafka import OutgoingRecord
from headrace.schemas.codec import Encoding
from headrace.schemas.errors import MessageError
from headrace.schemas.messages import Lane, Request, Result

Headers = Sequence[tuple[str, bytes | None]]
# A dead letter's request, sent again: it runs unless an `ok` is known of its id, or whatever is known ("again").
Replay = Literal["no", "unless_ok", "again"]


@dataclass(frozen=True, slots=True)
class ReplyAddress:
    """Where a caller waits."""

    topic: str
    partition: int
    correlation_id: str


@dataclass(frozen=True, slots=True)
class Work:
    """consumer thread -> loop: one polled record, decoded, or with the reason why it could not be."""

    source: TopicPartition
    offset: int
    epoch: int  # assignment epoch: the tenure of `source` that polled it
    lane: Lane
    appended_ms: int  # the record's append time, ms since the epoch
    key: bytes | None
    value: bytes | None
    headers: Headers
    encoding: Encoding
    request: Request | None
    request_id: str | None  # also of a request that did not decode, where it can be read
    error: MessageError | None = None
    reply_to: ReplyAddress | None = None
    replay: Replay = "no"
    deaths: int = (
        0  # of workers or engines that had it in flight, as far as is known: attempts before this one
    )
    alone: bool = False  # it runs with nothing else in the engine

    @property
    def size(self) -> int:
        """Bytes held while it is in flight."""
        return len(self.value or b"") + len(self.key or b"")


@dataclass(frozen=True, slots=True)
class Completion:
    """loop -> consumer thread: what is to be published for one offset, in the same transaction as the offset.

    `records` is empty for a duplicate. `result_index` is the place of the result in `records`, for its location.
    """

    source: TopicPartition
    offset: int
    epoch: int
    lane: Lane
    size: int
    request_id: str | None
    records: tuple[OutgoingRecord, ...]
    result: Result | None
    encoding: Encoding
    reply_to: tuple[ReplyAddress, ...] = ()
    next_seq: int = 0  # of the replies: after the deltas
    urgent: bool = False
    work: Work | None = None  # for the last resort, when its records are refused
    last_resort: bool = False  # as small as it can be made, and to the contract's own topics

    @property
    def bytes_to_publish(self) -> int:
        """Bytes of keys and values of `records`."""
        return sum(len(record.value or b"") + len(record.key or b"") for record in self.records)


@dataclass(frozen=True, slots=True)
class HandedBack:
    """loop -> consumer thread: works that it had not begun, or was told to give up."""

    units: frozenset[int]
    works: list[Work]


@dataclass(frozen=True, slots=True)
class WindowRead:
    """window reader -> consumer thread: the answered ids of a unit's latest results."""

    unit: int
    ids: list[AnsweredId]


@dataclass(frozen=True, slots=True)
class EngineDied:
    """loop -> consumer thread: the engine died with these in it."""

    in_flight: frozenset[tuple[TopicPartition, int]]
    cause: str
