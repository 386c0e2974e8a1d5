"""Whatever completes in whatever order, and whatever is lost on the way: each offset is published exactly once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from property_examples import EXAMPLES

from headrace.consumers import offset_encoding
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.schemas.codec import Encoding
from headrace.workers.batch import Batch
from headrace.workers.ledger import Ledger
from headrace.workers.work import Completion

LIMIT = 200  # characters of metadata
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
        self.ledger = Ledger(commit_interval_s=0.1, metadata_limit=LIMIT)
        self.positions: dict[TopicPartition, int] = {}
        self.waiting: list[Completion] = []  # polled, and no mark above it is committed
        self.running: list[Completion] = []
        self.batch: Batch | None = None

    def assign(self, source: TopicPartition) -> None:
        self.positions[source] = self.ledger.assigned(
            source, self.committed[source], beginning=0, end=self.ends[source]
        )

    def start_what_may(self) -> None:
        """Nothing is handed to the loop before the mark above it is committed; it all may be after that."""
        for each in list(self.waiting):
            if self.ledger.epoch(each.source) != each.epoch:
                self.waiting.remove(each)
            elif self.ledger.may_start(each.source, each.offset):
                point = self.committed[each.source]
                assert point is not None
                mark = offset_encoding.decode(point.metadata, point.offset, LIMIT).started
                assert each.offset < mark, "started, and a successor would not see it"
                self.ledger.handed_over(each.source, each.offset)
                self.waiting.remove(each)
                self.running.append(each)

    @precondition(lambda self: self.batch is None)
    @rule(source=st.sampled_from(SOURCES))
    def assigned(self, source: TopicPartition) -> None:
        if source not in self.positions:
            self.ledger.open_window(source.partition, [], "results")
            self.assign(source)

    @rule(source=st.sampled_from(SOURCES), count=st.integers(1, 8))
    def polls(self, source: TopicPartition, count: int) -> None:
        if source not in self.positions:
            return
        first = self.positions[source]
        last = min(first + min(count, self.ledger.room(source)), self.ends[source])
        for offset in range(first, last):
            if self.ledger.polled(source, offset):
                epoch = self.ledger.epoch(source)
                assert epoch is not None
                self.waiting.append(
                    Completion(source, offset, epoch, "standard", 1, str(offset), (), None, Encoding.JSON)
                )
        self.positions[source] = max(first, last)
        self.ledger.advanced(source, self.positions[source])
        self.start_what_may()

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
            self.start_what_may()
        else:
            # A partition has moved on since: the group's generation has too, and the broker refuses.
            self.ledger.not_committed(0.0)

    @precondition(lambda self: self.batch is not None)
    @rule()
    def is_refused(self) -> None:
        self.batch = None
        self.ledger.not_committed(0.0)

    @rule(source=st.sampled_from(SOURCES), back=st.integers(0, 8))
    def drains_and_gives_away(self, source: TopicPartition, back: int) -> None:
        """What runs is given back; once nothing is in flight and all is committed, the partition goes in order."""
        if source not in self.positions:
            return
        for each in [each for each in self.running if each.source == source][:back]:
            if self.ledger.handed_back(source, each.offset, each.epoch):
                self.running.remove(each)
                self.waiting.append(each)
        if self.batch is not None or self.ledger.in_flight(source.partition):
            return
        self.ledger.withdraw(source)
        while not self.ledger.is_settled(source):
            self.batch = self.ledger.take()
            if self.batch is not None:
                self.commits()
        self.loses_a_partition(source)
        self.ledger.assigned(source, self.committed[source], beginning=0, end=self.ends[source])
        assert self.ledger.vanished(source) == 0, "nothing was in flight"
        self.ledger.revoked(source)

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
            assert point is None or len(point.metadata) <= LIMIT

    def teardown(self) -> None:
        """In the end everything is answered: let it all run to its end."""
        if not hasattr(self, "published"):
            return
        self.dies(committed_first=False)
        for source in SOURCES:
            self.assigned(source)
        for _ in range(200):
            for source in SOURCES:
                self.polls(source, 8)
            while self.running:
                self.ledger.complete(self.running.pop(), 0.0)
            self.batch = self.ledger.take()
            if self.batch is None:
                break
            self.commits()
        assert not self.waiting, "never started"
        expected = {(source, offset) for source in SOURCES for offset in range(self.ends[source])}
        assert set(self.published) == expected, "lost"
        assert len(self.published) == len(expected), "doubled"


BrokerAndWorker.TestCase.settings = settings(max_examples=EXAMPLES, deadline=None, stateful_step_count=40)
TestLedger = BrokerAndWorker.TestCase
