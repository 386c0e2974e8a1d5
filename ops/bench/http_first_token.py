"""What the way through Kafka adds to the time to the first token: `headrace bench http --only ttft`.

`headrace serve`, a broker and a worker with vLLM on one side, `vllm serve` on the other, side by side on one machine:
the same model, the same engine arguments, the same client, one call at a time, each prompt asked of both. While one of
them is asked the other is idle.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import httpx

from headrace.ops.bench.ground import MODEL, BenchFailed, ground, prompt_of
from headrace.ops.bench.interactive import percentile
from headrace.ops.bench.vllm_server import VllmServer
from headrace.ops.http_process import EndpointProcess

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.ops.bench.ground import Ground, Say

MOST_ADDED_P50_MS = 25.0  # the goals
MOST_ADDED_P95_MS = 50.0
WISHED_P50_MS = 10.0

SLOT = "worker-1"
PARTITIONS = 4
WARM_UP = 5  # calls of each before any is counted
MAX_TOKENS = 8  # the first is what counts
LEAST_COUNTED = 0.9  # of the pairs: those in which both said something
LOADING_WITHIN_S = 600.0
READY_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 60.0
STOPPED_WITHIN_S = 120.0
# Without a prefix cache, and with one sequence as fast as vLLM makes it on any machine.
ENGINE_ARGUMENTS: dict[str, int | bool | str] = {
    "max_num_seqs": 32,
    "max_model_len": 1024,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "dtype": "float32",
}

Side = Literal["headrace", "vllm"]


@dataclass(frozen=True, slots=True)
class FirstTokenLoad:
    """What is asked."""

    calls: int = 200  # of each
    prompt_words: int = 24
    pause_s: float = 0.15  # between two calls, half of it at least: no rhythm with anything


@dataclass(frozen=True, slots=True)
class Spent:
    """Where a call's time to its first token goes, means in ms. They add up to the client's mean, but for rounding."""

    http: float  # between the client and the endpoint, both ways
    kafka: float  # the request's way to the broker and the first token's way back
    queue: float  # from the request's append to its admission: the way to the worker, and what it does before
    engine: float  # from admission to the first token


@dataclass(frozen=True, slots=True)
class FirstTokenFigures:
    """Milliseconds from sending a call to its first text, at the same client."""

    headrace_p50: float
    headrace_p95: float
    vllm_p50: float
    vllm_p95: float
    pairs: int  # in which both said something
    spent: Spent
    engine_in_worker: float  # means of vLLM's own time to the first token, ms
    engine_in_vllm: float

    @property
    def added_p50(self) -> float:
        return self.headrace_p50 - self.vllm_p50

    @property
    def added_p95(self) -> float:
        return self.headrace_p95 - self.vllm_p95

    def goals(self) -> dict[str, bool]:
        """What was promised, and whether it holds."""
        return {
            f"added at p50, at most {MOST_ADDED_P50_MS:.0f} ms": self.added_p50 <= MOST_ADDED_P50_MS,
            f"added at p50, wished for: {WISHED_P50_MS:.0f} ms": self.added_p50 <= WISHED_P50_MS,
            f"added at p95, at most {MOST_ADDED_P95_MS:.0f} ms": self.added_p95 <= MOST_ADDED_P95_MS,
        }


def measure(say: Say, load: FirstTokenLoad, weights: Path) -> FirstTokenFigures:
    """Start both, ask both in turn. Raises HeadraceError."""
    with ground(PARTITIONS, say, engine_arguments=ENGINE_ARGUMENTS) as place, ExitStack() as ends:
        log = place.logs / f"{place.settings.prefix}-vllm-serve.log"
        say(f"loading {weights.name} twice; the log of vllm serve: {log}")
        # One after the other: loading at once, they would take each other's processors, and memory at its peak.
        server = ends.enter_context(
            VllmServer(weights, MODEL, ENGINE_ARGUMENTS, log=log, scratch=place.package / "vllm")
        )
        server.wait_ready(LOADING_WITHIN_S)
        worker = ends.enter_context(place.worker(SLOT, "vllm", options=("--weights", str(weights))))
        worker.wait_ready(LOADING_WITHIN_S)
        endpoint = ends.enter_context(_endpoint(place))
        address = endpoint.wait_ready(READY_WITHIN_S)
        pages = Pages(
            lambda: page_of_endpoint(address),
            lambda: worker.get("/metrics")[1],
            lambda: server.get("/metrics")[1],
        )
        with httpx.Client(timeout=ANSWERED_WITHIN_S) as client:
            asking = _Asking(client, {"headrace": address, "vllm": server.address}, load)
            asking.ask(WARM_UP, "warm-up")
            before = pages.look()
            say(f"asking each {load.calls} times")
            pairs = asking.ask(load.calls, "counted")
            figures = sum_up(pairs, load.calls, before, pages.look())
        worker.stop(STOPPED_WITHIN_S)
    return figures


def _endpoint(place: Ground) -> EndpointProcess:
    return EndpointProcess(place.settings, log=place.logs / f"{place.settings.prefix}-serve.log")


# --- the calls ----------------------------------------------------------------------------------------


class _Asking:
    """Streamed chats, one after the other, the same prompt of both sides, each first in turn."""

    def __init__(self, client: httpx.Client, addresses: dict[Side, str], load: FirstTokenLoad) -> None:
        self._client = client
        self._addresses = addresses
        self._load = load
        self._dice = random.Random("pauses")

    def ask(self, count: int, name: str) -> list[dict[Side, float | None]]:
        """Milliseconds to the first text of each, None where there was no text at all."""
        found: list[dict[Side, float | None]] = []
        for number in range(count):
            prompt = f"{name} {prompt_of(number, self._load.prompt_words)}"
            order: Sequence[Side] = ("headrace", "vllm") if number % 2 else ("vllm", "headrace")
            pair: dict[Side, float | None] = {}
            for side in order:
                pair[side] = self._first_text_ms(side, prompt)
                time.sleep(self._load.pause_s * self._dice.uniform(0.5, 1.5))
            found.append(pair)
        return found

    def _first_text_ms(self, side: Side, prompt: str) -> float | None:
        """Returns when the whole answer is there: its end is not to run beside the next call."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
        }
        first: float | None = None
        url = f"{self._addresses[side]}/v1/chat/completions"
        began = time.perf_counter()
        with self._client.stream("POST", url, json=body) as answer:
            if answer.status_code != 200:
                raise BenchFailed(
                    f"{side} answered {answer.status_code}: {answer.read().decode(errors='replace')}"
                )
            for text in texts_in(answer.iter_lines()):
                if first is None and text:
                    first = time.perf_counter()
        return None if first is None else (first - began) * 1000


def texts_in(lines: Iterator[str]) -> Iterator[str]:
    """The text of each chunk of a streamed chat; raises BenchFailed for an error, and for an end without [DONE]."""
    for line in lines:
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return
        chunk: Any = json.loads(data)
        if "error" in chunk:
            raise BenchFailed(f"a stream ended with an error: {chunk['error']}")
        for choice in chunk["choices"]:
            yield choice["delta"].get("content") or ""
    raise BenchFailed("a stream ended without [DONE]")


# --- where the time goes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mean:
    """The sum, in seconds, and the count of a histogram, or of what was added to it meanwhile."""

    seconds: float
    count: float

    def since(self, before: Mean) -> Mean:
        return Mean(self.seconds - before.seconds, self.count - before.count)

    @property
    def ms(self) -> float:
        """Raises BenchFailed where nothing was counted."""
        if self.count <= 0:
            raise BenchFailed("a histogram that should have counted the calls has counted none")
        return self.seconds / self.count * 1000


@dataclass(frozen=True, slots=True)
class Look:
    """At three pages at once."""

    endpoint: Mean  # from a call's arrival to its first text
    queue: Mean  # from append to admission
    worker: Mean  # from append to the first token
    engine_in_worker: Mean  # vLLM's own time to the first token
    engine_in_vllm: Mean


class Pages:
    """The pages of `headrace serve`, of the worker and of `vllm serve`. Never read while a call is under way."""

    def __init__(
        self, endpoint: Callable[[], str], worker: Callable[[], str], vllm: Callable[[], str]
    ) -> None:
        self._endpoint = endpoint
        self._worker = worker
        self._vllm = vllm

    def look(self) -> Look:
        """Raises BenchFailed where a histogram is not on its page."""
        worker = self._worker()
        return Look(
            mean_on(self._endpoint(), "headrace_http_first_token_seconds"),
            mean_on(worker, "headrace_queue_seconds"),
            mean_on(worker, "headrace_first_token_seconds"),
            mean_on(worker, "vllm:time_to_first_token_seconds"),
            mean_on(self._vllm(), "vllm:time_to_first_token_seconds"),
        )


def mean_on(page: str, histogram: str) -> Mean:
    """A histogram's sum and count over all of its labels, on a page in Prometheus' text format."""
    return Mean(sum_on(page, f"{histogram}_sum"), sum_on(page, f"{histogram}_count"))


def sum_on(page: str, name: str) -> float:
    """A metric's sum over all of its labels. Raises BenchFailed where it is not on the page."""
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", page, re.MULTILINE)
    if not found:
        raise BenchFailed(f"{name} is not on the page that should have it")
    return sum(map(float, found))


def sum_up(
    pairs: Sequence[dict[Side, float | None]], calls: int, before: Look, after: Look
) -> FirstTokenFigures:
    """Of all calls; a pair in which one side said nothing counts for neither. Raises BenchFailed with too few."""
    spoken = [
        (headrace, vllm)
        for headrace, vllm in ((pair["headrace"], pair["vllm"]) for pair in pairs)
        if headrace is not None and vllm is not None
    ]
    if len(spoken) < LEAST_COUNTED * calls:
        raise BenchFailed(f"{calls - len(spoken)} of {calls} prompts were answered with no text at all")
    ours, theirs = [pair[0] for pair in spoken], [pair[1] for pair in spoken]
    endpoint = after.endpoint.since(before.endpoint).ms
    queue, worker = after.queue.since(before.queue).ms, after.worker.since(before.worker).ms
    return FirstTokenFigures(
        percentile(ours, 0.5),
        percentile(ours, 0.95),
        percentile(theirs, 0.5),
        percentile(theirs, 0.95),
        len(spoken),
        Spent(sum(ours) / len(ours) - endpoint, endpoint - worker, queue, worker - queue),
        after.engine_in_worker.since(before.engine_in_worker).ms,
        after.engine_in_vllm.since(before.engine_in_vllm).ms,
    )


def page_of_endpoint(address: str) -> str:
    """The metrics of `headrace serve`."""
    return httpx.get(f"{address}/metrics", timeout=ANSWERED_WITHIN_S).text
