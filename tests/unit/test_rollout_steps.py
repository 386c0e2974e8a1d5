"""When a step is reached, with some of its versions gone, and an operator's word while it is not."""

from __future__ import annotations

import pytest

from headrace.consumers.rollouts import Limits, Planned, Progress, Rollout, RolloutState, Wish
from headrace.consumers.sharing import Claim, Plan, assign_units
from headrace.ops.rollouts.evidence import Tally
from headrace.ops.rollouts.steps import GroupSeen, Next, Seen, decide, shares_of

UNITS = 12
ROLLOUT = Rollout(
    model="tagger",
    contract=1,
    to="4",
    before={"2": 1, "3": 1},
    steps=[50, 75, 100],
    hold_s=60,
    limits=Limits(),
    by="me",
    at=1,
)
SHARES = shares_of(ROLLOUT, 0)


def decided(owned: dict[str, int], live: dict[str, int], wish: Wish = "go_on") -> Next:
    """What comes next while the first step's units move."""
    state = RolloutState(
        rollout=ROLLOUT,
        wish=wish,
        progress=Progress(step=0, state="moving", since=1),
        planned=Planned(shares=SHARES, step=0, at=1),
    )
    return decide(state, Seen(2, GroupSeen(UNITS, owned, live, {}), Tally(), Tally()))


def as_assigned(live: dict[str, int]) -> dict[str, int]:
    """Units by version, as the assignor shares them out by the first step's plan."""
    plan = Plan(1, "now", SHARES)
    claims = {
        f"{version}-{number}": Claim(f"{version}-{number}", version=version, plan=plan)
        for version, members in live.items()
        for number in range(members)
    }
    given = assign_units(claims, UNITS)
    return {
        version: sum(len(given[member].units) for member, claim in claims.items() if claim.version == version)
        for version in live
    }


@pytest.mark.parametrize(
    "live",
    [
        {"2": 1, "3": 1, "4": 1},
        {"3": 1, "4": 1},
        {"3": 2, "4": 1},
        {"4": 1},
        {"3": 1, "4": 1, "5": 1},
    ],
    ids=["all live", "2 is gone", "3 has two workers", "the others are gone", "5 is not planned"],
)
def test_a_step_is_reached_when_the_group_has_what_the_assignor_gives(live: dict[str, int]) -> None:
    progress = decided(as_assigned(live), live).progress
    assert progress is not None
    assert (progress.step, progress.state) == (0, "holding")


@pytest.mark.parametrize(
    ("owned", "live"),
    [
        ({"2": 3, "3": 4, "4": 5}, {"2": 1, "3": 1, "4": 1}),
        ({"2": 0, "3": 6, "4": 6}, {"3": 1, "4": 1}),
        ({"2": 6, "3": 6, "4": 0}, {"2": 1, "3": 1}),
        ({"2": 3, "3": 3, "4": 6}, {"2": 1, "3": 1}),
    ],
    ids=["a unit is missing", "what 2 had is to be shared", "no worker of 4", "the last one of 4 is leaving"],
)
def test_a_step_is_waited_for_until_then(owned: dict[str, int], live: dict[str, int]) -> None:
    found = decided(owned, live)
    assert (found.progress, found.plan, found.rollback) == (None, None, None)


def test_promote_is_heard_while_units_move() -> None:
    progress = decided({"2": 6, "3": 6, "4": 0}, {"2": 1, "3": 1, "4": 1}, "promote").progress
    assert progress is not None
    assert (progress.step, progress.state, progress.why) == (2, "waiting", "promoted")
