"""How long an interactive request waits for its first token beside a backfill: `headrace bench interactive`."""

from __future__ import annotations

import asyncio
import math
import random
import re
import statistics
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ops.bench.background import Background
from headrace.ops.bench.ground import BenchFailed, Ground, prompt_of, wait_until
from headrace.ops.bench.recording import AnswerLog, RequestSender
from headrace.producers.client import Client
from headrace.schemas.messages import Request, Sampling

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.ops.bench.ground import Say
    from headrace.ops.worker_process import WorkerProcess

SLOT = "worker-1"
MAX_TOKENS = 8  # of an interactive request: the first is what counts
WARM_UP = 3  # requests before any is counted
LEAST_SATURATION = 0.9
LEAST_COUNTED = 0.9  # of the requests: those answered with some text
LOADED_WITHIN_S = 300.0
READ_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 120.0
LOADING_WITHIN_S = 600.0
DRAIN_BUDGET_S = 1  # at the end nobody waits for the backfill
STOPPED_WITHIN_S = 120.0
FEED_EVERY_S = 0.05
LOOK_EVERY_S = 0.5

RUNNING = "vllm:num_requests_running"
BETWEEN_TOKENS = "vllm:inter_token_latency_seconds"


@dataclass(frozen=True, slots=True)
class InteractiveLoad:
    """What is asked. `batch` is vLLM's `max_num_seqs`; backfill fills `backfill_share` of it at most."""

    requests: int = 100  # interactive ones, idle and loaded each
    batch: int = 32  # sequences
    backfill_tokens: int = 128  # of a backfill request's output
    prompt_words: int = 24
    pause_s: float = 0.2  # between two interactive requests, half of it at least: no rhythm with the steps


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Milliseconds from asking to the first text, and from append to first token as the worker has it."""

    client_p50: float
    client_p95: float
    worker_p50: float
    worker_p95: float


@dataclass(frozen=True, slots=True)
class Steps:
    """A look at vLLM's page: sequences running, and the time between tokens summed and counted."""

    running: float
    seconds: float
    tokens: float


@dataclass(frozen=True, slots=True)
class InteractiveFigures:
    """Idle and loaded, and what an engine step took meanwhile."""

    idle: FirstTokens
    loaded: FirstTokens
    step_ms: float  # mean time between two tokens of a sequence, all the while that it was loaded
    running: float  # sequences in the engine when it was looked at between two interactive requests: median
    saturation: float  # of what backfill may fill

    @property
    def ratio(self) -> float:
        """p95 at the client, loaded over idle."""
        return self.loaded.client_p95 / self.idle.client_p95

    @property
    def steps_over_idle(self) -> float:
        """p95 at the client, loaded less idle, in engine steps."""
        return (self.loaded.client_p95 - self.idle.client_p95) / self.step_ms

    @property
    def worker_steps_over_idle(self) -> float:
        """The same in the worker."""
        return (self.loaded.worker_p95 - self.idle.worker_p95) / self.step_ms


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def first_tokens(client_ms: Sequence[float], worker_ms: Sequence[float]) -> FirstTokens:
    """Of one phase."""
    return FirstTokens(
        percentile(client_ms, 0.5),
        percentile(client_ms, 0.95),
        percentile(worker_ms, 0.5),
        percentile(worker_ms, 0.95),
    )


def steps_on(page: str) -> Steps:
    """What a page in Prometheus' text format says. Raises BenchFailed where vLLM's families are not on it."""
    sums = {
        name: [
            float(each) for each in re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", page, re.MULTILINE)
        ]
        for name in (RUNNING, f"{BETWEEN_TOKENS}_sum", f"{BETWEEN_TOKENS}_count")
    }
    missing = [name for name, values in sums.items() if not values]
    if missing:
        raise BenchFailed(f"not on the worker's page: {', '.join(missing)}")
    running, seconds, tokens = (sum(values) for values in sums.values())
    return Steps(running, seconds, tokens)


def sum_up(idle: FirstTokens, loaded: FirstTokens, looks: Sequence[Steps], room: float) -> InteractiveFigures:
    """`looks` at the page in their order, all while it was loaded; `room`: sequences that backfill may fill."""
    tokens = looks[-1].tokens - looks[0].tokens
    if tokens <= 0:
        raise BenchFailed("the engine generated nothing while it should have been loaded")
    running = statistics.median(each.running for each in looks)
    step_ms = (looks[-1].seconds - looks[0].seconds) / tokens * 1000
    return InteractiveFigures(idle, loaded, step_ms, running, running / room)


class Backfill(Background):
    """Keeps so many backfill requests outstanding, in a thread of its own, from `with` to its end."""

    def __init__(self, ground: Ground, answers: AnswerLog, load: InteractiveLoad, outstanding: int) -> None:
        super().__init__("backfill")
        self._answers = answers
        self._load = load
        self._outstanding = outstanding
        self._units = ground.partitions
        self._sender = RequestSender(ground)

    def stopped(self) -> None:
        self._sender.close()

    def run(self) -> None:
        sampling = Sampling(max_tokens=self._load.backfill_tokens)
        answered_at_first = len(self._answers)
        while not self.over.wait(FEED_EVERY_S):
            # The few interactive ones among the answered make it a little more than that.
            while self._sender.sent - (len(self._answers) - answered_at_first) < self._outstanding:
                number = self._sender.sent
                prompt = prompt_of(number, self._load.prompt_words)
                request = Request(id=f"backfill-{number}", prompt=prompt, sampling=sampling)
                self._sender.send(request, number % self._units, "backfill")


def run(ground: Ground, load: InteractiveLoad, weights: Path, say: Say) -> InteractiveFigures:
    """One worker with vLLM: idle, then with the backfill. Raises HeadraceError."""
    room = max(1.0, load.batch * ground.settings.backfill_share)
    options = ("--weights", str(weights), "--drain-budget", str(DRAIN_BUDGET_S))
    with ExitStack() as ends:
        worker = ends.enter_context(ground.worker(SLOT, "vllm", options=options))
        say(f"loading {weights.name}")
        worker.wait_ready(LOADING_WITHIN_S)
        answers = ends.enter_context(AnswerLog(ground))
        asking = _Asking(ground, load, worker, answers)
        asyncio.run(asking.ask("warm-up", WARM_UP))
        idle = asyncio.run(asking.ask("idle", load.requests))
        say(f"idle: {idle.client_p50:.0f} ms to the first token, {idle.client_p95:.0f} ms at p95")
        with Backfill(ground, answers, load, 3 * load.batch) as backfill:
            wait_until(
                lambda: asking.look().running >= LEAST_SATURATION * room,
                LOADED_WITHIN_S,
                f"backfill fills {LEAST_SATURATION:.0%} of its {room:.0f} places",
            )
            asyncio.run(asking.ask("loaded-warm-up", WARM_UP))
            asking.looks.clear()
            loaded = asyncio.run(asking.ask("loaded", load.requests))
            backfill.check()
        say(f"loaded: {loaded.client_p50:.0f} ms to the first token, {loaded.client_p95:.0f} ms at p95")
        worker.stop(STOPPED_WITHIN_S)
    return sum_up(idle, loaded, asking.looks, room)


class _Asking:
    """Streamed interactive requests one after the other, and a look at vLLM's page between them."""

    def __init__(
        self, ground: Ground, load: InteractiveLoad, worker: WorkerProcess, answers: AnswerLog
    ) -> None:
        self._ground = ground
        self._load = load
        self._worker = worker
        self._answers = answers
        self._dice = random.Random("pauses")
        self.looks: list[Steps] = []

    def look(self) -> Steps:
        """At the page, now."""
        return steps_on(self._worker.get("/metrics")[1])

    async def ask(self, name: str, count: int) -> FirstTokens:
        """So many requests; the times until their first tokens."""
        client_ms: list[float] = []
        ids: list[str] = []
        async with Client.connect(self._ground.names.model, settings=self._ground.settings) as client:
            for number in range(count):
                ids.append(f"{name}-{number}-{uuid.uuid4().hex[:8]}")
                first_ms = await self._first_text(client, ids[-1], number)
                if first_ms is None:
                    ids.pop()
                else:
                    client_ms.append(first_ms)
                # Making the page costs the worker milliseconds: never while a request is under way.
                self.looks.append(await asyncio.to_thread(self.look))
                await asyncio.sleep(self._load.pause_s * self._dice.uniform(0.5, 1.5))
        if len(ids) < LEAST_COUNTED * count:
            raise BenchFailed(f"{count - len(ids)} of {count} requests were answered with no text at all")
        return first_tokens(client_ms, self._in_worker(ids))

    async def _first_text(self, client: Client, id_: str, number: int) -> float | None:
        """Milliseconds until there is any text; returns when the whole text is there.

        None: there was none, as a model of random weights may have it.
        """
        first: float | None = None
        began = time.perf_counter()
        async for _ in client.stream(
            prompt_of(number, self._load.prompt_words),
            id=id_,
            sampling=Sampling(max_tokens=MAX_TOKENS),
            timeout=ANSWERED_WITHIN_S,
        ):
            if first is None:
                first = time.perf_counter()
        return None if first is None else (first - began) * 1000

    def _in_worker(self, ids: Sequence[str]) -> list[float]:
        wanted = set(ids)

        def found() -> dict[str, int]:
            return {
                each.id: each.first_token_ms
                for each in self._answers.so_far()
                if each.id in wanted and each.first_token_ms is not None
            }

        wait_until(lambda: len(found()) == len(ids), READ_WITHIN_S, "every stream's result is read")
        return [float(ms) for ms in found().values()]
