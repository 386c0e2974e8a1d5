"""What a schema that takes for ever to compile does to the tokens of others: `headrace bench slow-schema`.

One engine, no Kafka. Streams go on all the while, and what runs beside them takes turns: nothing, a process at the
checks' own niceness that does nothing useful, and the checking of slow schemas, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import count
from typing import Literal, get_args

from headrace.ops.bench.ground import BenchFailed, prompt_of
from headrace.ops.bench.interactive import percentile
from headrace.schemas.enforcement import Backend
from headrace.schemas.errors import InvalidSchema, SchemaTooComplex
from headrace.schemas.messages import JsonObject, OutputConstraint, Sampling
from headrace.workers.constraint_process import NICENESS
from headrace.workers.engine import Delta, Engine, GenerationJob, TextPrompt

MOST_RATIO = 1.5  # the goal: p95 beside a slow schema over that beside a busy process
LEAST_GAPS = 100  # of a phase: with fewer a p95 says nothing
AT_A_LIMIT = "it takes more than "  # how the verdict of a check begins that was ended: of CPU, time or memory

# Small, valid, within all bounds, and not compiled in five times the CPU time that a check may take: a multiple of two
# numbers at once, and a repetition of repetitions.
SLOW_VALUE: dict[Backend, JsonObject] = {
    "guidance": {"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]},
    "xgrammar": {"type": "string", "pattern": "^([a-z]{1,128}){1,128}$"},
}
# Takes as much of a processor as it is given; ends with its parent.
BUSY_PROGRAM = f"""
import os
parent = os.getppid()
os.nice({NICENESS})
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""

Beside = Literal["nothing", "busy process", "slow schema"]
PHASES: tuple[Beside, ...] = get_args(Beside)
# Enters what runs beside the streams; gives a task that must not end before it is left, None where there is none.
Neighbour = Callable[[], AbstractAsyncContextManager[asyncio.Task[object] | None]]


@dataclass(frozen=True, slots=True)
class SlowSchemaLoad:
    """What goes on, and for how long."""

    streams: int = 8  # at a time
    rounds: int = 5  # of all three phases
    seconds: float = 10.0  # of a phase
    settle_s: float = 1.0  # from the beginning of what runs beside, until gaps are noted
    max_tokens: int = 256  # of a stream; another follows it
    prompt_words: int = 24


@dataclass(frozen=True, slots=True)
class Gaps:
    """Milliseconds from one text of a stream to its next, all streams of a phase together."""

    p50_ms: float
    p95_ms: float
    longest_ms: float
    counted: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure in all rounds."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class SlowSchemaFigures:
    """What was measured: the phases of each round, and how the checks ended."""

    rounds: tuple[dict[Beside, Gaps], ...]
    checks: int
    check_s: float  # from asking to the verdict, mean
    verdicts: dict[str, int]  # how often each

    def p95_ms(self, beside: Beside) -> Spread:
        """Of the rounds' p95s."""
        return spread([each[beside].p95_ms for each in self.rounds])

    @property
    def ratio(self) -> float:
        """The median p95 beside a slow schema, over that beside a busy process."""
        return self.p95_ms("slow schema").median / self.p95_ms("busy process").median

    @property
    def ratio_of_rounds(self) -> Spread:
        """The same ratio, of each round by itself."""
        return spread([each["slow schema"].p95_ms / each["busy process"].p95_ms for each in self.rounds])


def spread(values: Sequence[float]) -> Spread:
    """Median, least and greatest."""
    return Spread(statistics.median(values), min(values), max(values))


def gaps_of(seconds: Sequence[float], beside: Beside) -> Gaps:
    """Sum up a phase. Raises BenchFailed where it has too few gaps for a p95."""
    if len(seconds) < LEAST_GAPS:
        raise BenchFailed(
            f"the streams stand still: {len(seconds)} gaps between their texts beside {_article(beside)}, "
            f"and {LEAST_GAPS} are needed; take more --seconds"
        )
    in_ms = [each * 1000 for each in seconds]
    return Gaps(percentile(in_ms, 0.5), percentile(in_ms, 0.95), max(in_ms), len(in_ms))


def slow_schema(backend: Backend, number: int) -> JsonObject:
    """A schema that the backend does not compile within a check's limits; each number's is another."""
    name = f"v{number}"  # another text, which no verdict is kept for
    return {
        "type": "object",
        "properties": {name: SLOW_VALUE[backend]},
        "required": [name],
        "additionalProperties": False,
    }


def order_of(number: int) -> tuple[Beside, ...]:
    """The phases of a round: each is first, second and last in turn."""
    first = number % len(PHASES)
    return PHASES[first:] + PHASES[:first]


async def measure(
    engine: Engine,
    backend: Backend,
    load: SlowSchemaLoad,
    *,
    on_progress: Callable[[str], None],
    busy: Neighbour | None = None,
) -> SlowSchemaFigures:
    """All rounds on a running engine. `busy` stands for the busy process; a test has its own.

    Raises BenchFailed where a check does not run into a limit, where the busy process ends, or where the streams
    stand still.
    """
    checks = _Checks(engine, backend)
    neighbours: dict[Beside, Neighbour] = {
        "nothing": _nothing,
        "busy process": busy or busy_process,
        "slow schema": checks.under_way,
    }
    rounds: list[dict[Beside, Gaps]] = []
    async with _streaming(engine, load) as streams:
        for number in range(load.rounds):
            noted: dict[Beside, list[float]] = {}
            for beside in order_of(number):
                async with neighbours[beside]() as running:
                    await streams.gaps(load.settle_s, running)
                    noted[beside] = await streams.gaps(load.seconds, running)
            await streams.gaps(load.settle_s, None)  # until the last one's gaps have ended
            found: dict[Beside, Gaps] = {beside: gaps_of(noted[beside], beside) for beside in PHASES}
            rounds.append(found)
            p95s = ", ".join(f"{found[beside].p95_ms:.1f} beside {_article(beside)}" for beside in PHASES)
            on_progress(f"round {number + 1} of {load.rounds}: p95 of the gaps, ms: {p95s}")
    return SlowSchemaFigures(
        tuple(rounds), len(checks.seconds), statistics.mean(checks.seconds), dict(checks.verdicts)
    )


def _article(beside: Beside) -> str:
    return beside if beside == "nothing" else f"a {beside}"


# --- the streams --------------------------------------------------------------------------------------------------


class _Streams:
    """Streams without an end, and the gaps between their texts. A gap belongs to the phase in which it begins."""

    def __init__(self, engine: Engine, load: SlowSchemaLoad) -> None:
        self._engine = engine
        self._load = load
        self._numbers = count()
        self._noted: list[float] = []  # seconds; another list for each phase
        self.tasks: set[asyncio.Task[None]] = set()

    async def gaps(self, seconds: float, beside: asyncio.Task[object] | None) -> list[float]:
        """Seconds of each gap that begins in the time to come; those that have not ended then are added later.

        Raises what ends a stream, or what runs beside them.
        """
        noted = self._noted = []
        running = {*self.tasks, *([] if beside is None else [beside])}
        ended, _ = await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self._noted = []
        for task in ended:
            task.result()
            raise BenchFailed(f"the {task.get_name()} has ended before its time")
        return noted

    async def keep_one_running(self) -> None:
        """One stream after the other."""
        while True:
            number = next(self._numbers)
            token_ids = await self._engine.encode(TextPrompt(prompt_of(number, self._load.prompt_words)))
            # The likeliest tokens: by chance a twelfth of a random model's are parts of characters, without a text.
            sampling = Sampling(max_tokens=self._load.max_tokens, temperature=0.0)
            await self._read(GenerationJob(f"slow-schema-{number}", token_ids, sampling, stream=True))

    async def _read(self, job: GenerationJob) -> None:
        loop = asyncio.get_running_loop()
        before: tuple[float, list[float]] | None = None  # when the text before came, and whose its gap is
        async for event in self._engine.generate(job):
            if isinstance(event, Delta):
                now = loop.time()
                if before is not None:
                    at, noted = before
                    noted.append(now - at)
                before = now, self._noted


@contextlib.asynccontextmanager
async def _streaming(engine: Engine, load: SlowSchemaLoad) -> AsyncGenerator[_Streams]:
    streams = _Streams(engine, load)
    streams.tasks = {
        asyncio.create_task(streams.keep_one_running(), name=f"stream {place + 1}")
        for place in range(load.streams)
    }
    try:
        yield streams
    finally:
        for task in streams.tasks:
            task.cancel()
        await asyncio.gather(*streams.tasks, return_exceptions=True)


# --- what runs beside them ----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _nothing() -> AsyncGenerator[None]:
    yield None


@contextlib.asynccontextmanager
async def busy_process() -> AsyncGenerator[asyncio.Task[object]]:
    """A process at the checks' niceness, in this process's own session, that burns one CPU for nothing."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BUSY_PROGRAM)
    ended = asyncio.create_task(process.wait(), name="busy process")
    try:
        yield ended
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await ended


class _Checks:
    """Slow schemas, asked for one after the other, and how the checks of them ended."""

    def __init__(self, engine: Engine, backend: Backend) -> None:
        self._engine = engine
        self._backend: Backend = backend
        self._numbers = count()
        self._over = False
        self.seconds: list[float] = []
        self.verdicts: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def under_way(self) -> AsyncGenerator[asyncio.Task[object]]:
        """Always one of them; the last one has ended at the end."""
        self._over = False
        checking = asyncio.create_task(self._check_on(), name="checking of slow schemas")
        try:
            yield checking
        except BaseException:
            checking.cancel()
            raise
        # Giving up would leave it under way in the checks' process, beside the next phase.
        self._over = True
        await checking

    async def _check_on(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._over:
            began = loop.time()
            verdict = await self._verdict(next(self._numbers))
            self.seconds.append(loop.time() - began)
            self.verdicts[verdict] += 1

    async def _verdict(self, number: int) -> str:
        """At which limit a check ended. Raises BenchFailed where it ended at none."""
        constraint = OutputConstraint(json_schema=slow_schema(self._backend, number))
        try:
            enforcement = await self._engine.enforcement_of(constraint)
        except InvalidSchema as error:
            _, found, limit = error.message.partition(AT_A_LIMIT)
            if found and isinstance(error, SchemaTooComplex):
                return AT_A_LIMIT + limit
            raise BenchFailed(f"the slow schema was refused without a limit: {error.message}") from error
        raise BenchFailed(f"the slow schema is no slow one: {self._backend} held it ({enforcement.tier})")
