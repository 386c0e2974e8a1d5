"""`headrace bench constrained` and `slow-schema`: what schemas cost, on one engine without Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from headrace.ops.cli.bench_output import as_json, say, verdict, vllm_model
from headrace.schemas.enforcement import Backend

if TYPE_CHECKING:
    from headrace.ops.bench.constrained import ConstrainedPair
    from headrace.ops.bench.slow_schema import SlowSchemaFigures, SlowSchemaLoad
    from headrace.workers.engine import Engine

backend_option = click.option(
    "--backend",
    type=click.Choice(get_args(Backend)),
    help="What enforces the schema. Default: both, one after the other.",
)


def _backends(chosen: Backend | None) -> tuple[Backend, ...]:
    return get_args(Backend) if chosen is None else (chosen,)


@contextlib.asynccontextmanager
async def _engine(model: Path | None, backend: Backend, sequences: int) -> AsyncGenerator[Engine]:
    """A running vLLM with room for so many sequences."""
    from headrace.ops.bench.tiny_model import tiny_model
    from headrace.schemas.settings import Settings
    from headrace.workers.vllm_engine import VllmEngine

    weights = model or tiny_model(Settings.from_environment().cache_dir / "models")
    say(f"loading {weights.name}")
    arguments = {
        "max_num_seqs": sequences,
        "max_model_len": 1024,
        "enable_prefix_caching": False,
        "enforce_eager": True,
    }
    engine = VllmEngine(weights, engine_arguments=arguments, structured_outputs_backend=backend)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.shutdown()


@click.command(
    epilog="""\b
    Examples:
      headrace bench constrained
      headrace bench constrained --backend xgrammar --pairs 9"""
)
@vllm_model
@backend_option
@click.option(
    "--requests", type=click.IntRange(1), default=256, show_default=True, help="Of each side of a pair."
)
@click.option("--concurrent", type=click.IntRange(1), default=64, show_default=True, help="At a time.")
@click.option(
    "--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Output of a request."
)
@click.option("--pairs", type=click.IntRange(1), default=5, show_default=True, help="Alternations.")
@as_json
def constrained(
    model: Path | None,
    backend: Backend | None,
    requests: int,
    concurrent: int,
    max_tokens: int,
    pairs: int,
    as_json: bool,
) -> None:
    """What a schema costs while text is generated.

    Output tokens a second under a schema over those without one, alternated in one process on one engine, without
    Kafka.
    """
    from headrace.ops.bench import constrained as measuring

    for each in _backends(backend):
        found = asyncio.run(_constrained(model, each, requests, concurrent, max_tokens, pairs))
        median, least, most = measuring.median_and_spread(found)
        if as_json:
            figures = {"backend": each, "ratio": median, "least": least, "most": most}
            click.echo(json.dumps(figures | {"pairs": [asdict(pair) for pair in found]}))
        else:
            click.echo(
                f"output tokens/s under a schema ({each}) over those without: {median:.2f} "
                f"(median of {len(found)}; {least:.2f} to {most:.2f}); at least 0.90: {verdict(median >= 0.9)}"
            )


async def _constrained(
    model: Path | None, backend: Backend, requests: int, concurrent: int, max_tokens: int, pairs: int
) -> list[ConstrainedPair]:
    from headrace.ops.bench.constrained import compare
    from headrace.ops.bench.ground import prompt_of

    prompts = [prompt_of(number, words=24) for number in range(requests)]
    async with _engine(model, backend, concurrent) as engine:
        return await compare(
            engine, prompts, max_tokens=max_tokens, concurrent=concurrent, pairs=pairs, on_progress=say
        )


@click.command(
    name="slow-schema",
    epilog="""\b
    Examples:
      headrace bench slow-schema
      headrace bench slow-schema --backend guidance --rounds 9 --seconds 20""",
)
@vllm_model
@backend_option
@click.option("--streams", type=click.IntRange(1), default=8, show_default=True, help="At a time.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Of nothing, a busy process and a slow schema beside the streams.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Of each of the three, in each round.",
)
@as_json
def slow_schema(
    model: Path | None, backend: Backend | None, streams: int, rounds: int, seconds: float, as_json: bool
) -> None:
    """What a schema that takes for ever to compile does to others' tokens.

    The gaps between the texts of streams while such a schema is being checked, over those beside a process at
    nice 19 that does nothing useful; alternated on one engine, without Kafka.
    """
    from headrace.ops.bench.slow_schema import SlowSchemaLoad

    load = SlowSchemaLoad(streams, rounds, seconds)
    for each in _backends(backend):
        found = asyncio.run(_slow_schema(model, each, load))
        if as_json:
            figures = {
                "backend": each,
                "ratio": found.ratio,
                "ratio_of_rounds": asdict(found.ratio_of_rounds),
            }
            click.echo(json.dumps(figures | asdict(found)))
        else:
            click.echo(_slow(each, load, found))


async def _slow_schema(model: Path | None, backend: Backend, load: SlowSchemaLoad) -> SlowSchemaFigures:
    from headrace.ops.bench.slow_schema import measure

    async with _engine(model, backend, load.streams) as engine:
        return await measure(engine, backend, load, on_progress=say)


def _slow(backend: Backend, load: SlowSchemaLoad, found: SlowSchemaFigures) -> str:
    from headrace.ops.bench.slow_schema import MOST_RATIO, PHASES, Beside, spread

    def row(beside: Beside) -> str:
        p95 = found.p95_ms(beside)
        p50 = spread([each[beside].p50_ms for each in found.rounds]).median
        longest = max(each[beside].longest_ms for each in found.rounds)
        lowest_to_highest = f"({p95.least:.1f} to {p95.most:.1f})"
        return f"    {beside:<16}{p50:8.1f}{p95.median:8.1f}  {lowest_to_highest:<20}{longest:10.1f}"

    ratios = found.ratio_of_rounds
    ends = ", ".join(f"{reason} ({times})" for reason, times in sorted(found.verdicts.items()))
    return "\n".join(
        [
            f"gaps between the texts of {load.streams} streams ({backend}), ms, medians of {load.rounds} rounds of "
            f"{load.seconds:g} s each:",
            "    beside them          p50     p95  (rounds' p95)          longest",
            *(row(beside) for beside in PHASES),
            f"p95 beside a slow schema over that beside a busy process: {found.ratio:.2f} (single rounds: "
            f"{ratios.least:.2f} to {ratios.most:.2f}); at most {MOST_RATIO}: {verdict(found.ratio <= MOST_RATIO)}",
            f"    {found.checks} checks of {found.check_s:.1f} s: {ends}",
        ]
    )
