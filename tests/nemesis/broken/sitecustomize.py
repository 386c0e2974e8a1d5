"""Takes one protection out of a worker, to see that the nemesis notices.

Python imports this at its start where this folder is on PYTHONPATH, which the nemesis sees to for its workers alone.
`NEMESIS_BREAK` says which:

guard     transactions as kafka-python has them: nothing is checked before the commit, and a doubt counts as committed
epochs    what was finished for an earlier tenure of a partition is published all the same
done-set  only the frontier is committed, not what is done above it. The window of recent ids, which would find what is
          read again to be answered, is off too
window    that window alone is off, which is a setting: nothing else is broken
"""

from __future__ import annotations

import itertools
import os
from importlib import import_module
from typing import Any


def break_guard() -> None:
    """Send, commit, and believe it: no record's answer and no epoch is looked at, and a doubt counts as committed."""
    from headrace.consumers.untyped_kafka import errors as kafka_errors

    transaction: Any = import_module("headrace.producers.transaction")

    def believing_try(self: Any, batch: Any, deadline: float) -> list[Any]:
        producer: Any = self._producer
        manager: Any = producer._transaction_manager
        nowhere: list[Any] = [None] * len(batch.records)
        try:
            producer.begin_transaction()
            for record in batch.records:
                transaction.send(producer, record)
            offsets, group = transaction._offsets(batch), transaction._group(batch)
            transaction._wait(producer, manager.send_offsets_to_transaction(offsets, group), deadline)
            transaction._wait(producer, manager.begin_commit(), deadline)
        except kafka_errors.KafkaError as error:
            known = transaction._known(manager.last_error or error, self._id)
            if known is not None:
                raise self._refused(known) from error
            self._reopen(deadline + 5 * self._timeout_s)
        return nowhere

    transaction.GuardedTransaction._try = believing_try


def break_epochs() -> None:
    """Whatever is finished is published, whosever its partition is by now."""
    from headrace.workers.ledger import Ledger

    complete, not_committed = Ledger.complete, Ledger.not_committed

    def complete_anyway(self: Any, completion: Any, now: float) -> bool:
        if self.epoch(completion.source) == completion.epoch:
            return complete(self, completion, now)
        self._again.append(completion)
        self._pending_since = now
        return False

    def nothing_dropped(self: Any, now: float) -> list[Any]:
        batch = self._in_transaction
        not_committed(self, now)
        self._again = list(batch.completions)
        self._recount()
        self._pending_since = now
        return []

    Ledger.complete = complete_anyway  # type: ignore[method-assign]
    Ledger.not_committed = nothing_dropped  # type: ignore[method-assign]


def break_done_set() -> None:
    """The frontier alone. The started mark is made to move, for a batch must change something that is committed."""
    from headrace.consumers.offset_encoding import decode, encode
    from headrace.consumers.offsets import PartitionOffsets
    from headrace.consumers.records import CommitPoint

    commit_point = PartitionOffsets.commit_point
    steps = itertools.count(1)

    def without_done(self: Any) -> CommitPoint:
        offset, metadata = commit_point(self)
        progress = decode(metadata, offset, self._limit)
        less = progress._replace(started=progress.started + next(steps), done=(), suspects={})
        return CommitPoint(offset, encode(offset, less, self._limit))

    PartitionOffsets.commit_point = without_done  # type: ignore[method-assign]


BREAKS = {"guard": break_guard, "epochs": break_epochs, "done-set": break_done_set, "window": lambda: None}

if which := os.environ.get("NEMESIS_BREAK"):
    BREAKS[which]()
