"""The producers of Headrace: the guarded transaction, and one without transactions.

With `outgoing` and `transaction`, the only modules that use a producer client.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from headrace.consumers.connection import translate
from headrace.consumers.records import RecordLocation
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.producers.outgoing import (
    CommitBatch,
    OutgoingRecord,
    check_size,
    outlive_refusals,
    record_bytes,
    send,
    start_producer,
)
from headrace.producers.transaction import GuardedTransaction, is_committed
from headrace.schemas.errors import HeadraceError, KafkaFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.schemas.settings import Settings

__all__ = [
    "CommitBatch",
    "GuardedTransaction",
    "OutgoingRecord",
    "PlainProducer",
    "check_size",
    "is_committed",
    "record_bytes",
]

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0


class PlainProducer:
    """An idempotent producer without transactions: for replies, and for clients. From any thread."""

    def __init__(self, settings: Settings, *, linger_ms: int = 0) -> None:
        """Connect. Raises KafkaUnavailable, KafkaFailed.

        `linger_ms`: how long a record may wait for others to its partition. 0 where somebody waits for each: under load
        batches fill up all the same, while others are on their way.
        """
        self._settings = settings
        try:
            self._producer: Any = start_producer(settings, linger_ms=linger_ms)
            outlive_refusals(self._producer)
        except kafka_errors.KafkaError as error:
            raise translate(error, "connecting a producer") from error

    def send(self, record: OutgoingRecord) -> Future[RecordLocation]:
        """Queue a record; the future has its place once all replicas in sync have it.

        The first record of a topic waits here for the topic's metadata, 10 s at most. The future's
        callbacks run in the producer's thread. Every error comes through the future: ResultTooLarge,
        KafkaUnavailable, KafkaFailed.
        """
        answer: Future[RecordLocation] = Future()
        answer.set_running_or_notify_cancel()  # what is queued cannot be called back

        def told(found: RecordLocation | HeadraceError) -> None:
            if isinstance(found, HeadraceError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        self.post(record, told)
        return answer

    def knows(self, topic: str) -> bool:
        """Whether a record for this topic is queued at once: its metadata is here. Asks nobody, never waits."""
        return self._producer._metadata.partitions_for_topic(topic) is not None

    def post(self, record: OutgoingRecord, told: Callable[[RecordLocation | HeadraceError], None]) -> None:
        """The same for very many records: `told` is called once, with the place or the error, here or in the
        producer's thread."""
        doing = f"sending to {record.topic}"
        try:
            check_size(record, self._settings.max_record_bytes)
            sent = send(self._producer, record)
        except (ValueError, TypeError) as error:
            told(KafkaFailed(f"{doing}: {error}"))
            return
        except (kafka_errors.KafkaError, HeadraceError) as error:
            told(translate(error, doing))
            return

        def placed(found: Any) -> None:
            told(RecordLocation(found.topic, found.partition, found.offset))

        def failed(error: BaseException) -> None:
            told(translate(error, doing))

        sent.add_callback(placed)
        sent.add_errback(failed)

    def flush(self, timeout_s: float) -> None:
        """Wait until every record sent before has been answered. Raises KafkaUnavailable after
        `timeout_s`."""
        try:
            self._producer.flush(timeout=timeout_s)
        except kafka_errors.KafkaError as error:
            raise translate(error, "flushing a producer") from error

    def close(self) -> None:
        """Send what is queued, 10 s at most, and close the connections. What is still unsent fails its
        future."""
        try:
            self._producer.close(timeout=CLOSE_TIMEOUT_S)
        except kafka_errors.KafkaError as error:
            logger.warning("closing a producer: %s", error)
            self._producer._sender.force_close()
