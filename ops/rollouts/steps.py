"""What a rollout does next: from what the control topic says of it and what is seen of group and results. Pure.

A step waits until the new version lives, then its shares are planned, then units move until the group has what was
planned, then it is held while results are watched. A limit that is broken takes everything back, in any state; so does
a version that answers nothing though it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.consumers.rollouts import (
    Planned,
    Progress,
    Rollback,
    Rollout,
    RolloutState,
    shown_shares,
)
from headrace.consumers.sharing import apportion
from headrace.ops.rollouts.evidence import Allowed, Tally, broken_limit, not_enough

NO_ANSWER_S = 15.0  # a version that is asked and answers nothing for so long is taken back
VANISHED_FACTOR = 10  # so many times as long, where it has answered in this step and has no member now
SLOW_FACTOR = 4  # a version may take so many times the others' p95 for its first answer


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A contract's group as its coordinator describes it."""

    units: int  # of the contract's request topics
    owned: Mapping[str, int]  # units by version; those that drain among them
    live: Mapping[str, int]  # members by version
    capacity: Mapping[str, int]  # requests that those members can have in flight
    stable: bool = True  # no rebalance is under way
    waiting: Mapping[str, int] = field(
        default_factory=dict[str, int]
    )  # requests by version of their unit's owner


@dataclass(frozen=True, slots=True)
class Seen:
    """What a decision is made from. Times in ms since the epoch."""

    now_ms: int
    group: GroupSeen
    new: Tally  # the new version's answers since the step's shares were planned
    others: Tally  # the others', since the rollout began
    asked_since_ms: int | None = None  # since when the new version has been asked and has not answered


@dataclass(frozen=True, slots=True)
class Next:
    """What is to be written, at most one of each kind; nothing: all stays as it is. `why` is for people."""

    why: str
    progress: Progress | None = None
    plan: Planned | None = None
    rollback: Rollback | None = None


def shares_of(rollout: Rollout, step: int) -> dict[str, int]:
    """Weights by version at a step: the new version's percent, and the rest as it was shared before."""
    percent = rollout.steps[step]
    before = {version: weight for version, weight in rollout.before.items() if version != rollout.to}
    whole = sum(before.values())
    if percent == 100 or whole == 0:
        return {rollout.to: 1}
    # Weights are whole numbers: both sides are multiplied by what would divide them.
    rest = {version: weight * (100 - percent) for version, weight in before.items() if weight}
    return {rollout.to: percent * whole, **rest}


def units_of(shares: Mapping[str, int], units: int, owned: Mapping[str, int]) -> dict[str, int]:
    """Units by version as the assignor gives them, if all of these versions live. `owned` breaks ties."""
    named = {version: weight for version, weight in shares.items() if weight}
    now = {version: owned.get(version, 0) for version in named}
    return apportion(units, named, now, now) if named else {}


def steps_without_a_unit(rollout: Rollout, units: int) -> list[int]:
    """Percents of the steps that would give the new version nothing."""
    owned = units_of(rollout.before, units, {})
    return [
        percent
        for step, percent in enumerate(rollout.steps)
        if not units_of(shares_of(rollout, step), units, owned).get(rollout.to, 0)
    ]


def allowed(rollout: Rollout) -> Allowed:
    """Its limits."""
    limits = rollout.limits
    return Allowed(limits.error_rate, limits.invalid_rate, limits.p95_ratio)


def decide(state: RolloutState, seen: Seen) -> Next:
    """The next thing to write for an open rollout."""
    rollout = state.rollout
    assert rollout is not None
    assert state.is_open
    progress = state.progress or Progress(step=0, state="waiting", since=seen.now_ms)
    if state.planned is not None:
        bad = broken_limit(seen.new, seen.others, allowed(rollout)) or _no_progress(rollout, progress, seen)
        if bad is not None:
            return Next(
                bad, rollback=Rollback(shares=rollout.before, why=bad, by="controller", at=seen.now_ms)
            )
    if state.wish == "pause":
        return Next(f"paused at {_share(rollout, state)}", progress=_changed(state, progress))
    if progress.state == "waiting":
        return _wait(rollout, state, progress, seen)
    if progress.state == "moving":
        return _move(rollout, state, progress, seen)
    return _hold(rollout, state, progress, seen)


def _share(rollout: Rollout, state: RolloutState) -> str:
    shares = {} if state.planned is None else state.planned.shares
    return shown_shares(shares) if shares.get(rollout.to, 0) else f"nothing for version {rollout.to}"


def _changed(state: RolloutState, progress: Progress) -> Progress | None:
    return None if state.progress == progress else progress


def _wait(rollout: Rollout, state: RolloutState, progress: Progress, seen: Seen) -> Next:
    step = len(rollout.steps) - 1 if state.wish == "promote" else progress.step
    percent = rollout.steps[step]
    group = seen.group
    if not group.live.get(rollout.to, 0):
        why = f"no worker of version {rollout.to} is there: step {percent} % waits for one"
        return Next(why, progress=_changed(state, progress))
    shares = shares_of(rollout, step)
    if not units_of(shares, group.units, group.owned).get(rollout.to, 0):
        why = f"{percent} % of {group.units} units are none: the step is passed over"
        last = step == len(rollout.steps) - 1
        entered = Progress(step=step + 1, state="waiting", since=seen.now_ms, why=why)
        return Next(why, progress=None if last else entered)
    return Next(
        f"{percent} % to version {rollout.to}",
        plan=Planned(shares=shares, step=step, at=seen.now_ms),
        progress=Progress(step=step, state="moving", since=seen.now_ms),
    )


def _move(rollout: Rollout, state: RolloutState, progress: Progress, seen: Seen) -> Next:
    group = seen.group
    last = len(rollout.steps) - 1
    if state.wish == "promote" and progress.step != last:
        why = "promoted"
        return Next(why, progress=Progress(step=last, state="waiting", since=seen.now_ms, why=why))
    if not group.live.get(rollout.to, 0):
        return Next(f"no worker of version {rollout.to} is there any more: the step waits for one")
    # As the assignor does: the share of a version without a worker is with the others.
    shares = shares_of(rollout, progress.step)
    living = {version: weight for version, weight in shares.items() if group.live.get(version, 0)}
    wanted = units_of(living, group.units, group.owned)[rollout.to]
    has = group.owned.get(rollout.to, 0)
    if group.stable and has == wanted and sum(group.owned.values()) >= group.units:
        why = f"version {rollout.to} has {has} of {group.units} units"
        return Next(why, progress=Progress(step=progress.step, state="holding", since=seen.now_ms, why=why))
    return Next(f"version {rollout.to} has {has} of the {wanted} units that it is to have")


def _hold(rollout: Rollout, state: RolloutState, progress: Progress, seen: Seen) -> Next:
    is_last = progress.step == len(rollout.steps) - 1
    held_s = (seen.now_ms - progress.since) / 1000
    promoted = state.wish == "promote" and not is_last
    if held_s < rollout.hold_s and not promoted:
        return Next(f"held for {held_s:.0f} of {rollout.hold_s:.0f} s")
    lacking = None if state.wish == "promote" else not_enough(seen.new, seen.others, allowed(rollout))
    if lacking is not None:
        return Next(f"held until it can be judged: {lacking}")
    if is_last:
        why = f"version {rollout.to} serves all"
        return Next(why, progress=Progress(step=progress.step, state="finished", since=seen.now_ms, why=why))
    step = len(rollout.steps) - 1 if promoted else progress.step + 1
    why = "promoted" if promoted else f"{seen.new.answers} answers, no limit broken"
    return Next(why, progress=Progress(step=step, state="waiting", since=seen.now_ms, why=why))


def _no_progress(rollout: Rollout, progress: Progress, seen: Seen) -> str | None:
    if progress.state == "waiting" or seen.asked_since_ms is None:
        return None
    silent_s = (seen.now_ms - seen.asked_since_ms) / 1000
    lives = seen.group.live.get(rollout.to, 0) > 0
    their_p95_ms = seen.others.quantile_ms(0.95) or 0.0
    patience_s = max(NO_ANSWER_S, SLOW_FACTOR * their_p95_ms / 1000)
    if not lives and seen.new.answers:
        patience_s *= VANISHED_FACTOR
    if silent_s < patience_s:
        return None
    how = "is asked and has answered nothing" if lives else "has no worker any more and has answered nothing"
    return f"version {rollout.to} {how} for {silent_s:.0f} s"
