"""The commit thread: it alone owns the transactional producer."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.records import GroupMetadata, RecordLocation
from headrace.producers.kafka import CommitBatch
from headrace.schemas import metrics
from headrace.schemas.errors import HeadraceError, ResultTooLarge, StaleGeneration, TopicMissing
from headrace.schemas.messages import Location
from headrace.topics.names import ContractNames
from headrace.workers.batch import Batch
from headrace.workers.replying import ReplySender
from headrace.workers.work import Completion

log = logging.getLogger(__name__)


class Transactions(Protocol):
    """What is needed of `producers.kafka.GuardedTransaction`."""

    def commit(self, batch: CommitBatch) -> list[RecordLocation | None]:
        """Publish and commit; raises StaleGeneration, TransactionHung."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """commit thread -> consumer thread: how a batch ended."""

    locations: list[Location | None] | None  # of each completion's result; None: nothing was committed
    group: GroupMetadata  # that it was handed in with
    refused: Completion | None = None  # whose record the broker will not take
    error: HeadraceError | None = None  # why it was refused


class CommitThread:
    """Takes a batch at a time, commits it, and tells those who wait for its results."""

    def __init__(
        self,
        *,
        transactions: Transactions,
        replies: ReplySender,
        names: ContractNames,
        tell_outcome: Callable[[Outcome], None],
    ) -> None:
        self._transactions = transactions
        self._replies = replies
        self._names = names
        self._tell_outcome = tell_outcome
        self._batches: queue.SimpleQueue[tuple[Batch, CommitBatch] | None] = queue.SimpleQueue()
        self._began: float | None = None
        self.ended = False  # its thread has returned or raised: nothing more will be committed

    def hand(self, batch: Batch, commit_batch: CommitBatch) -> None:
        """Give it its next batch. The outcome comes through `tell_outcome`."""
        self._batches.put((batch, commit_batch))

    def stop(self) -> None:
        """Let `run` return after the batches handed in so far."""
        self._batches.put(None)

    def busy_s(self) -> float:
        """Seconds that the present transaction has taken so far; 0 when there is none. From any thread."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def run(self) -> None:
        """The thread's body. Raises TransactionHung, and whatever was not foreseen."""
        try:
            while self.commit_next():
                pass
        finally:
            self._began = None
            self.ended = True

    def commit_next(self) -> bool:
        """Wait for a batch, commit it and tell its outcome; False: `stop()` was called instead."""
        handed = self._batches.get()
        if handed is None:
            return False
        batch, commit_batch = handed
        self._began = time.monotonic()
        outcome = self._commit(batch, commit_batch)
        self._began = None
        self._tell_outcome(outcome)
        return True

    def _commit(self, batch: Batch, commit_batch: CommitBatch) -> Outcome:
        group = commit_batch.group
        try:
            located = self._transactions.commit(commit_batch)
        except StaleGeneration as error:
            log.info("a transaction was not committed, the group has moved on: %s", error)
            metrics.TRANSACTIONS.labels(self._names.model, "stale").inc()
            return Outcome(None, group)
        except (ResultTooLarge, TopicMissing) as error:
            if error.index is None:
                raise
            log.error("a transaction was not committed, one of its records is refused: %s", error)
            metrics.TRANSACTIONS.labels(self._names.model, "refused").inc()
            return Outcome(None, group, _owner(batch, error.index), error)
        metrics.TRANSACTIONS.labels(self._names.model, "committed").inc()
        metrics.TRANSACTION_SECONDS.labels(self._names.model).observe(self.busy_s())
        locations: list[Location | None] = []
        first = 0
        for completion in batch.completions:
            location = _result_location(completion, located[first : first + 1])
            first += len(completion.records)
            locations.append(location)
            self._tell(completion, location)
        return Outcome(locations, group)

    def _tell(self, completion: Completion, location: Location | None) -> None:
        result = completion.result
        if result is None:
            return
        labels = (self._names.model, result.provenance.version, completion.lane, result.status)
        metrics.child(metrics.REQUESTS, *labels).inc()
        if result.error is not None and completion.records[-1].topic == self._names.dead:
            metrics.DEAD_LETTERS.labels(self._names.model, result.error.code).inc()
        for address in completion.reply_to:
            self._replies.final(address, result, completion.encoding, completion.next_seq, location)


def _owner(batch: Batch, index: int) -> Completion:
    """The completion that has the batch's record number `index`."""
    for completion in batch.completions:
        if index < len(completion.records):
            return completion
        index -= len(completion.records)
    raise AssertionError("a record beyond the batch's last")


def _result_location(completion: Completion, located: list[RecordLocation | None]) -> Location | None:
    """Where a completion's result lies: its first record, unless its request had no id to answer to."""
    if completion.result is None or completion.request_id is None or not located or located[0] is None:
        return None
    place = located[0]
    return Location(topic=place.topic, partition=place.partition, offset=place.offset)
