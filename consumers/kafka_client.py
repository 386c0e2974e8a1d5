"""kafka-python's consumer, driven without ever waiting inside it.

`FetchingConsumer` cures what the stock `poll()` does not give: records of owned partitions while other
members of the group rejoin, and a wait that another thread can end. Written against kafka-python 3.0.12,
whose inner workings it leans on (`PRIVATE_ATTRIBUTES`, held by a test).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace.consumers.connection import METADATA_OPTIONS, OutageLog
from headrace.consumers.kafka_coordinator import RequestCoordinator
from headrace.consumers.records import Record, TopicPartition
from headrace.consumers.untyped_kafka import (
    KafkaConsumer,
    KafkaTopicPartition,
    TopicPartitionState,
    WeakMethod,
)
from headrace.consumers.untyped_kafka import errors as kafka_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

# What is read or called of KafkaConsumer, of its fetcher and of its subscription state, beyond their public
# methods.
PRIVATE_ATTRIBUTES = {
    "consumer": ("_client", "_cluster", "_coordinator", "_fetcher", "_subscription"),
    "fetcher": ("fetched_records", "maybe_validate_positions", "send_fetches", "validate_offsets_if_needed"),
    "subscription": ("assignment", "assigned_partitions"),
    "coordinator": ("_handle_metadata_update",),
}

# A wait ends at the latest after this: heartbeats may have brought news for which nobody wakes us.
LONGEST_WAIT_S = 0.1


def kafka_partition(tp: TopicPartition) -> Any:
    """kafka-python insists on its own class."""
    return KafkaTopicPartition(*tp)


class FetchingConsumer(KafkaConsumer):
    """A consumer whose `fetch()` never blocks for long, and whose `wait()` can be ended from any thread.

    A partition without a position is never fetched, and gets none by itself: neither the committed offset
    nor a reset is asked for here. Whoever owns the consumer calls `seek()`.
    """

    def __init__(self, **configs: Any) -> None:
        stock: Any = super()
        stock.__init__(**configs)
        self._cluster.config.update(METADATA_OPTIONS)
        self._news = threading.Event()
        self._outage = OutageLog(f"group {self.config['group_id']}")
        if self.config["group_id"] is not None:
            self._replace_coordinator()

    @property
    def coordinator(self) -> RequestCoordinator | None:
        """Ours; None without a group."""
        return self._coordinator if self.config["group_id"] is not None else None

    def _replace_coordinator(self) -> None:
        """Put ours in place of the stock one, which has done nothing yet but listen for metadata."""
        stock = self._coordinator
        self._cluster.remove_listener(WeakMethod(stock._handle_metadata_update))
        self._coordinator = RequestCoordinator(
            self._client,
            self._subscription,
            metrics=self._metrics,
            assignors=self.config["partition_assignment_strategy"],
            **self.config,
        )
        self._coordinator.wake = self.wake_up

    def fetch(self, max_records: int) -> tuple[dict[TopicPartition, list[Record]], dict[TopicPartition, int]]:
        """What has arrived, and the position of each partition that its log no longer holds.

        The stock client returns nothing while any member of the group has yet to rejoin (7 s for a killed
        member, 18 s for a busy one were seen); here what is still owned is fetched on, as Java's client
        does.
        Raises kafka-python's errors.
        """
        out_of_range: dict[TopicPartition, int] = {}
        if not self._keep_membership() and not self._subscription.assigned_partitions():
            return {}, out_of_range
        try:
            self._fetcher.maybe_validate_positions()
            self._fetcher.validate_offsets_if_needed()
        except kafka_errors.LogTruncationError as error:
            self._forget_positions(error.divergent_offsets, out_of_range)
        try:
            fetched: tuple[dict[Any, list[Any]], bool] = self._fetcher.fetched_records(max_records)
        except kafka_errors.OffsetOutOfRangeError as error:
            self._forget_positions(error.args[0], out_of_range)
            fetched = {}, False
        found, more_is_buffered = fetched
        if not more_is_buffered:
            self._ask_for_more()
        records = {TopicPartition(*tp): [_record(each) for each in some] for tp, some in found.items()}
        return records, out_of_range

    def _ask_for_more(self) -> None:
        try:
            for sent in self._fetcher.send_fetches():
                sent.add_both(self._fetched)
        except kafka_errors.RetriableError as error:
            # Raised further, it would lose the records just taken: the position is past them already.
            self._outage.failed(error)

    def _fetched(self, _: Any) -> None:
        self._news.set()

    def _keep_membership(self) -> bool:
        """Whether this is a member in good standing, after what a poll can do for it without waiting."""
        try:
            joined = self._coordinator.poll(timeout_ms=0)
        except kafka_errors.RetriableError as error:
            self._outage.failed(error)
            return False
        if joined:
            self._outage.succeeded()
        elif self._coordinator.coordinator_unknown():
            self._outage.failed(kafka_errors.CoordinatorNotAvailableError())
        return joined

    def _forget_positions(self, partitions: Iterable[Any], out_of_range: dict[TopicPartition, int]) -> None:
        """Take the positions away: no fetch can succeed there, and where to go on is not ours to say."""
        for tp in partitions:
            state = self._subscription.assignment.get(tp)
            if state is None or state.position is None:
                continue
            out_of_range[TopicPartition(*tp)] = state.position.offset
            fresh = TopicPartitionState()
            fresh.paused = state.paused
            self._subscription.assignment[tp] = fresh

    def wait(self, timeout_s: float) -> None:
        """Until there is news (a fetch or a join has ended, `wake_up()` was called), or the time is over."""
        self._news.wait(min(timeout_s, LONGEST_WAIT_S))
        self._news.clear()

    def outage(self, error: BaseException) -> None:
        """No broker answers: say so now and then."""
        self._outage.failed(error)

    def committed_offsets(self, partitions: list[Any], timeout_s: float) -> dict[Any, Any]:
        """kafka-python's offsets and metadata by partition, where there are any; with read_committed, final
        ones.

        Raises KafkaTimeoutError while a transaction over them is open.
        """
        return self._coordinator.fetch_committed_offsets(partitions, timeout_ms=int(timeout_s * 1000))

    def wake_up(self) -> None:
        """End the wait under way, or else the next one. From any thread."""
        self._news.set()

    def position_of(self, tp: TopicPartition) -> int | None:
        """The offset of the next record; None: there is none yet, or the partition is not assigned."""
        state = self._subscription.assignment.get(tp)
        return None if state is None or state.position is None else state.position.offset

    def high_watermark(self, tp: TopicPartition) -> int | None:
        """Where the log ended when it was last fetched."""
        state = self._subscription.assignment.get(tp)
        return None if state is None else state.highwater


def _record(found: Any) -> Record:
    return Record(
        found.topic,
        found.partition,
        found.offset,
        found.timestamp if found.timestamp is not None else -1,
        found.key,
        found.value,
        found.headers,
    )
