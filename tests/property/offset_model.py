"""A partition's log, a broker that keeps commits, and workers that come, finish in any order, and vanish.

`Tenures` is a Hypothesis state machine: it checks itself as it goes. `offset_deaths` has what it knows of deaths.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from property.offset_deaths import Witness, expected_after_an_engines_death

from headrace.consumers.offset_encoding import END, Progress, decode
from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import CommitPoint
from headrace.consumers.suspicion import MODES, Mode, Suspicion

GAPS = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 300), st.integers(0, 2**50))
LIMITS = st.sampled_from([64, 72, 90, 128, 200, 512, 4096, 4096, 4096])
BLOCKS = st.sampled_from([1, 2, 7, 40, 128])
FORMATS = st.sampled_from([1, 2, 2, 2])


class Tenures(RuleBasedStateMachine):
    """Any interleaving of append, poll, start, finish, commit, trial, death, crash, clean release and move."""

    @initialize(
        limit=LIMITS,
        block=BLOCKS,
        newest_format=FORMATS,
        beginning=st.sampled_from([0, 5, 10**6]),
        gaps=st.lists(GAPS, max_size=12),
        started=st.integers(0, 12),
        crashes=st.integers(0, 3),
    )
    def begin(
        self,
        limit: int,
        block: int,
        newest_format: int,
        beginning: int,
        gaps: list[int],
        started: int,
        crashes: int,
    ) -> None:
        """Owners that are at work already, and some that died, so that much happens in a short history."""
        self.limit, self.block, self.newest_format = limit, block, newest_format
        self.beginning = self.log_end = beginning
        self.records: list[int] = []
        self.published: Counter[int] = Counter()  # what a reader of committed results sees
        self.committed: CommitPoint | None = None
        self.said = Progress(beginning)  # what `committed` says
        self.committed_cleanly = True  # by an owner that had withdrawn, or nobody has been here
        self.epoch = 0
        self.stale: list[tuple[int, int]] = []  # work of earlier tenures that may still complete
        self.in_flight: set[int] = set()  # handed to an engine and not done, as far as this tenure knows
        self.take_over()
        if gaps:
            self.append(gaps, marker=False)
            self.poll(most=12, by_room=False, to_end=False)
            self.commit(most=started, last_first=False)
            for _ in range(crashes):
                self.the_owner_goes("crashes", at_work=True, most=started)

    def take_over(self) -> None:
        """The next tenure begins with what is committed; whoever had the partition is gone."""
        self.epoch += 1
        self.offsets = PartitionOffsets(
            self.committed,
            epoch=self.epoch,
            beginning=self.beginning,
            end=self.log_end,
            limit=self.limit,
            newest_format=self.newest_format,
            block=self.block,
        )
        frontier = self.committed.offset if self.committed else self.beginning
        witness = Witness(frontier, self.said, self.log_end, self.in_flight - set(self.published))
        witness.check(self.offsets, left_cleanly=self.committed_cleanly)
        self.deaths = {offset: suspicion.deaths for offset, suspicion in self.offsets.suspects().items()}
        self.open: dict[int, bool] = {}  # polled, not done; whether it was started
        self.finished: list[int] = []  # done, not published
        self.in_flight = set()
        self.withdrawn = False
        self.mode: Mode = "open"
        self.mark: int | None = None  # of this tenure's latest commit
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

    def may_be_handed_over(self, offset: int) -> bool:
        """Open, and not held back."""
        suspicion = self.offsets.suspicion(offset)
        return not self.open[offset] and (suspicion.deaths < 2 or suspicion.on_trial)

    @precondition(lambda self: self.open and not self.withdrawn)
    @rule(most=st.integers(1, 12), last_first=st.booleans())
    def start(self, most: int, last_first: bool) -> None:
        """Some of what is open, where `may_start` allows it: those that are on trial first."""
        candidates = sorted(filter(self.may_be_handed_over, self.open), reverse=last_first)
        candidates.sort(key=lambda offset: not self.offsets.suspicion(offset).on_trial)
        for offset in candidates[:most]:
            if self.offsets.may_start(offset):
                self.hand_over(offset)

    def hand_over(self, offset: int) -> None:
        assert offset < self.said.started, f"{offset} is started and not below the committed mark"
        assert not self.withdrawn, f"{offset} is started after the partition was given up"
        known, said = self.offsets.suspicion(offset), self.said.suspects.get(offset)
        now = self.offsets.commit_point()
        if offset in decode(now.metadata, now.offset, self.limit).suspects:  # there is room for it
            assert said is not None, f"{offset} is {known} and not committed as a suspect"
            assert said[:2] == known[:2], f"{offset} is {known} and committed as {said}"
            assert said.on_trial or not known.on_trial, f"the trial of {offset} is not committed"
            assert not known.on_trial or self.said.mode == self.mode, f"{offset} is tried in another mode"
        assert known.on_trial or self.said.mode != "alone", f"{offset} is started beside one that is alone"
        self.offsets.start(offset)
        self.open[offset] = True
        self.in_flight.add(offset)

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
        assert self.offsets.suspicion(offset) == Suspicion(), f"{offset} is done and still suspected"
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

    # --- commits ---

    def publish(self) -> CommitPoint:
        """Results and offsets, in one transaction, of which the worker does not know yet."""
        point = self.offsets.commit_point()
        assert len(point.metadata) <= self.limit
        assert point.metadata.isascii()
        before = self.committed or CommitPoint(self.beginning, "")
        assert point.offset >= before.offset, "the frontier moved back"
        self.published.update(self.finished)
        self.finished.clear()
        self.committed, self.committed_cleanly = point, self.withdrawn
        self.said = decode(point.metadata, point.offset, self.limit)
        self.check_mark(point.offset)
        self.check_suspects()
        return point

    def check_mark(self, frontier: int) -> None:
        mark, self.mark = self.mark, self.said.started
        if self.withdrawn:
            assert self.said.started == frontier, "withdrawn, and the mark is not at the frontier"
            return
        above = max([self.offsets.position, frontier, *(offset + 1 for offset in self.in_flight)])
        assert 2 * (self.said.started - above) >= self.block, "less than half a block is left"
        assert self.said.started <= min(above + self.block, END), "the mark is more than a block ahead"
        if mark is not None and 2 * (mark - above) >= self.block:
            assert self.said.started == mark, "the mark moved, and did not need to"

    def check_suspects(self) -> None:
        """What is committed is what is known, but for the least suspected where there is no room."""
        known, said = self.offsets.suspects(), self.said.suspects
        if self.newest_format == 1:
            assert not said
            assert self.said.mode == "open"
            return
        assert self.said.mode == self.mode
        assert {offset: known[offset] for offset in said} == said
        if self.limit == 4096:
            assert said == known
        left_out = [_weight(known[offset]) for offset in known if offset not in said]
        written = [_weight(suspicion) for suspicion in said.values()]
        assert max(left_out, default=(False, 0, 0)) <= min(written, default=(True, END, END))

    @rule(most=st.integers(0, 12), last_first=st.booleans())
    def commit(self, most: int, last_first: bool) -> None:
        """As in a worker: what may be started after it is started."""
        point = self.publish()
        self.offsets.committed(point)
        assert not self.offsets.changed_since(point)
        assert not self.offsets.wants_mark()
        self.start(most, last_first)

    @rule()
    def a_commit_fails(self) -> None:
        """The transaction is aborted: the broker keeps what it had, the worker what it has to publish."""
        self.offsets.commit_point()

    # --- trials, and owners that go ---

    def no_trial_in_flight(self) -> bool:
        return not any(self.offsets.suspicion(offset).on_trial for offset in self.in_flight & set(self.open))

    @precondition(lambda self: self.offsets.suspects() and self.no_trial_in_flight())
    @rule(
        mode=st.sampled_from(MODES),
        most=st.integers(0, 3),
        then=st.sampled_from(["nothing", "they start", "the worker dies of it"]),
    )
    def try_suspects(self, mode: Mode, most: int, then: str) -> None:
        """The most suspected of those that wait; they start as soon as they may."""
        suspects = dict(self.offsets.suspects())
        likely = sorted(suspects, key=lambda each: (self.open.get(each, True), -suspects[each].deaths, each))
        chosen = likely[:most]
        self.mode = mode
        self.offsets.set_mode(mode)
        self.offsets.put_on_trial(chosen)
        assert dict(self.offsets.suspects()) == {
            offset: suspicion._replace(on_trial=offset in chosen) for offset, suspicion in suspects.items()
        }
        if then != "nothing":
            self.start(most=3, last_first=False)
            self.commit(most=3, last_first=False)
        if then == "the worker dies of it":
            self.the_owner_goes("crashes", at_work=True, most=0)

    @precondition(lambda self: self.in_flight and not self.withdrawn)
    @rule(finishing=st.integers(0, 2))
    def the_engine_dies(self, finishing: int) -> None:
        """With what was in it, some of which had finished, the last of it just now."""
        for offset in sorted(self.in_flight & set(self.open))[:finishing]:
            self.complete(offset)
        known = dict(self.offsets.suspects())
        running = self.in_flight & set(self.open)
        self.offsets.engine_died(sorted(self.in_flight))
        assert dict(self.offsets.suspects()) == expected_after_an_engines_death(known, running, self.mode)
        self.withdrawn = True

    @precondition(lambda self: self.in_flight)
    @rule()
    def withdraw(self) -> None:
        self.offsets.withdraw()
        self.withdrawn = True
        assert not self.offsets.wants_mark()

    @rule(
        how=st.sampled_from(["crashes", "crashes", "commits", "leaves", "with its successor"]),
        at_work=st.booleans(),
        most=st.integers(0, 3),
    )
    def the_owner_goes(self, how: str, at_work: bool, most: int) -> None:
        """It crashes, perhaps after a commit of which it does not hear; or it leaves cleanly.

        `at_work`: the next one polls and commits at once, and starts up to `most`.
        """
        if how == "leaves":
            self.withdraw()
        if how in ("leaves", "commits"):
            self.publish()
        # Whatever was not committed is gone; its work may complete all the same, too late.
        self.stale += [(offset, self.epoch) for offset in self.open]
        self.take_over()
        if how == "with its successor":  # which has not committed yet, and leaves no trace
            suspects = dict(self.offsets.suspects())
            self.offsets.commit_point()
            self.take_over()
            assert dict(self.offsets.suspects()) == suspects
        if at_work:
            self.poll(most=12, by_room=False, to_end=False)
            self.start(most=most, last_first=False)  # what may be before the first commit
            self.commit(most=most, last_first=True)

    # --- what always holds ---

    @invariant()
    def nothing_is_published_twice(self) -> None:
        twice = [offset for offset, times in self.published.items() if times > 1]
        assert not twice, f"published twice: {twice}"

    @invariant()
    def what_is_committed_as_done_is_what_is_published(self) -> None:
        if self.committed is None:
            return
        for record in self.records:
            done = record < self.committed.offset or any(record in run for run in self.said.done)
            assert done == (record in self.published), (
                f"{record}: committed as done {done}, published {not done}"
            )

    @invariant()
    def the_frontier_is_where_the_first_open_record_is(self) -> None:
        waiting = list(self.open) + [record for record in self.records if self.is_ahead(record)]
        assert self.offsets.frontier <= min(waiting, default=self.log_end)
        if self.open:
            assert self.offsets.frontier == min(self.open)
        assert self.offsets.outstanding == len(self.open)
        assert self.offsets.started >= max([self.offsets.frontier, *(each + 1 for each in self.in_flight)])

    def is_ahead(self, record: int) -> bool:
        return record >= self.seen and record not in self.published

    @invariant()
    def what_is_not_held_back_may_start_or_a_commit_is_wanted(self) -> None:
        if self.withdrawn or self.offsets.wants_mark():
            return
        for offset in self.open:
            tried = self.offsets.suspicion(offset).on_trial
            if self.limit == 4096 if tried else self.mode != "alone":
                assert self.offsets.may_start(offset), f"{offset} waits for a commit that nobody wants"

    @invariant()
    def there_is_room_for_one_when_nothing_is_outstanding(self) -> None:
        assert self.open or self.offsets.room() >= 1

    @invariant()
    def deaths_are_not_forgotten(self) -> None:
        for offset, deaths in self.deaths.items():
            if offset in self.open or (offset in self.records and offset >= self.seen):
                assert self.offsets.suspicion(offset).deaths >= deaths, f"a death of {offset} was forgotten"

    @invariant()
    def what_is_done_or_has_no_record_is_not_suspected(self) -> None:
        for offset in self.offsets.suspects():
            assert offset in self.open or offset >= self.seen

    def teardown(self) -> None:
        """A last owner finishes everything: each record has its one result, and the lag is nought."""
        if not hasattr(self, "records"):
            return
        self.take_over()
        while True:
            self.poll(most=12, by_room=False, to_end=True)
            for offset in list(self.open):
                self.complete(offset)
            self.commit(most=0, last_first=False)
            if self.seen >= self.log_end:
                break
        self.nothing_is_published_twice()
        assert sorted(self.published) == self.records, "lost"
        assert self.committed is not None
        assert self.committed.offset == self.log_end, "lag"
        assert not self.offsets.suspects()


class CheckedTenures(Tenures):
    """The same, asked for a commit point after each step. (That refreshes `room`.)"""

    @invariant()
    def what_was_polled_can_be_committed(self) -> None:
        assert len(self.offsets.commit_point().metadata) <= self.limit


def _weight(suspicion: Suspicion) -> tuple[bool, int, int]:
    """The greater, the more suspected."""
    return suspicion.on_trial, suspicion.deaths, suspicion.alone
