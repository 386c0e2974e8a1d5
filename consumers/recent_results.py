"""The ids of the requests that were answered lately, read back from the end of a partition of `results`.

For a window of tens of thousands of records in each of many partitions, so it reads the ids out of the fetched batches
and makes no record of the rest: three times as fast as the consumer is otherwise, of which all else is used (leaders,
fetch sessions, checksums, aborted transactions). Written against kafka-python 3.0.12, whose inner workings it leans on
(`PRIVATE_ATTRIBUTES`, held by a test).
"""

from __future__ import annotations

import logging
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.consumers.connection import METADATA_OPTIONS, client_options, connect
from headrace.consumers.group import log_offsets, translated
from headrace.consumers.kafka_client import kafka_partition
from headrace.consumers.records import AnsweredId, TopicPartition
from headrace.consumers.untyped_kafka import KafkaConsumer
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.schemas.errors import KafkaFailed, KafkaUnavailable
from headrace.schemas.headers import REQUEST_ID, STATUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.schemas.settings import Settings

logger = logging.getLogger(__name__)

# kafka-python ships no types.
Fetcher: Any = import_module("kafka.consumer.fetcher").Fetcher
decode_varint: Any = import_module("kafka.record.util").decode_varint

# What is read, called or replaced of kafka-python's classes beyond their public methods.
PRIVATE_ATTRIBUTES = {
    "consumer": ("_cluster", "_fetcher"),
    "fetcher": ("PartitionRecords",),
    "partition_records": (
        "_consume_aborted_transactions_up_to",
        "_contains_abort_marker",
        "_is_batch_aborted",
        "_unpack_records",
        "aborted_producer_ids",
        "bytes_read",
        "check_crcs",
        "drain",
        "leader_epoch",
        "next_fetch_offset",
        "records_read",
    ),
    "batch": ("_buffer", "_maybe_uncompress", "_pos"),
}

FETCH_BYTES = 8 * 1024 * 1024
# A fetch without data is answered after this. The broker answers earlier when a transaction ends.
FETCH_MAX_WAIT_MS = 10
POLL_MS = 50
SETTLE_S = 2.0  # how long a transaction at the end of a partition is waited for
CLOSE_TIMEOUT_S = 5.0
OFFSETS_TIMEOUT_S = 10.0  # of one question for a partition's first and last offset
MANY_BATCHES = 1_000_000

_REQUEST_ID = REQUEST_ID.encode()
_STATUS = STATUS.encode()


def recent_results(
    settings: Settings, results: TopicPartition, window: int, *, deadline_s: float
) -> list[AnsweredId]:
    """`RecentResults.read` for one partition, with a client of its own."""
    reader = RecentResults(settings, results.topic)
    try:
        return reader.read(results.partition, window, deadline_s)
    finally:
        reader.close()


class RecentResults:
    """Reads the ends of the partitions of a topic, one after the other, with one client and without a group.

    For one thread alone, but for `give_up`.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        """Connect. Raises KafkaUnavailable, KafkaFailed, BrokerNotFound."""
        self._topic = topic
        self._given_up = False
        with translated(f"connecting to read {topic}"):
            self._client: Any = connect(
                KafkaConsumer,
                **client_options(settings),
                group_id=None,
                auto_offset_reset="none",
                enable_auto_commit=False,
                isolation_level="read_committed",
                fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
                fetch_max_bytes=FETCH_BYTES,
                max_partition_fetch_bytes=FETCH_BYTES,
            )
        self._client._cluster.config.update(METADATA_OPTIONS)
        self._client._fetcher.PartitionRecords = _IdsOfPartition

    def read(self, partition: int, window: int, deadline_s: float) -> list[AnsweredId]:
        """The answered ids of the last records of a partition, the oldest first; [] where `window` is 0.

        Counted are the last `window` offsets, of which transaction markers and aborted records take some: so there
        are fewer ids than that, by a record or two for each transaction. A record without a request's id is passed
        over.

        Read to is where the partition ended at the start, open transactions included. A transaction whose offsets are
        known to be committed may still be without its marker in this partition, since the coordinator writes the
        markers one after the other, and its records are missed if they are not waited for: 2 s, for as long as nothing
        comes. What is open for longer is left out, with a warning: it may stay open until its timeout.

        Raises KafkaUnavailable when it takes longer than `deadline_s` seconds, the partition does not exist, or
        `give_up` was called; KafkaFailed for what waiting cannot mend.
        """
        if window <= 0:
            return []
        tp = TopicPartition(self._topic, partition)
        deadline = time.monotonic() + deadline_s
        while True:
            try:
                with translated(f"reading the end of {self._topic}-{partition}"):
                    return self._read(tp, window, deadline)
            except _LogMoved:
                logger.info("%s-%d was cut while its end was read: reading it again", *tp)

    def _read(self, tp: TopicPartition, window: int, deadline: float) -> list[AnsweredId]:
        first, stable = self._bounds(tp, deadline)
        start = max(first, stable - window)
        self._take_position(tp, start)
        found: list[AnsweredId] = []
        end: int | None = None
        position, last_progress = start, time.monotonic()
        while end is None or position < end:
            found += self._poll()
            now, moved_to = time.monotonic(), self._client.position(kafka_partition(tp))
            if end is None:
                end = self._client.highwater(kafka_partition(tp))
            if moved_to > position:
                position, last_progress = moved_to, now
            elif (
                end is not None
                and now - last_progress > SETTLE_S
                and self._gives_no_more(tp, position, deadline)
            ):
                logger.warning(
                    "%s-%d: the transaction at offset %d does not end: the ids that it answers are not known",
                    *tp,
                    position,
                )
                break
            self._check(tp, now, deadline)
        # The batch that `start` lies in begins before it, and what lay behind the stable offset came on top.
        oldest = max(start, position - window)
        return [each for each in found if each.offset >= oldest]

    def _take_position(self, tp: TopicPartition, start: int) -> None:
        self._client.unsubscribe()  # forgets what an earlier read has learnt of the partition, its end above all
        self._client.assign([kafka_partition(tp)])
        self._client.seek(kafka_partition(tp), start)

    def _poll(self) -> list[AnsweredId]:
        try:
            polled: dict[Any, list[_Batch]] = self._client.poll(timeout_ms=POLL_MS, max_records=MANY_BATCHES)
        except (kafka_errors.OffsetOutOfRangeError, kafka_errors.LogTruncationError) as error:
            raise _LogMoved from error
        return [each for batches in polled.values() for batch in batches for each in batch.ids]

    def _bounds(self, tp: TopicPartition, deadline: float) -> tuple[int, int]:
        """The first offset, and the last stable one.

        A leader that was just elected answers only when it knows again up to where the log is replicated: so the end
        that a fetch tells after this is not short of what was committed.
        """
        return self._ask("beginning_offsets", tp, deadline), self._ask("end_offsets", tp, deadline)

    def _gives_no_more(self, tp: TopicPartition, position: int, deadline: float) -> bool:
        """Whether the broker can be reached and has nothing more: that it is silent would be no open transaction."""
        return self._ask("end_offsets", tp, deadline) <= position

    def _ask(self, which: str, tp: TopicPartition, deadline: float) -> int:
        now = time.monotonic()
        self._check(tp, now, deadline)
        return log_offsets(self._client, which, [tp], min(OFFSETS_TIMEOUT_S, deadline - now))[tp]

    def _check(self, tp: TopicPartition, now: float, deadline: float) -> None:
        if self._given_up:
            raise KafkaUnavailable(f"the end of {tp.topic}-{tp.partition} is not read any more")
        if now >= deadline:
            raise KafkaUnavailable(
                f"the end of {tp.topic}-{tp.partition} could not be read in time; check that the brokers are up"
            )

    def give_up(self) -> None:
        """Make the read that is under way, and any later one, end soon with KafkaUnavailable. From any thread."""
        self._given_up = True

    def close(self) -> None:
        """Close the connections. Never raises."""
        try:
            self._client.close(autocommit=False, timeout_ms=int(CLOSE_TIMEOUT_S * 1000))
        except (kafka_errors.KafkaError, KafkaFailed, OSError, RuntimeError) as error:
            logger.warning("closing the reader of %s: %s", self._topic, error)


class _LogMoved(Exception):
    """Retention or a new leader took away the offset that was to be read next."""


class _Batch(NamedTuple):
    """What comes out of a record batch."""

    offset: (
        int  # the last of the batch: the fetcher drops what lies wholly below the offset that it asked for
    )
    ids: list[AnsweredId]


class _IdsOfPartition(Fetcher.PartitionRecords):
    """What was fetched of one partition: a `_Batch` for each batch that has records for a `read_committed` reader."""

    records_read: int
    bytes_read: int

    def _unpack_records(self, tp: Any, records: Any, *_deserializers: Any) -> Iterator[_Batch]:
        """As kafka-python's own, but for what is made of a batch."""
        while (batch := records.next_batch()) is not None:
            if self.check_crcs and not batch.validate_crc():
                raise kafka_errors.CorruptRecordError(
                    f"{tp} at offset {batch.base_offset} failed its checksum"
                )
            self.leader_epoch = batch.leader_epoch
            self._consume_aborted_transactions_up_to(batch.last_offset)
            # Before the batch is handed out: a fetch that ends with it goes on behind it.
            self.next_fetch_offset = batch.next_offset
            if batch.is_control_batch:
                if self._contains_abort_marker(batch):
                    self.aborted_producer_ids.discard(batch.producer_id)
            elif not self._is_batch_aborted(batch):
                batch._maybe_uncompress()
                self.records_read += batch.records_count
                self.bytes_read += batch.size_in_bytes
                yield _Batch(batch.last_offset, _ids(batch))
        self.drain()


def _ids(batch: Any) -> list[AnsweredId]:
    """The value of the header `request-id` of each record that has one, its offset and status; no rejections.

    A rejection is no answer to the id: a malformed message may bear the id of a good one that is still to be answered.
    A record is: length, attributes (a byte), then as varints the differences of time and offset; key and value, each
    with its length before it (-1: null); the number of headers; and each header's name and value like those.
    """
    buffer, position = batch._buffer, batch._pos
    found: list[AnsweredId] = []
    try:
        for _ in range(batch.records_count):
            length, position = decode_varint(buffer, position)
            end = position + length
            _, position = decode_varint(buffer, position + 1)
            offset_delta, position = decode_varint(buffer, position)
            for _key_then_value in range(2):
                size, position = decode_varint(buffer, position)
                position += max(size, 0)
            headers, position = decode_varint(buffer, position)
            request_id: bytes | None = None
            status = b""
            for _ in range(headers):
                size, position = decode_varint(buffer, position)
                name = buffer[position : position + size]
                size, position = decode_varint(buffer, position + size)
                if name == _REQUEST_ID and request_id is None and size >= 0:
                    request_id = bytes(buffer[position : position + size])
                elif name == _STATUS:
                    status = bytes(buffer[position : position + max(size, 0)])
                position += max(size, 0)
            if request_id is not None and status != b"rejected":
                offset = batch.base_offset + offset_delta
                found.append(AnsweredId(request_id.decode("utf-8", "replace"), offset, status == b"ok"))
            position = end
    except (IndexError, ValueError) as error:
        raise kafka_errors.CorruptRecordError(f"no record where one should be: {error}") from error
    return found
