"""What `headrace bench rollout` makes of recorded results, and the assignor's time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.ops.bench.assignor_time import AssignorFigures, goals, measure
from headrace.ops.bench.ground import BenchFailed
from headrace.ops.bench.move_figures import Mark
from headrace.ops.bench.recording import Answered
from headrace.ops.bench.rollout_figures import (
    RollbackFigures,
    RolloutFigures,
    StepFigures,
    answered_again,
    rollback_goals,
    rollout_goals,
    step_goals,
    sum_up_rollback,
    sum_up_step,
)

PLANNED = 100.0


def every(step: float, begins: float, ends: float, unit: int, version: str) -> list[Answered]:
    """A unit's results at an even pace, the first one a step after the beginning."""
    count = int((ends - begins) / step + 1e-9)
    return [
        Answered(
            f"{unit}-{version}-{number}",
            unit,
            f"slot-{version}",
            begins + step * (number + 1),
            version=version,
        )
        for number in range(count)
    ]


def a_step(stays: str = "1") -> list[Answered]:
    """Unit 0 moves from version 1 to version 2, unit 1 does not; both are asked twice a second."""
    return [
        *every(0.5, 90, 101, 0, "1"),
        *every(0.5, 102, 110, 0, "2"),
        *every(0.5, 90, 110, 1, stays),
    ]


def step_of(answered: list[Answered], *marks: Mark) -> StepFigures:
    return sum_up_step(
        answered, marks, to="2", percent=50, steady_from=92, planned_at=PLANNED, until=110, killed=None
    )


def test_a_step_takes_until_the_new_owners_first_result_and_draining_does_not_count() -> None:
    drains = Mark(100.5, "slot-1", "draining", frozenset({0}))
    lets_go = Mark(101.75, "slot-1", "letting go of", frozenset({0}))
    figures = step_of(a_step(), drains, lets_go)
    assert (figures.moved, figures.units) == (1, 1)
    assert figures.took_s == pytest.approx(2.5)
    assert figures.drained_s == pytest.approx(1.25)
    assert figures.beyond_s == pytest.approx(1.25)
    assert figures.throughput_ratio == pytest.approx(1.0)
    assert all(step_goals(figures).values())


def test_a_drain_whose_end_is_not_in_the_log_is_not_taken_off() -> None:
    figures = step_of(a_step(), Mark(100.5, "slot-1", "draining", frozenset({0})))
    assert figures.beyond_s == figures.took_s


def test_a_unit_that_stays_and_falls_silent_misses_the_goal() -> None:
    answered = [each for each in a_step() if each.unit == 0 or not 100 < each.at <= 101.5]
    figures = step_of(answered)
    assert figures.throughput_ratio == pytest.approx(0.625)
    assert step_goals(figures)["the others' throughput at least 0.9 of before"] is False


def test_a_step_that_moves_all_has_no_others_and_one_that_moves_nothing_is_no_measurement() -> None:
    all_move = [each for each in a_step() if each.unit == 0]
    assert step_of(all_move).throughput_ratio is None
    assert len(step_goals(step_of(all_move))) == 1
    with pytest.raises(BenchFailed, match="no unit has moved"):
        step_of(every(0.5, 90, 110, 1, "1"))


def test_a_step_that_is_too_slow_misses_its_goal_and_one_with_a_kill_has_none() -> None:
    slow = StepFigures(50, 8, 8, 4.0, 0.9, 3.1, 1.0)
    assert step_goals(slow)["at most 3 s beyond draining"] is False
    assert step_goals(replace(slow, killed="slot")) == {}


@pytest.mark.parametrize(("lost", "doubled", "finished"), [(1, 0, True), (0, 1, True), (0, 0, False)])
def test_a_rollout_that_loses_doubles_or_does_not_end_misses_its_goals(
    lost: int, doubled: int, finished: bool
) -> None:
    assert all(rollout_goals(RolloutFigures([], 9, 0, 0, True)).values())
    assert not all(rollout_goals(RolloutFigures([], 9, lost, doubled, finished)).values())


def taken_back() -> list[Answered]:
    return [
        *every(0.5, 90, 101, 0, "1"),
        *every(0.5, 101, 105, 0, "2"),
        *every(0.5, 106, 110, 0, "1"),
        *every(0.5, 90, 110, 1, "1"),
    ]


def back(answered: list[Answered]) -> RollbackFigures:
    return sum_up_rollback(
        answered,
        bad="2",
        percent=50,
        units=2,
        share_units=1,
        planned_at=PLANNED,
        rolled_back_at=104.0,
        back_at=106.5,
        why="it fails",
    )


def test_a_rollback_counts_what_the_bad_version_has_answered_by_then_and_all_in_all() -> None:
    assert answered_again(taken_back(), "2", "1") == {0: 106.5}
    figures = back(taken_back())
    assert figures.noticed_s == pytest.approx(4.0)
    assert (figures.noticed_answers, figures.affected, figures.affected_units) == (6, 8, 1)
    assert figures.back_s == pytest.approx(6.5)
    assert figures.share_answers == 12
    assert all(rollback_goals(figures).values())
    with pytest.raises(BenchFailed, match="answered nothing"):
        back(every(0.5, 90, 110, 1, "1"))


def test_a_rollback_is_late_where_it_is_beyond_both_limits_and_not_where_it_is_within_one() -> None:
    goal = "noticed and undone within 30 answers or 15 s, the later"
    figures = back(taken_back())
    assert rollback_goals(replace(figures, back_s=16.0))[goal] is True
    assert rollback_goals(replace(figures, affected=31))[goal] is True
    assert rollback_goals(replace(figures, back_s=16.0, affected=31))[goal] is False


@pytest.mark.parametrize("more", [{"affected_units": 2}, {"affected": 13}])
def test_more_than_the_share_is_a_goal_missed(more: dict[str, int]) -> None:
    met = rollback_goals(replace(back(taken_back()), **more))
    assert met["at most the share's requests affected"] is False


# --- the assignor ---


@pytest.mark.parametrize(("units", "within_ms"), [(16, 50), (1_000, 500)])
def test_the_leader_of_forty_workers_of_three_versions_shares_out_in_time(
    units: int, within_ms: float
) -> None:
    """Of several rounds, most: whatever else runs here may hold up one."""
    figures = measure(units)
    assert (figures.members, figures.versions, figures.lanes) == (40, 3, 3)
    assert figures.rounds > 5
    assert figures.median_ms <= within_ms
    assert goals(figures)["fits into a broker's record of its default size"]


def test_what_the_assignor_takes_too_long_for_and_what_no_broker_keeps_are_goals_missed() -> None:
    fine = AssignorFigures(16, 3, 40, 3, 12, 50.0, 9.0, 1_000, 1_000, 80_000)
    assert all(goals(fine).values())
    assert not goals(replace(fine, slowest_ms=50.1))["within 50 ms"]
    assert goals(replace(fine, units=1_000, slowest_ms=500.0))["within 500 ms"]
    assert not all(goals(replace(fine, group_bytes=1_048_589)).values())
