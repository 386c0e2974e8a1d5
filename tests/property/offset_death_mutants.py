"""Deliberate bugs in what is counted at a death, written ahead, and tried: the properties must find every one.

Each is a function of pytest's monkeypatch, as in `offset_mutants`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from property.offset_mutants import found_by

from headrace.consumers import offset_encoding, suspect_encoding, suspects
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import CommitPoint
from headrace.consumers.suspects import Suspects
from headrace.consumers.suspicion import Mode, Suspicion


def _replace(patch: pytest.MonkeyPatch, name: str, value: object) -> None:
    patch.setattr(PartitionOffsets, name, value)


# --- the mark, written ahead ---


@found_by("tenures")
def the_mark_is_not_written_ahead(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "_moved_mark", lambda self: self.started)


@found_by("tenures")
def the_mark_creeps(patch: pytest.MonkeyPatch) -> None:
    def moved_mark(self: PartitionOffsets) -> int:
        return self.frontier if self._withdrawn else min(self.position + self._block, offset_encoding.END)

    _replace(patch, "_moved_mark", moved_mark)


@found_by("tenures")
def a_mark_that_is_not_committed_counts(patch: pytest.MonkeyPatch) -> None:
    def commit_point(self: PartitionOffsets) -> CommitPoint:
        point = original(self)
        self._startable = self._mark
        return point

    original = PartitionOffsets.commit_point
    _replace(patch, "commit_point", commit_point)


@found_by("tenures")
def the_predecessors_mark_counts_before_its_death_is_committed(patch: pytest.MonkeyPatch) -> None:
    changed_since = PartitionOffsets.changed_since

    def changed(self: PartitionOffsets, point: CommitPoint | None) -> bool:
        in_constructor = not hasattr(self, "_startable")
        return not in_constructor and changed_since(self, point)

    _replace(patch, "changed_since", changed)


@found_by("tenures")
def a_predecessors_far_mark_is_kept(patch: pytest.MonkeyPatch) -> None:
    init = PartitionOffsets.__init__

    def keep(self: PartitionOffsets, committed: CommitPoint | None, **of: object) -> None:
        init(self, committed, **of)
        if committed is not None:
            limit = self._limit
            self._mark = max(
                self._mark, offset_encoding.decode(committed.metadata, committed.offset, limit).started
            )

    _replace(patch, "__init__", keep)


@found_by("tenures")
def no_commit_is_ever_wanted(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "wants_mark", lambda self: False)


@found_by("tenures")
def a_withdrawal_leaves_the_mark_where_it_is(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "withdraw", lambda self: None)


@found_by("tenures")
def the_engine_goes_on_after_a_withdrawal(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "may_start", lambda self, offset: offset < self._startable)


# --- deaths ---


def _counted_by(patch: pytest.MonkeyPatch, rule: Callable[[Suspicion, Mode], bool]) -> None:
    patch.setattr(suspects, "is_counted", rule)


@found_by("tenures")
def a_silent_death_is_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(suspects, "_found_dead", lambda frontier, committed, end: {})


@found_by("tenures")
def what_lies_beyond_the_logs_end_is_suspected(patch: pytest.MonkeyPatch) -> None:
    found = suspects._found_dead
    patch.setattr(
        suspects,
        "_found_dead",
        lambda frontier, committed, end: found(frontier, committed, committed.started),
    )


@found_by("tenures")
def what_is_done_is_suspected(patch: pytest.MonkeyPatch) -> None:
    found = suspects._found_dead
    patch.setattr(
        suspects,
        "_found_dead",
        lambda frontier, committed, end: found(
            frontier, committed._replace(done=()), min(end, frontier + 500)
        ),
    )


@found_by("tenures")
def bystanders_of_a_trial_are_suspected(patch: pytest.MonkeyPatch) -> None:
    _counted_by(patch, lambda before, mode: before.on_trial or before.deaths < 2)


@found_by("tenures")
def what_was_held_back_is_suspected_more(patch: pytest.MonkeyPatch) -> None:
    _counted_by(patch, lambda before, mode: mode == "open" or before.on_trial)


@found_by("tenures")
def what_is_on_trial_is_counted_in_a_trial_alone(patch: pytest.MonkeyPatch) -> None:
    _counted_by(
        patch,
        lambda before, mode: before.deaths < 2 and not before.on_trial if mode == "open" else before.on_trial,
    )


@found_by("tenures")
def every_death_counts_as_one_alone(patch: pytest.MonkeyPatch) -> None:
    once_more = suspects.one_more_death
    patch.setattr(suspects, "one_more_death", lambda before, alone: once_more(before, alone=True))


@found_by("tenures")
def no_death_counts_as_one_alone(patch: pytest.MonkeyPatch) -> None:
    once_more = suspects.one_more_death
    patch.setattr(suspects, "one_more_death", lambda before, alone: once_more(before, alone=False))


@found_by("tenures")
def only_those_that_died_again_stay_suspects(patch: pytest.MonkeyPatch) -> None:
    init = Suspects.__init__

    def forgetful(self: Suspects, frontier: int, committed: Progress, end: int) -> None:
        init(self, frontier, committed, end)
        counted = suspects._found_dead(frontier, committed, end)
        for offset in set(self._suspicions) - set(counted):
            del self._suspicions[offset]
        self._unseen.clear()
        self._unseen.extend(self._suspicions)

    patch.setattr(Suspects, "__init__", forgetful)


@found_by("tenures")
def suspicion_outlives_its_request(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Suspects, "done", lambda self, offset: None)


@found_by("tenures")
def what_has_no_record_stays_suspected(patch: pytest.MonkeyPatch) -> None:
    def passed(self: Suspects, position: int, outstanding: dict[int, None]) -> None:
        while self._unseen and self._unseen[0] < position - 1:
            offset = self._unseen.popleft()
            if offset not in outstanding:
                self._suspicions.pop(offset, None)

    patch.setattr(Suspects, "passed", passed)


@found_by("tenures")
def what_is_polled_is_suspected_no_more(patch: pytest.MonkeyPatch) -> None:
    passed = Suspects.passed
    patch.setattr(Suspects, "passed", lambda self, position, outstanding: passed(self, position, ()))


@found_by("tenures")
def an_engines_death_is_held_against_what_had_finished(patch: pytest.MonkeyPatch) -> None:
    def engine_died(self: PartitionOffsets, in_flight: list[int]) -> None:
        self._suspects.died(in_flight)
        self.withdraw()

    _replace(patch, "engine_died", engine_died)


@found_by("tenures")
def an_engines_death_is_found_again_by_the_successor(patch: pytest.MonkeyPatch) -> None:
    def engine_died(self: PartitionOffsets, in_flight: list[int]) -> None:
        self._suspects.died(set(in_flight).intersection(self._outstanding))

    _replace(patch, "engine_died", engine_died)


@found_by("tenures")
def a_trial_begins_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Suspects, "may_start", lambda self, offset: True)


@found_by("tenures")
def bystanders_start_beside_one_that_is_alone(patch: pytest.MonkeyPatch) -> None:
    may_start = Suspects.may_start
    patch.setattr(
        Suspects, "may_start", lambda self, offset: not self.of(offset).on_trial or may_start(self, offset)
    )


@found_by("tenures")
def a_trial_is_not_committed_until_something_else_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Suspects, "want_commit", lambda self: False)


@found_by("tenures")
def a_trial_outlives_its_worker(patch: pytest.MonkeyPatch) -> None:
    init = Suspects.__init__

    def go_on(self: Suspects, frontier: int, committed: Progress, end: int) -> None:
        init(self, frontier, committed, end)
        for offset, suspicion in self._suspicions.items():
            tried = committed.suspects.get(offset, Suspicion()).on_trial
            self._suspicions[offset] = suspicion._replace(on_trial=tried)

    patch.setattr(Suspects, "__init__", go_on)


@found_by("tenures")
def earlier_suspects_stay_on_trial(patch: pytest.MonkeyPatch) -> None:
    def put_on_trial(self: Suspects, offsets: list[int]) -> None:
        original(self, {*offsets, *(each for each, (_, _, on_trial) in self._suspicions.items() if on_trial)})

    original = Suspects.put_on_trial
    patch.setattr(Suspects, "put_on_trial", put_on_trial)


# --- suspects in the string ---


@found_by("tenures")
def an_old_format_gets_suspects(patch: pytest.MonkeyPatch) -> None:
    fits = offset_encoding.what_fits
    patch.setattr(
        offset_encoding, "what_fits", lambda frontier, progress, limit, _: fits(frontier, progress, limit, 2)
    )


@found_by("tenures")
def suspects_are_written_whatever_the_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offset_encoding, "what_fits", lambda frontier, progress, limit, _: progress)


@found_by("suspects_room")
def the_most_suspected_are_left_out(patch: pytest.MonkeyPatch) -> None:
    rank = suspect_encoding._least_suspected_last
    patch.setattr(suspect_encoding, "_least_suspected_last", lambda run: tuple(-part for part in rank(run)))


@found_by("suspects_room")
def all_suspects_are_left_out_where_one_does_not_fit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        offset_encoding,
        "runs_within",
        lambda runs, budget: runs if suspect_encoding._fit(runs, budget) else [],
    )


@found_by("round_trip")
def suspects_are_numbered_with_what_is_done(patch: pytest.MonkeyPatch) -> None:
    runs = suspect_encoding.suspect_runs
    patch.setattr(
        offset_encoding, "suspect_runs", lambda suspects, frontier, done: runs(suspects, frontier, ())
    )


@found_by("round_trip")
def suspects_that_follow_each_other_are_taken_for_alike(patch: pytest.MonkeyPatch) -> None:
    runs = suspect_encoding.suspect_runs

    def alike(
        of: dict[int, Suspicion], frontier: int, done: tuple[range, ...]
    ) -> list[suspect_encoding.SuspectRun]:
        first = next(iter(of.values()))
        return runs(dict.fromkeys(of, first), frontier, done)

    patch.setattr(offset_encoding, "suspect_runs", alike)


@found_by("round_trip")
def the_mode_is_not_written(patch: pytest.MonkeyPatch) -> None:
    encode = offset_encoding.encode
    patch.setattr(
        offset_encoding,
        "encode",
        lambda frontier, progress, limit: encode(frontier, progress._replace(mode="open"), limit),
    )
