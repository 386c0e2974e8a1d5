"""Many streams at once through one endpoint: `headrace bench http --only streams`.

One `headrace serve`, a broker, one worker whose simulated engine gives each stream its tokens at one pace, and the
callers in a process of their own. They share the machine's processors.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from headrace.ops.bench.ground import MODEL, BenchFailed, cpu_seconds, ground, prompt_of, wait_until
from headrace.ops.bench.http_first_token import page_of_endpoint, sum_on
from headrace.ops.bench.http_stream_clients import Calls, Heard, Stream, heard_from
from headrace.ops.bench.interactive import percentile
from headrace.ops.bench.paced_worker import PacedGaps, PacedWorker, profile_of
from headrace.ops.http_process import EndpointProcess
from headrace.schemas.messages import ChatMessage, Sampling
from headrace.workers.engine import ChatPrompt, Generation, GenerationJob
from headrace.workers.simulated_engine import SimulatedEngine

if TYPE_CHECKING:
    from headrace.ops.bench.ground import Say

MOST_OVER_ENGINE_MS = 50.0  # the goal: p95 between two tokens, over the engine's own
SLOT = "paced"
PARTITIONS = 4
READY_WITHIN_S = 60.0
STOPPED_WITHIN_S = 60.0
BEYOND_S = 60.0  # that a stream may take beyond its tokens' own time
ERRORS_SHOWN = 3
WARM_UP = 20  # streams


@dataclass(frozen=True, slots=True)
class StreamsLoad:
    """What is asked."""

    streams: int = 500  # at a time
    tokens_per_s: float = 10.0  # of each
    tokens: int = 200  # of each
    ramp_s: float = 5.0  # from the first call to the last
    prompt_words: int = 12


@dataclass(frozen=True, slots=True)
class Cpu:
    """Of the whole run, in processors that each kept busy."""

    endpoint: float
    worker: float
    clients: float


@dataclass(frozen=True, slots=True)
class StreamsFigures:
    """Milliseconds as the callers have them."""

    streams: int
    errors: list[str]
    wrong_texts: int  # that are not, to the last character, what the engine says to that prompt
    tokens: int
    took_s: float
    first_text_p50: float  # from sending the call
    first_text_p95: float
    gap_p50: (
        float  # from one event with text to the stream's next, all streams together, beginnings and ends too
    )
    gap_p95: float
    gap_p99: float
    gap_longest: float
    tokens_per_event: float
    engine: PacedGaps
    cpu: Cpu

    @property
    def over_engine(self) -> float:
        """The p95 gap over that of the engine alone, ms."""
        return self.gap_p95 - self.engine.alone.p95

    def goals(self) -> dict[str, bool]:
        """What was promised, and whether it holds."""
        return {
            "no error": not self.errors,
            "no text lost or swapped": not self.wrong_texts,
            f"p95 gap over the engine's own, at most {MOST_OVER_ENGINE_MS:.0f} ms": self.over_engine
            <= MOST_OVER_ENGINE_MS,
        }


def measure(say: Say, load: StreamsLoad) -> StreamsFigures:
    """Start all of it, and stream. Raises HeadraceError."""
    token_s = 1 / load.tokens_per_s
    with ground(PARTITIONS, say) as place, ExitStack() as ends:
        worker = ends.enter_context(
            PacedWorker(place, SLOT, streams=load.streams, tokens=load.tokens, token_s=token_s)
        )
        log = place.logs / f"{place.settings.prefix}-serve.log"
        endpoint = ends.enter_context(EndpointProcess(place.settings, log=log))
        worker.wait_ready(READY_WITHIN_S)
        address = endpoint.wait_ready(READY_WITHIN_S)
        wait_until(lambda: is_served(address), READY_WITHIN_S, f"the endpoint knows {MODEL}")
        parts = urlsplit(address)
        prompts = [f"{number}: {prompt_of(number, load.prompt_words)}" for number in range(load.streams)]
        calls = Calls(
            str(parts.hostname),
            parts.port or 80,
            MODEL,
            prompts,
            load.tokens,
            load.ramp_s,
            load.tokens * token_s + BEYOND_S,
        )
        _ask(replace(calls, prompts=prompts[:WARM_UP], max_tokens=4, ramp_s=1.0))
        say(f"{load.streams} streams of {load.tokens} tokens, {load.tokens_per_s:g} a second each")
        cpu = cpu_seconds(worker), _cpu_of_endpoint(address)
        began = time.perf_counter()
        heard = _ask(calls)
        took_s = time.perf_counter() - began
        spent = Cpu(
            (_cpu_of_endpoint(address) - cpu[1]) / took_s,
            (cpu_seconds(worker) - cpu[0]) / took_s,
            heard.cpu_s / took_s,
        )
        worker.stop(STOPPED_WITHIN_S)
        expected = asyncio.run(texts_of(prompts, load.tokens))
        return sum_up(heard.streams, expected, worker.gaps(), took_s, spent)


def is_served(address: str) -> bool:
    """Whether the endpoint at this address knows the model."""
    listed = httpx.get(f"{address}/v1/models", timeout=READY_WITHIN_S).json()
    return any(each["id"] == MODEL for each in listed["data"])


def _cpu_of_endpoint(address: str) -> float:
    return sum_on(page_of_endpoint(address), "process_cpu_seconds_total")


def _ask(calls: Calls) -> Heard:
    process = subprocess.run(
        [sys.executable, "-m", "headrace.ops.bench.http_stream_clients"],
        input=json.dumps(asdict(calls)).encode(),
        stdout=subprocess.PIPE,
        check=False,
    )
    if process.returncode != 0:
        raise BenchFailed("the process of the callers failed; its own words stand above")
    return heard_from(process.stdout.decode())


async def texts_of(prompts: Sequence[str], tokens: int) -> list[str]:
    """What the simulated engine says to each prompt, as it would to a worker."""
    engine = SimulatedEngine(replace(profile_of(1, tokens, 0.0), time_scale=0))
    await engine.start()
    texts: list[str] = []
    for number, prompt in enumerate(prompts):
        token_ids = await engine.encode(ChatPrompt([ChatMessage(role="user", content=prompt)]))
        job = GenerationJob(f"expected-{number}", token_ids, Sampling(max_tokens=tokens))
        async for event in engine.generate(job):
            if isinstance(event, Generation):
                texts.append(event.choices[0].text)
    return texts


def errors_of(streams: Sequence[Stream]) -> list[str]:
    """What went wrong, each with the number of its stream."""
    found: list[str] = []
    for number, stream in enumerate(streams):
        found += [f"stream {number}: {error}" for error in stream.errors]
        if not stream.errors and not stream.is_whole:
            found.append(f"stream {number}: it ended without [DONE]")
    return found


def sum_up(
    streams: Sequence[Stream], expected: Sequence[str], engine: PacedGaps, took_s: float, cpu: Cpu
) -> StreamsFigures:
    """`expected` are the texts. Raises BenchFailed where hardly anything came."""
    gaps = [(later - earlier) * 1000 for stream in streams for earlier, later in pairwise(stream.at)]
    first = [(stream.at[0] - stream.sent) * 1000 for stream in streams if stream.at]
    errors = errors_of(streams)
    if not gaps:
        raise BenchFailed(f"no stream had two texts; {'; '.join(errors[:ERRORS_SHOWN]) or 'and no error'}")
    tokens = sum(
        -(-len(stream.text.encode()) // 4) for stream in streams
    )  # the simulated engine's have 4 bytes
    wrong = sum(stream.text != text for stream, text in zip(streams, expected, strict=True))
    return StreamsFigures(
        len(streams),
        errors,
        wrong,
        tokens,
        took_s,
        percentile(first, 0.5),
        percentile(first, 0.95),
        percentile(gaps, 0.5),
        percentile(gaps, 0.95),
        percentile(gaps, 0.99),
        max(gaps),
        tokens / (len(gaps) + len(first)),
        engine,
        cpu,
    )
