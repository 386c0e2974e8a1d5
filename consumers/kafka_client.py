"""kafka-python's consumer, driven without ever waiting inside it.

`FetchingConsumer` cures what the stock `poll()` does not give: records of owned partitions while other
members of the group rejoin, and a wait that another thread can end. Written against kafka-python 3.0.12,
whose inner workings it leans on (`PRIVATE_ATTRIBUTES`, held by a test).
"""

from __future__ import annotations

import threading
import time
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
    from collections.abc import Collection, Iterable

# What is read or called of KafkaConsumer, of its fetcher and of its subscription state, beyond their public
# methods.
PRIVATE_ATTRIBUTES = {
    "consumer": ("_client", "_cluster", "_coordinator", "_fetcher", "_subscription"),
    "fetcher": (
        "_fetchable_partitions",
        "_manager",
        "_next_partition_records",
        "_nodes_with_pending_fetch_requests",
        "_paused_partition_records",
        "_select_read_replica",
        "_send_fetches_async",
        "_send_list_offsets_requests",
        "config",
        "fetched_records",
        "maybe_validate_positions",
        "validate_offsets_if_needed",
    ),
    "subscription": ("assignment", "assigned_partitions"),
    "coordinator": ("_handle_metadata_update", "coordinator_unknown", "need_rejoin", "poll_heartbeat"),
}

# While a broker, a leader or the membership is waited for, of which nobody tells us, it is looked for this often.
LOOK_AGAIN_S = 0.1
# With fetches of all partitions under way there is nothing to look for: what they bring, and what heartbeats
# bring, is told.
LONGEST_WAIT_S = 0.5
# How long a broker may hold back a fetch without data that leaves partitions out (paused, or still to be taken):
# those are fetched only after it.
PARTIAL_FETCH_MAX_WAIT_MS = 50
# The same where all that is left out are partitions of topics that are in no hurry.
UNHURRIED_FETCH_MAX_WAIT_MS = 200


def kafka_partition(tp: TopicPartition) -> Any:
    """kafka-python insists on its own class."""
    return KafkaTopicPartition(*tp)


class FetchingConsumer(KafkaConsumer):
    """A consumer whose `fetch()` never blocks for long, and whose `wait()` can be ended from any thread.

    A partition without a position is never fetched, and gets none by itself: neither the committed offset
    nor a reset is asked for here. Whoever owns the consumer calls `seek()`.

    `unhurried_topics` are often paused, for they have more than can be worked off: nobody minds if they are fetched a
    little later, and brokers are spared a fetch without data every 50 ms.
    """

    def __init__(self, *, unhurried_topics: Collection[str] = (), **configs: Any) -> None:
        stock: Any = super()
        stock.__init__(**configs)
        self._cluster.config.update(METADATA_OPTIONS)
        self._unhurried_topics = frozenset(unhurried_topics)
        self._news = threading.Event()
        # Whether there may be something to ask for: looking costs a visit to the IO thread and a look at each
        # partition, which would be most of what an idle worker spends.
        self._may_ask = True
        self._settled = False  # a member, and all that can be fetched is being fetched
        self._look_again_at = 0.0
        self._fetch_max_wait_ms = int(self._fetcher.config["fetch_max_wait_ms"])
        self._outage = OutageLog(f"group {self.config['group_id']}")
        self._ask_offsets_once = self._fetcher._send_list_offsets_requests
        self._fetcher._send_list_offsets_requests = self._ask_offsets
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
        self._coordinator.wake = self._ask_again

    def fetch(self, max_records: int) -> tuple[dict[TopicPartition, list[Record]], dict[TopicPartition, int]]:
        """What has arrived, and the position of each partition that its log no longer holds.

        The stock client returns nothing while any member of the group has yet to rejoin (7 s for a killed
        member, 18 s for a busy one were seen); here what is still owned is fetched on, as Java's client
        does.
        Raises kafka-python's errors.
        """
        out_of_range: dict[TopicPartition, int] = {}
        joined = self._keep_membership()
        if not joined and not self._subscription.assigned_partitions():
            return {}, out_of_range
        may_ask = self._may_ask or time.monotonic() >= self._look_again_at
        if may_ask:
            self._validate_positions(out_of_range)
        if not self._fetcher._next_partition_records:
            # What was parked when its partition was paused is taken up again only where this is None, and a drained
            # one is not: such a partition is neither returned nor fetched, for ever.
            self._fetcher._next_partition_records = None
        try:
            fetched: tuple[dict[Any, list[Any]], bool] = self._fetcher.fetched_records(max_records)
        except kafka_errors.OffsetOutOfRangeError as error:
            self._forget_positions(error.args[0], out_of_range)
            fetched = {}, False
            self._ask_again()  # what came with it is taken next
        found, more_is_buffered = fetched
        if any(not self._subscription.is_paused(tp) for tp in self._fetcher._paused_partition_records):
            self._news.set()  # one of those is taken up at a time
        if more_is_buffered:
            self._may_ask = True
        elif found or may_ask:
            self._ask_for_more(joined)
        records = {TopicPartition(*tp): [_record(each) for each in some] for tp, some in found.items()}
        return records, out_of_range

    def _validate_positions(self, out_of_range: dict[TopicPartition, int]) -> None:
        """Have positions checked whose partition has got another leader."""
        try:
            self._fetcher.maybe_validate_positions()
            self._fetcher.validate_offsets_if_needed()
        except kafka_errors.LogTruncationError as error:
            self._forget_positions(error.divergent_offsets, out_of_range)

    def _ask_for_more(self, joined: bool) -> None:
        self._may_ask = False  # before asking: what happens meanwhile is looked at again
        try:
            asked: tuple[list[Any], bool] = self._fetcher._manager.run(self._send_fetches)
        except kafka_errors.RetriableError as error:
            # Raised further, it would lose the records just taken: the position is past them already.
            self._outage.failed(error)
            asked = [], False
        sent, everything = asked
        for fetch in sent:
            fetch.add_both(self._fetched)
        self._settled = joined and everything
        self._look_again_at = time.monotonic() + (LONGEST_WAIT_S if everything else LOOK_AGAIN_S)

    async def _send_fetches(self) -> tuple[list[Any], bool]:
        """Fetch from each broker that no fetch is under way to; whether all partitions are being fetched then.

        A fetch in which no partition is left out may be held back for long: an answer comes as soon as there
        is something. On the IO thread, where no fetch can end meanwhile.
        """
        fetcher = self._fetcher
        fetchable: list[Any] = fetcher._fetchable_partitions()
        left_out = self._subscription.assignment.keys() - set(fetchable)
        everything = not left_out
        fetcher.config["fetch_max_wait_ms"] = min(self._fetch_max_wait_ms, self._longest_wait_ms(left_out))
        sent: list[Any] = await fetcher._send_fetches_async()
        if not everything:
            return sent, False
        nodes = {fetcher._select_read_replica(tp) for tp in fetchable}
        return sent, nodes <= fetcher._nodes_with_pending_fetch_requests

    def _longest_wait_ms(self, left_out: Collection[Any]) -> int:
        if not left_out:
            return self._fetch_max_wait_ms
        unhurried = all(tp.topic in self._unhurried_topics for tp in left_out)
        return UNHURRIED_FETCH_MAX_WAIT_MS if unhurried else PARTIAL_FETCH_MAX_WAIT_MS

    def _fetched(self, _: Any) -> None:
        self._ask_again()

    def _ask_again(self) -> None:
        """Something may have become ready to be fetched, or to be taken. From any thread."""
        self._may_ask = True
        self._news.set()

    async def _ask_offsets(self, timestamps: Any) -> tuple[Any, Any]:
        """What of the logs' offsets is told, and whom to ask again, in place of the fetcher's own.

        Where a broker says that it leads a partition no more, the stock client asks the same one again, at once and
        without an end: what it knows of leaders it refreshes every five minutes (`metadata_max_age_ms`).
        """
        told, again = await self._ask_offsets_once(timestamps)
        if again:
            self._cluster.request_update()
            await self._fetcher._manager._net.sleep(self.config["retry_backoff_ms"] / 1000)
        return told, again

    def seek(self, partition: Any, offset: Any) -> None:
        _stock(super()).seek(partition, offset)
        self._may_ask = True

    def resume(self, *partitions: Any) -> None:
        _stock(super()).resume(*partitions)
        self._may_ask = True

    def _keep_membership(self) -> bool:
        """Whether this is a member in good standing, after what a poll can do for it without waiting."""
        coordinator = self._coordinator
        if self.config["group_id"] is None:
            self._outage.succeeded()
            return True
        try:
            if not coordinator.need_rejoin() and not coordinator.coordinator_unknown():
                # All that is left of the coordinator's poll, without its visit to the IO thread.
                coordinator.poll_heartbeat()
                self._outage.succeeded()
                return True
            self._settled = False
            joined = coordinator.poll(timeout_ms=0)
        except kafka_errors.RetriableError as error:
            self._settled = False
            self._outage.failed(error)
            return False
        if joined:
            self._outage.succeeded()
        elif coordinator.coordinator_unknown():
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

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Put these back to how a newly assigned partition is: not paused, and nothing comes of it before
        `seek()`, not even what has been fetched. Those not assigned are passed over."""
        for tp in map(kafka_partition, partitions):
            if tp in self._subscription.assignment:
                self._subscription.assignment[tp] = TopicPartitionState()

    def wait(self, timeout_s: float) -> None:
        """Until there is news (a fetch or a join has ended, `wake_up()` was called), or the time is over."""
        self._news.wait(min(timeout_s, LONGEST_WAIT_S if self._settled else LOOK_AGAIN_S))
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


def _stock(of: Any) -> Any:
    """`super()` without the types that it does not have."""
    return of


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
