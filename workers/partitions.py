"""The partitions of one worker as they come, are held back and go. Owned by the consumer thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.consumers.records import Poll, TopicPartition
from headrace.consumers.starting import retention_headroom
from headrace.schemas import metrics
from headrace.schemas.errors import KafkaUnavailable
from headrace.schemas.messages import LANES, Lane
from headrace.topics.names import ContractNames
from headrace.workers.ledger import Ledger
from headrace.workers.openings import Openings, RequestSource

log = logging.getLogger(__name__)

MAX_POLL_RECORDS = 100  # of one poll: bounds how long the consumer thread decodes before it looks up
MAX_HELD_BYTES = 64 * 1024 * 1024  # of requests of one lane that are polled and not finished
MAX_PENDING_BYTES = 64 * 1024 * 1024  # of what is finished and waits for its transaction, with its requests
RETRY_S = 0.5  # before a record is read again that needed the registry
HEADROOM_INTERVAL_S = 30.0
HEADROOM_ASK_S = 0.5


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
        openings: Openings,
        gone: Callable[[frozenset[TopicPartition]], None],
        max_outstanding: int,
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._names = names
        self._openings = openings
        self._gone = gone
        self._max_outstanding = max_outstanding
        self._stalled: dict[TopicPartition, int] = {}  # and the position that its log does not hold
        self._held_back: frozenset[int] = frozenset()  # units that drain
        self._paused: set[TopicPartition] = set()
        self._retry_at: dict[TopicPartition, float] = {}
        self._held: dict[TopicPartition, _Held] = {}
        self._lane_records: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._lane_bytes: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._next_headroom = 0.0

    # --- they come and go ---

    def apply_moves(self, poll: Poll) -> None:
        """Take note of what a poll gained and lost."""
        self.let_go(poll.revoked)
        # What was read of them is in our hands, and is answered: only where to read on is open.
        for source, position in poll.out_of_range.items():
            if self._ledger.epoch(source) is not None:
                self._stalled[source] = position
                log.error("%s-%d: its log does not hold offset %d any more", *source, position)
        for source in poll.assigned:
            self._openings.add(source)
        if poll.assigned or poll.revoked:
            log.info(
                "partitions: %d gained, %d lost, %d in all",
                len(poll.assigned),
                len(poll.revoked),
                len(self.owned),
            )
            self.show()

    @property
    def owned(self) -> list[TopicPartition]:
        """All that is ours: served, about to be, or parked."""
        return [*self._ledger.partitions, *self._openings.waiting, *self._openings.parked]

    @property
    def busy(self) -> bool:
        """Whether completions may come, or something is to be tried again soon: the owner should look often."""
        return bool(
            self._openings.waiting or self._stalled or self._retry_at or any(self._lane_records.values())
        )

    def let_go(self, sources: frozenset[TopicPartition]) -> None:
        """These are not ours any more."""
        for source in sources:
            self._openings.forget(source)
            self._forget(source)
        if sources:
            self._gone(sources)

    def _forget(self, source: TopicPartition) -> None:
        self._ledger.revoked(source)
        held = self._held.pop(source, _Held())
        lane = self._names.lane_of(source.topic)
        self._lane_records[lane] -= held.records
        self._lane_bytes[lane] -= held.size
        self._paused.discard(source)
        self._retry_at.pop(source, None)
        self._stalled.pop(source, None)

    def open_next(self) -> None:
        """Begin to read what can be begun, and begin those anew whose log does not hold their position."""
        for source in list(self._stalled):
            if self._ledger.outstanding(source) == 0 and self._ledger.is_settled(source):
                self._begin_anew(source)
        if self._openings.advance():
            self.show()

    def begin_anew(self, units: frozenset[int]) -> None:
        """Begin new tenures of the partitions of these units, of which nothing is in flight."""
        for source in self._ledger.partitions:
            if source.partition in units:
                self._begin_anew(source)

    def _begin_anew(self, source: TopicPartition) -> None:
        self._forget(source)
        self._gone(frozenset({source}))
        self._openings.add(source)

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

    def hold_back(self, units: frozenset[int]) -> None:
        """These units drain: nothing more of them is read. The whole truth each time."""
        self._held_back = units
        self._openings.hold_back(units)

    def adjust_pauses(self, *, intake: bool) -> None:
        """Pause what may not be read on: full lanes, partitions without room in their metadata, those that wait."""
        intake = intake and self._ledger.pending_bytes <= MAX_PENDING_BYTES
        now = time.monotonic()
        full = {lane for lane in LANES if self._is_full(lane)}
        wanted = {
            source
            for source in self._ledger.partitions
            if not intake or self._names.lane_of(source.topic) in full or self._must_wait(source, now)
        }
        if to_pause := wanted - self._paused:
            self._source.pause(list(to_pause))
        if to_resume := self._paused - wanted:
            self._source.resume(list(to_resume))
        self._paused = wanted

    def _is_full(self, lane: Lane) -> bool:
        return (
            self._lane_records[lane] + MAX_POLL_RECORDS > self._max_outstanding
            or self._lane_bytes[lane] > MAX_HELD_BYTES
        )

    def _must_wait(self, source: TopicPartition, now: float) -> bool:
        if self._retry_at.get(source, now) < now:
            del self._retry_at[source]
        return (
            source.partition in self._held_back
            or source in self._retry_at
            or self._ledger.room(source) < MAX_POLL_RECORDS
        )

    # --- what is shown ---

    def show(self) -> None:
        """Set the gauges of partitions."""
        for lane in LANES:
            topic = self._names.requests(lane)
            parked = sum(source.topic == topic for source in self._openings.parked)
            served = sum(source.topic == topic for source in self._ledger.partitions)
            metrics.PARTITIONS.labels(self._names.model, lane).set(served + parked)
            metrics.PARKED_PARTITIONS.labels(self._names.model, lane).set(parked)

    def show_lag(self) -> None:
        """Set the lag gauges from what the consumer knows of the logs' ends, and now and then retention's headroom."""
        for lane in LANES:
            topic = self._names.requests(lane)
            known = [self._source.lag(each) for each in self._ledger.partitions if each.topic == topic]
            metrics.LAG.labels(self._names.model, lane).set(sum(each for each in known if each is not None))
        now = time.monotonic()
        if now >= self._next_headroom:
            self._next_headroom = now + HEADROOM_INTERVAL_S
            self._show_headroom()

    def _show_headroom(self) -> None:
        served = self._ledger.partitions
        try:
            beginnings = self._source.beginning_offsets(served, HEADROOM_ASK_S)
        except KafkaUnavailable:
            return
        for lane in LANES:
            nearest = 1.0
            for source in served:
                lag = self._source.lag(source)
                position = self._source.position(source)
                if source.topic == self._names.requests(lane) and lag is not None and position is not None:
                    frontier = self._ledger.frontier(source)
                    nearest = min(nearest, retention_headroom(beginnings[source], frontier, position + lag))
            metrics.RETENTION_HEADROOM.labels(self._names.model, lane).set(nearest)
