"""Requests out at a steady rate, and the results as they come, each in a thread of its own."""

from __future__ import annotations

import heapq
import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from headrace.consumers.records import RecordLocation, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.codec import Codec
from headrace.schemas.headers import REQUEST_ID

if TYPE_CHECKING:
    from headrace.ops.faults.requests import Composer
    from headrace.schemas.messages import Lane, Request
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

TICK_S = 0.02
RESENT_WITHIN_S = 5.0
CLOSING_S = 60.0  # for what is queued while brokers come back
POLL_S = 0.2

log = logging.getLogger(__name__)


class Sender:
    """Sends what the composer makes, `rate` requests a second, until `stop()`.

    `resent`: the share that is sent a second time within seconds, as an outbox does. What the client gives up is sent
    again under the same id, so that every request is acknowledged in the end.
    """

    def __init__(
        self,
        settings: Settings,
        names: ContractNames,
        composer: Composer,
        *,
        rate: float,
        resent: float = 0.0,
    ) -> None:
        """Connect. Raises KafkaUnavailable, KafkaFailed."""
        self._names = names
        self._composer = composer
        self._rate = rate
        self._resent = resent
        self._dice = random.Random("what is sent twice")
        self._codec = Codec()
        self._producer = PlainProducer(settings)
        self._again: list[tuple[float, str, OutgoingRecord]] = []  # a heap: when, id, what
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.requests: dict[str, Request] = {}
        self.acknowledged: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    @property
    def sent(self) -> int:
        """Different requests handed to the client."""
        return len(self.requests)

    def send(self, request: Request, lane: Lane, partition: int | None = None) -> None:
        """Send one more, to a partition of the caller's choice where it is given. From any thread."""
        self.requests[request.id] = request
        key = (request.key or request.id).encode()
        record = OutgoingRecord(
            self._names.requests(lane), key, self._codec.encode(request), partition=partition
        )
        self._send(request.id, record)

    def stop(self) -> None:
        """Send nothing new, and wait until everything is acknowledged, a minute at most."""
        self._stopped.set()
        self._thread.join()
        deadline = time.monotonic() + CLOSING_S
        while len(self.acknowledged) < len(self.requests) and time.monotonic() < deadline:
            self._send_again(everything=True)
            time.sleep(TICK_S)
        self._producer.close()

    def _run(self) -> None:
        began, count = time.monotonic(), 0
        while not self._stopped.wait(TICK_S):
            due = int((time.monotonic() - began) * self._rate)
            while count < due and not self._stopped.is_set():
                composed = self._composer.next()
                self.send(composed.request, composed.lane)
                count += 1
                if self._dice.random() < self._resent:
                    self._later(composed.request, composed.lane)
            self._send_again()

    def _later(self, request: Request, lane: Lane) -> None:
        record = OutgoingRecord(
            self._names.requests(lane), (request.key or request.id).encode(), self._codec.encode(request)
        )
        with self._lock:
            heapq.heappush(
                self._again, (time.monotonic() + self._dice.uniform(0, RESENT_WITHIN_S), request.id, record)
            )

    def _send_again(self, *, everything: bool = False) -> None:
        while True:
            with self._lock:
                if not self._again or (not everything and self._again[0][0] > time.monotonic()):
                    return
                _, id_, record = heapq.heappop(self._again)
            self._send(id_, record)

    def _send(self, id_: str, record: OutgoingRecord) -> None:
        def answered(placed: Future[RecordLocation]) -> None:
            if (error := placed.exception()) is None:
                self.acknowledged.add(id_)
                return
            log.info("request %s is sent again: %s", id_, error)
            with self._lock:
                heapq.heappush(self._again, (time.monotonic() + 1.0, id_, record))

        self._producer.send(record).add_done_callback(answered)


class Watcher:
    """Counts the results as any reader sees them: read_committed. For what is live; the verdict reads anew."""

    def __init__(
        self,
        settings: Settings,
        names: ContractNames,
        partitions: int,
        *,
        reader: Callable[..., TailReader] = TailReader,
    ) -> None:
        """Connect. Raises KafkaUnavailable, KafkaFailed."""
        self._settings = settings
        self._topic = names.results
        self._make = reader
        self._partitions = 0
        self._readers: list[TailReader] = []
        self._stopped = threading.Event()
        self.answered: set[str] = set()
        self.records = 0
        self.grow(partitions)
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def grow(self, partitions: int) -> None:
        """Read partitions that were added too. From any thread."""
        new = [TopicPartition(self._topic, number) for number in range(self._partitions, partitions)]
        if new:
            self._readers = [*self._readers, self._make(self._settings, new, "beginning")]
            self._partitions = partitions

    def stop(self) -> None:
        """Read no more."""
        self._stopped.set()
        self._thread.join()
        for each in self._readers:
            each.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            readers = self._readers
            for each in readers:
                for record in each.poll(POLL_S / len(readers)):
                    self.records += 1
                    name = next((value for header, value in record.headers if header == REQUEST_ID), None)
                    if name is not None:
                        self.answered.add(name.decode())
