"""`headrace bench`."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.ops.cli.bench_backfill import backfill
from headrace.ops.cli.bench_http import http
from headrace.ops.cli.bench_rollout import rollout
from headrace.ops.cli.bench_scenarios import interactive, long_request, moves
from headrace.ops.cli.bench_schemas import constrained, slow_schema

if TYPE_CHECKING:
    from headrace.ops.bench.path import Cost, Pair
    from headrace.schemas.settings import Settings


@click.group()
def bench() -> None:
    """Measure, as ratios within one run."""


bench.add_command(moves)
bench.add_command(long_request)
bench.add_command(interactive)
bench.add_command(constrained)
bench.add_command(slow_schema)
bench.add_command(http)
bench.add_command(rollout)
bench.add_command(backfill)


@bench.command(
    epilog="""\b
    Examples:
      headrace bench path
      headrace bench path --model ~/.cache/headrace/models/SmolLM2-135M-Instruct --requests 48
      headrace bench path --skip-engine --front-end-requests 200000"""
)
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Weights for vLLM. Default: a tiny random Llama, made on first use.",
)
@click.option("--requests", default=512, show_default=True, help="Of each run with the engine.")
@click.option("--prompt-words", default=24, show_default=True, help="Length of a prompt.")
@click.option("--max-tokens", default=64, show_default=True, help="Output of a request.")
@click.option(
    "--pairs", default=3, show_default=True, help="Alternations of the engine alone and through Kafka."
)
@click.option(
    "--front-end-requests", default=20_000, show_default=True, help="With an engine that takes no time."
)
@click.option("--skip-engine", is_flag=True, help="Measure the front end alone; needs no vLLM.")
@click.option("--skip-front-end", is_flag=True, help="Measure throughput alone.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def path(
    model: Path | None,
    requests: int,
    prompt_words: int,
    max_tokens: int,
    pairs: int,
    front_end_requests: int,
    skip_engine: bool,
    skip_front_end: bool,
    as_json: bool,
) -> None:
    """What the path through Kafka costs over the engine alone.

    Output tokens per second through Kafka over those of the engine fed directly, alternated; CPU per request of the
    front end (decode, track, prompt, validate, encode, commit) with an engine that takes no time; memory over a long
    run; and where the time of a request goes.
    """
    from headrace.ops.bench import path as measuring
    from headrace.ops.bench import stages
    from headrace.ops.bench.ground import PACKAGE, prompt_of
    from headrace.ops.broker import BrokerNeeds, find_or_start
    from headrace.schemas.settings import Settings

    def say(line: str) -> None:
        click.echo(line, err=True)

    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        find_or_start(Settings.from_environment(), BrokerNeeds(exactly_once=True), on_progress=say) as broker,
    ):
        place = Path(directory)
        (place / "package.toml").write_text(PACKAGE)
        settings = Settings.from_environment(
            bootstrap_servers=broker.bootstrap_servers, prefix="bench", metrics_port=0
        )
        if not skip_engine:
            prompts = [prompt_of(number, prompt_words) for number in range(requests)]
            measured = asyncio.run(_throughput(settings, place, model, prompts, max_tokens, pairs, say))
            median, least, most = measuring.median_and_spread(measured)
            found["throughput"] = {
                "ratio": median,
                "least": least,
                "most": most,
                "pairs": [asdict(pair) for pair in measured],
            }
        if not skip_front_end:
            cost = measuring.front_end(
                settings, place, place / "worker.log", requests=front_end_requests, on_progress=say
            )
            found["front_end"] = _cost(cost)
        found["stages_us"] = stages.measure()
    click.echo(json.dumps(found) if as_json else _table(found))


async def _throughput(
    settings: Settings,
    package_dir: Path,
    model: Path | None,
    prompts: list[str],
    max_tokens: int,
    pairs: int,
    say: Any,
) -> list[Pair]:
    from headrace.ops.bench.path import throughput
    from headrace.ops.bench.tiny_model import tiny_model
    from headrace.workers.vllm_engine import VllmEngine

    weights = model or tiny_model(settings.cache_dir / "models")
    say(f"loading {weights.name}")
    # The same for both sides; without a prefix cache, since the prompts come again and again.
    arguments = {
        "max_num_seqs": 256,
        "max_model_len": 1024,
        "enable_prefix_caching": False,
        "enforce_eager": True,
    }
    engine = VllmEngine(weights, engine_arguments=arguments)
    await engine.start()
    try:
        return await throughput(
            engine,
            settings,
            package_dir,
            prompts=prompts,
            max_tokens=max_tokens,
            pairs=pairs,
            on_progress=say,
        )
    finally:
        await engine.shutdown()


def _cost(cost: Cost) -> dict[str, float]:
    return {
        "requests": cost.requests,
        "cpu_us_per_request": cost.cpu_us_per_request,
        "requests_per_s": cost.requests_per_s,
        "rss_at_tenth_mb": cost.rss_at_tenth / 1e6,
        "rss_at_end_mb": cost.rss_at_end / 1e6,
        "rss_ratio": cost.growth,
    }


def _table(found: dict[str, Any]) -> str:
    lines: list[str] = []
    if throughput := found.get("throughput"):
        lines.append(
            f"output tokens/s through Kafka over the engine alone: {throughput['ratio']:.2f} "
            f"(median of {len(throughput['pairs'])}; {throughput['least']:.2f} to {throughput['most']:.2f})"
        )
        lines += [
            f"    {pair['raw']:8.0f} alone {pair['path']:8.0f} through Kafka; {pair['before_ms']:4.0f} ms until the "
            f"first is admitted, {pair['after_ms']:4.0f} ms from the last output to its reader"
            for pair in throughput["pairs"]
        ]
    if cost := found.get("front_end"):
        lines += [
            f"CPU of the worker for a request, its engine simulated: {cost['cpu_us_per_request']:.0f} us "
            f"({cost['requests_per_s']:.0f} requests/s)",
            f"memory over {cost['requests']:.0f} requests: {cost['rss_at_tenth_mb']:.0f} MB at a tenth, "
            f"{cost['rss_at_end_mb']:.0f} MB at the end: {cost['rss_ratio']:.3f}",
        ]
    lines.append("where a request's CPU goes (one at a time, us):")
    lines += [f"    {name:<32} {cost:7.1f}" for name, cost in found["stages_us"].items()]
    return "\n".join(lines)
