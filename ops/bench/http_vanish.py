"""Callers that go away, by the thousand: `headrace bench http --only vanish`.

One `headrace serve`, a broker and one worker with the simulated engine; the callers are a process of their own, which
leaves most of its calls at random moments. Then nothing must be left of them: no request in the engine, none waited
for, no memory, no file descriptor. Requests, cancels and results are read from Kafka, as anybody may.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.consumers.partitions import partitions_of
from headrace.consumers.tail_reader import TailReader
from headrace.ops.bench.ground import MODEL, BenchFailed, ground, process_figure, wait_until
from headrace.ops.bench.http_first_token import page_of_endpoint, sum_on
from headrace.ops.bench.http_streams import is_served
from headrace.ops.bench.http_vanish_clients import End, Plan, ends_from, user_of
from headrace.ops.bench.interactive import percentile
from headrace.ops.http_process import EndpointProcess
from headrace.schemas.codec import Codec
from headrace.schemas.messages import Cancel, Request, Result

if TYPE_CHECKING:
    from headrace.ops.bench.ground import Ground, Say
    from headrace.ops.worker_process import WorkerProcess

MOST_CANCEL_MS = 100.0  # the goals
MOST_GROWTH = 1.05

SLOT = "worker-1"
PARTITIONS = 4
READY_WITHIN_S = 60.0
SETTLED_WITHIN_S = 60.0
STOPPED_WITHIN_S = 60.0
POLL_S = 0.1
POLL_RECORDS = 5_000
ERRORS_SHOWN = 3
RSS, FDS = "process_resident_memory_bytes", "process_open_fds"


@dataclass(frozen=True, slots=True)
class VanishLoad:
    """What is asked."""

    calls: int = 10_000
    callers: int = 32  # at a time
    batch: int = 1_000  # calls between two looks at memory
    max_tokens: int = 48
    longest_s: float = 0.9  # until a caller goes away, if it does: an answer takes about half of it


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one process, once all was settled."""

    rss_first: float  # bytes after the first batch
    rss_last: float  # after the last
    fds_first: float  # open files before the first batch
    fds_last: float  # after the last

    @property
    def ratio(self) -> float:
        """RSS after the last batch over RSS after the first."""
        return self.rss_last / self.rss_first


@dataclass(frozen=True, slots=True)
class CancelFigures:
    """Of the callers that went away before their answer had ended."""

    cancels: int
    noticed_p50: float  # ms from a caller's closing to the endpoint's giving its request up
    noticed_p95: float
    p50: float  # ms from a caller's closing to the broker's timestamp of its cancel
    p95: float
    longest: float
    answered: int  # without a cancel, since the result was there within 100 ms of the closing
    late: int  # without a cancel, since the result was there later than that: counted as if it had been a cancel
    missed: int  # that ended neither so nor so


@dataclass(frozen=True, slots=True)
class VanishFigures:
    """What became of the calls, and what was left of them."""

    calls: int
    took_s: float
    left: dict[str, int]  # `phase, manner`: callers
    requests: int  # that reached Kafka
    generations: int  # that were begun
    statuses: dict[str, int]  # of their results
    cancels: CancelFigures
    running_left: float  # in the engine, and before it
    calls_left: float  # at the endpoint
    pending_left: float  # requests that it waits for
    endpoint: Growth
    worker: Growth
    errors: list[str]

    def goals(self) -> dict[str, bool]:
        """What was promised, and whether it holds."""
        return {
            "no error for those that stayed": not self.errors,
            "nothing left in the engine": self.running_left == 0,
            "no call and no pending reply left at the endpoint": not self.calls_left
            and not self.pending_left,
            "file descriptors back to where they were": self.endpoint.fds_last <= self.endpoint.fds_first
            and self.worker.fds_last <= self.worker.fds_first,
            f"memory of the endpoint, at most {MOST_GROWTH}": self.endpoint.ratio <= MOST_GROWTH,
            f"memory of the worker, at most {MOST_GROWTH}": self.worker.ratio <= MOST_GROWTH,
            "a cancel for each that went away": not self.cancels.missed,
            f"cancels at p95, within {MOST_CANCEL_MS:.0f} ms": self.cancels.p95 <= MOST_CANCEL_MS,
        }


def measure(say: Say, load: VanishLoad) -> VanishFigures:
    """Start all of it, call, and look at what is left. Raises HeadraceError."""
    with ground(PARTITIONS, say) as place, ExitStack() as ends:
        worker = ends.enter_context(place.worker(SLOT))
        log = place.logs / f"{place.settings.prefix}-serve.log"
        endpoint = ends.enter_context(EndpointProcess(place.settings, log=log))
        worker.wait_ready(READY_WITHIN_S)
        address = endpoint.wait_ready(READY_WITHIN_S)
        wait_until(lambda: is_served(address), READY_WITHIN_S, f"the endpoint knows {MODEL}")
        records = Records(place)
        ends.callback(records.close)
        bench = _Bench(address, worker, records, load, say)
        figures = bench.run()
        if "Traceback" in endpoint.said():
            raise BenchFailed(f"the endpoint has logged a failure: {log}")
        worker.stop(STOPPED_WITHIN_S)
        return figures


@dataclass(frozen=True, slots=True)
class Cancelled:
    """When the endpoint gave a request up, and when the broker had its cancel; seconds since the epoch."""

    given_up: float
    appended: float


class Records:
    """What lies in Kafka so far: requests, their cancels and their results."""

    def __init__(self, place: Ground) -> None:
        names = place.names
        self._kinds: dict[str, type[Request | Cancel | Result]] = {
            names.requests("interactive"): Request,
            names.cancels: Cancel,
            names.results: Result,
        }
        found = partitions_of(place.settings, list(self._kinds))
        self._reader = TailReader(place.settings, [tp for each in found.values() for tp in each], "beginning")
        self._codec = Codec()
        self.ids: dict[str, str] = {}  # user: id of the request
        self.cancels: dict[str, Cancelled] = {}  # by id
        self.results: dict[str, tuple[str, float]] = {}  # id: (status, seconds since the epoch)

    def read(self) -> None:
        """Take in what has come."""
        while records := self._reader.poll(POLL_S, POLL_RECORDS):
            for record in records:
                at = record.timestamp_ms / 1000
                match self._codec.decode(self._kinds[record.topic], record.value).message:
                    case Request() as request:
                        self.ids[request.attributes["user"]] = request.id
                    case Cancel(id=str(request_id), time=given_up_ms):
                        self.cancels.setdefault(request_id, Cancelled(given_up_ms / 1000, at))
                    case Result() as result:
                        self.results[result.id] = result.status, at
                    case _:
                        pass

    @property
    def are_all_answered(self) -> bool:
        """Whether each request that was read has its result."""
        return self.results.keys() >= set(self.ids.values())

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()


class _Bench:
    def __init__(
        self, address: str, worker: WorkerProcess, records: Records, load: VanishLoad, say: Say
    ) -> None:
        self._address = address
        self._worker = worker
        self._records = records
        self._load = load
        self._say = say

    def run(self) -> VanishFigures:
        load = self._load
        self._call(0, load.callers)  # both have opened what they keep open
        self._settle()
        fds_first = self._endpoint(FDS), process_figure(self._worker, FDS)
        generations = self._worker.metric("headrace_generation_attempts_total")
        rss: list[tuple[float, float]] = []
        ends: list[End] = []
        began = time.monotonic()
        for first in range(0, load.calls, load.batch):
            ends += self._call(load.callers + first, min(load.batch, load.calls - first))
            self._settle()
            rss.append((self._endpoint(RSS), process_figure(self._worker, RSS)))
            at_endpoint, at_worker = (each / 1e6 for each in rss[-1])
            self._say(f"{len(ends)} calls; endpoint {at_endpoint:.1f} MB, worker {at_worker:.1f} MB")
        took_s = time.monotonic() - began
        ids = {each.number: self._records.ids.get(user_of(each.number)) for each in ends}
        results = [self._records.results[found][0] for found in ids.values() if found is not None]
        return VanishFigures(
            calls=len(ends),
            took_s=took_s,
            left=dict(sorted(Counter(f"{each.phase}, {each.manner}" for each in ends).items())),
            requests=len(results),
            generations=round(self._worker.metric("headrace_generation_attempts_total") - generations),
            statuses=dict(Counter(results)),
            cancels=cancels_of(ends, ids, self._records.cancels, self._records.results),
            running_left=self._running(),
            calls_left=self._calls(),
            pending_left=self._endpoint("headrace_http_pending_requests"),
            endpoint=Growth(rss[0][0], rss[-1][0], fds_first[0], self._endpoint(FDS)),
            worker=Growth(rss[0][1], rss[-1][1], fds_first[1], process_figure(self._worker, FDS)),
            errors=errors_of(ends),
        )

    def _call(self, first: int, count: int) -> list[End]:
        parts = urlsplit(self._address)
        load = self._load
        plan = Plan(
            str(parts.hostname),
            parts.port or 80,
            MODEL,
            first,
            count,
            load.callers,
            load.max_tokens,
            load.longest_s,
            "vanish",
        )
        command = [sys.executable, "-m", "headrace.ops.bench.http_vanish_clients", json.dumps(asdict(plan))]
        process = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if process.returncode != 0:
            raise BenchFailed("the process of the callers failed; its own words stand above")
        return ends_from(process.stdout.decode())

    def _settle(self) -> None:
        """Until nothing runs any more; what does not come to its end is left to the figures."""

        def is_settled() -> bool:
            self._records.read()
            return (
                self._records.are_all_answered
                and self._running() == 0
                and self._calls() == 0
                and self._endpoint("headrace_http_pending_requests") == 0
            )

        try:
            wait_until(is_settled, SETTLED_WITHIN_S, "an end of all calls")
        except BenchFailed as error:
            self._say(str(error))

    def _running(self) -> float:
        return self._worker.metric("headrace_in_flight") + self._worker.metric("headrace_waiting")

    def _calls(self) -> float:
        return self._endpoint("headrace_http_running")

    def _endpoint(self, name: str) -> float:
        return sum_on(page_of_endpoint(self._address), name)


def cancels_of(
    ends: Sequence[End],
    ids: Mapping[int, str | None],
    cancelled: Mapping[str, Cancelled],
    results: Mapping[str, tuple[str, float]],
) -> CancelFigures:
    """Of those that went away while they waited for the answer or read it, and whose request was sent.

    `ids`: by the number of the call; `cancelled` and `results` by id, with times in seconds since the epoch.
    """
    noticed_ms: list[float] = []
    took_ms: list[float] = []
    answered = late = missed = 0
    for end in ends:
        request_id = ids.get(end.number)
        if request_id is None or end.phase not in ("waiting", "answer") or end.error:
            continue
        found = cancelled.get(request_id)
        if found is not None:  # its times are in whole ms
            noticed_ms.append(max(0.0, (found.given_up - end.at) * 1000))
            took_ms.append(max(0.0, (found.appended - end.at) * 1000))
            continue
        status, answered_at = results.get(request_id, ("", 0.0))
        if status != "ok":
            missed += 1
        elif (answered_at - end.at) * 1000 <= MOST_CANCEL_MS:
            answered += 1
        else:
            late += 1
            took_ms.append((answered_at - end.at) * 1000)
    if not noticed_ms:
        raise BenchFailed("nobody who went away was noticed")
    return CancelFigures(
        len(noticed_ms),
        percentile(noticed_ms, 0.5),
        percentile(noticed_ms, 0.95),
        percentile(took_ms, 0.5),
        percentile(took_ms, 0.95),
        max(took_ms),
        answered,
        late,
        missed,
    )


def errors_of(ends: Sequence[End]) -> list[str]:
    """What went wrong for callers that stayed, and any answer but 200."""
    found = [f"call {each.number}: {each.error}" for each in ends if each.error]
    return found + [
        f"call {each.number}: HTTP {each.status}"
        for each in ends
        if each.status not in (0, 200) and not each.error
    ]


def lines_of(figures: VanishFigures) -> list[str]:
    """How the figures read."""
    cancels = figures.cancels
    by_phase: Counter[str] = Counter()
    for name, count in figures.left.items():
        by_phase[name.partition(",")[0]] += count
    statuses = ", ".join(f"{count} {status}" for status, count in figures.statuses.items())
    return [
        f"{figures.calls} calls in {figures.took_s:.0f} s; callers went away amid their body: {by_phase['body']}, "
        f"before the answer: {by_phase['waiting']}, amid it: {by_phase['answer']}, after it: {by_phase['end']}",
        "    " + ", ".join(f"{name}: {count}" for name, count in figures.left.items()),
        f"requests in Kafka: {figures.requests}; results: {statuses}; generations begun: {figures.generations}",
        f"from a caller's closing to its cancel in Kafka, ms: {cancels.p50:.0f} at p50, {cancels.p95:.0f} at p95, "
        f"{cancels.longest:.0f} at most; until the endpoint has noticed: {cancels.noticed_p50:.0f} and "
        f"{cancels.noticed_p95:.0f}",
        f"{cancels.cancels} were cancelled, {cancels.answered} answered meanwhile, {cancels.late} later than "
        f"{MOST_CANCEL_MS:.0f} ms; missed: {cancels.missed}",
        f"left in the engine: {figures.running_left:.0f}; at the endpoint: {figures.calls_left:.0f} calls, "
        f"{figures.pending_left:.0f} pending replies",
        *(_growth(name, each) for name, each in (("endpoint", figures.endpoint), ("worker", figures.worker))),
        f"errors: {len(figures.errors)}",
        *(f"    {error}" for error in figures.errors[:ERRORS_SHOWN]),
    ]


def _growth(name: str, growth: Growth) -> str:
    return (
        f"{name}: {growth.rss_first / 1e6:.1f} MB after the first batch, {growth.rss_last / 1e6:.1f} MB after the "
        f"last: {growth.ratio:.3f}; open files {growth.fds_first:.0f} before, {growth.fds_last:.0f} after"
    )
