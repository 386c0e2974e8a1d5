"""Partitions from their assignment to their first poll: what must be known before anything of them is read.

1. What the slot that had the unit last left open is ended, where that slot is gone: until then nobody is told where it
   stood.
2. The group's committed offsets and the log's range.
3. The ids that were answered lately in the unit: after the offsets, since all that its last owner published is decided
   by then.
4. Where to start, or that nobody may decide that but an operator: then the partition is parked.

All of it belongs to the consumer thread; what takes long is asked for and looked at again with the next turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.records import AnsweredId, CommitPoint, GroupMetadata, Poll, TopicPartition
from headrace.consumers.starting import Acceptance, Park, where_a_shadow_starts, where_to_start
from headrace.schemas import metrics
from headrace.schemas.errors import KafkaUnavailable, UnreadableOffsets
from headrace.topics.names import ContractNames
from headrace.workers.ledger import Ledger

log = logging.getLogger(__name__)

ASK_S = 0.5  # how long an offset request may take at first, and at most: meanwhile nothing else is polled
LONGEST_ASK_S = 2.0
RETRY_S = 0.5  # before an unanswered offset request is made again


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
    def draining(self) -> frozenset[int]: ...
    def release(self, units: Collection[int]) -> None: ...
    def leave(self) -> None: ...
    def claims_are_known(self) -> bool: ...
    def predecessor(self, unit: int) -> str | None: ...
    def lowest_offset_format(self) -> int: ...
    def close(self, leave_group: bool) -> None: ...


class Control(Protocol):
    """What is needed of the control topic; see `workers.control_link.ControlLink`."""

    @property
    def ready(self) -> bool: ...
    @property
    def revision(self) -> int: ...
    def is_known(self, tp: TopicPartition) -> bool: ...
    def accepted(self, tp: TopicPartition) -> Acceptance | None: ...
    def know(self, committed: Mapping[TopicPartition, CommitPoint]) -> None: ...


class Windows(Protocol):
    """What is needed of `workers.window_reader.WindowReader`."""

    def ask(self, unit: int) -> None: ...
    def forget(self, unit: int) -> None: ...
    def take(self, unit: int, ids: list[AnsweredId]) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Found:
    """What Kafka said of a partition."""

    committed: CommitPoint | None
    beginning: int
    end: int


class Openings:
    """The partitions that were assigned and are not read yet, and those that are parked."""

    def __init__(
        self,
        *,
        source: RequestSource,
        ledger: Ledger,
        names: ContractNames,
        control: Control,
        windows: Windows,
        end_transaction_of: Callable[[str], Future[None]],
        metadata_limit: int,
        in_shadow: bool = False,
    ) -> None:
        """`in_shadow`: the group is a shadow's, for whose answers nobody waits."""
        self._in_shadow = in_shadow
        self._source = source
        self._ledger = ledger
        self._names = names
        self._control = control
        self._windows = windows
        self._end_transaction_of = end_transaction_of
        self._metadata_limit = metadata_limit
        self._waiting: dict[TopicPartition, _Found | None] = {}
        self._parked: dict[
            TopicPartition, CommitPoint | None
        ] = {}  # and the committed state it is parked for
        self._looked_at = -1  # the revision of `control` at which acceptances were looked for
        self._counted_lost: dict[TopicPartition, range] = {}
        self._ending: dict[int, Future[None]] = {}  # by unit: the end of what its last owner left open
        self._asked_windows: set[int] = set()
        self._untold: set[TopicPartition] = set()  # `control` hears of their first commit
        self._held_back: frozenset[int] = frozenset()  # units that drain
        self._retry_at: dict[TopicPartition, float] = {}
        self._ask_s = ASK_S

    @property
    def waiting(self) -> Collection[TopicPartition]:
        """Assigned, and neither read nor parked."""
        return self._waiting.keys()

    @property
    def parked(self) -> Collection[TopicPartition]:
        """Not served until an operator decides."""
        return self._parked.keys()

    def add(self, source: TopicPartition) -> None:
        """A partition was assigned, or must be begun anew."""
        self._waiting[source] = None
        unit = source.partition
        slot = self._source.predecessor(unit)
        if slot is not None and unit not in self._ending:
            log.info("unit %d was last served by %s, which is gone: ending what it left open", unit, slot)
            self._ending[unit] = self._end_transaction_of(slot)

    def hold_back(self, units: frozenset[int]) -> None:
        """These units drain: nothing more of them is begun. The whole truth each time."""
        self._held_back = units

    def forget(self, source: TopicPartition) -> None:
        """A partition has gone."""
        self._waiting.pop(source, None)
        self._parked.pop(source, None)
        self._retry_at.pop(source, None)
        self._untold.discard(source)
        if not any(other.partition == source.partition for other in (*self._waiting, *self._parked)):
            self._ending.pop(source.partition, None)
            self._asked_windows.discard(source.partition)
            self._windows.forget(source.partition)

    def window_read(self, unit: int, ids: list[AnsweredId]) -> None:
        """The ids of a unit's latest results have come."""
        if unit in self._asked_windows and self._windows.take(unit, ids):
            self._asked_windows.discard(unit)
            self._ledger.open_window(unit, ids, self._names.results)

    def committed(self, points: Mapping[TopicPartition, CommitPoint]) -> None:
        """These are committed: from now on a missing offset of theirs is a lost one."""
        told = {source: point for source, point in points.items() if source in self._untold}
        if told:
            self._untold.difference_update(told)
            self._control.know(told)

    def advance(self) -> bool:
        """Take each as far as it can go now; True when any was started or parked."""
        if not self._control.ready:
            return False
        revision = self._control.revision  # before it is looked at: what comes meanwhile is looked at again
        if self._parked and self._looked_at != revision:
            self._looked_at = revision
            for source, committed in list(self._parked.items()):
                acceptance = self._control.accepted(source)
                if acceptance is not None and acceptance.committed == committed:
                    del self._parked[source]
                    self.add(source)
        if not self._waiting:
            return False
        self._ask_offsets()
        moved = False
        for source, found in list(self._waiting.items()):
            if source.partition in self._held_back:
                continue
            if found is not None and self._has_window(source.partition):
                del self._waiting[source]
                self._start(source, found)
                moved = True
        return moved

    def _ask_offsets(self) -> None:
        """Not while a transaction of ours is under way: it may be about to move those very offsets."""
        now = time.monotonic()
        ask = [
            source
            for source, found in self._waiting.items()
            if found is None
            and source.partition not in self._held_back
            and self._retry_at.get(source, 0.0) <= now
            and self._is_decided(source.partition)
        ]
        if not ask or self._ledger.in_transaction:
            return
        try:
            committed = self._source.committed(ask, self._ask_s)
            beginnings = self._source.beginning_offsets(ask, self._ask_s)
            ends = self._source.end_offsets(ask, self._ask_s)
        except KafkaUnavailable as error:
            # A transaction of its last owner may be open: the broker does not say where it stood before that ends.
            log.info("the offsets of %d partitions are not to be had yet: %s", len(ask), error)
            self._ask_s = min(2 * self._ask_s, LONGEST_ASK_S)
            self._retry_at.update(dict.fromkeys(ask, time.monotonic() + RETRY_S))
            return
        self._ask_s = ASK_S
        for source in ask:
            self._retry_at.pop(source, None)
            self._waiting[source] = _Found(committed[source], beginnings[source], ends[source])

    def _is_decided(self, unit: int) -> bool:
        """Whether what the unit's last owner left open is ended, as far as we can do that."""
        ending = self._ending.get(unit)
        if ending is None:
            return True
        if not ending.done():
            return False
        if (error := ending.exception()) is not None:
            log.warning("unit %d: %s; waiting for the broker to end it", unit, error)
        self._ending.pop(unit)
        return True

    def _has_window(self, unit: int) -> bool:
        if self._ledger.has_window(unit):
            return True
        if unit not in self._asked_windows:
            self._asked_windows.add(unit)
            self._windows.ask(unit)
        return self._ledger.has_window(unit)

    def _start(self, source: TopicPartition, found: _Found) -> None:
        decide = where_a_shadow_starts if self._in_shadow else where_to_start
        decision = decide(
            source,
            found.committed,
            beginning=found.beginning,
            end=found.end,
            known=self._control.is_known(source),
            acceptance=self._control.accepted(source),
            limit=self._metadata_limit,
            group=self._names.group,
        )
        if isinstance(decision, Park):
            self._park(source, decision, found.committed)
            return
        try:
            self._ledger.assigned(
                source,
                decision.committed,
                beginning=decision.offset,
                end=found.end,
                newest_format=self._source.lowest_offset_format(),
            )
        except UnreadableOffsets as error:
            at = found.committed.offset if found.committed else found.beginning
            self._park(source, Park(str(error), None, "unreadable", 0, at), found.committed)
            return
        if vanished := self._ledger.vanished(source):
            metrics.DEATHS.labels(self._names.model, "predecessor").inc()
            log.warning("%s-%d: its last owner vanished with up to %d requests in flight", *source, vanished)
        self._ledger.advanced(source, decision.offset)
        self._untold.add(source)
        self._source.start_at(source, decision.offset)
        self._source.resume([source])  # it may have been paused in an earlier tenure

    def _park(self, source: TopicPartition, decision: Park, committed: CommitPoint | None) -> None:
        self._parked[source] = committed
        self._looked_at = -1
        if decision.lost and decision.unanswered and self._counted_lost.get(source) != decision.lost:
            self._counted_lost[source] = decision.lost
            lane = self._names.lane_of(source.topic)
            metrics.LOST_RECORDS.labels(self._names.model, lane).inc(decision.unanswered)
        log.error("%s-%d is parked, nothing of it is served: %s", *source, decision.why)
