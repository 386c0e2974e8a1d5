"""What a scenario records: requests that were sent, and results as another service reads them."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from headrace.consumers.records import RecordLocation, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.ops.bench.background import Background
from headrace.ops.bench.ground import BenchFailed, wait_until
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.codec import Codec
from headrace.schemas.messages import Request, Result

if TYPE_CHECKING:
    from types import TracebackType

    from headrace.ops.bench.ground import Ground
    from headrace.schemas.messages import Lane

POLL_S = 0.2
FLUSH_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Answered:
    """One result, as it was read: after its commit."""

    id: str
    unit: int  # the partition of its request
    slot: str  # of the worker that made it
    at: float  # seconds since the epoch
    first_token_ms: int | None = None  # from the request's append time; of streams alone
    version: str = ""  # of the model
    is_ok: bool = True


class AnswerLog(Background):
    """Reads all results of a run, committed ones alone, in a thread of its own, from `with` to its end."""

    def __init__(self, ground: Ground, *, only_ok: bool = True) -> None:
        """`only_ok`: whether another status is a failure of the measurement."""
        super().__init__("answers")
        self._only_ok = only_ok
        partitions = [TopicPartition(ground.names.results, number) for number in range(ground.partitions)]
        self._reader = TailReader(ground.settings, partitions, "beginning")
        self._answered: list[Answered] = []
        self._not_ok: list[str] = []

    def stopping(self) -> None:
        self._reader.wake_up()

    def stopped(self) -> None:
        self._reader.close()

    def __len__(self) -> int:
        """How many were read so far. Raises what ended the reading, and BenchFailed for a result that is not `ok`."""
        self.check()
        if self._not_ok and self._only_ok:
            raise BenchFailed(f"{len(self._not_ok)} results are not ok; the first: {self._not_ok[0]}")
        return len(self._answered)

    def so_far(self) -> list[Answered]:
        """What was read so far, in that order."""
        return self._answered[: len(self)]

    def wait_for(self, count: int, within_s: float, what: str) -> None:
        """Until so many were read."""
        wait_until(lambda: len(self) >= count, within_s, what)

    def run(self) -> None:
        codec = Codec()
        while not self.over.is_set():
            for record in self._reader.poll(POLL_S, 2_000):
                self._take(codec.decode(Result, record.value).message, time.time())

    def _take(self, result: Result, now: float) -> None:
        made_by = result.provenance
        if result.status != "ok":
            self._not_ok.append(f"{result.id}: {result.status}, {result.error}")
        self._answered.append(
            Answered(
                result.id,
                made_by.source_partition,
                made_by.slot,
                now,
                result.timings.first_token_ms,
                made_by.version,
                result.status == "ok",
            )
        )


class RequestSender:
    """Sends requests to units of the caller's choice, from `with` to its end. For one thread at a time."""

    def __init__(self, ground: Ground) -> None:
        self._names = ground.names
        self._codec = Codec()
        self._producer = PlainProducer(ground.settings)
        self._failed: list[BaseException] = []
        self.sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._producer.close()

    def send(self, request: Request, unit: int, lane: Lane = "standard") -> None:
        """Queue one. Raises BenchFailed when an earlier one could not be sent."""
        if self._failed:
            raise BenchFailed(f"a request could not be sent: {self._failed[0]}")
        record = OutgoingRecord(
            self._names.requests(lane), request.id.encode(), self._codec.encode(request), partition=unit
        )
        self._producer.send(record).add_done_callback(self._answered)
        self.sent += 1

    def _answered(self, placed: Future[RecordLocation]) -> None:
        if (error := placed.exception()) is not None:
            self._failed.append(error)

    def flush(self) -> None:
        """Wait until the brokers have all that was sent."""
        self._producer.flush(FLUSH_WITHIN_S)


class SteadyTraffic(Background):
    """Requests at an even pace, each to the next unit, while its `with` block lasts."""

    def __init__(self, sender: RequestSender, units: int, rate: float, max_tokens: int) -> None:
        super().__init__("traffic")
        self._sender = sender
        self._units = units
        self._rate = rate  # requests a second
        self._max_tokens = max_tokens

    def stopped(self) -> None:
        self._sender.flush()

    def run(self) -> None:
        began, count = time.monotonic(), 0
        while not self.over.wait(1 / self._rate):
            due = int((time.monotonic() - began) * self._rate)
            for _ in range(due - count):
                number = self._sender.sent
                self._sender.send(short_request(f"r{number}", self._max_tokens), number % self._units)
            count = max(count, due)


def short_request(name: str, max_tokens: int) -> Request:
    """The simulated engine's texts have 16 tokens or more: with fewer, `max_tokens` is how long each is."""
    return Request.model_validate(
        {
            "id": name,
            "prompt": f"Tell me about {name}, in a few words.",
            "sampling": {"max_tokens": max_tokens},
        }
    )
