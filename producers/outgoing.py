"""What is to be published, how large it may be, and how every producer of ours is set up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.consumers.connection import METADATA_OPTIONS, client_options, connect
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.schemas.errors import ResultTooLarge, TopicMissing

if TYPE_CHECKING:
    from headrace.consumers.records import CommitPoint, GroupMetadata, TopicPartition
    from headrace.schemas.settings import Settings

# kafka-python ships no types.
KafkaProducer: Any = import_module("kafka").KafkaProducer
_RecordBatch: Any = import_module("kafka.record.default_records").DefaultRecordBatchBuilder

_TransactionManager: Any = import_module("kafka.producer.transaction_manager").TransactionManager

# What is used of KafkaProducer, of its cluster metadata and its transaction manager beyond their public methods.
PRIVATE_ATTRIBUTES = {
    "producer": ("_metadata", "_transaction_manager", "_wait_on_metadata"),
    "manager": ("_FATAL_ERRORS", "_supports_epoch_bump", "classify_batch_error"),
    "metadata": ("_last_successful_refresh_ms", "config", "partitions_for_topic"),
}

MAX_METADATA_CHARACTERS = 4096  # the broker's offset.metadata.max.bytes; one more is fatal to a producer
METADATA_WAIT_MS = 3_000  # a topic that was just made is known to all brokers within a second
BATCH_BYTES = 64 * 1024
# A request holds batches of several partitions, so it needs more room than the largest record.
REQUEST_ROOM_BYTES = 1024 * 1024


class OutgoingRecord(NamedTuple):
    """A record to be published. Without a partition, its key decides (murmur2), or chance."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """What is published and committed in one transaction, or not at all.

    Records with offsets that move nothing would leave no trace of whether they were committed: a batch with
    records changes the offset or the metadata of at least one partition.
    """

    records: list[OutgoingRecord]
    offsets: dict[TopicPartition, CommitPoint]
    group: GroupMetadata


def record_bytes(record: OutgoingRecord) -> int:
    """The most bytes that a record takes in its log when it is alone in its batch, as the broker counts
    them."""
    return _RecordBatch.estimate_size_in_bytes(record.key, record.value, list(record.headers))


def check_size(record: OutgoingRecord, max_record_bytes: int) -> None:
    """Raises ResultTooLarge for a record that no topic of ours would take.

    To be called before a record gets into a transaction: the broker's refusal would cost the whole
    transaction.
    """
    if (size := record_bytes(record)) > max_record_bytes:
        raise ResultTooLarge(
            f"a record of {size:,} bytes for {record.topic}; the most is {max_record_bytes:,} "
            "(HEADRACE_MAX_RECORD_BYTES, and max.message.bytes of the topic)"
        )


def producer_options(settings: Settings) -> dict[str, Any]:
    """Keyword arguments that every KafkaProducer of ours is made with."""
    return {
        **client_options(settings),
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": 1,
        "batch_size": BATCH_BYTES,
        "max_request_size": settings.max_record_bytes + REQUEST_ROOM_BYTES,
        "compression_type": None,
    }


def start_producer(settings: Settings, **options: Any) -> Any:
    """A KafkaProducer. Raises kafka-python's errors."""
    producer = connect(KafkaProducer, **producer_options(settings) | options)
    producer._metadata.config.update(METADATA_OPTIONS)
    return producer


def outlive_refusals(producer: Any) -> None:
    """Let a producer without transactions go on after brokers have refused a batch for good.

    kafka-python takes such a refusal (of a record without a key for a compacted topic, of one that is too large, of a
    topic that may not be written) for the end of an idempotent producer: everything sent after it fails. Only the
    sequence numbers of that partition are out of step, and a new epoch mends those.
    """
    manager = producer._transaction_manager
    if manager is None:
        return
    classify = manager.classify_batch_error

    def classified(error: Any, *rest: Any, **named: Any) -> str:
        outcome: str = classify(error, *rest, **named)
        kind: type[BaseException] = error if isinstance(error, type) else type(error)
        may_go_on = outcome == manager.ERROR_CLASS_FATAL and kind not in _TransactionManager._FATAL_ERRORS
        return (
            manager.ERROR_CLASS_NEEDS_EPOCH_BUMP if may_go_on and manager._supports_epoch_bump() else outcome
        )

    manager.classify_batch_error = classified


def send(producer: Any, record: OutgoingRecord) -> Any:
    """Queue a record; kafka-python's future of its place.

    The first record for a topic waits a moment for the topic's metadata. Raises TopicMissing when brokers
    answer and do not know the topic or it has no such partition, and kafka-python's errors.
    """
    metadata = producer._metadata
    if metadata.partitions_for_topic(record.topic) is None:
        asked_at_ms = time.monotonic() * 1000
        try:
            producer._wait_on_metadata(record.topic, METADATA_WAIT_MS)
        except kafka_errors.KafkaTimeoutError:
            if metadata._last_successful_refresh_ms < asked_at_ms:
                raise
            raise TopicMissing(
                f"topic {record.topic} does not exist: headrace topics diff shows which are missing"
            ) from None
    if record.partition is not None and record.partition not in metadata.partitions_for_topic(record.topic):
        raise TopicMissing(f"topic {record.topic} has no partition {record.partition}")
    return producer.send(
        record.topic,
        value=record.value,
        key=record.key,
        headers=list(record.headers),
        partition=record.partition,
    )
