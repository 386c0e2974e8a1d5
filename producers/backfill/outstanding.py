"""The rows that were asked about and have no answer yet, and which of them will never have one. Pure.

A request whose offset lies below the group's committed frontier was answered or passed over, and what was published of
it was committed with that. Once `results` has been read to where it ended after that was seen, and there was nothing
for the row, then its answer is not to be had any more: retention took it, or a worker knows its id as answered long
ago. The end is that of all that is written: an open transaction holds back answers that were committed behind it. Such
a row is asked about once more, to be run whatever is known of its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace.consumers.lane_progress import LaneProgress
from headrace.consumers.records import TopicPartition

LOOK_AFTER_S = 15.0  # a row that waits for less is not looked for
LOOK_EVERY_S = 10.0
SETTLE_S = 10.0  # for the markers of a transaction
BLOCKED_S = 90.0  # a transaction that nobody ends is aborted by the broker after ten


@dataclass(slots=True)
class Asked:
    """A request that is on its way."""

    row: int
    digest: str
    sent_s: float  # `time.monotonic()`
    offset: int | None = None  # in the lane; None: not acknowledged yet
    again: bool = False


@dataclass(slots=True)
class _Suspicion:
    rows: tuple[int, ...]
    since_s: float
    ends: Mapping[int, int] | None = None  # of `results`, a while after the rows were seen to be done


class Outstanding:
    """Rows that have been asked about. `partition` of a row's request follows from its number."""

    def __init__(self, topic: str, partitions: int) -> None:
        """`topic`: the lane's, `partitions`: as many as it had when the job began."""
        self._topic = topic
        self._partitions = partitions
        self._rows: dict[int, Asked] = {}
        self._suspicion: _Suspicion | None = None
        self._looked_s = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def __iter__(self) -> Iterator[Asked]:
        return iter(list(self._rows.values()))

    def partition_of(self, row: int) -> int:
        """Where a row's request goes: the same place whenever it is asked, so that its id is known there."""
        return row % self._partitions

    def ask(self, row: int, digest: str, now_s: float, *, again: bool = False) -> None:
        """A request leaves."""
        self._rows[row] = Asked(row, digest, now_s, again=again)

    def acknowledge(self, row: int, offset: int) -> None:
        """Kafka has it."""
        asked = self._rows.get(row)
        if asked is not None:
            asked.offset = offset

    def settle(self, row: int) -> Asked | None:
        """A row needs nothing more; what was asked, if it was."""
        return self._rows.pop(row, None)

    def overdue(
        self,
        progress: LaneProgress,
        positions: Mapping[int, int],
        ends: Callable[[], Mapping[int, int]],
        now_s: float,
    ) -> list[int]:
        """Rows to be asked about once more, whatever is known of their ids.

        `positions`: up to where `results` has been read; `ends` asks where it ends now.
        """
        suspicion = self._suspicion
        if suspicion is None:
            if now_s - self._looked_s >= LOOK_EVERY_S:
                self._looked_s = now_s
                done = tuple(self._done(progress, now_s))
                self._suspicion = _Suspicion(done, now_s) if done else None
            return []
        if suspicion.ends is None:
            # Offsets are seen to be committed before the last of their transaction's markers is written.
            if now_s - suspicion.since_s >= SETTLE_S:
                suspicion.ends = ends()
            return []
        if not all(positions.get(partition, 0) >= end for partition, end in suspicion.ends.items()):
            return []
        self._suspicion = None
        return [row for row in suspicion.rows if row in self._rows]

    def blocked(self, positions: Mapping[int, int], now_s: float) -> list[int]:
        """Partitions of `results` that have more than can be read, and have had for longer than any transaction of a
        worker may take: somewhere in them lies one that does not end."""
        suspicion = self._suspicion
        if suspicion is None or suspicion.ends is None or now_s - suspicion.since_s < BLOCKED_S:
            return []
        return sorted(at for at, end in suspicion.ends.items() if positions.get(at, 0) < end)

    def _done(self, progress: LaneProgress, now_s: float) -> Iterator[int]:
        for asked in self._rows.values():
            if asked.offset is None or now_s - asked.sent_s < LOOK_AFTER_S:
                continue
            tp = TopicPartition(self._topic, self.partition_of(asked.row))
            if progress.is_below_frontier(tp, asked.offset):
                yield asked.row
