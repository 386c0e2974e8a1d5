"""A worker whose simulated engine gives each sequence its tokens at one pace, however many run.

python -m headrace.ops.bench.paced_worker JSON      (a Pace as a JSON object)

It is a worker like any other, but for its engine: that notes the gaps between the tokens that it hands to the worker,
first of as many streams as it takes alone, without Kafka, then of all that it serves. SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.ops.bench.interactive import percentile
from headrace.ops.heap import freeze_heap
from headrace.ops.worker_process import WorkerProcess
from headrace.schemas.messages import Sampling
from headrace.schemas.package import load_package
from headrace.schemas.settings import Settings
from headrace.workers.engine import Delta, Generation, GenerationJob, TextPrompt
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile

if TYPE_CHECKING:
    from headrace.ops.bench.ground import Ground
    from headrace.workers.worker import Worker

SPARE = 16  # places beyond the streams: who follows another on the same connection may come a moment early
KV_TOKENS = 1 << 30  # it is not to be short of that
ALONE_S = 4.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What the worker serves, and how fast. `figures` is the file that it writes its Gaps to."""

    package: str
    slot: str
    streams: int  # that may run at a time
    tokens: int  # of each text
    token_s: float  # of each token
    figures: str


@dataclass(frozen=True, slots=True)
class Gaps:
    """Milliseconds between two tokens of a stream, all streams together, as the engine hands them out."""

    p50: float
    p95: float
    counted: int


@dataclass(frozen=True, slots=True)
class PacedGaps:
    """Of the engine alone, and of the engine in the worker."""

    alone: Gaps
    served: Gaps


def profile_of(streams: int, tokens: int, token_s: float) -> SimulatedProfile:
    """Texts of `tokens` tokens each, at one pace."""
    return SimulatedProfile(
        decode_seconds_per_token=token_s,
        batch_slowdown=0.0,
        max_running=streams + SPARE,
        kv_tokens=KV_TOKENS,
        completion_tokens=(tokens, tokens),
    )


class NotingEngine(SimulatedEngine):
    """Notes the gaps between the deltas of each job."""

    def __init__(self, profile: SimulatedProfile) -> None:
        super().__init__(profile)
        self._gaps = array("d")  # seconds

    async def generate(self, job: GenerationJob) -> AsyncIterator[Delta | Generation]:
        """See the port."""
        last: float | None = None
        async for event in super().generate(job):
            if isinstance(event, Delta):
                now = time.perf_counter()
                if last is not None:
                    self._gaps.append(now - last)
                last = now
            yield event

    def take_gaps(self) -> Gaps:
        """What was noted since this was asked last."""
        noted, self._gaps = self._gaps, array("d")
        return gaps_of(noted)


def gaps_of(seconds: array[float]) -> Gaps:
    """Sum up; zeros where nothing was noted."""
    if not seconds:
        return Gaps(0.0, 0.0, 0)
    return Gaps(percentile(seconds, 0.5) * 1000, percentile(seconds, 0.95) * 1000, len(seconds))


async def _alone(engine: NotingEngine, pace: Pace) -> Gaps:
    """The engine with all its streams, and nothing else on the loop."""
    sampling = Sampling(max_tokens=max(2, round(ALONE_S / pace.token_s)))

    async def read(number: int) -> None:
        # As they come to it otherwise: one after the other, not all in one tick.
        await asyncio.sleep(pace.token_s * number / pace.streams)
        token_ids = await engine.encode(TextPrompt(f"alone {number}"))
        async for _ in engine.generate(GenerationJob(f"alone-{number}", token_ids, sampling, stream=True)):
            pass

    await engine.start()
    await asyncio.gather(*map(read, range(pace.streams)))
    return engine.take_gaps()


async def _serve(pace: Pace) -> PacedGaps:
    from headrace.workers.worker import Worker

    engine = NotingEngine(profile_of(pace.streams, pace.tokens, pace.token_s))
    alone = await _alone(engine, pace)
    worker = Worker(
        settings=Settings.from_environment(),
        package=load_package(Path(pace.package)),
        engine=engine,
        slot=pace.slot,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    ready = asyncio.create_task(_when_ready(worker))
    await worker.run()
    ready.cancel()
    return PacedGaps(alone, engine.take_gaps())


async def _when_ready(worker: Worker) -> None:
    """As `headrace worker run` does."""
    await worker.ready.wait()
    freeze_heap()


class PacedWorker(WorkerProcess):
    """Such a worker in a process of its own."""

    def __init__(self, ground: Ground, slot: str, *, streams: int, tokens: int, token_s: float) -> None:
        settings = ground.settings
        self.log = ground.logs / f"{settings.prefix}-{slot}.log"
        self._figures = ground.package / f"{slot}.gaps.json"
        pace = Pace(str(ground.package), slot, streams, tokens, token_s, str(self._figures))
        environment = {
            "HEADRACE_BOOTSTRAP_SERVERS": str(settings.bootstrap_servers),
            "HEADRACE_PREFIX": settings.prefix,
            "HEADRACE_METRICS_PORT": "0",
        }
        self._log_begins = 0
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace.ops.bench.paced_worker", json.dumps(asdict(pace))],
                stdout=output,
                stderr=output,
                env=os.environ | environment,
                start_new_session=True,
            )

    def gaps(self) -> PacedGaps:
        """What its engine has noted; it must have been stopped."""
        found: Any = json.loads(self._figures.read_text())
        return PacedGaps(Gaps(**found["alone"]), Gaps(**found["served"]))


if __name__ == "__main__":
    from headrace.ops.cli.worker import log_to_stderr

    log_to_stderr("info")
    told = Pace(**json.loads(sys.argv[1]))
    Path(told.figures).write_text(json.dumps(asdict(asyncio.run(_serve(told)))))
