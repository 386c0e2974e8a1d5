"""`headrace backfill` beside vLLM's `run-batch` and Ray Data LLM in one run, and the page that says what came out."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from headrace.ops.bench.backfill_contenders import BackfillContender, Measured, Plan, RunFigures, measure
from headrace.ops.bench.backfill_headrace import HeadraceCold, HeadraceUp, fleet
from headrace.ops.bench.backfill_peer import EngineSettings
from headrace.ops.bench.backfill_peers import RayDataLlm, RunBatch
from headrace.ops.bench.backfill_rows import Asking, film_schema
from headrace.ops.bench.backfill_table import comparison_table, markdown_line
from headrace.ops.bench.ground import Say
from headrace.ops.bench.ray_environment import RAY, ray_environment
from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings
from headrace.workers.vllm_setup import installed_distribution

RUN_BATCH, RAY_DATA, RAY_CHECKPOINTS = "run-batch", "ray", "ray-checkpoints"
COLD, UP = "headrace-cold", "headrace-up"
# The same, with an engine that has one thread: see `_of_threads`.
RUN_BATCH_ONE, UP_ONE = "run-batch-one-thread", "headrace-up-one-thread"
CONTENDERS = (RUN_BATCH, RAY_DATA, RAY_CHECKPOINTS, COLD, UP, RUN_BATCH_ONE, UP_ONE)
SHOWN = {
    RUN_BATCH: "vLLM run-batch",
    RAY_DATA: "Ray Data LLM",
    RAY_CHECKPOINTS: "Ray Data LLM, checkpoints and continue on error",
    COLD: "Headrace, cold",
    UP: "Headrace, worker up",
    RUN_BATCH_ONE: "vLLM run-batch, engine of one thread",
    UP_ONE: "Headrace, worker up, engine of one thread",
}
COMMAND = "headrace bench backfill --peers"

Opened = AbstractContextManager[BackfillContender]


@dataclass(slots=True)
class Comparison:
    """What was measured, in the order of `CONTENDERS`; who was left out, and why."""

    plan: Plan
    engine: EngineSettings
    asking: Asking
    place: Path
    began: datetime
    load: float  # of the machine, before
    measured: dict[str, Measured] = field(default_factory=dict[str, Measured])
    left_out: dict[str, str] = field(default_factory=dict[str, str])


def compare(plan: Plan, only: Sequence[str], say: Say, keep: Callable[[Comparison], None]) -> Comparison:
    """One after the other, each on a machine that the others have left; `only` these, or all where it is empty.

    It takes long: `keep` is called after each with what there is by then.

    Who cannot be had here, or fails, is left out with its reason. Raises EngineUnavailable.
    """
    installed_distribution()
    cache = Settings.from_environment().cache_dir
    engine, asking = EngineSettings(tiny_model(cache / "models")), Asking(film_schema())
    place = cache / "bench-backfill" / time.strftime("%Y%m%d-%H%M%S")
    found = Comparison(plan, engine, asking, place, datetime.now(UTC), os.getloadavg()[0])
    say(f"inputs, outputs and logs: {place}")
    for name in CONTENDERS:
        if not only or name in only:
            measure_one(found, name, _opener(name, cache, engine, asking, say), say)
            keep(found)
    return found


def measure_one(found: Comparison, name: str, opener: Callable[[], Opened], say: Say) -> None:
    """One contender, to be put down among what was measured or left out."""
    # From nothing, the broker goes with whoever is killed: that is measured of the job beside a worker that is up. And
    # neither has to do with threads.
    undisturbed = name in (COLD, RUN_BATCH_ONE, UP_ONE)
    plan = replace(found.plan, killed_rows=0, bad_rows=0) if undisturbed else found.plan
    say(f"--- {SHOWN[name]}")
    try:
        with opener() as contender:
            found.measured[name] = measure(contender, plan, found.place / name, say)
    except HeadraceError as error:
        found.left_out[name] = str(error)
        say(f"{SHOWN[name]} is left out: {error}")


def _opener(name: str, cache: Path, engine: EngineSettings, asking: Asking, say: Say) -> Callable[[], Opened]:
    if name in (RUN_BATCH_ONE, UP_ONE):
        engine = replace(engine, threads=1)

    @contextlib.contextmanager
    def opened() -> Generator[BackfillContender]:
        shown = SHOWN[name]
        if name in (UP, UP_ONE):
            with fleet(engine, asking, say) as on:
                yield HeadraceUp(on, engine, asking, shown)
        elif name == COLD:
            yield HeadraceCold(engine, asking, shown)
        elif name in (RUN_BATCH, RUN_BATCH_ONE):
            yield RunBatch(engine, asking, shown)
        else:
            kept = name == RAY_CHECKPOINTS
            python = ray_environment(cache, say)
            yield RayDataLlm(python, engine, asking, checkpoint=kept, continue_on_error=kept, name=shown)

    return opened


# --- the page ---------------------------------------------------------------------------------------------


def table(found: Comparison) -> str:
    """The figures, as Markdown."""
    return comparison_table(list(found.measured.values()))


def page(found: Comparison) -> str:
    """The whole page."""
    left_out = "".join(f"\n- {SHOWN[name]} is left out: {why}" for name, why in found.left_out.items())
    return f"""# Backfill: a comparison

<!-- Written by `{COMMAND} --write`. Do not edit it: run it again. -->

The same rows, the same model and the same engine settings, given to `headrace backfill`, to vLLM's own
`vllm run-batch` and to Ray Data LLM, one after the other on one machine. Ratios say something; seconds are of this
machine, and of a model so small that what surrounds the engine counts for more than it would beside a real one.

## Figures

{table(found)}

Medians; in brackets the least and the most.{_busy(found)}{left_out}

{start_table(found)}

## What they mean

{meaning(found)}

## What was measured

- **{found.plan.rows:,} rows** of made-up films, each prompt unlike the others, {_times(found.plan.times)}; one user
  message each through the model's chat template, so that all have the same prompt tokens; answers under the JSON
  Schema of `examples/movie-tagger`, with {_sampling(found.asking)}, without a seed. Nothing is deduplicated.
- **Seconds** run from the command to the last write of the finished file. "Headrace, cold" begins with nothing: a
  broker, topics, a worker and the job, by `python -m headrace.ops.bench.backfill_cold`. "Headrace, worker up" is
  `headrace backfill run` beside a broker and a worker that run already: the engine's loading, which the others pay for
  each time, is not in it.
- **Steady tokens/s** are generated tokens between 20 % and 90 % of the rows.
- **Engine of one thread**: `OMP_NUM_THREADS=1`. Elsewhere the engine has a thread for each processor.
- **Memory** is the peak of all processes of the command together, with pages that they share counted in each; and with
  those counted once. That of "Headrace, cold" has the broker in it; that of a worker that was up is given apart.
{_accidents(found.plan)}- Ray runs in two ways: as it is by default, and with checkpoints and with errors kept in rows.
- Headrace's workers have `HEADRACE_BACKFILL_SHARE=1`: they serve one backfill and nobody else, as the peers' engines
  do. By default backfill fills three quarters of the engine, so that a request that somebody waits for finds a place.

## Where

{conditions(found)}

## Again

    pip install ".[worker-cpu,backfill]"     # or [worker] with a GPU; and Java, with `headrace broker install` once
    {COMMAND} --write docs/backfill-comparison.md

Ray Data LLM is installed in an environment of its own on first use. What cannot be had is left out, with the reason.
"""


def start_table(found: Comparison) -> str:
    """What the first table has no room for."""
    head = (
        "",
        "first row done after, s",
        "prompt back after, s",
        "prompt tokens",
        "generated tokens",
        "in order",
        "steady by",
    )
    lines = [markdown_line(head), markdown_line(["---"] * len(head))]
    for measured in found.measured.values():
        if not (runs := measured.runs):
            continue
        first = [run.first_row_seconds for run in runs if run.first_row_seconds is not None]
        cells = [
            measured.name,
            f"{statistics.median(first):.1f}" if first else "not seen",
            f"{_middle(runs, 'exit_seconds'):.1f}",
            f"{_middle(runs, 'prompt_tokens'):,.0f}",
            f"{_middle(runs, 'completion_tokens'):,.0f}",
            "yes" if all(run.in_order for run in runs) else "no",
            runs[0].steady_by,
        ]
        lines.append(markdown_line(cells))
    return "\n".join(lines)


def meaning(found: Comparison) -> str:
    """Who is faster, what an accident costs, and what each does better, as far as there are figures for it."""
    said = [f"{_of_seconds(found)} {_of_tokens(found)}".strip(), _of_threads(found), _of_accidents(found)]
    said.append(
        "`run-batch` is one command without a broker: where nothing goes wrong, and the engine is needed once, that is "
        "the simplest; Ray reads and writes whatever its data sets do, spreads over a cluster by itself, and with "
        "checkpoints goes on where it was killed; Headrace has a Kafka between the rows and the engine, which keeps "
        "each answer through a kill, and lets live traffic share the engine."
    )
    return "\n".join(f"- {sentence}" for sentence in said if sentence)


def _of_seconds(found: Comparison) -> str:
    base = _runs(found, RUN_BATCH)
    if not base:
        return ""
    told = [
        f"{SHOWN[name]} {_middle(runs, 'seconds') / _middle(base, 'seconds'):.2f}"
        for name in (COLD, UP, RAY_DATA, RAY_CHECKPOINTS)
        if (runs := _runs(found, name))
    ]
    return f"To the finished file, as a multiple of `run-batch`'s time: {'; '.join(told)}." if told else ""


def _of_threads(found: Comparison) -> str:
    base, ours = _rate(_runs(found, RUN_BATCH_ONE)), _rate(_runs(found, UP_ONE))
    if base is None or ours is None:
        return ""
    return (
        f"With an engine of one thread Headrace, worker up, has {ours / base:.2f} of `run-batch`'s steady tokens/s. "
        "That is what the path through Kafka costs an engine that has its processors to itself. One with a thread for "
        "each processor of the machine loses more: its threads wait for each other at every layer, so that what a "
        "broker, a worker and a backfill take of one processor all of them lose."
    )


def _of_tokens(found: Comparison) -> str:
    rates = {name: _rate(_runs(found, name)) for name in CONTENDERS if name not in (RUN_BATCH_ONE, UP_ONE)}
    base = rates[RUN_BATCH]
    if base is None:
        return ""
    told = [
        f"{SHOWN[name]} {rate / base:.2f}"
        for name, rate in rates.items()
        if rate is not None and name != RUN_BATCH
    ]
    return f"Steady tokens/s, as a multiple of `run-batch`'s: {'; '.join(told)}." if told else ""


def _of_accidents(found: Comparison) -> str:
    told = [
        f"{SHOWN[name]} {measured.killed.regenerated / measured.killed.done_at_kill:.0%}"
        for name, measured in found.measured.items()
        if measured.killed is not None and measured.killed.done_at_kill
    ]
    ended = [
        f"{SHOWN[name]} at a row that is {' or '.join(kinds)}"
        for name, measured in found.measured.items()
        if (kinds := [bad.bad for bad in measured.bad if bad.ends_the_job])
    ]
    said = (
        f"After a kill, of the rows that were done these were generated again: {'; '.join(told)}."
        if told
        else ""
    )
    return f"{said} One bad row ends the whole job of {'; of '.join(ended)}.".strip() if ended else said


def conditions(found: Comparison) -> str:
    """The machine and the versions."""
    distribution, version = installed_distribution()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    engine = ", ".join(f"{name}={value}" for name, value in found.engine.arguments.items())
    return "\n".join(
        f"- {line}"
        for line in (
            f"{found.began:%d %B %Y}; {_processor()}, {os.cpu_count()} processors, {memory / 1e9:.0f} GB; "
            f"the machine's load just before: {found.load:.1f}",
            f"Python {platform.python_version()}, {distribution} {version}; {RAY.replace('==', ' ')} with that vLLM",
            f"a Llama of half a million random parameters; {engine}; structured output by {found.engine.backend}",
            "Apache Kafka on the same machine, one broker, four partitions a topic",
        )
    )


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _accidents(plan: Plan) -> str:
    killed = f"""- **Killed**: SIGKILL at half of {plan.killed_rows:,} rows, and the same command again. What Headrace
  keeps lies in the topic `results`, whether or not a part of the output has it yet; what is generated twice is
  counted there. The worker is not killed with the job, and meanwhile finishes what it was asked.
"""
    bad = f"- **Bad rows**: one in the middle of {plan.bad_rows:,}.\n"
    cold = '- "Headrace, cold" is neither killed nor given bad rows: that is measured with the worker up.\n'
    said = (killed if plan.killed_rows else "") + (bad if plan.bad_rows else "")
    return said + cold if said else ""


def _busy(found: Comparison) -> str:
    if found.load <= (os.cpu_count() or 1) / 2:
        return ""
    return (
        " **The machine had other work when this began: the figures tell how it works, not how fast it is.**"
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _sampling(asking: Asking) -> str:
    return ", ".join(f"{name} {value}" for name, value in asking.sampling.items())


def _runs(found: Comparison, name: str) -> Sequence[RunFigures]:
    measured = found.measured.get(name)
    return () if measured is None else measured.runs


def _middle(runs: Sequence[RunFigures], figure: str) -> float:
    return statistics.median(float(getattr(run, figure)) for run in runs)


def _rate(runs: Sequence[RunFigures]) -> float | None:
    rates = [run.steady_tokens_per_s for run in runs if run.steady_tokens_per_s is not None]
    return statistics.median(rates) if rates else None
