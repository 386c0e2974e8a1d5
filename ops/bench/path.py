"""What the path through Kafka costs: `headrace bench path`.

Every figure is a ratio, or a cost, within one run on one machine. Requests and results are sent and read by a process
of its own, as they would be by other services; it shares the machine's processors.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.ops.bench.ground import BenchFailed, cpu_seconds, rss_bytes
from headrace.ops.bench.traffic import Load, Seen
from headrace.ops.worker_process import WorkerProcess
from headrace.schemas.enforcement import Enforcement
from headrace.schemas.messages import OutputConstraint, Sampling
from headrace.schemas.package import load_package
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line
from headrace.workers.engine import (
    Delta,
    Engine,
    EngineIdentity,
    Generation,
    GenerationJob,
    Prompt,
    TextPrompt,
)
from headrace.workers.worker import Worker

PARTITIONS = 4
READY_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """One alternation: output tokens a second of the engine alone, and through Kafka."""

    raw: float
    path: float
    before_ms: float  # from the first request sent until the first is admitted to the engine
    after_ms: float  # from the last output until its result is read by another service

    @property
    def ratio(self) -> float:
        """Through Kafka, over the engine alone."""
        return self.path / self.raw


@dataclass(frozen=True, slots=True)
class Cost:
    """What a worker needs beside its engine."""

    requests: int
    cpu_us_per_request: float  # of the whole worker process, its simulated engine included
    requests_per_s: float
    rss_at_tenth: float  # bytes
    rss_at_end: float  # bytes

    @property
    def growth(self) -> float:
        """RSS at the end over RSS at a tenth of the run."""
        return self.rss_at_end / self.rss_at_tenth


class Borrowed:
    """An engine that is already running: its start and end are somebody else's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def identity(self) -> EngineIdentity:
        return self._engine.identity

    async def start(self) -> None: ...

    async def probe(self) -> None:
        await self._engine.probe()

    async def encode(self, prompt: Prompt) -> list[int]:
        return await self._engine.encode(prompt)

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        return await self._engine.enforcement_of(constraint)

    def generate(self, job: GenerationJob) -> AsyncIterator[Delta | Generation]:
        return self._engine.generate(job)

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    def check_health(self) -> None:
        self._engine.check_health()

    async def shutdown(self) -> None: ...


async def throughput(
    engine: Engine,
    settings: Settings,
    package_dir: Path,
    *,
    prompts: list[str],
    max_tokens: int,
    pairs: int,
    on_progress: Callable[[str], None],
) -> list[Pair]:
    """Alternate the engine alone and the whole path, the same prompts each time. The engine must be running."""
    found: list[Pair] = []
    # Both sides once beforehand: a broker and an engine that have just started are slow.
    some = prompts[: max(1, len(prompts) // 4)]
    await _alone(engine, some, max_tokens)
    await _through_kafka(engine, settings, package_dir, some, max_tokens, "warm")
    for number in range(pairs):
        raw = await _alone(engine, prompts, max_tokens)
        seen = await _through_kafka(engine, settings, package_dir, prompts, max_tokens, f"pair{number}")
        path = seen.completion_tokens / (seen.last_result - seen.first_sent)
        before_ms = (seen.first_admitted - seen.first_sent) * 1000
        found.append(Pair(raw, path, before_ms, (seen.last_result - seen.last_finished) * 1000))
        on_progress(f"pair {number + 1} of {pairs}: {raw:.0f} tok/s alone, {path:.0f} through Kafka")
    return found


async def _alone(engine: Engine, prompts: list[str], max_tokens: int) -> float:
    sampling = Sampling(max_tokens=max_tokens)

    async def generate(number: int) -> int:
        token_ids = await engine.encode(TextPrompt(prompts[number]))
        job = GenerationJob(f"alone-{number}-{time.monotonic_ns()}", token_ids, sampling)
        async for event in engine.generate(job):
            if isinstance(event, Generation):
                return sum(choice.completion_tokens for choice in event.choices)
        return 0

    began = time.perf_counter()
    tokens = await asyncio.gather(*(generate(number) for number in range(len(prompts))))
    return sum(tokens) / (time.perf_counter() - began)


async def _through_kafka(
    engine: Engine, settings: Settings, package_dir: Path, prompts: list[str], max_tokens: int, name: str
) -> Seen:
    # The engine alone is handed all at once; so it is here. An eighth more, since a part of the room is kept for the
    # interactive lane: within a bound of just as many, the last few would begin only when others have ended.
    settings = settings.model_copy(
        update={
            "prefix": f"{settings.prefix}-{name}",
            "max_in_flight": len(prompts) + max(1, len(prompts) // 8),
        }
    )
    async with _worker(Borrowed(engine), settings, package_dir):
        load = _load(settings, len(prompts), prompts, max_tokens)
        seen = await _traffic(load)
    if seen.results != len(prompts) or seen.not_ok:
        raise BenchFailed(f"{seen.results} of {len(prompts)} results came, {seen.not_ok} of them not ok")
    return seen


def front_end(
    settings: Settings, package_dir: Path, log: Path, *, requests: int, on_progress: Callable[[str], None]
) -> Cost:
    """CPU and memory of a worker whose engine takes no time; a tenth of the requests is served before it counts."""
    settings = settings.model_copy(update={"prefix": f"{settings.prefix}-front"})
    prompts = [f"Tell me about number {number}, in a few words, please." for number in range(100)]
    bring_in_line(settings, ContractNames(settings.prefix, "bench", 1), LayoutOptions(partitions=PARTITIONS))
    environment = {"HEADRACE_SIMULATED_TIME_SCALE": "0"}
    tenth = max(1, requests // 10)
    with WorkerProcess(
        settings, package_dir, engine="simulated", slot="bench", log=log, environment=environment
    ) as worker:
        worker.wait_ready(READY_WITHIN_S)
        asyncio.run(_traffic(_load(settings, tenth, prompts, 16, decode=False)))
        cpu_s, rss, began = cpu_seconds(worker), rss_bytes(worker), time.perf_counter()
        on_progress(f"{tenth} requests served: {rss / 1e6:.0f} MB")
        rest = requests - tenth
        seen = asyncio.run(_traffic(_load(settings, rest, prompts, 16, decode=False)))
        if seen.results != rest:
            raise BenchFailed(f"{seen.results} of {rest} results came")
        spent_s = cpu_seconds(worker) - cpu_s
        cost = Cost(
            requests, spent_s / rest * 1e6, rest / (time.perf_counter() - began), rss, rss_bytes(worker)
        )
        worker.stop(READY_WITHIN_S)
    return cost


class _worker:  # noqa: N801 (used as a function)
    """A worker on this loop, in its group when the block begins."""

    def __init__(self, engine: Engine, settings: Settings, package_dir: Path) -> None:
        package = load_package(package_dir)
        bring_in_line(
            settings,
            ContractNames(settings.prefix, package.model, package.contract),
            LayoutOptions(partitions=PARTITIONS),
        )
        self._worker = Worker(settings=settings, package=package, engine=engine, slot="bench")

    async def __aenter__(self) -> None:
        self._running = asyncio.create_task(self._worker.run())
        ready = asyncio.create_task(self._worker.ready.wait())
        await asyncio.wait({self._running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._running.done():
            ready.cancel()
            await self._running

    async def __aexit__(self, *_: object) -> None:
        self._worker.stop()
        await self._running


def _load(
    settings: Settings, requests: int, prompts: list[str], max_tokens: int, *, decode: bool = True
) -> Load:
    return Load(
        bootstrap_servers=str(settings.bootstrap_servers),
        prefix=settings.prefix,
        model="bench",
        contract=1,
        partitions=PARTITIONS,
        requests=requests,
        prompts=prompts,
        max_tokens=max_tokens,
        decode=decode,
    )


async def _traffic(load: Load) -> Seen:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.ops.bench.traffic", json.dumps(asdict(load))),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    if process.returncode != 0:
        raise BenchFailed(
            "the process that sends requests and reads results failed; its own words stand above"
        )
    return Seen(**json.loads(out))


def median_and_spread(pairs: list[Pair]) -> tuple[float, float, float]:
    """Median, least and greatest of the ratios."""
    ratios = [pair.ratio for pair in pairs]
    return statistics.median(ratios), min(ratios), max(ratios)
