"""The partitions of one worker as they come, are started, held back and go. Owned by the consumer thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.records import CommitPoint, GroupMetadata, Poll, TopicPartition
from headrace.schemas import metrics
from headrace.schemas.errors import KafkaUnavailable, UnreadableOffsets
from headrace.schemas.messages import LANES, Lane
from headrace.topics.names import ContractNames
from headrace.workers.ledger import Ledger

log = logging.getLogger(__name__)

MAX_POLL_RECORDS = 100  # of one poll: bounds how long the consumer thread decodes before it looks up
MAX_HELD_BYTES = 64 * 1024 * 1024  # of requests of one lane that are polled and not finished
MAX_PENDING_BYTES = 64 * 1024 * 1024  # of what is finished and waits for its transaction, with its requests
ASK_S = 0.5  # how long an offset request may take at first, and at most: meanwhile nothing else is polled
LONGEST_ASK_S = 2.0
RETRY_S = 0.5  # before the registry, or an unanswered offset request, is tried again


class RequestSource(Protocol):
    """What is needed of `consumers.kafka.RequestConsumer`; see there."""

    def poll(self, timeout_s: float, max_records: int) -> Poll: ...
    def wake_up(self) -> None: ...
    def committed(
        self, partitions: Collection[TopicPartition], deadline_s: float
    ) -> dict[TopicPartition, CommitPoint | None]: ...
    def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]: ...
    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]: ...
    def start_at(self, tp: TopicPartition, offset: int) -> None: ...
    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...
    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...
    def position(self, tp: TopicPartition) -> int | None: ...
    def lag(self, tp: TopicPartition) -> int | None: ...
    def group_metadata(self) -> GroupMetadata: ...
    def close(self, leave_group: bool) -> None: ...


@dataclass(slots=True)
class _Held:
    """What is outstanding of one partition in its present tenure."""

    records: int = 0
    size: int = 0  # bytes


class Partitions:
    """Which partitions are being read, and which must wait."""

    def __init__(
        self,
        *,
        source: RequestSource,
        ledger: Ledger,
        names: ContractNames,
        moved: Callable[[frozenset[TopicPartition]], None],
        max_outstanding: int,
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._names = names
        self._moved = moved
        self._max_outstanding = max_outstanding
        self._unstarted: set[TopicPartition] = set()
        self._out_of_range: dict[TopicPartition, int] = {}  # and the position that its log does not hold
        self._parked: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._retry_at: dict[TopicPartition, float] = {}
        self._ask_s = ASK_S
        self._held: dict[TopicPartition, _Held] = {}
        self._lane_records: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._lane_bytes: dict[Lane, int] = dict.fromkeys(LANES, 0)

    # --- they come and go ---

    def apply_moves(self, poll: Poll) -> None:
        """Take note of what a poll gained and lost."""
        for source in poll.revoked:
            self._forget(source)
        if poll.revoked:
            self._moved(poll.revoked)
        # What was read of them is in our hands, and is answered: only where to read on is open.
        for source, position in poll.out_of_range.items():
            if self._ledger.epoch(source) is not None:
                self._out_of_range[source] = position
        self._unstarted |= poll.assigned
        if poll.assigned or poll.revoked:
            owned = len(self._ledger.partitions) + len(self._unstarted) + len(self._parked)
            log.info(
                "partitions: %d gained, %d lost, %d in all", len(poll.assigned), len(poll.revoked), owned
            )
            self._show()

    def _forget(self, source: TopicPartition) -> None:
        self._ledger.revoked(source)
        held = self._held.pop(source, _Held())
        lane = self._names.lane_of(source.topic)
        self._lane_records[lane] -= held.records
        self._lane_bytes[lane] -= held.size
        for places in (self._unstarted, self._parked, self._paused):
            places.discard(source)
        self._retry_at.pop(source, None)
        self._out_of_range.pop(source, None)

    def start_assigned(self) -> None:
        """Seek what was newly assigned to where its last owner left it.

        Not while a transaction of ours is under way: it may be about to move those very offsets.
        """
        ready = self._askable(self._unstarted)
        if not ready or self._ledger.in_transaction:
            return
        try:
            committed = self._source.committed(ready, self._ask_s)
            beginnings = self._source.beginning_offsets(ready, self._ask_s)
            ends = self._source.end_offsets(ready, self._ask_s)
        except KafkaUnavailable as error:
            # The last owner may have died in mid-transaction: the broker does not say where it stood before that ends.
            self._ask_later(ready, error)
            return
        self._answered(ready)
        self._unstarted.difference_update(ready)
        for source in ready:
            self._start(source, committed[source], beginnings[source], ends[source])
        self._show()

    def find_positions(self) -> None:
        """Go on where the log goes on, for those whose log does not hold the position any more."""
        ready = self._askable(self._out_of_range)
        if not ready:
            return
        try:
            beginnings = self._source.beginning_offsets(ready, self._ask_s)
            ends = self._source.end_offsets(ready, self._ask_s)
        except KafkaUnavailable as error:
            self._ask_later(ready, error)
            return
        self._answered(ready)
        for source in ready:
            position = self._out_of_range.pop(source)
            if position > ends[source]:
                self._forget(source)
                self._moved(frozenset({source}))
                self._park(source, f"its log was cut back to {ends[source]}, below its position {position}")
                continue
            if position < beginnings[source]:
                self._count_lost(source, position, beginnings[source])
            self._source.start_at(source, max(position, beginnings[source]))
        self._show()

    def _askable(self, waiting: Iterable[TopicPartition]) -> list[TopicPartition]:
        now = time.monotonic()
        return [source for source in waiting if self._retry_at.get(source, 0.0) <= now]

    def _ask_later(self, asked: list[TopicPartition], error: KafkaUnavailable) -> None:
        log.info("the offsets of %d partitions are not to be had yet: %s", len(asked), error)
        self._ask_s = min(2 * self._ask_s, LONGEST_ASK_S)
        self._retry_at.update(dict.fromkeys(asked, time.monotonic() + RETRY_S))

    def _answered(self, asked: list[TopicPartition]) -> None:
        self._ask_s = ASK_S
        for source in asked:
            self._retry_at.pop(source, None)

    def _start(self, source: TopicPartition, committed: CommitPoint | None, beginning: int, end: int) -> None:
        if committed is not None and committed.offset > end:
            self._park(source, f"its committed offset {committed.offset} lies beyond the log's end {end}")
            return
        try:
            offset = self._ledger.assigned(source, committed, beginning)
        except UnreadableOffsets as error:
            self._park(source, str(error))
            return
        if offset < beginning:
            self._count_lost(source, offset, beginning)
            # What is done above it stays done.
            self._ledger.advanced(source, beginning)
        self._source.start_at(source, max(offset, beginning))

    def _park(self, source: TopicPartition, why: str) -> None:
        self._parked.add(source)
        log.error(
            "%s-%d is parked, nothing of it is served: %s. Stop the group's workers, set the offset that is meant with"
            " kafka-consumer-groups --reset-offsets, and start them again.",
            source.topic,
            source.partition,
            why,
        )

    def _count_lost(self, source: TopicPartition, committed: int, beginning: int) -> None:
        metrics.LOST_RECORDS.labels(self._names.model, self._names.lane_of(source.topic)).inc(
            beginning - committed
        )
        log.error(
            "%s-%d: offsets %d to %d were removed by retention before they were served; %d requests at most are lost;"
            " going on at %d. Raise the topic's retention, or add workers.",
            source.topic,
            source.partition,
            committed,
            beginning - 1,
            beginning - committed,
            beginning,
        )

    # --- back-pressure ------------------------------------------------------------------------------------------

    def hold(self, source: TopicPartition, size: int) -> None:
        """One more record of `size` bytes is outstanding."""
        held = self._held.setdefault(source, _Held())
        held.records += 1
        held.size += size
        lane = self._names.lane_of(source.topic)
        self._lane_records[lane] += 1
        self._lane_bytes[lane] += size

    def release(self, source: TopicPartition, size: int) -> None:
        """A record of `size` bytes of the present tenure is finished."""
        held = self._held[source]
        held.records -= 1
        held.size -= size
        lane = self._names.lane_of(source.topic)
        self._lane_records[lane] -= 1
        self._lane_bytes[lane] -= size

    def read_again(self, source: TopicPartition, offset: int) -> None:
        """Go back to `offset` after a pause: it could not be decoded just now."""
        self._source.start_at(source, offset)
        self._retry_at[source] = time.monotonic() + RETRY_S

    def adjust_pauses(self, *, intake: bool) -> None:
        """Pause what may not be read on: full lanes, partitions without room in their metadata, those that wait."""
        intake = intake and self._ledger.pending_bytes <= MAX_PENDING_BYTES
        wanted = {source for source in self._ledger.partitions if not intake or self._must_wait(source)}
        if to_pause := wanted - self._paused:
            self._source.pause(list(to_pause))
        if to_resume := self._paused - wanted:
            self._source.resume(list(to_resume))
        self._paused = wanted

    def _must_wait(self, source: TopicPartition) -> bool:
        lane = self._names.lane_of(source.topic)
        return (
            self._lane_records[lane] + MAX_POLL_RECORDS > self._max_outstanding
            or self._lane_bytes[lane] > MAX_HELD_BYTES
            or self._ledger.room(source) < MAX_POLL_RECORDS
            or self._retry_at.get(source, 0.0) > time.monotonic()
        )

    def _show(self) -> None:
        for lane in LANES:
            topic = self._names.requests(lane)
            parked = sum(source.topic == topic for source in self._parked)
            served = sum(source.topic == topic for source in self._ledger.partitions)
            metrics.PARTITIONS.labels(self._names.model, lane).set(served + parked)
            metrics.PARKED_PARTITIONS.labels(self._names.model, lane).set(parked)

    def show_lag(self) -> None:
        """Set the lag gauges from what the consumer knows of the logs' ends."""
        for lane in LANES:
            topic = self._names.requests(lane)
            known = [self._source.lag(each) for each in self._ledger.partitions if each.topic == topic]
            metrics.LAG.labels(self._names.model, lane).set(sum(each for each in known if each is not None))
