"""Reading `results` for backfill jobs: one reader for all jobs of a contract that run in one process.

A job's results are known by their headers, so that others' are passed over without being decoded.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import Record
from headrace.consumers.result_schemas import frozen_result_schemas
from headrace.consumers.tail_reader import Isolation, TailReader
from headrace.consumers.trying_on import read_until
from headrace.schemas.codec import Codec
from headrace.schemas.errors import HeadraceError, MessageError
from headrace.schemas.headers import JOB, REQUEST_ID
from headrace.schemas.messages import Result

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

log = logging.getLogger(__name__)

POLL_S = 0.25
POLL_RECORDS = 2_000
TRY_AGAIN_S = 2.0


class FoundResult(NamedTuple):
    """A result of a job: where it lies, the id of its request, and itself, or why it cannot be read."""

    partition: int
    offset: int
    request_id: str
    result: Result | MessageError


@dataclass(frozen=True, slots=True)
class Findings:
    """What one poll has brought for a job, and up to where `results` has been read with it.

    `others`: results of others among it, a measure of how much of the fleet's work the job is. `skipped`: offsets that
    retention took away before they were read.
    """

    found: list[FoundResult]
    positions: dict[int, int]
    others: int
    skipped: int


@dataclass(slots=True)
class _Subscriber:
    starts: Mapping[int, int]
    deliver: Callable[[Findings], None]


class ResultsFeed:
    """Reads the topic of results. `run` is a thread's body; outages are waited out.

    `deliver` is called in the reading thread, and may wait: reading waits with it.
    """

    def __init__(self, settings: Settings, topic: str, codec: Codec | None = None) -> None:
        self._settings = settings
        self._topic = topic
        self._codec = codec or Codec.with_registry_at(
            settings.schema_registry_url, result_schemas=frozen_result_schemas(settings)
        )
        self._lock = threading.Lock()  # over the next three
        self._subscribers: dict[bytes, _Subscriber] = {}
        self._positions: dict[int, int] = {}
        self._goes_back = False
        self._stop = threading.Event()
        self._tail: TailReader | None = None

    def subscribe(self, job: str, starts: Mapping[int, int], deliver: Callable[[Findings], None]) -> None:
        """Have a job's results delivered, from these offsets on. A partition without one: from its beginning.

        Where reading is further already it goes back: others then hear some results once more.
        """
        with self._lock:
            self._subscribers[job.encode()] = _Subscriber(dict(starts), deliver)
            behind = {at: start for at, start in starts.items() if start < self._positions.get(at, start)}
            self._positions.update(behind)
            self._goes_back = self._goes_back or bool(behind)

    def unsubscribe(self, job: str) -> None:
        """Deliver no more to a job."""
        with self._lock:
            self._subscribers.pop(job.encode(), None)

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()
        if (tail := self._tail) is not None:
            tail.wake_up()

    def run(self) -> None:
        """Read until `stop()`."""
        read_until(
            self._stop,
            self._read,
            failing=f"{self._topic} cannot be read",
            again_s=TRY_AGAIN_S,
            log=log,
        )

    def _read(self) -> None:
        """Until it is to stop, or to go back."""
        partitions = partitions_of(self._settings, [self._topic])[self._topic]
        with self._lock:
            self._goes_back = False
            for tp in partitions:
                wanted = [each.starts.get(tp.partition, 0) for each in self._subscribers.values()]
                self._positions.setdefault(tp.partition, min(wanted, default=0))
            starts = {tp: self._positions[tp.partition] for tp in partitions}
        tail = self._tail = TailReader(self._settings, partitions, starts)
        try:
            skipped = 0
            while not self._stop.is_set():
                records = tail.poll(POLL_S, POLL_RECORDS)
                with self._lock:
                    if self._goes_back:
                        return
                    before = dict(self._positions)
                    for tp in partitions:
                        self._positions[tp.partition] = max(starts[tp], tail.position(tp) or 0)
                    positions, subscribers = dict(self._positions), dict(self._subscribers)
                lost = sum(tail.skipped.values())
                try:
                    self._hand_out(records, positions, subscribers, lost - skipped)
                except HeadraceError:  # of the registry: nobody has had them, so they are to be read again
                    with self._lock:
                        for at, position in before.items():
                            self._positions[at] = min(position, self._positions[at])
                    raise
                skipped = lost
        finally:
            self._tail = None
            tail.close()

    def _hand_out(
        self,
        records: list[Record],
        positions: Mapping[int, int],
        subscribers: Mapping[bytes, _Subscriber],
        skipped: int,
    ) -> None:
        by_job: dict[bytes, list[FoundResult]] = {}
        for record in records:
            headers = dict(record.headers)
            job = headers.get(JOB)
            subscriber = None if job is None else subscribers.get(job)
            if (
                job is None
                or subscriber is None
                or record.offset < subscriber.starts.get(record.partition, 0)
            ):
                continue
            request_id = (headers.get(REQUEST_ID) or b"").decode("utf-8", "replace")
            by_job.setdefault(job, []).append(
                FoundResult(record.partition, record.offset, request_id, self._decode(record))
            )
        for job, subscriber in subscribers.items():
            found = by_job.get(job, [])
            subscriber.deliver(Findings(found, dict(positions), len(records) - len(found), skipped))

    def _decode(self, record: Record) -> Result | MessageError:
        try:
            return self._codec.decode(Result, record.value).message
        except MessageError as error:
            return error


def end_of_results(
    settings: Settings, topic: str, timeout_s: float = 30.0, *, committed: bool = True
) -> dict[int, int]:
    """Where each partition of a topic ends now: for whoever reads what is committed, that is, at the first open
    transaction; or with all that has been written.

    Raises TopicsError where there is no such topic, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    partitions = partitions_of(settings, [topic])[topic]
    isolation: Isolation = "read_committed" if committed else "read_uncommitted"
    tail = TailReader(
        settings, partitions, dict.fromkeys(partitions, 0), timeout_s=timeout_s, isolation=isolation
    )
    try:
        return {tp.partition: offset for tp, offset in tail.end_offsets(timeout_s).items()}
    finally:
        tail.close()


def has_read_to(positions: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Whether everything below these ends has been read."""
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())
