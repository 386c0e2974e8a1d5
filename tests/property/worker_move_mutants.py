"""Deliberate bugs in what a worker begins, drains and lets go: the group model must find every one.

Each is a function of pytest's monkeypatch that changes one thing for the duration of a test.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from property.worker_mutants import Bug

from headrace.consumers.offset_encoding import Progress
from headrace.consumers.suspects import Suspects
from headrace.workers import dispatch as dispatch_module
from headrace.workers import pump as pump_module
from headrace.workers.dispatch import Dispatch
from headrace.workers.drains import Drains
from headrace.workers.ledger import Ledger
from headrace.workers.moving import Moves
from headrace.workers.partitions import Partitions
from headrace.workers.trials import Trials
from headrace.workers.work import Work

MOVE_BUGS: dict[str, Bug] = {}


def bug(apply: Bug) -> Bug:
    MOVE_BUGS[apply.__name__] = apply
    return apply


def nothing(*_: Any, **__: Any) -> None:
    """Done in the place of something."""


# --- drains ---


@bug
def a_unit_is_let_go_while_results_of_it_are_unpublished(patch: pytest.MonkeyPatch) -> None:
    step = Drains.step
    done = {"unpublished": False, "settled": True}
    patch.setattr(Drains, "step", lambda self, unit, **state: step(self, unit, **{**state, **done}))


@bug
def a_unit_is_let_go_while_it_is_in_the_engine(patch: pytest.MonkeyPatch) -> None:
    step = Drains.step
    patch.setattr(Drains, "step", lambda self, unit, **state: step(self, unit, **{**state, "in_flight": 0}))


@bug
def a_unit_is_let_go_and_not_withdrawn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "withdraw", nothing)


@bug
def what_is_withdrawn_is_served_on_after_a_cancelled_drain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partitions, "begin_anew", nothing)


@bug
def what_the_loop_gives_back_is_not_begun_again_after_a_cancelled_drain(patch: pytest.MonkeyPatch) -> None:
    def swallow(self: Dispatch, works: list[Work]) -> None:
        for work in works:
            self._ledger.handed_back(work.source, work.offset, work.epoch)

    patch.setattr(Dispatch, "taken_back", swallow)


@bug
def a_unit_that_drains_is_begun_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatch, "drain", nothing)


@bug
def reading_is_still_held_back_after_a_unit_was_let_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Moves, "_tell_what_drains", nothing)


# --- trials and deaths ---


@bug
def a_trial_begins_before_its_commit(patch: pytest.MonkeyPatch) -> None:
    begin_trial = Dispatch.begin_trial

    def at_once(self: Dispatch) -> None:
        before = self._trials.under_way
        begin_trial(self)
        trial = self._trials.under_way
        if trial is not None and trial is not before:
            self._trial_begun = True
            self._ready += trial.works

    patch.setattr(Dispatch, "begin_trial", at_once)


@bug
def a_trial_is_not_called_off_by_a_drain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatch, "_call_off", nothing)


@bug
def a_suspect_is_not_held_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dispatch_module, "is_suspect", lambda suspicion: False)


@bug
def a_trial_does_not_end_with_its_partition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatch, "_trial_is_over", nothing)


@bug
def works_are_begun_after_the_engines_death(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatch, "stop", nothing)
    patch.setattr(Ledger, "engine_died", nothing)


@bug
def one_that_was_alone_is_not_convicted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatch, "on_trial_alone", nothing)
    patch.setattr(pump_module, "is_convicted", lambda suspicion: False)


# --- alone ---


@bug
def one_is_tried_alone_while_others_are_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "anything_in_flight", False)


@bug
def others_are_begun_while_one_waits_to_be_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatch, "_makes_room", False)


@bug
def one_that_was_to_be_alone_is_given_back_and_waits_like_any_other(patch: pytest.MonkeyPatch) -> None:
    def wait(self: Dispatch, works: list[Work]) -> None:
        for work in reversed(works):
            if self._ledger.handed_back(work.source, work.offset, work.epoch):
                self._waiting.setdefault(work.source, deque()).appendleft(work)
        for source in {work.source for work in works} & self._waiting.keys():
            self._let_through(source)

    patch.setattr(Dispatch, "taken_back", wait)


# --- after a conviction ---


@bug
def nobody_is_exonerated_by_a_conviction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "exonerate", nothing)


@bug
def the_exonerated_are_begun_before_that_is_committed(patch: pytest.MonkeyPatch) -> None:
    exonerate = Suspects.exonerate

    def at_once(self: Suspects) -> None:
        exonerate(self)
        self._exonerated.clear()

    patch.setattr(Suspects, "exonerate", at_once)


@bug
def the_exonerated_are_never_begun(patch: pytest.MonkeyPatch) -> None:
    release = Trials.release
    patch.setattr(Trials, "release", lambda self: release(self)[:0])


@bug
def the_exonerated_stay_barred_after_that_is_committed(patch: pytest.MonkeyPatch) -> None:
    committed = Suspects.committed

    def barred(self: Suspects, progress: Progress) -> None:
        exonerated = set(self._exonerated)
        committed(self, progress)
        self._exonerated |= exonerated

    patch.setattr(Suspects, "committed", barred)
