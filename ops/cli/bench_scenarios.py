"""`headrace bench moves`, `long-request` and `interactive`: scenarios on a real Kafka."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.ops.cli.bench_output import as_json, say, verdict, vllm_model

if TYPE_CHECKING:
    from headrace.ops.bench.interactive import FirstTokens, InteractiveFigures
    from headrace.ops.bench.long_request import LongFigures
    from headrace.ops.bench.move_figures import MoveFigures

SESSION_S = 10.0  # the setting's own default


def _quiet() -> None:
    # The client logs every lost connection as an error: here brokers and workers come and go.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)


@click.command(
    epilog="""\b
    Examples:
      headrace bench moves
      headrace bench moves --session-timeout 6 --rate 60 --steady 5 --json"""
)
@click.option("--workers", type=click.IntRange(2), default=3, show_default=True, help="At the beginning.")
@click.option("--units", type=click.IntRange(3), default=12, show_default=True, help="Partitions of a lane.")
@click.option("--rate", type=click.FloatRange(1), default=90.0, show_default=True, help="Requests a second.")
@click.option(
    "--latency", type=click.FloatRange(0.05), default=0.2, show_default=True, help="Seconds of a generation."
)
@click.option(
    "--steady",
    type=click.FloatRange(1),
    default=8.0,
    show_default=True,
    help="Seconds of traffic before each change.",
)
@click.option(
    "--session-timeout",
    type=click.FloatRange(1),
    default=SESSION_S,
    show_default=True,
    help="Seconds. A broker that was given has a least of its own, 6 by default.",
)
@as_json
def moves(
    workers: int,
    units: int,
    rate: float,
    latency: float,
    steady: float,
    session_timeout: float,
    as_json: bool,
) -> None:
    """What it costs when a worker joins, leaves or is killed.

    Simulated engine, real Kafka, steady traffic to every unit. For each change: generations begun beyond one for each
    result; the throughput of the units that stay, during the move over before; from a unit's release to its new
    owner's first result; and after a SIGKILL, when its units answer again.
    """
    from headrace.ops.bench import moves as measuring
    from headrace.ops.bench.ground import ground
    from headrace.ops.bench.move_figures import goals

    _quiet()
    load = measuring.MovesLoad(workers, rate, latency, steady, session_timeout)
    with ground(units, say, several_workers=True) as place:
        found = measuring.run(place, load, say)
    judged = [goals(each, session_timeout) for each in found]
    if as_json:
        lines = [asdict(each) | {"goals": dict(met)} for each, met in zip(found, judged, strict=True)]
        click.echo(json.dumps({"session_timeout_s": session_timeout, "changes": lines}))
        return
    for each, met in zip(found, judged, strict=True):
        click.echo(_change(each))
        for goal, is_met in met.items():
            click.echo(f"    {goal}: {verdict(is_met)}")


def _change(figures: MoveFigures) -> str:
    in_flight = "" if figures.in_flight is None else f" ({figures.in_flight} were in flight)"
    lines = [
        f"{figures.kind}: {figures.moved} units moved in {figures.window_s:.2f} s, {figures.stayed} stayed",
        f"    regenerated: {figures.regenerated}{in_flight}",
    ]
    if figures.throughput_ratio is not None:
        lines += [
            f"    throughput of those that stayed, during over before: {figures.throughput_ratio:.2f}",
            f"    longest silence of one of them: {figures.longest_silence_s:.2f} s "
            f"({figures.longest_silence_before_s:.2f} s before)",
        ]
    if figures.hand_over_s is not None:
        lines.append(
            f"    from release to the first result at the new owner: {figures.hand_over_median_s:.2f} s median, "
            f"{figures.hand_over_s:.2f} s at most"
        )
    if figures.answered_again_s is not None:
        lines.append(f"    every unit answered again after {figures.answered_again_s:.2f} s")
    return "\n".join(lines)


@click.command(
    name="long-request",
    epilog="""\b
    Examples:
      headrace bench long-request
      headrace bench long-request --requests 2000 --seconds 10""",
)
@click.option(
    "--requests", type=click.IntRange(10), default=50_000, show_default=True, help="Short ones behind it."
)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=120.0,
    show_default=True,
    help="How long the long one takes if it runs alone.",
)
@as_json
def long_request(requests: int, seconds: float, as_json: bool) -> None:
    """One long request at the head of a partition, and many short ones behind it.

    Simulated engine, real Kafka, one worker. How many short ones are answered when the long one ends, the worker's
    memory, and the size of the committed metadata; then SIGKILL with another long one in flight, and how many
    generations its successor begins anew.
    """
    from headrace.ops.bench import long_request as measuring
    from headrace.ops.bench.ground import ground

    _quiet()
    with ground(1, say) as place:
        found = measuring.run(place, requests=requests, seconds=seconds, say=say)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"rss_ratio": found.meanwhile.growth}))
    else:
        click.echo(_long(found))


def _long(found: LongFigures) -> str:
    meanwhile, kill = found.meanwhile, found.kill
    all_answered = meanwhile.answered_meanwhile == meanwhile.requests
    return "\n".join(
        [
            f"the long request took {meanwhile.long_took_s:.1f} s; when it ended {meanwhile.answered_meanwhile} of "
            f"{meanwhile.requests} behind it were answered: {verdict(all_answered)}",
            f"    all were, {meanwhile.all_answered_after_s:.1f} s after the first was sent",
            f"memory: {meanwhile.rss_at_tenth / 1e6:.0f} MB at a tenth, {meanwhile.rss_at_end / 1e6:.0f} MB at the "
            f"end: {meanwhile.growth:.3f}",
            f"committed metadata: {meanwhile.longest_metadata} characters at most",
            f"SIGKILL with a long one and {kill.in_flight - 1} others in flight, {kill.answered_before} of "
            f"{kill.requests - 1} short ones answered:",
            f"    regenerated: {kill.regenerated}: {verdict(kill.regenerated <= kill.in_flight)}",
            f"    lost: {kill.lost}, duplicated: {kill.duplicated}: {verdict(not (kill.lost or kill.duplicated))}",
        ]
    )


@click.command(
    epilog="""\b
    Examples:
      headrace bench interactive
      headrace bench interactive --model ~/.cache/headrace/models/SmolLM2-135M-Instruct --batch 8 --step-tokens 64"""
)
@vllm_model
@click.option(
    "--requests",
    type=click.IntRange(5),
    default=100,
    show_default=True,
    help="Interactive ones, idle and loaded each.",
)
@click.option("--batch", type=click.IntRange(4), default=32, show_default=True, help="Sequences in a step.")
@click.option(
    "--backfill-tokens",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Output of a backfill request.",
)
@click.option(
    "--prompt-words", type=click.IntRange(1), default=24, show_default=True, help="Length of a prompt."
)
@click.option(
    "--step-tokens",
    type=click.IntRange(8),
    help="vLLM's max_num_batched_tokens: prompts go through the engine in pieces, so that no step takes long. "
    "Default: vLLM's own.",
)
@as_json
def interactive(
    model: Path | None,
    requests: int,
    batch: int,
    backfill_tokens: int,
    prompt_words: int,
    step_tokens: int | None,
    as_json: bool,
) -> None:
    """How long an interactive request waits for its first token beside a backfill.

    Real vLLM in one worker, real Kafka, streams read through the client: one after the other with the engine idle, then
    with a backfill that fills all of the engine that it may. The difference in engine steps, and the ratio.
    """
    from headrace.ops.bench import interactive as measuring
    from headrace.ops.bench.ground import ground
    from headrace.ops.bench.tiny_model import tiny_model
    from headrace.schemas.settings import Settings

    _quiet()
    weights = model or tiny_model(Settings.from_environment().cache_dir / "models")
    # Without a prefix cache: idle and loaded are asked the same prompts.
    arguments: dict[str, int | bool | str] = {
        "max_num_seqs": batch,
        "max_model_len": 1024,
        "enable_prefix_caching": False,
        "enforce_eager": True,
    }
    if step_tokens is not None:
        arguments["max_num_batched_tokens"] = max(batch, step_tokens)
    load = measuring.InteractiveLoad(requests, batch, backfill_tokens, prompt_words)
    with ground(4, say, engine_arguments=arguments) as place:
        found = measuring.run(place, load, weights, say)
    if as_json:
        more = {
            "ratio": found.ratio,
            "steps_over_idle": found.steps_over_idle,
            "worker_steps_over_idle": found.worker_steps_over_idle,
        }
        click.echo(json.dumps({"model": weights.name, **asdict(found), **more}))
    else:
        click.echo(_interactive(found, measuring.LEAST_SATURATION))


def _interactive(found: InteractiveFigures, least_saturation: float) -> str:
    def row(name: str, each: FirstTokens) -> str:
        client = f"{each.client_p50:8.1f}{each.client_p95:8.1f}"
        return f"    {name:<8}{client}    {each.worker_p50:8.0f}{each.worker_p95:8.0f}"

    saturated = found.saturation >= least_saturation
    return "\n".join(
        [
            "time to the first token, ms:",
            "            client             worker",
            "                 p50     p95         p50     p95",
            row("idle", found.idle),
            row("loaded", found.loaded),
            f"an engine step while loaded: {found.step_ms:.1f} ms, {found.running:.0f} sequences running: "
            f"{found.saturation:.2f} of what backfill may fill"
            + ("" if saturated else ": NOT SATURATED, the figures say nothing"),
            f"p95 loaded over idle: {found.steps_over_idle:.1f} engine steps (in the worker "
            f"{found.worker_steps_over_idle:.1f}); goal 2: {verdict(found.steps_over_idle <= 2)}",
            f"p95 loaded, as a ratio to idle: {found.ratio:.2f}; the goal with SmolLM2 is 1.3",
        ]
    )
