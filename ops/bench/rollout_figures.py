"""From recorded results, log lines and the control topic's records to what a rollout cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.ops.bench.ground import BenchFailed
from headrace.ops.bench.move_figures import Mark, throughput
from headrace.ops.bench.recording import Answered

STEP_WITHIN_S = 3.0  # beyond draining
LEAST_THROUGHPUT = 0.9
LEAST_WINDOW_S = 4.0  # seconds: over fewer it is rather whether one transaction more or less fell into them
BACK_WITHIN_ANSWERS, BACK_WITHIN_S = 30, 15.0


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What one step cost. `killed`: the slot of the worker that was killed in it; None: none was."""

    percent: int
    units: int  # that the new version has after it
    moved: int
    took_s: float  # from the plan to the first result of the last unit's new owner
    drained_s: float  # of that, on the unit that took longest beyond it: what was in flight ended
    beyond_s: float
    throughput_ratio: (
        float | None
    )  # of the units that do not move, during the step over before; None: none stays
    killed: str | None = None


@dataclass(frozen=True, slots=True)
class RolloutFigures:
    """A whole rollout. `lost`, `doubled`: of all requests of the run, as they were read back afterwards."""

    steps: list[StepFigures]
    sent: int
    lost: int
    doubled: int
    finished: bool


@dataclass(frozen=True, slots=True)
class RollbackFigures:
    """A version that fails every request, and how it was taken back."""

    percent: int
    units: int
    share_units: int  # that the plan had for the version
    noticed_s: float  # from the plan to the rollback's record
    noticed_answers: int  # of the version, by then
    back_s: float  # from the plan until the version before has answered each unit again
    affected: int  # requests that the version has answered, all in all
    affected_units: int
    share_answers: int  # its share of all answers from the plan until all units were back
    why: str


def owners_by_version(answered: Sequence[Answered], until: float) -> dict[int, str]:
    """By unit, the version of its last result until then."""
    return {
        each.unit: each.version for each in sorted(answered, key=lambda each: each.at) if each.at <= until
    }


def sum_up_step(
    answered: Sequence[Answered],
    marks: Collection[Mark],
    *,
    to: str,
    percent: int,
    steady_from: float,
    planned_at: float,
    until: float,
    killed: str | None = None,
) -> StepFigures:
    """One step. `steady_from`: from when on the step before was at rest; `until`: when this one was over.

    A unit moves when its results come from another version than before. Raises BenchFailed where none has moved.
    """
    before = owners_by_version(answered, planned_at)
    after = owners_by_version(answered, until)
    moved = sorted(unit for unit in before if before[unit] != after[unit])
    if not moved:
        raise BenchFailed(f"no unit has moved at the step of {percent} %")
    took: dict[int, float] = {}
    drained: dict[int, float] = {}
    for unit in moved:
        first = min(
            each.at
            for each in answered
            if each.unit == unit and each.version == after[unit] and planned_at < each.at <= until
        )
        took[unit] = first - planned_at
        drained[unit] = _drained(marks, unit, planned_at, first)
    worst = max(moved, key=lambda unit: took[unit] - drained[unit])
    took_s = max(took.values())
    stay = before.keys() - set(moved)
    ratio = None
    if stay:
        ends = planned_at + max(took_s, LEAST_WINDOW_S)
        steady = throughput(answered, stay, steady_from, planned_at)
        ratio = throughput(answered, stay, planned_at, ends) / steady if steady else None
    return StepFigures(
        percent,
        sum(version == to for version in after.values()),
        len(moved),
        took_s,
        drained[worst],
        took[worst] - drained[worst],
        ratio,
        killed,
    )


def _drained(marks: Collection[Mark], unit: int, begins: float, ends: float) -> float:
    """Seconds from the log line that a unit drains to that it is let go; 0 where either is missing."""
    told = [each.at for each in marks if each.what == "draining" and unit in each.units]
    gone = [each.at for each in marks if each.what == "letting go of" and unit in each.units]
    first = min((at for at in told if begins <= at <= ends), default=None)
    last = min((at for at in gone if begins <= at <= ends), default=None)
    return max(0.0, last - first) if first is not None and last is not None else 0.0


def answered_again(answered: Sequence[Answered], bad: str, good: str) -> dict[int, float]:
    """Of each unit that the bad version has had, when the good one answered first after the bad one's last result."""
    last = {each.unit: each.at for each in sorted(answered, key=lambda each: each.at) if each.version == bad}
    return {
        unit: min(
            each.at for each in answered if each.unit == unit and each.version == good and each.at >= last_bad
        )
        for unit, last_bad in last.items()
    }


def sum_up_rollback(
    answered: Sequence[Answered],
    *,
    bad: str,
    percent: int,
    units: int,
    share_units: int,
    planned_at: float,
    rolled_back_at: float,
    back_at: float,
    why: str,
) -> RollbackFigures:
    """Times in seconds since the epoch. Raises BenchFailed where the bad version has answered nothing."""
    bad_ones = [each for each in answered if each.version == bad]
    if not bad_ones:
        raise BenchFailed(f"version {bad} has answered nothing")
    its_units = {each.unit for each in bad_ones}
    return RollbackFigures(
        percent,
        units,
        share_units,
        rolled_back_at - planned_at,
        sum(each.at <= rolled_back_at for each in bad_ones),
        back_at - planned_at,
        len({each.id for each in bad_ones}),
        len(its_units),
        math.ceil(sum(planned_at < each.at <= back_at for each in answered) * share_units / units),
        why,
    )


def step_goals(figures: StepFigures) -> Mapping[str, bool]:
    """What Headrace means to keep to. After a kill, units wait until it is noticed: there is no goal for that."""
    if figures.killed is not None:
        return {}
    found = {f"at most {STEP_WITHIN_S:g} s beyond draining": figures.beyond_s <= STEP_WITHIN_S}
    if figures.throughput_ratio is not None:
        found["the others' throughput at least 0.9 of before"] = figures.throughput_ratio >= LEAST_THROUGHPUT
    return found


def rollout_goals(figures: RolloutFigures) -> Mapping[str, bool]:
    """Of the whole of it."""
    return {"finished": figures.finished, "0 lost, 0 doubled": not (figures.lost or figures.doubled)}


def rollback_goals(figures: RollbackFigures) -> Mapping[str, bool]:
    """Of a rollback."""
    in_time = figures.back_s <= BACK_WITHIN_S or figures.affected <= BACK_WITHIN_ANSWERS
    return {
        f"noticed and undone within {BACK_WITHIN_ANSWERS} answers or {BACK_WITHIN_S:g} s, the later": in_time,
        "at most the share's requests affected": figures.affected_units <= figures.share_units
        and figures.affected <= figures.share_answers,
    }
