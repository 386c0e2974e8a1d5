"""A job's way to Kafka: its requests, and the cancel that takes them all back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import RecordLocation
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.codec import Codec
from headrace.schemas.errors import HeadraceError
from headrace.schemas.headers import REPLAY, REPLAY_AGAIN
from headrace.schemas.messages import Cancel, Lane, Request
from headrace.schemas.registry import SchemaRegistry
from headrace.topics.names import ContractNames

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

LINGER_MS = 20  # nobody waits for one row: batches are worth more
FLUSH_S = 30.0

Told = Callable[[RecordLocation | HeadraceError], None]

_AGAIN = ((REPLAY, b"1"), (REPLAY_AGAIN, b"true"))


class Wire(Protocol):
    """What a job needs of Kafka to ask."""

    def send(self, request: Request, partition: int, told: Told, *, again: bool = False) -> None:
        """Queue a request; `told` is called once, from any thread, with its place once Kafka has it, or with why it has
        not: KafkaUnavailable, KafkaFailed, ResultTooLarge. With `again` it is run whatever is known of its id.

        Raises MessageError for a request that does not fit on the wire."""
        ...

    def cancel(self, job: str, reason: str) -> None:
        """Take back all requests of a job that were sent before. Returns when Kafka has it. Raises KafkaFailed."""
        ...

    def close(self) -> None:
        """Send what is queued, and disconnect."""
        ...


class KafkaWire:
    """Sends to one lane of a contract."""

    def __init__(self, settings: Settings, names: ContractNames, lane: Lane) -> None:
        """Connect. Raises TopicsError where a topic is missing, KafkaUnavailable, KafkaFailed, BrokerNotFound."""
        self._names = names
        self._topic = names.requests(lane)
        found = partitions_of(settings, [self._topic, names.cancels])
        self.partitions = len(found[self._topic])
        url = settings.schema_registry_url
        self._registry = None if url is None else SchemaRegistry(url)
        self._codec = Codec(self._registry)
        self._producer = PlainProducer(settings, linger_ms=LINGER_MS)

    def send(self, request: Request, partition: int, told: Told, *, again: bool = False) -> None:
        value = self._codec.encode(request, topic=self._topic)
        headers = _AGAIN if again else ()
        key = (request.key or request.id).encode()
        self._producer.post(OutgoingRecord(self._topic, key, value, headers, partition), told)

    def cancel(self, job: str, reason: str) -> None:
        cancel = Cancel(job=job, reason=reason, time=int(time.time() * 1000))
        value = self._codec.encode(cancel, topic=self._names.cancels)
        sent = self._producer.send(OutgoingRecord(self._names.cancels, job.encode(), value))
        self._producer.flush(FLUSH_S)
        sent.result(FLUSH_S)

    def close(self) -> None:
        self._producer.close()
        if self._registry is not None:
            self._registry.close()
