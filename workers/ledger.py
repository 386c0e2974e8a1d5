"""What may be committed, over all partitions of one worker. Pure: no clock, no I/O, no threads.

The consumer thread owns it. Every completion passes through it exactly once, on its way into a batch: the records to
publish and, for each partition concerned, the commit point that says so. A batch that was not committed comes back,
and what is still ours goes into the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import AnsweredId, CommitPoint, TopicPartition
from headrace.consumers.suspicion import Mode, Suspicion
from headrace.schemas.messages import Location
from headrace.workers.asked import Asked
from headrace.workers.batch import Batch, fills, how_many_fit, weight
from headrace.workers.unit_windows import UnitWindows
from headrace.workers.work import Completion, Replay, ReplyAddress


@dataclass(slots=True)
class _Tenure:
    """One assignment of a partition, from `assigned` to `revoked`."""

    offsets: PartitionOffsets
    committed: CommitPoint | None
    unfinished: int = 0  # polled, and no completion has come
    handed: set[int] = field(default_factory=set[int])  # offsets that the loop has, and has not completed


class Ledger:
    """The partitions that are ours, what is outstanding in them, and what waits for its transaction."""

    def __init__(
        self,
        *,
        commit_interval_s: float,
        backfill_commit_interval_s: float | None = None,
        metadata_limit: int,
        dedupe_window: int = 50_000,
    ) -> None:
        self._commit_interval_s = commit_interval_s
        self._backfill_commit_interval_s = backfill_commit_interval_s or commit_interval_s
        self._metadata_limit = metadata_limit
        self._tenures: dict[TopicPartition, _Tenure] = {}
        # Of a batch that was not committed: their offsets are done already.
        self._again: list[Completion] = []
        self._pending: list[Completion] = []
        self._due_at: float | None = None  # what waits is to be in a transaction by then
        self._urgent = False
        self._epochs = 0
        self._unfinished = 0  # of all tenures
        self._in_transaction: Batch | None = None
        self._waiting_bytes = 0  # of `_again` and `_pending`
        self._batch_bytes = 0
        self._changed: set[TopicPartition] = set()  # whose commit point may differ from what is committed
        self._wanted = False  # somebody waits for the next commit, whatever is in it
        self._mode: Mode = "open"
        self._windows = UnitWindows(dedupe_window)

    # --- tenures ---

    def assigned(
        self,
        source: TopicPartition,
        committed: CommitPoint | None,
        *,
        beginning: int,
        end: int,
        newest_format: int = 2,
    ) -> int:
        """Begin a tenure; the offset to read from. `beginning` and `end` are the log's. Raises UnreadableOffsets."""
        self._epochs += 1
        offsets = PartitionOffsets(
            committed,
            epoch=self._epochs,
            beginning=beginning,
            end=end,
            limit=self._metadata_limit,
            newest_format=newest_format,
        )
        offsets.set_mode(self._mode)
        self._tenures[source] = _Tenure(offsets, committed)
        self._changed.add(source)
        self._wanted = True  # nothing can be started before its mark is committed
        return offsets.position

    def vanished(self, source: TopicPartition) -> int:
        """How many requests the last owner had in flight, as far as can be told, when it was gone without a word."""
        return self._tenures[source].offsets.vanished

    def revoked(self, source: TopicPartition) -> None:
        """End a tenure. What is pending for it is dropped: its next owner does it again."""
        tenure = self._tenures.pop(source, None)
        self._changed.discard(source)
        self._windows.revoked(source, self._tenures, self._in_transaction)
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

    # --- the window of recent ids, one for each unit ---

    def has_window(self, unit: int) -> bool:
        """Whether it is known what was answered lately in this unit."""
        return unit in self._windows

    def open_window(self, unit: int, ids: Iterable[AnsweredId], topic: str) -> None:
        """Begin a unit's window with the ids of its latest results, in that partition of `topic`."""
        self._windows.open(unit, ids, topic)

    # --- one record ---

    def polled(self, source: TopicPartition, offset: int) -> bool:
        """Note a polled record as outstanding; False when it is done already and must be skipped."""
        tenure = self._tenures[source]
        self._changed.add(source)
        if not tenure.offsets.polled(offset):
            return False
        tenure.unfinished += 1
        self._unfinished += 1
        if tenure.offsets.wants_mark():
            self._wanted = True
        return True

    def suspicion(self, source: TopicPartition, offset: int) -> Suspicion:
        """At how many deaths a request was in flight."""
        return self._tenures[source].offsets.suspicion(offset)

    def may_start(self, source: TopicPartition, offset: int) -> bool:
        """Whether a request may be handed to the loop: a started mark above it is committed."""
        return self._tenures[source].offsets.may_start(offset)

    def handed_over(self, source: TopicPartition, offset: int) -> None:
        """Note that a record may from now on be handed to an engine."""
        tenure = self._tenures[source]
        tenure.offsets.start(offset)
        tenure.handed.add(offset)

    def handed_back(self, source: TopicPartition, offset: int, epoch: int) -> bool:
        """Note that the loop has given a request back; False: it was completed before, or is of another tenure."""
        if self.epoch(source) != epoch or offset not in self._tenures[source].handed:
            return False
        self._tenures[source].handed.discard(offset)
        return True

    def in_flight(self, unit: int) -> int:
        """How many requests of a unit the loop has."""
        return sum(len(tenure.handed) for source, tenure in self._tenures.items() if source.partition == unit)

    @property
    def anything_in_flight(self) -> bool:
        """Whether the loop has any request."""
        return any(tenure.handed for tenure in self._tenures.values())

    def is_unpublished(self, source: TopicPartition) -> bool:
        """Whether results of a partition wait for a commit, or are in one."""
        under_way = self._in_transaction.completions if self._in_transaction else ()
        return any(each.source == source for each in (*self._again, *self._pending, *under_way))

    def is_settled(self, source: TopicPartition) -> bool:
        """Whether all that is known of a partition is committed."""
        in_transaction = self._in_transaction is not None and source in self._in_transaction.points
        return not (in_transaction or source in self._changed or self.is_unpublished(source))

    def frontier(self, source: TopicPartition) -> int:
        """The offset below which all is done."""
        return self._tenures[source].offsets.frontier

    def outstanding(self, source: TopicPartition) -> int:
        """How many offsets are polled, and neither done nor on their way to be committed."""
        return self._tenures[source].offsets.outstanding

    def advanced(self, source: TopicPartition, position: int) -> None:
        """Note the consumer's position, past transaction markers and compacted records."""
        if position > self._tenures[source].offsets.position:
            self._changed.add(source)
            self._tenures[source].offsets.advance(position)

    def room(self, source: TopicPartition) -> int:
        """How many more records of a partition may be polled so that its commit metadata surely fits."""
        return self._tenures[source].offsets.room()

    def ask(
        self,
        source: TopicPartition,
        request_id: str,
        offset: int,
        waiting: ReplyAddress | None,
        replay: Replay = "no",
    ) -> Asked | None:
        """Note a request's id. If it was seen before: what is known of it, with `waiting` added while it runs."""
        return self._windows.ask(source, request_id, offset, waiting, replay)

    # --- deaths and trials ---

    def set_mode(self, mode: Mode) -> None:
        """Whether a trial is under way in this worker: it is committed with every partition."""
        if mode == self._mode:
            return
        self._mode = mode
        for tenure in self._tenures.values():
            tenure.offsets.set_mode(mode)
        self._changed.update(self._tenures)

    def put_on_trial(self, places: Collection[tuple[TopicPartition, int]]) -> None:
        """Exactly these suspects are on trial from the next commit on."""
        for source, tenure in self._tenures.items():
            tenure.offsets.put_on_trial([offset for place, offset in places if place == source])
        self._changed.update(self._tenures)
        self._wanted = True

    def exonerate(self) -> None:
        """A suspect was convicted, which explains the deaths: the others are suspects no longer."""
        for tenure in self._tenures.values():
            tenure.offsets.exonerate()
        self._changed.update(self._tenures)
        self._wanted = True

    def hurry(self) -> None:
        """What is finished is to be published at once, though it could wait: a unit is to move."""
        self._wanted = True

    def withdraw(self, source: TopicPartition) -> None:
        """Nothing of this partition is in flight, nor will be in this tenure: the next commit says so."""
        self._tenures[source].offsets.withdraw()
        self._changed.add(source)
        self._wanted = True

    def engine_died(self, in_flight: Collection[tuple[TopicPartition, int]]) -> None:
        """The engine died with these in it: that is held against each that is not finished from the next commit on.

        With a trial under way against those on trial alone; unless none of them was in it: it was another then.
        """
        if not any(self.suspicion(*place).on_trial for place in in_flight if place[0] in self._tenures):
            self.set_mode("open")
        for source, tenure in self._tenures.items():
            died = [offset for place, offset in in_flight if place == source and offset in tenure.handed]
            tenure.offsets.engine_died(died)  # what has been completed is not handed any more
            tenure.handed.clear()
        self._changed.update(self._tenures)
        self._wanted = True

    def complete(self, completion: Completion, now: float) -> bool:
        """Take a completion; False when it is stale (the partition has moved on) and was dropped. `now` in seconds."""
        if self.epoch(completion.source) != completion.epoch:
            return False
        tenure = self._tenures[completion.source]
        tenure.unfinished -= 1
        tenure.handed.discard(completion.offset)
        self._unfinished -= 1
        self._pending.append(completion)
        self._waiting_bytes += weight(completion)
        self._urgent = self._urgent or completion.urgent
        patience = self._commit_interval_s
        if completion.lane == "backfill":  # nobody waits for one of its results
            patience = self._backfill_commit_interval_s
        due_at = now + patience
        self._due_at = due_at if self._due_at is None else min(self._due_at, due_at)
        return True

    # --- transactions ---

    @property
    def in_transaction(self) -> bool:
        """A batch was taken, and its outcome is not known yet."""
        return self._in_transaction is not None

    @property
    def under_way(self) -> Batch:
        """The batch that was taken and is not decided yet."""
        assert self._in_transaction is not None, "no transaction is under way"
        return self._in_transaction

    @property
    def pending(self) -> int:
        """Completions that wait for a transaction, the batch under way included."""
        under_way = len(self._in_transaction.completions) if self._in_transaction else 0
        return len(self._again) + len(self._pending) + under_way

    @property
    def is_owed(self) -> bool:
        """A commit is under way, or somebody waits for the next one, whatever is in it."""
        return self._wanted or self._in_transaction is not None

    @property
    def pending_bytes(self) -> int:
        """Bytes that `pending` holds: records to be published, and the requests that they answer."""
        return self._waiting_bytes + self._batch_bytes

    def due_in(self, now: float) -> float | None:
        """Seconds until the next batch should be taken; None: nothing waits, or a transaction is under way.

        At once where a request is urgent, where the batch is full, where nothing is in flight that could join it, and
        where something waits for the commit itself: a mark, a trial, a partition that is to move.
        """
        if self._in_transaction is not None:
            return None
        if self._wanted:
            return 0.0
        if self._due_at is None:
            return None
        waiting = len(self._again) + len(self._pending)
        if self._urgent or self._unfinished == 0 or fills(waiting, self._waiting_bytes):
            return 0.0
        return max(0.0, self._due_at - now)

    def take(self) -> Batch | None:
        """The next batch: what is pending up to the limits, else bare positions that moved; None: nothing to commit.

        An offset becomes done here, and not when its completion arrives: a commit point must never say of a result
        that it is published when it waits for a later transaction. What was in a batch that was not committed is done
        since then, so all of it is in this one, whatever its size.
        """
        assert self._in_transaction is None, "one transaction at a time"
        fitting = how_many_fit(self._again, self._pending)
        for completion in self._pending[:fitting]:
            was_outstanding = self._tenures[completion.source].offsets.done(
                completion.offset, completion.epoch
            )
            assert was_outstanding, "an offset is completed once"
            self._changed.add(completion.source)
        self._wanted = False
        points: dict[TopicPartition, CommitPoint] = {}
        for source in self._changed:
            tenure = self._tenures[source]
            point = tenure.offsets.commit_point()
            if point != tenure.committed:
                points[source] = point
            else:
                tenure.offsets.committed(point)
        self._changed.clear()
        if not points:
            return None
        taken = (*self._again, *self._pending[:fitting])
        self._again, self._pending = [], self._pending[fitting:]
        self._recount()
        self._batch_bytes = sum(map(weight, taken))
        epochs = {source: self._tenures[source].offsets.epoch for source in points}
        self._in_transaction = Batch(taken, points, epochs)
        return self._in_transaction

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
                self._tenures[source].offsets.committed(point)
        return self._windows.answered(batch.completions, locations)

    def not_committed(self, now: float) -> list[Completion]:
        """The batch under way was not committed: what is still ours goes into the next one; the rest is returned."""
        batch = self._end_transaction()
        self._changed.update(source for source in batch.points if source in self._tenures)
        self._wanted = True
        kept = [each for each in batch.completions if self.epoch(each.source) == each.epoch]
        dropped = [each for each in batch.completions if self.epoch(each.source) != each.epoch]
        self._windows.not_answered(dropped)
        self._again = kept
        self._recount()
        if self.pending:
            self._due_at = now + self._commit_interval_s
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
        self._waiting_bytes = sum(map(weight, waiting))
        self._urgent = any(completion.urgent for completion in waiting)
        if not waiting:
            self._due_at = None
