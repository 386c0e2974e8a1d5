"""A dispatch over a real ledger, for its tests."""

from __future__ import annotations

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import CommitPoint, Record, TopicPartition
from headrace.consumers.suspicion import Mode, Suspicion
from headrace.schemas.codec import Codec, Encoding
from headrace.workers.dispatch import Dispatch
from headrace.workers.intake import work_of
from headrace.workers.ledger import Ledger
from headrace.workers.work import Completion, Work

LIMIT = 4096


class Desk:
    """A dispatch over a real ledger; every commit is made by hand, and what the loop is given is kept."""

    def __init__(self, *, order_by_key: bool = False) -> None:
        self.delivered: list[Work] = []
        self.ledger = Ledger(commit_interval_s=0.1, metadata_limit=LIMIT)
        self.dispatch = Dispatch(
            model="tagger", ledger=self.ledger, deliver=self.delivered.extend, order_by_key=order_by_key
        )
        self.committed: dict[TopicPartition, CommitPoint] = {}

    def assign(self, tp: TopicPartition, suspects: dict[int, Suspicion] | None = None) -> None:
        metadata = offset_encoding.encode(0, Progress(0, suspects=suspects or {}), LIMIT)
        self.ledger.open_window(tp.partition, [], "results")
        self.ledger.assigned(tp, CommitPoint(0, metadata), beginning=0, end=100)

    def offer(self, tp: TopicPartition, *offsets: int, key: bytes | None = None) -> None:
        for offset in offsets:
            assert self.ledger.polled(tp, offset)
            self.dispatch.offer(self.work(tp, offset, key))

    def work(self, tp: TopicPartition, offset: int, key: bytes | None = None) -> Work:
        record = Record(*tp, offset, 0, key, b'{"id":"r%d","prompt":"x"}' % offset)
        return work_of(record, source=tp, epoch=self.ledger.epoch(tp) or 0, lane="standard", codec=Codec())

    def take(self) -> None:
        batch = self.ledger.take()
        assert batch is not None
        self.dispatch.batch_taken()

    def end_commit(self, *, well: bool = True) -> None:
        batch = self.ledger.under_way
        if well:
            self.committed.update(batch.points)
            self.ledger.committed([None] * len(batch.completions))
            self.dispatch.batch_committed()
        else:
            self.dispatch.batch_not_committed()
            self.ledger.not_committed(0.0)

    def commit(self) -> None:
        self.take()
        self.end_commit()

    def finish(self, tp: TopicPartition, offset: int) -> None:
        work = self.work(tp, offset)
        completion = Completion(
            tp, offset, work.epoch, "standard", 1, work.request_id, (), None, Encoding.JSON
        )
        assert self.ledger.complete(completion, 0.0)
        self.dispatch.finished(tp, offset)

    def begun(self) -> list[int]:
        """What the loop was given since the last look."""
        self.dispatch.deliver()
        offsets = [work.offset for work in self.delivered]
        self.delivered.clear()
        return offsets

    def said(self, tp: TopicPartition) -> tuple[Mode, list[int]]:
        """Mode and trial in the committed metadata."""
        point = self.committed[tp]
        progress = offset_encoding.decode(point.metadata, point.offset, LIMIT)
        return progress.mode, [offset for offset, each in progress.suspects.items() if each.on_trial]
