"""Deliberate bugs in what a rollout does next: the worlds must find every one."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.consumers.rollouts import Progress, RolloutState
from headrace.ops.rollouts import evidence, steps, watching
from headrace.ops.rollouts.steps import Next, Seen

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}

move = steps._move
hold = steps._hold
look = watching.Watch.look
take = watching.Watch.take


def bug(apply: Bug) -> Bug:
    BUGS[apply.__name__] = apply
    return apply


@bug
def limits_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "broken_limit", lambda *_: None)


@bug
def three_failures_are_enough(patch: pytest.MonkeyPatch) -> None:
    """Found where a good version's few answers come with one that failed: here, that it never finds out."""
    patch.setattr(evidence, "LEAST", 10_000)


@bug
def silence_is_patience(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "_no_progress", lambda *_: None)


@bug
def a_step_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    def at_once(rollout: Any, state: Any, progress: Progress, seen: Seen) -> Next:
        patient = replace(seen, new=evidence.Tally(answers=1000))
        return hold(rollout, state, progress.model_copy(update={"since": 0}), patient)

    patch.setattr(steps, "_hold", at_once)
    patch.setattr(steps, "broken_limit", lambda *_: None)


@bug
def the_last_step_never_ends(patch: pytest.MonkeyPatch) -> None:
    def endless(rollout: Any, state: Any, progress: Progress, seen: Seen) -> Next:
        found = hold(rollout, state, progress, seen)
        ends = found.progress is not None and found.progress.state == "finished"
        return Next("on and on") if ends else found

    patch.setattr(steps, "_hold", endless)


@bug
def units_that_cannot_come_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    def strict(rollout: Any, state: RolloutState, progress: Progress, seen: Seen) -> Next:
        more = replace(seen.group, units=seen.group.units + 1)
        return move(rollout, state, progress, replace(seen, group=more))

    patch.setattr(steps, "_move", strict)


@bug
def a_controller_that_takes_over_begins_anew(patch: pytest.MonkeyPatch) -> None:
    decide = steps.decide

    def forgetful(state: RolloutState, seen: Seen) -> Next:
        first = seen.new.answers < 3 and state.planned is not None
        if first and state.progress and state.progress.state == "holding" and state.progress.step > 0:
            state = replace(state, progress=Progress(step=0, state="waiting", since=seen.now_ms))
        return decide(state, seen)

    patch.setattr(steps, "decide", forgetful)


@bug
def a_dead_version_is_waited_for_no_longer_than_a_silent_one(patch: pytest.MonkeyPatch) -> None:
    def forever(self: watching.Watch, group: Any, now_ms: int, *, caught_up: bool) -> Seen:
        return replace(look(self, group, now_ms, caught_up=caught_up), asked_since_ms=now_ms)

    patch.setattr(watching.Watch, "look", forever)


@bug
def what_was_not_read_yet_passes_for_silence(patch: pytest.MonkeyPatch) -> None:
    def impatient(self: watching.Watch, group: Any, now_ms: int, *, caught_up: bool) -> Seen:
        return look(self, group, now_ms, caught_up=True)

    patch.setattr(watching.Watch, "look", impatient)


@bug
def the_workers_clocks_are_trusted(patch: pytest.MonkeyPatch) -> None:
    def trusting(self: watching.Watch, answer: watching.Answer) -> None:
        take(self, answer)
        self._answered = False
        if answer.version == self._to and self._asked_since_ms is not None:
            self._asked_since_ms = max(self._asked_since_ms, answer.at_ms)

    patch.setattr(watching.Watch, "take", trusting)
