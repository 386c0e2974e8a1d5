"""What may be committed for a partition. Pure: no I/O, no threads, no clock.

- frontier: the offset below which all is done. It is what is committed.
- done set: the offsets above the frontier that are done too.
- started: above every offset that this tenure has handed to an engine.
- started mark: nothing at or above it has been, or will be before the next commit, handed to an engine.
- outstanding: polled and not done.
- suspect: not done, and in flight at a death, of an engine or of a worker without a word.
- assignment epoch: counts a worker's tenures of a partition. Work and completions carry it, and a
  completion from another tenure is dropped: its offset has been polled again, here or elsewhere.

Below the position whatever is not outstanding is done: offsets that no record has (compaction,
transaction markers, aborted records) too, and nothing is lost by that. So only the outstanding offsets
are kept, one entry each, and what the committed metadata said about offsets that have not been polled
again.

What holds between commits: `done()` is called for a result that goes into the next transaction, and that
transaction carries `commit_point()`; so an offset is in the committed done set exactly when its result is
published.

**The started mark is committed ahead, in blocks.** An offset may be handed to an engine once it is below the
committed mark, and not before (`may_start`). So whoever takes over finds everything that a worker that vanished
had in flight between the frontier and the mark; what else lies there had not been polled, or waited to be
started, and is suspected with it: a first death has no consequences. The mark moves when less than half a
block is left above the position, and then by a whole block, so that an idle partition, and most commits of a busy one,
do not move it. It may lie beyond the log's end: what was appended since the partition was assigned
(`end`) cannot have been in the predecessor's flight. A mark at the frontier means that nothing was in flight.

**A death that is found is counted once.** The counts and the new tenure's mark are one commit. Nothing is started
before that commit: a crash before it leaves the predecessor's string, to be counted by the next one; after it
there is a mark that speaks for this tenure, and what is in flight then counts as another death. Only where
there is nothing to say that is not committed already (nothing was in flight, and the old mark will do) does
the committed mark hold for this tenure from the beginning.

**A suspect on trial is started only once its trial is committed** (`may_start` again): else its death would be
taken for one in which it was held back, and not be counted. While the committed mode is `alone` nothing else is
started, so that the one on trial is alone whenever it is said to have been.

**Suspects take no room from the done set.** `room` and `fits` reckon with the done set, the longest mark and the
fixed fields, which are as long with a mode and without suspects as they are with neither; suspects get what the
limit leaves at each commit. Those that do not fit are kept here, and forgotten if this worker vanishes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import (
    END,
    NEWEST_FORMAT,
    SMALLEST_LIMIT,
    Progress,
    bitmap_size,
    run_size,
)
from headrace.consumers.records import CommitPoint
from headrace.consumers.suspects import Suspects
from headrace.consumers.varints import LARGEST_VARINT, varint_size
from headrace.schemas.errors import UnreadableOffsets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from headrace.consumers.suspicion import Mode, Suspicion

METADATA_LIMIT = (
    4096  # bytes: the broker's default `offset.metadata.max.bytes`; one more ends a producer for good
)

BLOCK = 128  # offsets by which the started mark is moved ahead


class PartitionOffsets:
    """The offsets of one partition during one tenure of it.

    `committed` is what the group has committed (None: nothing, so it begins at `beginning`, an offset). Empty
    metadata says that nothing above the offset is done. `end` is the log's end now, at assignment. `limit` is in
    characters, 64 at least. `newest_format` is the highest one that all members of the group read: with 1,
    suspects and mode are kept and not written. `block` is how far ahead the started mark is written.
    Raises UnreadableOffsets when the metadata is not understood: the partition must be parked.
    """

    def __init__(
        self,
        committed: CommitPoint | None,
        *,
        epoch: int,
        beginning: int,
        end: int,
        limit: int = METADATA_LIMIT,
        newest_format: int = NEWEST_FORMAT,
        block: int = BLOCK,
    ) -> None:
        if limit < SMALLEST_LIMIT:
            raise ValueError(f"a limit of {limit} characters is too small: {SMALLEST_LIMIT} at least")
        if newest_format < 1 or block < 1:
            raise ValueError(f"format {newest_format} and a block of {block}: both are 1 at least")
        point = committed or CommitPoint(beginning, "")
        if point.offset < 0:
            raise UnreadableOffsets(f"the committed offset is {point.offset}")
        progress = offset_encoding.decode(point.metadata, point.offset, limit)
        self.epoch = epoch
        self._limit = limit
        self._budget = offset_encoding.payload_budget(limit)
        self._format = newest_format
        self._block = block
        self._position = point.offset
        self._started = point.offset
        # Ascending. An OrderedDict finds its first key at once after many deletions; a dict does not.
        self._outstanding: OrderedDict[int, None] = OrderedDict()
        # Done by an earlier owner and not polled again: runs that end above the position.
        self._recovered = deque(progress.done)
        # Below it, what is not outstanding is done: one above the last polled offset.
        self._end = point.offset
        # At least the bytes that the done set can take as runs, whatever completes: every hole is in it.
        self._size = run_size(point.offset, progress.done).size
        # The predecessor's mark does if it is no farther ahead than ours would be.
        self._mark = progress.started if progress.started <= point.offset + block else point.offset
        self._withdrawn = False
        self._suspects = Suspects(point.offset, progress, end)
        # What may be started is below it: the committed mark, once that speaks for this tenure.
        self._startable = point.offset if self.changed_since(point) else progress.started

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
        """Above every offset that this tenure has handed to an engine, never below the frontier."""
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

    # --- what is in flight ---

    @property
    def vanished(self) -> int:
        """How many offsets the predecessor's silent death is held against; 0: it left in order, or idle."""
        return self._suspects.vanished

    def may_start(self, offset: int) -> bool:
        """Whether it may be handed to an engine now: a successor would see that it was in flight.

        It is below the committed mark; and if it is on trial, the trial is committed (or cannot be: no room, or an
        old format). While the committed mode is `alone`, nothing that is not on trial.
        """
        if offset >= self._startable or self._withdrawn:
            return False
        return self._suspects.may_start(offset)

    def start(self, offset: int) -> None:
        """This offset is handed to an engine; `may_start` must allow it."""
        assert self.may_start(offset), f"offset {offset} is not below a committed mark"
        self._started = max(self._started, offset + 1)

    def wants_mark(self) -> bool:
        """Whether a commit is needed soon, for what could not be started without it.

        Less than half a block is left between what was polled and the committed mark, or a change of the trial is not
        committed.
        """
        if self._withdrawn:
            return False
        return self._is_used_up(self._startable) or self._suspects.want_commit()

    def withdraw(self) -> None:
        """Nothing is in flight any more, and nothing will be started in this tenure: a clean release.

        The mark falls to the frontier, so that a successor finds no death.
        """
        self._withdrawn = True

    # --- suspects ---

    def suspicion(self, offset: int) -> Suspicion:
        """What is held against it; nothing once it is done."""
        return self._suspects.of(offset)

    def suspects(self) -> Mapping[int, Suspicion]:
        """The offsets that are not done and were in flight at a death: a view, not to be kept over a change.

        Some may turn out to have no record; they are gone once the position is past them.
        """
        return self._suspects.all

    def set_mode(self, mode: Mode) -> None:
        """From the next commit on a successor counts a death by this mode, of the whole worker."""
        self._suspects.set_mode(mode)

    def put_on_trial(self, offsets: Collection[int]) -> None:
        """From the next commit on exactly these of the suspects are on trial.

        Not while one whose trial this ends is in flight: its death would not be counted.
        """
        self._suspects.put_on_trial(offsets)

    def engine_died(self, in_flight: Collection[int]) -> None:
        """The engine died with these in flight, and this worker lives: a death each, by the mode; then withdraw.

        No `alone`: the cause is known, and the caller convicts what was alone itself.
        """
        self._suspects.died(frozenset(in_flight).intersection(self._outstanding))
        self.withdraw()

    def exonerate(self) -> None:
        """A suspect of this worker was convicted: nobody else is suspected on account of the deaths so far."""
        self._suspects.exonerate()

    # --- results ---

    def done(self, offset: int, epoch: int) -> bool:
        """The offset's result goes into the next transaction.

        False: stale (of another tenure, or not outstanding); drop it.
        """
        if epoch != self.epoch or offset not in self._outstanding:
            return False
        del self._outstanding[offset]
        self._suspects.done(offset)
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
        progress = offset_encoding.what_fits(
            frontier,
            Progress(self._moved_mark(), done, self._suspects.all, self._suspects.mode),
            self._limit,
            self._format,
        )
        self._suspects.to_be_committed(progress)
        return CommitPoint(frontier, offset_encoding.encode(frontier, progress, self._limit))

    def committed(self, point: CommitPoint) -> None:
        """This commit point of ours is committed now: its mark and its trial hold for `may_start`."""
        progress = offset_encoding.decode(point.metadata, point.offset, self._limit)
        self._startable = max(self._startable, progress.started)
        self._suspects.committed(progress)

    def changed_since(self, point: CommitPoint | None) -> bool:
        """Whether `commit_point()` says anything that `point`, the latest one committed, does not."""
        if point is not None and point.metadata == "":
            nothing_above = Progress(started=point.offset)
            point = CommitPoint(
                point.offset, offset_encoding.encode(point.offset, nothing_above, self._limit)
            )
        return self.commit_point() != point

    def _moved_mark(self) -> int:
        """The started mark to commit: the one there was, as long as half a block of it is left."""
        if self._withdrawn:
            return self.frontier
        if self._is_used_up(self._mark):
            self._mark = min(max(self._position, self.started) + self._block, END)
        return self._mark

    def _is_used_up(self, mark: int) -> bool:
        return 2 * (mark - max(self._position, self.started)) < self._block and mark < END

    def _done_to(self) -> int:
        """The offset above the last one of which is known that it is done or outstanding."""
        return self._recovered[-1].stop if self._recovered else self._end

    def _growth(self, offset: int, done_to: int) -> int:
        """Bytes that a hole after others adds to the runs: its own run, and the last one's growth."""
        last = next(reversed(self._outstanding))
        return 1 + varint_size(offset - last - 1) - varint_size(done_to - last - 1)

    def _move(self, position: int) -> None:
        while self._recovered and self._recovered[0].stop <= position:
            self._end = max(self._end, self._recovered.popleft().stop)
        self._suspects.passed(position, self._outstanding)
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
        """Bytes of the runs with every hole in it, those above the last done offset too (a byte each)."""
        size, holes = run_size(frontier, done)
        return size + max(0, len(self._outstanding) - holes)
