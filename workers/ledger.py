"""What may be committed, over all partitions of one worker. Pure: no clock, no I/O, no threads.

The consumer thread owns it. Every completion passes through it exactly once, on its way into a batch: the records to
publish and, for each partition concerned, the commit point that says so. A batch that was not committed comes back,
and what is still ours goes into the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.schemas.messages import Location
from headrace.workers.asked import Asked, AskedIds
from headrace.workers.work import Completion, ReplyAddress

MAX_BATCH_RECORDS = 500  # completions in one transaction: about 60 ms of a broker's time
MAX_BATCH_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes into one transaction."""

    completions: tuple[Completion, ...]
    points: dict[TopicPartition, CommitPoint]
    epochs: dict[TopicPartition, int]


@dataclass(slots=True)
class _Tenure:
    """One assignment of a partition, from `assigned` to `revoked`."""

    offsets: PartitionOffsets
    committed: CommitPoint | None
    unfinished: int = 0  # polled, and no completion has come
    asked: AskedIds = field(default_factory=AskedIds)


class Ledger:
    """The partitions that are ours, what is outstanding in them, and what waits for its transaction."""

    def __init__(self, *, commit_interval_s: float, metadata_limit: int) -> None:
        self._commit_interval_s = commit_interval_s
        self._metadata_limit = metadata_limit
        self._tenures: dict[TopicPartition, _Tenure] = {}
        # Of a batch that was not committed: their offsets are done already.
        self._again: list[Completion] = []
        self._pending: list[Completion] = []
        self._pending_since: float | None = None
        self._urgent = False
        self._epochs = 0
        self._unfinished = 0  # of all tenures
        self._in_transaction: Batch | None = None
        self._waiting_bytes = 0  # of `_again` and `_pending`
        self._batch_bytes = 0

    # --- tenures ---

    def assigned(self, source: TopicPartition, committed: CommitPoint | None, beginning: int) -> int:
        """Begin a tenure; the offset to read from.

        Raises UnreadableOffsets when the committed metadata is not ours to read: the partition must be parked.
        """
        self._epochs += 1
        offsets = PartitionOffsets(
            committed, epoch=self._epochs, beginning=beginning, limit=self._metadata_limit
        )
        self._tenures[source] = _Tenure(offsets, committed)
        return offsets.position

    def revoked(self, source: TopicPartition) -> None:
        """End a tenure. What is pending for it is dropped: its next owner does it again."""
        tenure = self._tenures.pop(source, None)
        if tenure is not None:
            self._unfinished -= tenure.unfinished
        self._again = [completion for completion in self._again if completion.source != source]
        self._pending = [completion for completion in self._pending if completion.source != source]
        self._recount()

    def epoch(self, source: TopicPartition) -> int | None:
        """The assignment epoch of a partition that is ours."""
        tenure = self._tenures.get(source)
        return tenure.offsets.epoch if tenure else None

    @property
    def partitions(self) -> list[TopicPartition]:
        """What is ours and being served."""
        return list(self._tenures)

    # --- one record ---

    def polled(self, source: TopicPartition, offset: int) -> bool:
        """Note a polled record as outstanding; False when it is done already and must be skipped."""
        tenure = self._tenures[source]
        if not tenure.offsets.polled(offset):
            return False
        tenure.unfinished += 1
        self._unfinished += 1
        return True

    def handed_over(self, source: TopicPartition, offset: int) -> None:
        """Note that a record may from now on be handed to an engine."""
        self._tenures[source].offsets.start(offset)

    def advanced(self, source: TopicPartition, position: int) -> None:
        """Note the consumer's position, past transaction markers and compacted records."""
        self._tenures[source].offsets.advance(position)

    def room(self, source: TopicPartition) -> int:
        """How many more records of a partition may be polled so that its commit metadata surely fits."""
        return self._tenures[source].offsets.room()

    def ask(
        self, source: TopicPartition, request_id: str, offset: int, waiting: ReplyAddress | None
    ) -> Asked | None:
        """Note a request's id. If it was seen before: what is known of it, with `waiting` added while it runs."""
        return self._tenures[source].asked.ask(request_id, offset, waiting)

    def complete(self, completion: Completion, now: float) -> bool:
        """Take a completion; False when it is stale (the partition has moved on) and was dropped. `now` in seconds."""
        if self.epoch(completion.source) != completion.epoch:
            return False
        self._tenures[completion.source].unfinished -= 1
        self._unfinished -= 1
        self._pending.append(completion)
        self._waiting_bytes += _weight(completion)
        self._urgent = self._urgent or completion.urgent
        if self._pending_since is None:
            self._pending_since = now
        return True

    # --- transactions ---

    @property
    def in_transaction(self) -> bool:
        """A batch was taken and its outcome is not known yet."""
        return self._in_transaction is not None

    @property
    def pending(self) -> int:
        """Completions that wait for a transaction, the batch under way included."""
        under_way = len(self._in_transaction.completions) if self._in_transaction else 0
        return len(self._again) + len(self._pending) + under_way

    @property
    def pending_bytes(self) -> int:
        """Bytes that `pending` holds: records to be published, and the requests that they answer."""
        return self._waiting_bytes + self._batch_bytes

    def due_in(self, now: float) -> float | None:
        """Seconds until the next batch should be taken; None: nothing waits, or a transaction is under way.

        At once where a request is urgent, where the batch is full, and where nothing is in flight that could join it.
        """
        if self._in_transaction is not None or self._pending_since is None:
            return None
        if (
            self._urgent
            or self._unfinished == 0
            or len(self._again) + len(self._pending) >= MAX_BATCH_RECORDS
        ):
            return 0.0
        return max(0.0, self._pending_since + self._commit_interval_s - now)

    def take(self) -> Batch | None:
        """The next batch: what is pending up to the limits, else bare positions that moved; None: nothing to commit.

        An offset becomes done here, and not when its completion arrives: a commit point must never say of a result
        that it is published when it waits for a later transaction. What was in a batch that was not committed is done
        since then, so all of it is in this one, whatever its size.
        """
        assert self._in_transaction is None, "one transaction at a time"
        fitting = self._fitting()
        for completion in self._pending[:fitting]:
            was_outstanding = self._tenures[completion.source].offsets.done(
                completion.offset, completion.epoch
            )
            assert was_outstanding, "an offset is completed once"
        points: dict[TopicPartition, CommitPoint] = {}
        for source, tenure in self._tenures.items():
            point = tenure.offsets.commit_point()
            if point != tenure.committed:
                points[source] = point
        if not points:
            return None
        taken = (*self._again, *self._pending[:fitting])
        self._again, self._pending = [], self._pending[fitting:]
        self._recount()
        self._batch_bytes = sum(map(_weight, taken))
        epochs = {source: self._tenures[source].offsets.epoch for source in points}
        self._in_transaction = Batch(taken, points, epochs)
        return self._in_transaction

    def _fitting(self) -> int:
        """How many of the pending completions one transaction takes; the first always, if nothing goes again."""
        size = sum(completion.bytes_to_publish for completion in self._again)
        room = max(0, MAX_BATCH_RECORDS - len(self._again))
        for count, completion in enumerate(self._pending[:room]):
            size += completion.bytes_to_publish
            if (count or self._again) and size > MAX_BATCH_BYTES:
                return count
        return min(len(self._pending), room)

    def committed(
        self, locations: list[Location | None]
    ) -> list[tuple[Completion, ReplyAddress, Location | None]]:
        """The batch under way is committed. `locations`: of each completion's result.

        Returns who asked again for one of its requests meanwhile, and is to be told now.
        """
        batch = self._end_transaction()
        for source, point in batch.points.items():
            if self.epoch(source) == batch.epochs[source]:
                self._tenures[source].committed = point
        to_tell: list[tuple[Completion, ReplyAddress, Location | None]] = []
        for completion, location in zip(batch.completions, locations, strict=True):
            waiting = self._answered(completion, location)
            to_tell += [(completion, address, location) for address in waiting]
        return to_tell

    def _answered(self, completion: Completion, location: Location | None) -> tuple[ReplyAddress, ...]:
        if self.epoch(completion.source) != completion.epoch or completion.request_id is None:
            return ()
        if completion.result is None:
            return ()  # a duplicate: the first with this id is the answer
        asked = self._tenures[completion.source].asked
        return asked.answered(completion.request_id, completion.offset, location)

    def not_committed(self, now: float) -> list[Completion]:
        """The batch under way was not committed: what is still ours goes into the next one; the rest is returned."""
        batch = self._end_transaction()
        kept = [each for each in batch.completions if self.epoch(each.source) == each.epoch]
        dropped = [each for each in batch.completions if self.epoch(each.source) != each.epoch]
        self._again = kept
        self._recount()
        if self.pending:
            self._pending_since = now
        return dropped

    def amend(self, change: Callable[[Completion], Completion]) -> None:
        """Put what `change` makes of it in the place of each completion that waits for a transaction."""
        self._again = [change(each) for each in self._again]
        self._pending = [change(each) for each in self._pending]
        self._recount()

    def _end_transaction(self) -> Batch:
        batch, self._in_transaction = self._in_transaction, None
        assert batch is not None, "no transaction is under way"
        self._batch_bytes = 0
        return batch

    def _recount(self) -> None:
        """Take stock of what waits after more than an addition to it."""
        waiting = [*self._again, *self._pending]
        self._waiting_bytes = sum(map(_weight, waiting))
        self._urgent = any(completion.urgent for completion in waiting)
        if not waiting:
            self._pending_since = None


def _weight(completion: Completion) -> int:
    """Bytes that a completion holds in memory: what it publishes, and the request that it keeps."""
    return completion.bytes_to_publish + completion.size
