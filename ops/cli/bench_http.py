"""`headrace bench http`: what the OpenAI-compatible endpoint costs, and what it holds out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.ops.cli.bench_output import as_json, say, verdict, vllm_model

if TYPE_CHECKING:
    from headrace.ops.bench.http_first_token import FirstTokenFigures
    from headrace.ops.bench.http_streams import StreamsFigures


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the options say."""

    model: Path | None
    calls: int
    streams: int
    tokens: int
    rate: float
    leaving: int


@dataclass(frozen=True, slots=True)
class Found:
    """A measurement: its figures and goals, and how they read."""

    figures: dict[str, Any]
    goals: dict[str, bool]
    lines: list[str]


def _ttft(sizes: Sizes) -> Found:
    from headrace.ops.bench.http_first_token import FirstTokenLoad, measure
    from headrace.ops.bench.tiny_model import tiny_model
    from headrace.schemas.settings import Settings

    weights = sizes.model or tiny_model(Settings.from_environment().cache_dir / "models")
    figures = measure(say, FirstTokenLoad(calls=sizes.calls), weights)
    added = {"added_p50": figures.added_p50, "added_p95": figures.added_p95}
    return Found({"model": weights.name} | asdict(figures) | added, figures.goals(), _first_tokens(figures))


def _first_tokens(figures: FirstTokenFigures) -> list[str]:
    spent = figures.spent
    return [
        f"time to the first token, ms ({figures.pairs} calls of each, one at a time):",
        "                       p50     p95",
        f"    headrace serve{figures.headrace_p50:8.1f}{figures.headrace_p95:8.1f}",
        f"    vllm serve    {figures.vllm_p50:8.1f}{figures.vllm_p95:8.1f}",
        f"    added         {figures.added_p50:8.1f}{figures.added_p95:8.1f}",
        "where it goes in headrace serve, means in ms:",
        f"    between client and endpoint, both ways            {spent.http:6.1f}",
        f"    endpoint to broker, and the first token's way back{spent.kafka:6.1f}",
        f"    broker to worker, until it is admitted            {spent.queue:6.1f}",
        f"    prompt, engine, first token                       {spent.engine:6.1f}   "
        f"(vLLM itself: {figures.engine_in_worker:.1f}; in vllm serve {figures.engine_in_vllm:.1f})",
    ]


def _streams(sizes: Sizes) -> Found:
    from headrace.ops.bench.http_streams import StreamsLoad, measure

    figures = measure(say, StreamsLoad(sizes.streams, sizes.rate, sizes.tokens))
    return Found(
        asdict(figures) | {"over_engine": figures.over_engine}, figures.goals(), _many_streams(figures)
    )


def _many_streams(figures: StreamsFigures) -> list[str]:
    from headrace.ops.bench.http_streams import ERRORS_SHOWN

    cpu, alone, served = figures.cpu, figures.engine.alone, figures.engine.served
    return [
        f"{figures.streams} streams at a time, {figures.tokens} tokens in {figures.took_s:.1f} s, "
        f"{figures.tokens_per_event:.2f} tokens to an event:",
        "    gaps, ms                          p50     p95     p99 longest",
        f"    at the callers               {figures.gap_p50:8.1f}{figures.gap_p95:8.1f}{figures.gap_p99:8.1f}"
        f"{figures.gap_longest:8.0f}",
        f"    the engine alone             {alone.p50:8.1f}{alone.p95:8.1f}",
        f"    the engine, in the worker    {served.p50:8.1f}{served.p95:8.1f}",
        f"    p95 over that of the engine alone: {figures.over_engine:.1f} ms",
        f"time to the first text: {figures.first_text_p50:.0f} ms at p50, {figures.first_text_p95:.0f} ms at p95",
        f"processors kept busy: endpoint {cpu.endpoint:.2f}, worker {cpu.worker:.2f}, callers {cpu.clients:.2f}",
        f"errors: {len(figures.errors)}, texts that are not the engine's: {figures.wrong_texts}",
        *(f"    {error}" for error in figures.errors[:ERRORS_SHOWN]),
    ]


def _vanish(sizes: Sizes) -> Found:
    from headrace.ops.bench.http_vanish import VanishLoad, lines_of, measure

    figures = measure(say, VanishLoad(calls=sizes.leaving, batch=max(1, sizes.leaving // 10)))
    return Found(asdict(figures), figures.goals(), lines_of(figures))


# Each a measurement of its own; all of them unless one is named.
PARTS: dict[str, Callable[[Sizes], Found]] = {"ttft": _ttft, "streams": _streams, "vanish": _vanish}


@click.command(
    name="http",
    epilog="""\b
    Examples:
      headrace bench http
      headrace bench http --only ttft --calls 500
      headrace bench http --only streams --streams 200 --json
      headrace bench http --only vanish --leaving 2000""",
)
@click.option(
    "--only", type=click.Choice(list(PARTS)), help="One measurement. Default: all, one after the other."
)
@vllm_model
@click.option(
    "--calls", type=click.IntRange(10), default=200, show_default=True, help="ttft: of each of the two."
)
@click.option("--streams", type=click.IntRange(1), default=500, show_default=True, help="streams: at a time.")
@click.option(
    "--tokens", type=click.IntRange(8), default=200, show_default=True, help="streams: of each of them."
)
@click.option(
    "--rate",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="streams: tokens a second of each of them.",
)
@click.option(
    "--leaving",
    type=click.IntRange(100),
    default=10_000,
    show_default=True,
    help="vanish: calls, most of whose callers go away.",
)
@as_json
def http(
    only: str | None,
    model: Path | None,
    calls: int,
    streams: int,
    tokens: int,
    rate: float,
    leaving: int,
    as_json: bool,
) -> None:
    """What the HTTP endpoint adds to a first token, and what becomes of many streams and of callers that go away.

    ttft: the time to the first token through `headrace serve`, Kafka and a worker, over `vllm serve` with the same
    model, side by side. streams: many streams on one instance with the simulated engine, each text checked, and the
    gaps between their tokens over the engine's own. vanish: callers that go away at random moments, how soon their
    requests are cancelled, and what is left of them. Real Kafka.
    """
    # The client logs every lost connection as an error: here brokers and workers come and go.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    sizes = Sizes(model, calls, streams, tokens, rate, leaving)
    for name in PARTS if only is None else (only,):
        found = PARTS[name](sizes)
        if as_json:
            click.echo(json.dumps({"measured": name, **found.figures, "goals": found.goals}))
            continue
        for line in found.lines:
            click.echo(line)
        for goal, is_met in found.goals.items():
            click.echo(f"    {goal}: {verdict(is_met)}")
