"""Since when a new version is asked and answers nothing: by the controller's clock, and by what it has read."""

from __future__ import annotations

from headrace.consumers.rollouts import Planned, RolloutState
from headrace.ops.rollouts.steps import NO_ANSWER_S, GroupSeen
from headrace.ops.rollouts.watching import Answer, Watch

BEGAN_MS = 1_000_000
ASKED = GroupSeen(4, {"3": 2, "4": 2}, {"3": 1, "4": 1}, {}, waiting={"4": 5})
PLANNED = RolloutState(planned=Planned(shares={"3": 1, "4": 1}, step=0, at=BEGAN_MS))


def watching() -> Watch:
    watch = Watch("4")
    watch.follow(PLANNED)
    return watch


def answer(at_ms: int) -> Answer:
    return Answer("4", "ok", 100.0, 5, at_ms)


def test_a_version_that_answers_is_not_silent_though_its_workers_clock_is_behind() -> None:
    watch = watching()
    for second in range(60):
        now_ms = BEGAN_MS + 1000 * second
        watch.take(answer(now_ms - int(1000 * NO_ANSWER_S) - 5000))
        assert watch.look(ASKED, now_ms, caught_up=True).asked_since_ms == now_ms


def test_a_version_that_falls_silent_is_silent_though_its_workers_clock_is_ahead() -> None:
    watch = watching()
    watch.look(ASKED, BEGAN_MS, caught_up=True)
    watch.take(answer(BEGAN_MS + 3_600_000))
    last_ms = BEGAN_MS + 1000
    watch.look(ASKED, last_ms, caught_up=True)
    assert watch.look(ASKED, last_ms + 20_000, caught_up=True).asked_since_ms == last_ms


def test_a_version_that_is_asked_nothing_is_not_silent() -> None:
    watch = watching()
    watch.look(ASKED, BEGAN_MS, caught_up=True)
    idle = GroupSeen(4, {"3": 2, "4": 2}, {"3": 1, "4": 1}, {})
    assert watch.look(idle, BEGAN_MS + 1000, caught_up=True).asked_since_ms is None
