"""What a controller does to any world: a good version gets there, a bad one is taken back, nobody says otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from property.rollout_step_mutants import BUGS
from property.rollout_world import NEW, OLD, NewIs, World
from property_examples import EXAMPLES

from headrace.consumers.rollouts import Planned, Progress, Rollback
from headrace.ops.rollouts.evidence import LEAST
from headrace.ops.rollouts.steps import NO_ANSWER_S, steps_without_a_unit

UNITS = st.integers(1, 24)
PERCENTS = st.lists(st.integers(1, 99), max_size=4, unique=True).map(lambda few: [*sorted(few), 100])
HAPPENINGS = st.lists(
    st.sampled_from(
        (
            "wait",
            "wait",
            "wait",
            "kill",
            "start",
            "take_over",
            "unwatched",
            "pause",
            "go_on",
            "promote",
            "undo",
        )
    ),
    max_size=20,
)
ENOUGH_S = 600


@st.composite
def worlds(draw: st.DrawFn, new: NewIs) -> World:
    # A bad version is taken back within so many seconds by controllers that have read what it answered.
    clock_s, reads_s = (draw(st.integers(-40, 40)), draw(st.integers(0, 40))) if new == "good" else (0, 0)
    return World(
        new,
        draw(UNITS),
        draw(PERCENTS),
        draw(st.integers(20, 60)),
        draw(st.integers(0, 20)),
        draw(st.integers(0, 99)),
        clock_s,
        reads_s,
    )


def happen(world: World, happenings: list[str]) -> None:
    for each in happenings:
        if each == "kill":
            world.kill(NEW)
        elif each == "start":
            world.start(NEW)
        elif each == "take_over":
            world.take_over()
        elif each == "undo":
            world.undo()
        elif each in ("pause", "go_on", "promote"):
            world.wish(each)  # pyright: ignore[reportArgumentType]
        for _ in range(3):
            world.second(controlled=each != "unwatched")


def run_on(world: World, until: Callable[[], bool], seconds: int = ENOUGH_S) -> bool:
    for _ in range(seconds):
        if until():
            return True
        world.second()
    return until()


def check_orderly(world: World) -> None:
    """Holds for every history."""
    plans = [each for each in world.written if isinstance(each, Planned)]
    undone = [index for index, each in enumerate(world.written) if isinstance(each, Rollback)]
    assert len(undone) <= 1
    assert not undone or undone[0] == len(world.written) - 1, "a rollback is a controller's last word"
    taken = [each.step for each in plans]
    assert taken == sorted(set(taken)), "steps are taken in order, and once"
    for before, after in zip(world.written, world.written[1:], strict=False):
        if isinstance(before, Progress) and before.state == "finished":
            pytest.fail(f"{after} after the end")


def check_good(world: World) -> None:
    """A version that is good and lives gets all, whatever was before, unless somebody has taken it back."""
    world.start(NEW)
    if world.state.wish == "pause":
        world.wish("go_on")
    run_on(world, lambda: not world.state.is_open)
    check_orderly(world)
    if world.state.rollback is not None:
        assert world.operator_undid or "no worker any more" in world.state.rollback.why
        world.second()
        assert world.owned == {OLD: world.units, NEW: 0}
        return
    assert not world.state.is_open, world.said[-3:]
    world.second()
    assert world.owned == {OLD: 0, NEW: world.units}


def check_bad(world: World) -> None:
    """Taken back within LEAST answers and a second's more, or 15 s and two, and never given more than one step."""
    passed_over = steps_without_a_unit(world.state.rollout, world.units)  # pyright: ignore[reportArgumentType]
    first = len(passed_over)
    assert run_on(world, lambda: world.owned[NEW] > 0 or world.state.rollback is not None)
    began_s = world.now_s
    assert run_on(world, lambda: world.state.rollback is not None), world.said[-3:]
    taken_s = world.now_s - began_s
    answered = sum(answer.version == NEW for answer in world.answers)
    assert taken_s <= NO_ANSWER_S + 2 or answered <= LEAST + 2 * world.rate
    plans = [each for each in world.written if isinstance(each, Planned)]
    assert [each.step for each in plans] == [first]
    world.second()
    assert world.owned == {OLD: world.units, NEW: 0}
    check_orderly(world)


QUICK = settings(max_examples=EXAMPLES, deadline=None)


@QUICK
@given(worlds("good"), HAPPENINGS)
def test_a_good_version_gets_everything_whatever_happens_on_the_way(
    world: World, happenings: list[str]
) -> None:
    happen(world, happenings)
    check_good(world)


@QUICK
@given(worlds("bad"))
def test_a_version_that_fails_everything_is_taken_back_from_its_first_step(world: World) -> None:
    check_bad(world)


@QUICK
@given(worlds("silent"))
def test_a_version_that_answers_nothing_is_taken_back_from_its_first_step(world: World) -> None:
    check_bad(world)


@QUICK
@given(worlds("bad"), HAPPENINGS)
def test_whatever_happens_a_bad_version_never_ends_up_with_everything(
    world: World, happenings: list[str]
) -> None:
    happen(world, [each for each in happenings if each != "promote"])
    run_on(world, lambda: not world.state.is_open, 60)
    check_orderly(world)
    assert not any(isinstance(each, Progress) and each.state == "finished" for each in world.written)


@pytest.mark.parametrize("name", BUGS)
def test_a_deliberate_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)

    @settings(QUICK, max_examples=max(EXAMPLES, 500), database=None, phases=[Phase.generate])
    @given(worlds("good"), worlds("bad"), worlds("silent"), HAPPENINGS)
    def laws(good: World, bad: World, silent: World, happenings: list[str]) -> None:
        happen(good, happenings)
        check_good(good)
        check_bad(bad)
        check_bad(silent)

    with pytest.raises((AssertionError, ExceptionGroup)):
        laws()
