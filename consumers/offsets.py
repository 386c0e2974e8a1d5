"""What may be committed for a partition. Pure: no I/O, no threads, no clock.

- frontier: the offset below which all is done. It is what is committed.
- done set: the offsets above the frontier that are done too.
- started mark: nothing at or above it has been handed to an engine.
- outstanding: polled and not done.
- assignment epoch: counts a worker's tenures of a partition. Work and completions carry it, and a
  completion from another tenure is dropped: its offset has been polled again, here or elsewhere.

Below the position whatever is not outstanding is done: offsets that no record has (compaction,
transaction markers, aborted records) too, and nothing is lost by that. So only the outstanding offsets
are kept, one entry each, and what the committed metadata said about offsets that have not been polled
again.

What holds between commits: `done()` is called for a result that goes into the next transaction, and that
transaction carries `commit_point()`; so an offset is in the committed done set exactly when its result is
published. The started mark is committed with the transaction, not ahead of it: every offset that was
handed to an engine before a commit is below that commit's mark; one that was handed over after the last
commit may lie above it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import (
    LARGEST_VARINT,
    SMALLEST_LIMIT,
    Progress,
    bitmap_size,
    run_size,
    varint_size,
)
from headrace.consumers.records import CommitPoint
from headrace.schemas.errors import UnreadableOffsets

if TYPE_CHECKING:
    from collections.abc import Iterator

METADATA_LIMIT = (
    4096  # bytes: the broker's default `offset.metadata.max.bytes`; one more ends a producer for good
)


class PartitionOffsets:
    """The offsets of one partition during one tenure of it.

    `committed` is what the group has committed (None: nothing, so it begins at `beginning`, an offset). Empty
    metadata says that nothing above the offset is done. `limit` is in characters, 64 at least.
    Raises UnreadableOffsets when the metadata is not understood: the partition must be parked.
    """

    def __init__(
        self, committed: CommitPoint | None, *, epoch: int, beginning: int, limit: int = METADATA_LIMIT
    ) -> None:
        if limit < SMALLEST_LIMIT:
            raise ValueError(f"a limit of {limit} characters is too small: {SMALLEST_LIMIT} at least")
        point = committed or CommitPoint(beginning, "")
        if point.offset < 0:
            raise UnreadableOffsets(f"the committed offset is {point.offset}")
        progress = offset_encoding.decode(point.metadata, point.offset, limit)
        self.epoch = epoch
        self._limit = limit
        self._budget = offset_encoding.payload_budget(limit)
        self._position = point.offset
        self._started = progress.started
        # Ascending. An OrderedDict finds its first key at once after many deletions; a dict does not.
        self._outstanding: OrderedDict[int, None] = OrderedDict()
        # Done by an earlier owner and not polled again: runs that end above the position.
        self._recovered = deque(progress.done)
        # Below it, what is not outstanding is done: one above the last polled offset.
        self._end = point.offset
        # At least the bytes that the form `r` can take whatever completes: every hole is in it.
        self._size = run_size(point.offset, progress.done).size

    @property
    def position(self) -> int:
        """The next offset to poll."""
        return self._position

    @property
    def frontier(self) -> int:
        """The offset below which all is done."""
        if self._outstanding:
            return next(iter(self._outstanding))
        if self._recovered and self._recovered[0].start <= self._position:
            return self._recovered[0].stop
        return self._position

    @property
    def started(self) -> int:
        """The started mark, never below the frontier."""
        return max(self._started, self.frontier)

    @property
    def outstanding(self) -> int:
        """How many offsets are polled and not done."""
        return len(self._outstanding)

    def fits(self, offset: int) -> bool:
        """Whether this offset may be polled next: the commit stays within the limit, whatever completes."""
        done_to = self._done_to()
        if not self._outstanding or offset < done_to:
            return True  # alone it is the frontier; below what is recovered it is a hole already
        size = self._size + self._growth(offset, done_to)
        return min(size, bitmap_size(self.frontier, offset + 1)) <= self._budget

    def room(self) -> int:
        """How many more offsets may be polled, however far apart: the commit stays within the limit.

        A safe lower bound, the largest there is when nothing is outstanding (338 of 4,096 characters) and 1 at
        least then; `fits` knows better for an offset at hand. Both take account of what was done at the latest
        `commit_point()`.
        """
        # One more hole takes a byte, and the run before it grows by the difference of two varints.
        by_growth = (self._budget - self._size) // LARGEST_VARINT
        # Polling what lies below recovered offsets opens no hole: they are holes already. Past them, what was
        # not polled on the way is done, and only what is outstanding is left, a varint each.
        by_count = self._budget // LARGEST_VARINT - len(self._outstanding)
        return max(by_growth, by_count, 0)

    def polled(self, offset: int) -> bool:
        """Take note of a polled record; False: it is done already, skip it.

        Offsets come in increasing order; one below the position has been polled before: False too.
        """
        if offset < self._position:
            return False
        done_to = self._done_to()
        if not self._outstanding and offset >= done_to:
            self._size = 1
        elif offset >= done_to:
            self._size += self._growth(offset, done_to)
        self._move(offset)
        recovered = bool(self._recovered) and self._recovered[0].start <= offset
        if not recovered:
            self._outstanding[offset] = None
        self._move(offset + 1)
        self._end = max(self._end, offset + 1)
        return not recovered

    def advance(self, position: int) -> None:
        """The consumer's position is past markers and gaps; with nothing outstanding it is committed.

        Only after every record below it went through `polled`.
        """
        if position > self._position:
            self._move(position)

    def start(self, offset: int) -> None:
        """This offset is about to be handed to an engine."""
        self._started = max(self._started, offset + 1)

    def done(self, offset: int, epoch: int) -> bool:
        """The offset's result goes into the next transaction.

        False: stale (of another tenure, or not outstanding); drop it.
        """
        if epoch != self.epoch or offset not in self._outstanding:
            return False
        del self._outstanding[offset]
        if not self._outstanding and not self._recovered:
            self._size = 0
        return True

    def commit_point(self) -> CommitPoint:
        """What to commit with the results of all that is done.

        Raises OffsetsTooLong if something was polled that did not fit.
        """
        frontier = self.frontier
        done = tuple(self._done_above(frontier))
        self._size = self._size_of(frontier, done)
        progress = Progress(self.started, done)
        return CommitPoint(frontier, offset_encoding.encode(frontier, progress, self._limit))

    def changed_since(self, point: CommitPoint | None) -> bool:
        """Whether `commit_point()` says anything that `point`, the latest one committed, does not."""
        if point is not None and point.metadata == "":
            nothing_above = Progress(started=point.offset)
            point = CommitPoint(
                point.offset, offset_encoding.encode(point.offset, nothing_above, self._limit)
            )
        return self.commit_point() != point

    def _done_to(self) -> int:
        """The offset above the last one of which is known that it is done or outstanding."""
        return self._recovered[-1].stop if self._recovered else self._end

    def _growth(self, offset: int, done_to: int) -> int:
        """Bytes that a hole after others adds to the form `r`: its own run, and the last one's growth."""
        last = next(reversed(self._outstanding))
        return 1 + varint_size(offset - last - 1) - varint_size(done_to - last - 1)

    def _move(self, position: int) -> None:
        while self._recovered and self._recovered[0].stop <= position:
            self._end = max(self._end, self._recovered.popleft().stop)
        self._position = position

    def _done_above(self, frontier: int) -> Iterator[range]:
        """The done set, in ascending order, neither empty nor adjacent."""
        end = frontier  # the first offset that is not yet told
        for hole in self._outstanding:
            if hole > end:
                yield range(end, hole)
            end = hole + 1
        tail = range(end, self._end) if self._outstanding else range(frontier, frontier)
        for run in self._recovered:
            if tail and run.start <= tail.stop:
                tail = range(tail.start, max(tail.stop, run.stop))
                continue
            if tail:
                yield tail
            tail = run if run.start > frontier else range(0)
        if tail:
            yield tail

    def _size_of(self, frontier: int, done: tuple[range, ...]) -> int:
        """Bytes of the form `r` with every hole in it, those above the last done offset too (a byte each)."""
        size, holes = run_size(frontier, done)
        return size + max(0, len(self._outstanding) - holes)
