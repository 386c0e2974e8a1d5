"""No offset, no guess: whatever befalls the log and the offsets, no request is skipped or answered twice unless an
operator has accepted it, and never more of them than he was told.

The model knows which requests are open. Answers are committed as they are given. After every event a worker starts
anew: either what it would read is exactly what is open, or the partition is parked, and an operator accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.starting import Acceptance, Park, Start, done_within, where_to_start
from headrace.ops.offsets import PartitionOffsetsReport, consequence, place_to_resume

GROUP = "headrace.tagger.c1"
TP = TopicPartition(f"{GROUP}.requests.standard", 0)
LIMIT = 4096

EVENTS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 8)),
    st.tuples(st.just("append"), st.integers(1, 8)),
    st.tuples(st.just("answer"), st.integers(0, 30)),
    st.tuples(st.just("answer"), st.integers(0, 30)),
    st.tuples(st.just("retention"), st.integers(0, 8)),
    st.tuples(st.just("expire"), st.just(0)),
    st.tuples(st.just("spoil"), st.just(0)),
    st.tuples(st.just("cut back"), st.integers(0, 30)),
    st.tuples(st.just("make anew"), st.integers(0, 8)),
)
PLACES = st.one_of(st.none(), st.sampled_from(["beginning", "end"]), st.integers(0, 40))


@dataclass(slots=True)
class Request:
    """One record: whether it is still to be answered, and how often that may happen."""

    open: bool = True
    answers: int = 0
    allowed: int = 1


class Partition:
    """A log, what the group has committed for it, and the truth about its requests."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}  # those that retention removed too
        self.beginning = 0
        self.end = 0
        self.committed: CommitPoint | None = None
        self.known = False

    def befall(self, event: str, how: int) -> None:
        match event:
            case "append":
                self._append(how)
            case "answer":
                self._answer(how)
            case "retention":
                self._retention(min(self.beginning + how, self.end))
            case "expire":
                self.committed = None
            case "spoil":
                if self.committed is not None:
                    self.committed = CommitPoint(self.committed.offset, "h99;of a later release")
            case "cut back":
                self._cut_back(max(self.beginning, self.end - how))
            case _:
                # Kafka deletes a group's offsets with the topic; here they stay wherever that could be seen.
                reached = self._reached()
                self.requests, self.beginning, self.end = {}, 0, 0
                self._append(how)
                if self.committed is not None and reached <= self.end:
                    self.committed = None

    def _append(self, count: int) -> None:
        for offset in range(self.end, self.end + count):
            self.requests[offset] = Request()
        self.end += count

    def _answer(self, which: int) -> None:
        in_log = [offset for offset, each in self.requests.items() if each.open and offset >= self.beginning]
        if in_log:
            request = self.requests[in_log[which % len(in_log)]]
            request.open = False
            request.answers += 1
            assert request.answers <= request.allowed
        self.commit()

    def _retention(self, beginning: int) -> None:
        self.beginning = beginning
        if not self.known:  # what went before the group was ever there is not the group's
            self.requests = {offset: each for offset, each in self.requests.items() if offset >= beginning}

    def _cut_back(self, end: int) -> None:
        self.requests = {offset: each for offset, each in self.requests.items() if offset < end}
        self.end = end

    def _reached(self) -> int:
        return self.end if self.committed is None else max(self.committed.offset, 1)

    def commit(self) -> None:
        open_ones = [offset for offset, each in self.requests.items() if each.open]
        frontier = min(open_ones, default=self.end)
        done: list[range] = []
        for offset in range(frontier + 1, self.end):
            if self.requests[offset].open:
                continue
            if done and done[-1].stop == offset:
                done[-1] = range(done[-1].start, offset + 1)
            else:
                done.append(range(offset, offset + 1))
        metadata = offset_encoding.encode(frontier, Progress(self.end, tuple(done)), LIMIT)
        self.committed, self.known = CommitPoint(frontier, metadata), True

    def start(self, acceptance: Acceptance | None = None) -> Start | Park:
        return where_to_start(
            TP,
            self.committed,
            beginning=self.beginning,
            end=self.end,
            known=self.known,
            acceptance=acceptance,
            limit=LIMIT,
            group=GROUP,
        )

    def served_by(self, start: Start) -> set[int]:
        """What a worker that starts there answers, of what the log holds now."""
        assert self.beginning <= start.offset <= self.end
        done: tuple[range, ...] = ()
        if start.committed is not None:
            assert start.committed.offset <= start.offset
            done = offset_encoding.decode(start.committed.metadata, start.committed.offset, LIMIT).done
        return {
            each for each in range(start.offset, self.end) if not done_within(range(each, each + 1), done)
        }

    def open_in_log(self) -> set[int]:
        return {offset for offset, each in self.requests.items() if each.open and offset >= self.beginning}

    def open_and_removed(self) -> set[int]:
        return {offset for offset, each in self.requests.items() if each.open and offset < self.beginning}

    def accept(self, park: Park, at: Any) -> None:
        """An operator accepts; what comes of it is at most what he was told."""
        report = PartitionOffsetsReport(TP, "standard", self.beginning, self.end, self.committed, park, park)
        if isinstance(at, int):
            at = min(max(at, self.beginning), self.end)
        told = consequence(report, place_to_resume(report, at))
        start = self.start(Acceptance(self.committed, told.resume_at, "operator@host", 1))
        assert isinstance(start, Start)
        assert start.offset == told.resume_at
        served = self.served_by(start)
        again = served - self.open_in_log()
        skipped = self.open_in_log() - served
        lost = self.open_and_removed()
        assert len(again) <= told.again
        assert len(skipped) <= told.skipped
        if at is None and park.cause != "offsets_gone":
            assert not skipped
        if park.cause in ("retention", "unreadable"):  # else it is not known what was there
            assert len(lost) <= told.lost
        for offset in again:
            self.requests[offset].open = True
            self.requests[offset].allowed += 1
        for offset in skipped | lost:
            self.requests[offset].open = False
        self.commit()


@given(st.lists(st.tuples(EVENTS, PLACES), min_size=10, max_size=40))
@settings(max_examples=EXAMPLES, deadline=None)
def test_nothing_is_skipped_or_doubled_that_was_not_accepted(
    history: list[tuple[tuple[str, int], Any]],
) -> None:
    partition = Partition()
    for (event, how), at in history:
        partition.befall(event, how)
        decision = partition.start()
        if isinstance(decision, Park):
            partition.accept(decision, at)
            decision = partition.start()
            assert isinstance(decision, Start), "what was accepted is settled with the next commit"
        assert partition.served_by(decision) == partition.open_in_log()
        assert not partition.open_and_removed()


@given(st.lists(EVENTS, max_size=30), EVENTS, st.integers(0, 40))
@settings(max_examples=EXAMPLES, deadline=None)
def test_an_acceptance_for_an_earlier_state_changes_nothing(
    history: list[tuple[str, int]], last: tuple[str, int], at: int
) -> None:
    partition = Partition()
    for event, how in history:
        partition.befall(event, how)
    acceptance = Acceptance(partition.committed, at, "operator@host", 1)
    before = partition.committed
    partition.befall(*last)
    if partition.committed != before:
        assert partition.start(acceptance) == partition.start()
