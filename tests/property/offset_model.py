"""A partition's log, a broker that keeps commits, and workers that come, finish in any order, and vanish.

`Tenures` is a Hypothesis state machine: it checks itself as it goes.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.consumers import offset_encoding
from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import CommitPoint

GAPS = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 300), st.integers(0, 2**50))
LIMITS = st.sampled_from([64, 72, 90, 128, 512, 4096])


class Tenures(RuleBasedStateMachine):
    """Any interleaving of append, poll, start, finish, commit, failed commit, crash and move."""

    @initialize(limit=LIMITS, beginning=st.sampled_from([0, 5, 10**6]))
    def begin(self, limit: int, beginning: int) -> None:
        self.limit = limit
        self.beginning = self.log_end = beginning
        self.records: list[int] = []
        self.published: Counter[int] = Counter()  # what a reader of committed results sees
        self.committed: CommitPoint | None = None
        self.started_before_commit = beginning  # above every offset that was started before some commit
        self.epoch = 0
        self.stale: list[tuple[int, int]] = []  # work of earlier tenures that may still complete
        self.take_over()

    def take_over(self) -> None:
        self.epoch += 1
        self.offsets = PartitionOffsets(
            self.committed, epoch=self.epoch, beginning=self.beginning, limit=self.limit
        )
        self.open: dict[int, bool] = {}  # polled, not done; whether it was started
        self.finished: list[int] = []  # done, not published
        self.started = self.beginning
        self.seen = self.offsets.position

    # --- what happens ---

    @rule(gaps=st.lists(GAPS, min_size=1, max_size=12), marker=st.booleans())
    def append(self, gaps: list[int], marker: bool) -> None:
        for gap in gaps:
            self.records.append(self.log_end + gap)
            self.log_end += gap + 1
        self.log_end += marker

    @rule(most=st.integers(1, 12), by_room=st.booleans(), to_end=st.booleans())
    def poll(self, most: int, by_room: bool, to_end: bool) -> None:
        ahead = [record for record in self.records if record >= self.seen]
        allowed = min(most, self.offsets.room()) if by_room else most
        taken = 0
        for record in ahead[:allowed]:
            if not by_room and not self.offsets.fits(record):
                break
            taken += 1
            self.seen = record + 1
            if self.offsets.polled(record):
                assert record not in self.open, f"{record} was handed out twice"
                self.open[record] = False
        if to_end:
            self.seen = ahead[taken] if taken < len(ahead) else self.log_end
            self.offsets.advance(self.seen)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.open)))
        self.offsets.start(offset)
        self.open[offset] = True
        self.started = max(self.started, offset + 1)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Some of what is open, in any order; a rejected request is done without having been started."""
        for offset in data.draw(
            st.lists(st.sampled_from(sorted(self.open)), min_size=1, max_size=6, unique=True)
        ):
            self.complete(offset)

    def complete(self, offset: int) -> None:
        assert self.offsets.done(offset, self.epoch), f"the completion of {offset} was dropped"
        del self.open[offset]
        self.finished.append(offset)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def finish_late(self, data: st.DataObject) -> None:
        offset, epoch = data.draw(st.sampled_from(self.stale))
        assert not self.offsets.done(offset, epoch), (
            f"a completion of tenure {epoch} was taken in {self.epoch}"
        )

    @rule(data=st.data())
    def finish_twice(self, data: st.DataObject) -> None:
        if self.records:
            offset = data.draw(st.sampled_from(self.records))
            if offset not in self.open:
                assert not self.offsets.done(offset, self.epoch), (
                    f"{offset} is not outstanding, and was taken as done"
                )

    @rule()
    def commit(self) -> None:
        """Results and offsets, in one transaction."""
        point = self.offsets.commit_point()
        assert len(point.metadata) <= self.limit
        assert point.metadata.isascii()
        before = self.committed or CommitPoint(self.beginning, "")
        assert point.offset >= before.offset, "the frontier moved back"
        self.published.update(self.finished)
        self.finished.clear()
        self.committed = point
        self.started_before_commit = max(self.started_before_commit, self.started)
        assert not self.offsets.changed_since(point)

    @rule()
    def a_commit_fails(self) -> None:
        """The transaction is aborted: the broker keeps what it had, the worker what it has to publish."""
        self.offsets.commit_point()

    @rule()
    def crash_or_move(self) -> None:
        """Whatever was not committed is gone; its work may complete all the same, too late."""
        self.stale += [(offset, self.epoch) for offset in self.open]
        self.take_over()

    # --- what always holds ---

    @invariant()
    def nothing_is_published_twice(self) -> None:
        twice = [offset for offset, times in self.published.items() if times > 1]
        assert not twice, f"published twice: {twice}"

    @invariant()
    def what_is_committed_as_done_is_what_is_published(self) -> None:
        if self.committed is None:
            return
        frontier, metadata = self.committed
        progress = offset_encoding.decode(metadata, frontier, self.limit)
        for record in self.records:
            done = record < frontier or any(record in run for run in progress.done)
            assert done == (record in self.published), (
                f"{record}: committed as done {done}, published {not done}"
            )
        assert progress.started >= self.started_before_commit, (
            "an engine had something at or above the started mark"
        )

    @invariant()
    def the_frontier_is_where_the_first_open_record_is(self) -> None:
        waiting = list(self.open) + [record for record in self.records if self.is_ahead(record)]
        assert self.offsets.frontier <= min(waiting, default=self.log_end)
        if self.open:
            assert self.offsets.frontier == min(self.open)
        assert self.offsets.outstanding == len(self.open)
        assert self.offsets.started >= max(self.started, self.offsets.frontier)

    def is_ahead(self, record: int) -> bool:
        return record >= self.seen and record not in self.published

    @invariant()
    def there_is_room_for_one_when_nothing_is_outstanding(self) -> None:
        assert self.open or self.offsets.room() >= 1

    def teardown(self) -> None:
        """A last owner finishes everything: each record has its one result, and the lag is nought."""
        if not hasattr(self, "records"):
            return
        self.take_over()
        while True:
            self.poll(most=12, by_room=False, to_end=True)
            for offset in list(self.open):
                self.complete(offset)
            self.commit()
            if self.seen >= self.log_end:
                break
        self.nothing_is_published_twice()
        assert sorted(self.published) == self.records, "lost"
        assert self.committed is not None
        assert self.committed.offset == self.log_end, "lag"


class CheckedTenures(Tenures):
    """The same, asked for a commit point after each step. (That refreshes `room`.)"""

    @invariant()
    def what_was_polled_can_be_committed(self) -> None:
        assert len(self.offsets.commit_point().metadata) <= self.limit
