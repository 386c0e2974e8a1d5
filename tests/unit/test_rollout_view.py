"""What `rollout status` shows: wanted beside real, and what is not as it was planned."""

from __future__ import annotations

import pytest
from rich.console import Console

from headrace.consumers.group_members import GroupMembers, Member
from headrace.consumers.rollouts import Limits, Planned, Progress, Rollback, Rollout, RolloutState
from headrace.ops.rollouts.evidence import Tally
from headrace.ops.rollouts.steps import shares_of, steps_without_a_unit, units_of
from headrace.ops.rollouts.view import ranges, rows_of, stage_of, table_of, warnings_of

ROLLOUT = Rollout(
    model="tagger",
    contract=1,
    to="4",
    before={"3": 1},
    steps=[25, 100],
    hold_s=60,
    limits=Limits(),
    by="me",
    at=1,
)


def member(version: str, units: set[int], *, leaving: bool = False) -> Member:
    return Member(f"slot-{version}", version, 8, frozenset(units), leaving)


def group(*members: Member, units: int = 8, is_stable: bool = True) -> GroupMembers:
    return GroupMembers(members, units, is_stable, dict.fromkeys(range(units), 1))


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [([], ""), ([4], "4"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7], "0, 2-3, 7"), ([5, 6], "5-6")],
)
def test_numbers_in_a_row_are_shown_together(numbers: list[int], shown: str) -> None:
    assert ranges(numbers) == shown


def test_a_row_has_what_is_wanted_what_is_real_and_what_was_answered() -> None:
    answered = Tally()
    for status in ("ok", "ok", "failed", "invalid_output"):
        answered.add(status, generation_ms=100, tokens=5, at_ms=1)
    rows = rows_of(
        {"3": 75, "4": 25}, group(member("3", {0, 1, 2, 3, 4, 5}), member("4", {6, 7})), {"4": answered}, 2.0
    )
    old, new = rows
    assert (old.version, old.wanted, old.units, old.partitions, old.waiting) == ("3", 0.75, 6, "0-5", 6)
    assert (new.version, new.wanted, new.units, new.failed, new.invalid) == ("4", 0.25, 2, 0.25, 0.25)
    assert (new.answers, new.per_s, new.tokens) == (4, 2.0, 20)
    assert old.failed is None, "it has answered nothing"
    console = Console(width=160, record=True)
    console.print(table_of(rows, 8))
    assert "6 of 8 (75%)" in console.export_text()


@pytest.mark.parametrize(
    ("shares", "members", "said"),
    [
        ({"3": 1, "4": 1}, [member("3", {0, 1, 2, 3}), member("4", {4, 5, 6, 7})], []),
        (
            {"3": 1, "4": 1},
            [member("3", set(range(8)))],
            ["version 4 is planned and no worker of it lives: its share goes to the others"],
        ),
        (
            {"4": 1},
            [member("3", set(range(8)))],
            [
                "no worker lives of what is planned (version 4: 100 %): whoever lives serves all",
                "version 3 has workers and no share: they idle",
            ],
        ),
        ({}, [], ["no worker lives: nothing is answered"]),
        ({"3": 1, "4": 1}, [member("3", set(range(8))), member("4", set())], ["units are moving"]),
    ],
)
def test_what_is_not_as_planned_is_said(
    shares: dict[str, int], members: list[Member], said: list[str]
) -> None:
    assert warnings_of(shares, group(*members)) == said


def test_a_member_that_leaves_does_not_live() -> None:
    found = group(member("3", {0, 1}, leaving=True), member("4", {2}))
    assert found.live() == {"4": 1}
    assert found.owned() == {"3": 2, "4": 1}


@pytest.mark.parametrize(
    ("state", "stage"),
    [
        (RolloutState(ROLLOUT), "not begun: no controller has looked at it"),
        (
            RolloutState(ROLLOUT, progress=Progress(step=1, state="holding", since=0)),
            "holding, steps 25 [100] %",
        ),
        (
            RolloutState(ROLLOUT, wish="pause", progress=Progress(step=0, state="moving", since=0)),
            "moving (paused), steps [25] 100 %",
        ),
        (RolloutState(ROLLOUT, progress=Progress(step=1, state="finished", since=0)), "finished"),
        (
            RolloutState(ROLLOUT, rollback=Rollback(shares={"3": 1}, why="too slow", by="me", at=0)),
            "rolled back by me: too slow",
        ),
    ],
)
def test_a_stage_is_said_in_words(state: RolloutState, stage: str) -> None:
    assert stage_of(state).startswith(stage)


def test_shares_keep_the_others_proportions() -> None:
    rollout = ROLLOUT.model_copy(update={"before": {"2": 1, "3": 3, "4": 5}})
    shares = shares_of(rollout, 0)
    total = sum(shares.values())
    assert {version: weight / total for version, weight in shares.items()} == {
        "4": 0.25,
        "2": 0.1875,
        "3": 0.5625,
    }
    assert shares_of(rollout, 1) == {"4": 1}


def test_a_step_that_is_no_whole_unit_is_found() -> None:
    rollout = ROLLOUT.model_copy(update={"steps": [6, 13, 100]})
    assert steps_without_a_unit(rollout, 4) == [6]
    assert steps_without_a_unit(rollout, 16) == []


def test_units_go_by_largest_remainder() -> None:
    assert units_of({"3": 94, "4": 6}, 16, {"3": 16}) == {"3": 15, "4": 1}
    assert units_of({}, 16, {}) == {}


def test_what_was_planned_first_keeps_all_as_it_is() -> None:
    state = RolloutState(ROLLOUT, planned=Planned(shares={"3": 1}, step=0, at=1))
    assert state.is_open
    assert state.shares == {"3": 1}
