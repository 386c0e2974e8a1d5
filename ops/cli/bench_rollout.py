"""`headrace bench rollout`: shifting traffic under load, taking a bad version back, and the assignor's time."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import click

from headrace.ops.cli.bench_output import as_json, say, verdict

if TYPE_CHECKING:
    from headrace.ops.bench.assignor_time import AssignorFigures
    from headrace.ops.bench.rollout import RolloutLoad
    from headrace.ops.bench.rollout_figures import RollbackFigures, RolloutFigures, StepFigures

Part = Literal["assignor", "steps", "rollback"]
SESSION_S = 10.0  # the setting's own default


def _steps(_: click.Context, __: click.Parameter, given: str) -> tuple[int, ...]:
    try:
        steps = tuple(int(each) for each in given.split(","))
    except ValueError:
        raise click.BadParameter(f"{given!r}: whole percents, as 6,25,50,100") from None
    if list(steps) != sorted(set(steps)) or not all(0 < each <= 100 for each in steps):
        raise click.BadParameter(f"{given!r}: percents from 1 to 100, each more than the one before")
    return steps


@click.command(
    epilog="""\b
    Examples:
      headrace bench rollout
      headrace bench rollout --kill --session-timeout 6 --steps 25,50,100
      headrace bench rollout --only assignor --json"""
)
@click.option(
    "--only",
    type=click.Choice(["assignor", "steps", "rollback"]),
    help="One of the measurements; `assignor` needs no Kafka.",
)
@click.option(
    "--kill", is_flag=True, help="A second rollout, with a worker killed in the middle of each step."
)
@click.option(
    "--workers", type=click.IntRange(2), default=2, show_default=True, help="Of each of two versions."
)
@click.option("--units", type=click.IntRange(4), default=16, show_default=True, help="Partitions of a lane.")
@click.option("--rate", type=click.FloatRange(1), default=90.0, show_default=True, help="Requests a second.")
@click.option(
    "--latency", type=click.FloatRange(0.05), default=0.2, show_default=True, help="Seconds of a generation."
)
@click.option(
    "--steps", default="6,25,50,100", show_default=True, callback=_steps, help="The new version's percents."
)
@click.option(
    "--hold",
    type=click.FloatRange(2),
    default=5.0,
    show_default=True,
    help="Seconds that a step is watched at least.",
)
@click.option(
    "--session-timeout",
    type=click.FloatRange(1),
    default=SESSION_S,
    show_default=True,
    help="Seconds. A broker that was given has a least of its own, 6 by default.",
)
@as_json
def rollout(
    only: Part | None,
    kill: bool,
    workers: int,
    units: int,
    rate: float,
    latency: float,
    steps: tuple[int, ...],
    hold: float,
    session_timeout: float,
    as_json: bool,
) -> None:
    """What it costs to move traffic to another version, and how soon a bad one is taken back.

    Simulated engine, real Kafka, steady traffic to every unit, the rollout's own command. For each step: from its plan
    until all of its units have answered at their new owners; the throughput of the units that stay, during the step
    over before; and what was lost or doubled. Then a version that fails every request. First of all, without Kafka, how
    long the leader of a large group takes to share out its units.
    """
    from headrace.ops.bench import rollout as measuring

    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    load = measuring.RolloutLoad(workers, rate, latency, steps, hold, session_timeout)
    found: dict[str, Any] = {}
    if only in (None, "assignor"):
        found["assignor"] = [_assignor(each, as_json) for each in _group_sizes()]
    if only in (None, "steps"):
        found["rollout"] = _rollout(load, units, as_json, kill=False)
        if kill:
            found["rollout_with_kills"] = _rollout(load, units, as_json, kill=True)
    if only in (None, "rollback"):
        found["rollback"] = _rollback(load, units, as_json)
    if as_json:
        click.echo(json.dumps(found))


def _group_sizes() -> list[AssignorFigures]:
    from headrace.ops.bench.assignor_time import measure

    return [measure(units) for units in (16, 1_000)]


def _assignor(figures: AssignorFigures, as_json: bool) -> dict[str, Any]:
    from headrace.ops.bench.assignor_time import goals

    met = goals(figures)
    if not as_json:
        click.echo(
            f"assignor: {figures.units:,} units x {figures.lanes} lanes, {figures.members} workers of "
            f"{figures.versions} versions, {figures.rounds} rounds: {figures.slowest_ms:.0f} ms at most, "
            f"{figures.median_ms:.0f} ms median\n"
            f"    a worker says {figures.claim_bytes:,} bytes and is told {figures.told_bytes:,}, "
            f"the group all in all {figures.group_bytes:,}"
        )
        _goals(met)
    return asdict(figures) | {"goals": dict(met)}


def _rollout(load: RolloutLoad, units: int, as_json: bool, *, kill: bool) -> dict[str, Any]:
    from headrace.ops.bench import rollout as measuring
    from headrace.ops.bench.ground import ground
    from headrace.ops.bench.rollout_figures import rollout_goals, step_goals

    with ground(units, say, several_workers=True) as place:
        figures = measuring.run(place, load, say, kill=kill)
    met, steps = rollout_goals(figures), [step_goals(each) for each in figures.steps]
    if not as_json:
        click.echo(_heading(figures, units, kill))
        for each, step_met in zip(figures.steps, steps, strict=True):
            click.echo(_step(each))
            _goals(step_met)
        click.echo(f"    {figures.sent:,} sent, {figures.lost} lost, {figures.doubled} doubled")
        _goals(met)
    told = [asdict(each) | {"goals": dict(goals)} for each, goals in zip(figures.steps, steps, strict=True)]
    return asdict(figures) | {"steps": told, "goals": dict(met)}


def _heading(figures: RolloutFigures, units: int, kill: bool) -> str:
    how = ", a worker killed in the middle of each step" if kill else ""
    return f"rollout in {len(figures.steps)} steps over {units} units{how}:"


def _step(figures: StepFigures) -> str:
    ratio = "none stayed" if figures.throughput_ratio is None else f"{figures.throughput_ratio:.2f}"
    killed = "" if figures.killed is None else f"; {figures.killed} was killed"
    return (
        f"    {figures.percent} %: {figures.moved} units moved, {figures.units} are the new version's; after "
        f"{figures.took_s:.2f} s all had answered, {figures.beyond_s:.2f} s beyond draining{killed}\n"
        f"        throughput of those that stayed, during over before: {ratio}"
    )


def _rollback(load: RolloutLoad, units: int, as_json: bool) -> dict[str, Any]:
    from headrace.ops.bench import rollout as measuring
    from headrace.ops.bench.ground import ground
    from headrace.ops.bench.rollout_figures import rollback_goals

    with ground(units, say, several_workers=True) as place:
        figures = measuring.take_back(place, load, say)
    met = rollback_goals(figures)
    if not as_json:
        click.echo(_back(figures))
        _goals(met)
    return asdict(figures) | {"goals": dict(met)}


def _back(figures: RollbackFigures) -> str:
    return (
        f"rollback of a version that fails every request, at {figures.percent} % ({figures.share_units} of "
        f"{figures.units} units):\n"
        f"    taken back after {figures.noticed_s:.1f} s and {figures.noticed_answers} of its answers: {figures.why}\n"
        f"    all units were back after {figures.back_s:.1f} s; it has answered {figures.affected} requests in "
        f"{figures.affected_units} units; its share of all in that time is {figures.share_answers}"
    )


def _goals(met: Mapping[str, bool]) -> None:
    for goal, is_met in met.items():
        click.echo(f"        {goal}: {verdict(is_met)}")
