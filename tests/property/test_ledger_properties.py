"""Whatever completes in whatever order, and whatever is lost on the way: each offset is published exactly once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from property_examples import EXAMPLES

from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.schemas.codec import Encoding
from headrace.workers.ledger import Batch, Ledger
from headrace.workers.work import Completion

SOURCES = [TopicPartition("requests", number) for number in range(3)]


class BrokerAndWorker(RuleBasedStateMachine):
    """A broker's state (logs, commits, what is published) and a worker's ledger beside it."""

    @initialize(lengths=st.lists(st.integers(1, 25), min_size=3, max_size=3))
    def begin(self, lengths: list[int]) -> None:
        self.ends = dict(zip(SOURCES, lengths, strict=True))
        self.committed: dict[TopicPartition, CommitPoint | None] = dict.fromkeys(SOURCES)
        self.published: list[tuple[TopicPartition, int]] = []
        self.new_process()

    def new_process(self) -> None:
        self.ledger = Ledger(commit_interval_s=0.1, metadata_limit=200)
        self.positions: dict[TopicPartition, int] = {}
        self.running: list[Completion] = []
        self.batch: Batch | None = None

    def assign(self, source: TopicPartition) -> None:
        self.positions[source] = self.ledger.assigned(source, self.committed[source], 0)

    @precondition(lambda self: self.batch is None)
    @rule(source=st.sampled_from(SOURCES))
    def assigned(self, source: TopicPartition) -> None:
        if source not in self.positions:
            self.assign(source)

    @rule(source=st.sampled_from(SOURCES), count=st.integers(1, 8))
    def polls(self, source: TopicPartition, count: int) -> None:
        if source not in self.positions:
            return
        first = self.positions[source]
        last = min(first + min(count, self.ledger.room(source)), self.ends[source])
        for offset in range(first, last):
            if self.ledger.polled(source, offset):
                self.ledger.handed_over(source, offset)
                epoch = self.ledger.epoch(source)
                assert epoch is not None
                self.running.append(
                    Completion(source, offset, epoch, "standard", 1, str(offset), (), None, Encoding.JSON)
                )
        self.positions[source] = max(first, last)
        self.ledger.advanced(source, self.positions[source])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.running) - 1))
        self.ledger.complete(self.running.pop(place), 0.0)

    @precondition(lambda self: self.batch is None)
    @rule()
    def takes_a_batch(self) -> None:
        self.batch = self.ledger.take()

    def broker_commits(self, batch: Batch) -> None:
        self.published += [(each.source, each.offset) for each in batch.completions]
        self.committed.update(batch.points)

    @precondition(lambda self: self.batch is not None)
    @rule()
    def commits(self) -> None:
        batch, self.batch = self.batch, None
        assert batch is not None
        if all(self.ledger.epoch(source) == epoch for source, epoch in batch.epochs.items()):
            self.broker_commits(batch)
            self.ledger.committed([None] * len(batch.completions))
        else:
            # A partition has moved on since: the group's generation has too, and the broker refuses.
            self.ledger.not_committed(0.0)

    @precondition(lambda self: self.batch is not None)
    @rule()
    def is_refused(self) -> None:
        self.batch = None
        self.ledger.not_committed(0.0)

    @rule(source=st.sampled_from(SOURCES))
    def loses_a_partition(self, source: TopicPartition) -> None:
        if source in self.positions:
            self.ledger.revoked(source)
            del self.positions[source]

    @rule(committed_first=st.booleans())
    def dies(self, committed_first: bool) -> None:
        current = self.batch is not None and all(
            self.ledger.epoch(source) == epoch for source, epoch in self.batch.epochs.items()
        )
        if self.batch is not None and committed_first and current:
            self.broker_commits(self.batch)
        self.new_process()

    @invariant()
    def nothing_is_published_twice(self) -> None:
        if hasattr(self, "published"):
            assert len(self.published) == len(set(self.published))

    @invariant()
    def metadata_stays_under_its_limit(self) -> None:
        for point in getattr(self, "committed", {}).values():
            assert point is None or len(point.metadata) <= 200

    def teardown(self) -> None:
        """In the end everything is answered: let it all run to its end."""
        if not hasattr(self, "published"):
            return
        self.dies(committed_first=False)
        for source in SOURCES:
            self.assign(source)
        for _ in range(200):
            for source in SOURCES:
                self.polls(source, 8)
            while self.running:
                self.ledger.complete(self.running.pop(), 0.0)
            self.batch = self.ledger.take()
            if self.batch is None:
                break
            self.commits()
        expected = {(source, offset) for source in SOURCES for offset in range(self.ends[source])}
        assert set(self.published) == expected, "lost"
        assert len(self.published) == len(expected), "doubled"


BrokerAndWorker.TestCase.settings = settings(max_examples=EXAMPLES, deadline=None, stateful_step_count=40)
TestLedger = BrokerAndWorker.TestCase
