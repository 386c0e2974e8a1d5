"""What came of backfill jobs under fire, held against an undisturbed run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backfill_outputs import answered_twice, leftovers, rejects_of, results_of, rows_of, state_of
from nemesis.backfill_scene import BackfillPlan, Scene

HEAD = (
    "job",
    "rows",
    "kills",
    "frozen",
    "taken",
    "sent",
    "results",
    "twice",
    "again",
    "ended",
    "s",
    "s in peace",
)


@dataclass(slots=True)
class Verdict:
    """What came out. `lines` for people; `problems` empty where all is as it must be.

    `answered`: results of all jobs, under fire and in peace.
    """

    lines: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    answered: list[int] = field(default_factory=lambda: [0, 0])


def judge(plan: BackfillPlan, peace: Scene, fire: Scene, killed: Mapping[str, int]) -> Verdict:
    """Hold the disturbed run against the undisturbed one, row for row."""
    verdict = Verdict([_line(HEAD)])
    for name in fire.jobs:
        _judge_job(plan, peace, fire, name, verdict)
    _judge_faults(plan, killed, verdict)
    _judge_generations(plan, peace, fire, killed, verdict)
    return verdict


def _judge_job(plan: BackfillPlan, peace: Scene, fire: Scene, name: str, verdict: Verdict) -> None:
    log, problems = fire.jobs[name], verdict.problems
    problems += [f"{name}: {each}" for each in log.problems]
    problems += [f"{name} in peace: {each}" for each in peace.jobs[name].problems]
    ours = _compare_rows(plan, peace, fire, name, problems)
    if log.kills < plan.kills or log.frozen < plan.freezes:
        problems.append(f"{name}: {log.kills} kills, {log.frozen} times frozen: fewer than there were to be")
    mine, calm = (
        results_of(scene.kafka.bootstrap, scene.workers.names, state_of(scene.output(name)).job)
        for scene in (fire, peace)
    )
    verdict.answered[0] += len(mine)
    verdict.answered[1] += len(calm)
    twice = len(answered_twice(mine))
    row = (
        name, ours, log.kills, log.frozen, log.taken, log.asked, len(mine), twice, log.asked_again,
        sum(log.ended.values()), round(log.seconds), round(peace.jobs[name].seconds),
    )  # fmt: skip
    verdict.lines.append(_line(row))
    verdict.lines += [f"    ended {count} x {said}" for said, count in log.ended.items()]
    if twice > log.asked_again:
        problems.append(f"{name}: {twice} results too many, {log.asked_again} rows were asked again")


def _compare_rows(plan: BackfillPlan, peace: Scene, fire: Scene, name: str, problems: list[str]) -> int:
    """How many rows the disturbed run has written."""
    ours, theirs = rows_of(fire.output(name)), rows_of(peace.output(name))
    if len(ours) != plan.rows:
        problems.append(f"{name}: {len(ours)} rows of {plan.rows}")
    different = [n for n, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other]
    for n in different[:3]:
        problems.append(f"{name}, row {n}:\n  under fire {ours[n]}\n  in peace   {theirs[n]}")
    if different:
        problems.append(f"{name}: {len(different)} rows differ")
    if rejects_of(fire.output(name)) != rejects_of(peace.output(name)):
        problems.append(f"{name}: the rejects differ")
    if left := leftovers(fire.output(name)):
        problems.append(f"{name}: left over are {left}")
    return len(ours)


def _judge_faults(plan: BackfillPlan, killed: Mapping[str, int], verdict: Verdict) -> None:
    verdict.lines.append(
        f"killed: {killed.get('worker', 0)} workers, the broker {killed.get('broker', 0)} times; "
        f"transactions that hung and were ended as an operator does: {killed.get('hanging', 0)}"
    )
    for what in ("worker", "broker"):
        if killed.get(what, 0) < plan.kills:
            verdict.problems.append(f"{killed.get(what, 0)} kills of {what}, {plan.kills} were to be")


def _judge_generations(
    plan: BackfillPlan, peace: Scene, fire: Scene, killed: Mapping[str, int], verdict: Verdict
) -> None:
    answered, answered_in_peace = verdict.answered
    begun, begun_in_peace = fire.workers.generations, peace.workers.generations
    places = plan.max_in_flight * killed.get("worker", 0)
    verdict.lines.append(
        f"generations: {begun:,} begun for {answered:,} results, {begun - answered:,} more; in peace "
        f"{begun_in_peace:,} for {answered_in_peace:,}"
    )
    # What is generated in an outage cannot be committed, and workers that end in it begin anew: no bound holds then.
    if not killed.get("broker") and begun - answered > places:
        verdict.problems.append(
            f"{begun - answered} generations too many; {places} may have been in flight at kills"
        )
    least = min(log.seconds for log in peace.jobs.values())
    verdict.lines.append(f"undisturbed, the first of the jobs took {least:.0f} s")
    if begun_in_peace != answered_in_peace:
        verdict.problems.append("the undisturbed run generated something twice")


def _line(cells: tuple[object, ...]) -> str:
    return "  ".join(f"{each:>12}" for each in cells)
