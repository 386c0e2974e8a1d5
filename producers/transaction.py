"""Results and the offsets of their requests, published together or not at all."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from headrace.consumers.connection import translate
from headrace.consumers.group import read_committed_offsets
from headrace.consumers.records import RecordLocation
from headrace.consumers.untyped_kafka import ConsumerGroupMetadata, KafkaTopicPartition, OffsetAndMetadata
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.producers.outgoing import (
    MAX_METADATA_CHARACTERS,
    check_size,
    record_bytes,
    send,
    start_producer,
)
from headrace.schemas.errors import (
    HeadraceError,
    KafkaFailed,
    KafkaUnavailable,
    ResultTooLarge,
    SlotTaken,
    StaleGeneration,
    TopicMissing,
    TransactionHung,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.consumers.records import CommitPoint, TopicPartition
    from headrace.producers.outgoing import CommitBatch, OutgoingRecord
    from headrace.schemas.settings import Settings

logger = logging.getLogger(__name__)

# kafka-python gives up a batch after this and lets the rest of its transaction commit. It must be longer
# than the transaction, whose end is what we wait for.
DELIVERY_TIMEOUT_MS = 120_000
# A commit is tried again for this many transaction timeouts: by default a minute.
COMMIT_BOUND_IN_TIMEOUTS = 6
# The last try ends at most this much later: an initialisation and a reading of the offsets are under way then.
LAST_TRY_IN_TIMEOUTS = 2
REOPEN_PAUSE_S = 0.2
CLOSE_TIMEOUT_S = 5.0

# What is used of KafkaProducer and its transaction manager beyond their public methods.
PRIVATE_ATTRIBUTES = {
    "producer": ("_closed", "_sender", "_transaction_manager", "_unregister_cleanup"),
    "sender": ("force_close", "is_alive", "join", "wakeup"),
    "manager": (
        "begin_abort",
        "begin_commit",
        "has_error",
        "last_error",
        "producer_id_and_epoch",
        "send_offsets_to_transaction",
    ),
}

Locations = list[RecordLocation | None]


class _Doubt(Exception):
    """This try may or may not be committed, or cannot be. `commit_sent`: the broker may have been told to."""

    def __init__(self, cause: BaseException | str, *, commit_sent: bool, locations: Locations) -> None:
        super().__init__(cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}")
        self.commit_sent = commit_sent
        self.locations = locations


def is_committed(
    commit_sent: bool,
    wanted: Mapping[TopicPartition, CommitPoint],
    found: Mapping[TopicPartition, CommitPoint | None],
) -> bool:
    """Whether a doubtful transaction was committed, given what is committed now that it has ended.

    A transaction holds as a whole, so its offsets and metadata are either all there or it was aborted.
    Without `commit_sent` it was aborted whatever they say. Where none is there, it was aborted, or other
    members have moved all its partitions on since: publishing it again is refused for its generation then.
    Raises TransactionHung where some are there and some are not: a partition has moved to another member
    meanwhile, and which way the transaction went cannot be told from here. The next process finds out what
    is left to do from what is committed.
    """
    if not commit_sent:
        return False
    matching = [found.get(tp) == point for tp, point in wanted.items()]
    if any(matching) and not all(matching):
        raise TransactionHung(
            "a doubtful transaction cannot be settled: its partitions have moved apart since"
        )
    return all(matching)


class GuardedTransaction:
    """Publishes batches, each in one transaction that is known to be committed when `commit` returns.

    kafka-python's own sequence is not enough. Its `commit_transaction()` returned normally for a
    transaction that the broker had aborted: a producer cut off from one leader for longer than the
    transaction timeout bumps its epoch when it comes back and marks the queued commit as done without
    sending it; then the next transaction commits later offsets, and the results are lost. A batch given up
    after `delivery_timeout_ms` is left out in the same silence.

    For one thread alone, but for `deadline`.
    """

    def __init__(self, settings: Settings, transactional_id: str) -> None:
        self._settings = settings
        self._id = transactional_id
        self._timeout_s = settings.transaction_timeout_ms / 1000
        self._producer: Any = None
        self._last: dict[TopicPartition, CommitPoint] = {}
        self._deadline: float | None = None
        self.metadata_limit = MAX_METADATA_CHARACTERS  # of the cluster; one more is fatal to a producer

    @property
    def deadline(self) -> float | None:
        """`time.monotonic()` by which the commit under way ends by itself; None: none is under way.

        For a watchdog in another thread: a call inside the client that hangs beyond it cannot be ended from
        here, and the process must end, so that its successor settles the transaction.
        """
        return self._deadline

    def open(self) -> None:
        """End what a predecessor with this id left open, so that nobody waits for it. Before the engine loads.

        Raises KafkaUnavailable when no broker answers for a minute, KafkaFailed.
        """
        self._reopen(time.monotonic() + COMMIT_BOUND_IN_TIMEOUTS * self._timeout_s)

    def check_size(self, record: OutgoingRecord) -> None:
        """Raises ResultTooLarge for a record that cannot be published: before it gets into a batch."""
        check_size(record, self._settings.max_record_bytes)

    def commit(self, batch: CommitBatch) -> Locations:
        """Publish a batch and commit its offsets; where each of its records lies, in order.

        A location is None where the batch turned out to be committed though no answer said so.

            Until it is known to be committed:
            1 to 6. One try, see `_try`. Its doubts are settled thus:
            7. A new producer of the same id: its initialisation ends what was open, one way or the other.
            8. Unless the commit was never sent, read back what is committed now.
            9. If that is this batch, done; otherwise publish it again.

        Raises StaleGeneration (the group has moved on, or knows this slot as another member), ResultTooLarge (with
        the record's `index`),
        TopicMissing (so too) and KafkaFailed (what trying again cannot mend): nothing is published, unless a
        doubtful try was committed after all and a later owner has committed over it since. TransactionHung when
        the bound has passed: then it is not known, and the process must end. After all but that the next batch can be
        committed.
        """
        self._check(batch)
        deadline = time.monotonic() + COMMIT_BOUND_IN_TIMEOUTS * self._timeout_s
        self._deadline = deadline + LAST_TRY_IN_TIMEOUTS * self._timeout_s
        try:
            locations = self._commit_by(batch, deadline)
        finally:
            self._deadline = None
        self._last.update(batch.offsets)
        return locations

    def close(self) -> None:
        """Close the connections. What is open, after a `commit` that raised, the successor ends."""
        if self._producer is not None:
            self._discard(time.monotonic() + CLOSE_TIMEOUT_S)

    def _check(self, batch: CommitBatch) -> None:
        if not batch.group.joined:
            # The broker accepts such a commit even for a group that has members: nothing would guard it.
            raise StaleGeneration(f"group {batch.group.group}: this worker is no member of it now")
        if not batch.offsets:
            raise ValueError("a batch without offsets: whether it was committed could not be found out")
        if batch.records and all(self._last.get(tp) == point for tp, point in batch.offsets.items()):
            raise ValueError("a batch with records that moves no offset and changes no metadata")
        for tp, point in batch.offsets.items():
            if len(point.metadata) > self.metadata_limit:
                raise ValueError(
                    f"{len(point.metadata)} characters of metadata for {tp.topic}-{tp.partition}"
                )
        for index, record in enumerate(batch.records):
            try:
                self.check_size(record)
            except ResultTooLarge as error:
                error.index = index
                raise

    def _commit_by(self, batch: CommitBatch, deadline: float) -> Locations:
        while True:
            try:
                if self._producer is None:
                    self._reopen(deadline)
                return self._try(batch, min(deadline, time.monotonic() + self._timeout_s))
            except _Doubt as doubt:
                logger.warning("transaction of %s in doubt: %s", self._id, doubt)
                if self._settle(doubt, batch, deadline):
                    return doubt.locations
                if time.monotonic() >= deadline:
                    raise TransactionHung(f"{self._id}: tried in vain to the end: {doubt}") from doubt
            except KafkaUnavailable as error:
                raise TransactionHung(f"{self._id}: {error}") from error

    def _try(self, batch: CommitBatch, deadline: float) -> Locations:
        """One transaction, in six steps; returns only when it is known to be committed. Raises _Doubt."""
        producer, manager = self._producer, self._producer._transaction_manager
        locations: Locations = [None] * len(batch.records)
        futures: list[Any] = []
        commit_sent = False
        try:
            # 1. Begin, and remember who we are to the broker.
            identity = manager.producer_id_and_epoch
            producer.begin_transaction()
            # 2. Send every record.
            for record in batch.records:
                futures.append(send(producer, record))
            # 3. Send the offsets with the group's generation: here the broker refuses one that is stale.
            result = manager.send_offsets_to_transaction(_offsets(batch), _group(batch))
            _wait(producer, result, deadline)
            # 4. Wait for every record. One that fails leaves the client willing to commit the others.
            for index, future in enumerate(futures):
                placed = future.get(timeout=max(0.0, deadline - time.monotonic()))
                locations[index] = RecordLocation(placed.topic, placed.partition, placed.offset)
            # 5. An id or epoch that moved means that the broker has aborted this transaction. Nothing is
            # under way any more that could move it after this line: every record was answered.
            if manager.producer_id_and_epoch != identity or manager.has_error():
                raise _Doubt("the producer's epoch moved", commit_sent=False, locations=locations)
            # 6. Commit.
            result = manager.begin_commit()
            commit_sent = True
            _wait(producer, result, deadline)
            if manager.producer_id_and_epoch != identity:
                raise _Doubt("the producer's epoch moved", commit_sent=True, locations=locations)
        except TopicMissing as error:
            error.index = len(futures)
            raise self._refused(error) from None
        except (kafka_errors.KafkaError, ValueError, TypeError) as error:
            # The client keeps the first error; what its later calls raise is a bare KafkaError that says less.
            first = manager.last_error or error
            known = None if commit_sent else _known(first, self._id)
            if known is None:
                raise _Doubt(first, commit_sent=commit_sent, locations=locations) from error
            if isinstance(known, ResultTooLarge):
                known.index = _largest_failed(batch, futures, deadline)
            raise self._refused(known) from error
        return locations

    def _refused(self, error: HeadraceError) -> HeadraceError:
        """Leave a refused transaction behind: nobody is to wait for it, and the next batch needs a producer.

        Its producer is not used again: kafka-python keeps the offsets that were refused, and would send them with
        the next transaction's.
        """
        deadline = time.monotonic() + self._timeout_s
        if isinstance(error, SlotTaken):
            # Another process, or ourselves since we joined again: the consumer can tell. If there is another one, a
            # new producer now would take the id away from it.
            self._abort(deadline)
            self._discard(deadline)
            return StaleGeneration(f"{self._id}: to its group this slot is another member by now")
        try:
            self._reopen(deadline)
        except KafkaUnavailable as unavailable:
            logger.warning("%s: %s; the next batch tries again", self._id, unavailable)
        return error

    def _abort(self, deadline: float) -> None:
        try:
            _wait(self._producer, self._producer._transaction_manager.begin_abort(), deadline)
        except kafka_errors.KafkaError as error:
            logger.warning("%s: aborting: %s; the broker will, at its timeout", self._id, error)

    def _settle(self, doubt: _Doubt, batch: CommitBatch, deadline: float) -> bool:
        """Steps 7 and 8: end the transaction one way or the other, and find out which. Raises
        TransactionHung."""
        try:
            self._reopen(deadline)
            if not doubt.commit_sent:
                return is_committed(False, batch.offsets, {})
            left_s = max(0.0, deadline - time.monotonic())
            found = read_committed_offsets(self._settings, batch.group.group, batch.offsets, left_s)
        except KafkaUnavailable as error:
            raise TransactionHung(f"{self._id}: {error}") from doubt
        return is_committed(doubt.commit_sent, batch.offsets, found)

    def _reopen(self, deadline: float) -> None:
        """Put a new, initialised producer in the place of the old one. Raises KafkaUnavailable,
        KafkaFailed."""
        if self._producer is not None:
            self._discard(deadline)
        while True:
            try:
                self._producer = self._start(deadline)
                self._producer.init_transactions()
            except kafka_errors.KafkaError as error:
                translated = translate(error, f"initialising transactions of {self._id}")
                if self._producer is not None:
                    self._discard(deadline)
                if isinstance(error, kafka_errors.AuthorizationError):
                    raise translated from error
                if time.monotonic() >= deadline:
                    raise KafkaUnavailable(str(translated)) from error
                logger.warning("%s; trying on", translated)
                time.sleep(REOPEN_PAUSE_S)
            else:
                return

    def _start(self, deadline: float) -> Any:
        settings = self._settings
        left_ms = max(1, min(settings.transaction_timeout_ms, int((deadline - time.monotonic()) * 1000)))
        # A broker that hangs is given up before the transaction is.
        request_timeout_ms = settings.kafka.request_timeout_ms or settings.transaction_timeout_ms
        return start_producer(
            settings,
            bootstrap_timeout_ms=left_ms,
            request_timeout_ms=request_timeout_ms,
            client_id=f"headrace-{self._id}",
            transactional_id=self._id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            delivery_timeout_ms=max(DELIVERY_TIMEOUT_MS, 2 * settings.transaction_timeout_ms),
            max_block_ms=settings.transaction_timeout_ms,
        )

    def _discard(self, deadline: float) -> None:
        """End the producer without sending anything more, and wait for its thread.

        The wait matters: a sender that lives on may initialise the id once more, and fence its successor.
        """
        producer, self._producer = self._producer, None
        producer._sender.force_close()
        producer._sender.join(max(0.1, deadline - time.monotonic()))
        if producer._sender.is_alive():
            logger.warning("%s: the old producer's thread does not end", self._id)
            producer._unregister_cleanup()
            producer._closed = True
            return
        try:
            producer.close(timeout=CLOSE_TIMEOUT_S)
        except kafka_errors.KafkaError as error:
            logger.warning("%s: closing the old producer: %s", self._id, error)


def _known(error: BaseException, transactional_id: str) -> HeadraceError | None:
    """What trying again cannot mend, as ours. None: a doubt.

    That another producer has fenced this one is a doubt too: an ordinary outage looks the same to
    kafka-python, and an expired id as well. Only a fenced instance id means that another process runs with
    this slot.
    """
    hopeless = (
        kafka_errors.CommitFailedError,
        kafka_errors.FencedInstanceIdError,
        kafka_errors.MessageSizeTooLargeError,
        kafka_errors.RecordListTooLargeError,
        kafka_errors.AuthorizationError,
    )
    if isinstance(error, hopeless):
        return translate(error, f"transaction of {transactional_id}")
    if isinstance(error, (ValueError, TypeError)):
        return KafkaFailed(f"transaction of {transactional_id}: {error}")
    return None


def _largest_failed(batch: CommitBatch, futures: Sequence[Any], deadline: float) -> int:
    """The record that the broker found too large.

    The client fails what it had not sent yet with the same error, so it is the largest of those that failed.
    """
    failed: list[int] = []
    for index, future in enumerate(futures):
        try:
            future.get(timeout=max(0.0, deadline - time.monotonic()))
        except kafka_errors.KafkaError:
            failed.append(index)
    return max(failed or range(len(batch.records)), key=lambda index: record_bytes(batch.records[index]))


def _wait(producer: Any, result: Any, deadline: float) -> None:
    """Wait for an answer with a bound, which kafka-python's own methods do not have."""
    producer._sender.wakeup()
    if not result.wait(timeout_ms=max(0.0, (deadline - time.monotonic()) * 1000)):
        raise kafka_errors.KafkaTimeoutError("no answer in time")


def _offsets(batch: CommitBatch) -> dict[Any, Any]:
    return {
        KafkaTopicPartition(*tp): OffsetAndMetadata(point.offset, point.metadata, -1)
        for tp, point in batch.offsets.items()
    }


def _group(batch: CommitBatch) -> Any:
    group = batch.group
    return ConsumerGroupMetadata(group.group, group.generation, group.member_id, group.slot)
