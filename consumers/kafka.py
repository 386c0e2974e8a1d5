"""The consumer of requests, as a member of a group.

With `tail_reader`, `group`, `kafka_client` and `kafka_coordinator`, the only modules that use a consumer client. What
comes out of them is ours: plain records, and errors of `schemas/errors.py`.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from headrace.consumers.changes import Changes, GroupAssignor
from headrace.consumers.connection import client_options, connect
from headrace.consumers.group import (
    CALL_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    committed_points,
    log_offsets,
    remove_member,
    translated,
)
from headrace.consumers.kafka_client import FetchingConsumer, kafka_partition
from headrace.consumers.records import CommitPoint, GroupMetadata, Poll, TopicPartition
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.schemas.errors import KafkaFailed, KafkaUnavailable, SlotTaken, StaleGeneration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from headrace.consumers.sharing import Plan
    from headrace.schemas.settings import Settings

logger = logging.getLogger(__name__)

# A fetch of all partitions without data is answered after this; offset requests to that broker wait for it.
FETCH_MAX_WAIT_MS = 250
# A member that has not polled for this long leaves the group.
MAX_POLL_INTERVAL_MS = 60_000


class RequestConsumer:
    """Reads request topics as a static member of a group. For one thread alone, but for what says otherwise.

    A newly assigned partition returns nothing before `start_at` is called for it: no offset is ever chosen
    here.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        group: str,
        slot: str,
        topics: Sequence[str],
        assignor: GroupAssignor,
        unhurried_topics: Collection[str] = (),
    ) -> None:
        """Connect; joining begins with the first poll. `unhurried_topics`: see `FetchingConsumer`.

        Raises KafkaUnavailable, KafkaFailed.
        """
        self._settings = settings
        self._group = group
        self._slot = slot
        self._session_timeout_s = settings.session_timeout_ms / 1000
        self._assignor = assignor
        self._woken = False
        with translated(f"connecting as a member of group {group}"):
            self._client: FetchingConsumer = connect(
                FetchingConsumer,
                **client_options(settings),
                client_id=f"headrace-{slot}",
                group_id=group,
                group_instance_id=slot,
                partition_assignment_strategy=[assignor],
                auto_offset_reset="none",
                enable_auto_commit=False,
                isolation_level="read_committed",
                fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
                unhurried_topics=unhurried_topics,
                session_timeout_ms=settings.session_timeout_ms,
                heartbeat_interval_ms=settings.heartbeat_interval_ms,
                max_poll_interval_ms=max(MAX_POLL_INTERVAL_MS, settings.session_timeout_ms),
            )
        self._coordinator: Any = self._client.coordinator
        self._coordinator.is_moving = lambda: self._assignor.moving
        self._changes = Changes(self._assignor)
        self._client.subscribe(list(topics), listener=self._changes)
        self._metadata = self._read_metadata()

    def poll(self, timeout_s: float, max_records: int) -> Poll:
        """Wait for records or for changes of the assignment, at most `timeout_s`; an outage is waited out.

        `max_records` holds for all partitions together. Returns at once when the assignment changes:
        records of a revoked partition come neither with the poll that reports it nor later.
        Raises SlotTaken when another process has this slot, KafkaFailed for what waiting cannot mend.
        """
        deadline = time.monotonic() + timeout_s
        draining = self._assignor.draining
        while True:
            poll = self._poll_once(max_records)
            remaining = deadline - time.monotonic()
            told = self._assignor.draining != draining
            if poll or told or self._woken or remaining <= 0:
                self._woken = False
                self._metadata = self._read_metadata()
                return poll
            self._client.wait(remaining)

    def _poll_once(self, max_records: int) -> Poll:
        self._refuse_when_fenced()
        if self._assignor.take_rejoin_wish():
            self.rejoin()
        try:
            with translated(f"reading as a member of group {self._group}"):
                records, out_of_range = self._client.fetch(max_records)
        except KafkaUnavailable as error:
            self._client.outage(error)
            records, out_of_range = {}, {}
        if reopened := self._partitions_of(self._assignor.take_reopened()):
            self._client.forget(reopened)
            self._changes.reopened(reopened)
        revoked, assigned = self._changes.take()
        return Poll(revoked, assigned, records, out_of_range)

    def draining(self) -> frozenset[int]:
        """The units that are to be drained and then released: all of them, as of the last poll. One that is
        no longer among them is to be served on as if nothing had been."""
        return self._assignor.draining

    def release(self, units: Collection[int]) -> None:
        """Claim these units no longer, and join again: everything of them is committed.

        Nothing more of them is returned. A later poll reports their partitions revoked, or, where they have
        come back or have stayed, revoked and assigned. Those that are not owned are passed over.
        """
        released = self._assignor.units & frozenset(units)
        if released:
            self._assignor.release(released)
            self._client.forget(self._partitions_of(released))
            self.rejoin()

    def leave(self) -> None:
        """Want no units any more, and join again: what is owned is to be drained then. For good."""
        self._assignor.leave()
        self.rejoin()

    def offer_plan(self, plan: Plan) -> None:
        """Make a plan known to the group. From any thread."""
        self._assignor.offer_plan(plan)
        self.wake_up()

    def claims_are_known(self) -> bool:
        """Whether the group has heard what was released, and has given it away."""
        return not self._coordinator.need_rejoin()

    def predecessor(self, unit: int) -> str | None:
        """The slot that had an assigned unit before and may have left a transaction open over it: it is no
        member any more. None: there is no such slot."""
        return self._assignor.predecessor(unit)

    def lowest_offset_format(self) -> int:
        """The newest format of offset metadata that every member reads; 1 while that is not known."""
        return self._assignor.lowest_offset_format

    def _partitions_of(self, units: frozenset[int]) -> list[TopicPartition]:
        return [TopicPartition(*tp) for tp in self._client.assignment() if tp.partition in units]

    def wake_up(self) -> None:
        """Make a poll that is waiting, or else the next one, return early. From any thread."""
        self._woken = True
        self._client.wake_up()

    def rejoin(self) -> None:
        """Join the group again because what the assignor has to say has changed. From any thread."""
        self._coordinator.rejoin_with_new_claims()

    def check_alive(self) -> None:
        """Raise if this member is none any more, though no call has said so. From any thread.

        Raises SlotTaken when another process has joined with this slot (the broker tells the older one only
        in the answer to a heartbeat), StaleGeneration when the broker has not answered a heartbeat for a
        session's length: by then the group has given the partitions away, and nothing may be published for
        them.
        """
        self._refuse_when_fenced()
        silence = self._coordinator.seconds_without_heartbeat
        if self._coordinator.stable() and silence > self._session_timeout_s:
            raise StaleGeneration(
                f"group {self._group}: no heartbeat of slot {self._slot} was answered for {silence:.0f} s"
            )

    def committed(
        self, partitions: Collection[TopicPartition], deadline_s: float
    ) -> dict[TopicPartition, CommitPoint | None]:
        """What the group has committed for each partition; None: nothing.

        Waits for the end of a transaction that is open over them, `deadline_s` seconds in all.
        Raises KafkaUnavailable (ask again), KafkaFailed.
        """
        return committed_points(self._client, self._group, partitions, deadline_s)

    def start_at(self, tp: TopicPartition, offset: int) -> None:
        """Read an assigned partition from this offset on. Raises KafkaFailed if it is not assigned, or was
        released."""
        if kafka_partition(tp) not in self._client.assignment() or tp.partition not in self._assignor.units:
            raise KafkaFailed(f"{tp.topic}-{tp.partition} is not assigned to slot {self._slot}")
        self._client.seek(kafka_partition(tp), offset)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these until `resume`. What was fetched is kept. Those not assigned are passed
        over."""
        self._client.pause(*self._assigned(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        self._client.resume(*self._assigned(partitions))

    def _assigned(self, partitions: Iterable[TopicPartition]) -> list[Any]:
        assignment = self._client.assignment()
        return [kafka_partition(tp) for tp in partitions if tp in assignment]

    def position(self, tp: TopicPartition) -> int | None:
        """The offset that the next record has or is above; None before `start_at`."""
        return self._client.position_of(tp)

    def lag(self, tp: TopicPartition) -> int | None:
        """How many offsets lie between the position and the log's end as last seen; None: not known yet."""
        position, end = self._client.position_of(tp), self._client.high_watermark(tp)
        return None if position is None or end is None else max(0, end - position)

    def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """The first offset of each. Raises KafkaUnavailable, KafkaFailed."""
        return log_offsets(self._client, "beginning_offsets", partitions, timeout_s)

    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Where each ends: the first offset of an open transaction, or else one past the last record.

        Raises KafkaUnavailable, KafkaFailed.
        """
        return log_offsets(self._client, "end_offsets", partitions, timeout_s)

    def group_metadata(self) -> GroupMetadata:
        """Who we were to the group when the last poll returned. To be taken together with what is to be
        committed.

        A commit handed in with it is refused once the group has moved on; so it must not be paired with
        offsets of partitions that a later poll has reported revoked.
        """
        return self._metadata

    def _read_metadata(self) -> GroupMetadata:
        found: Any = self._coordinator.group_metadata()
        joins = self._coordinator.joins
        return GroupMetadata(
            found.group_id, found.generation_id, found.member_id, found.group_instance_id, joins
        )

    def _refuse_when_fenced(self) -> None:
        if self._coordinator.fenced:
            raise SlotTaken(
                f"another process runs with slot {self._slot} in group {self._group}, so this one stops; "
                "give each worker a slot of its own (--slot or HEADRACE_SLOT)"
            )

    def close(self, leave_group: bool) -> None:
        """Close the connections. `leave_group`: for good, so that the partitions move at once; otherwise
        the slot keeps them until its next process joins or the session times out. Never raises."""
        # The broker handles no further request of a connection over which it holds a join back.
        joining = self._coordinator.join_is_under_way
        self._coordinator.leaves_on_close = leave_group and not joining
        try:
            self._client.close(autocommit=False, timeout_ms=int(CLOSE_TIMEOUT_S * 1000))
            if leave_group and joining:
                remove_member(self._settings, self._group, self._slot)
        except (kafka_errors.KafkaError, KafkaFailed, OSError, RuntimeError) as error:
            logger.warning("closing the consumer of group %s: %s", self._group, error)
