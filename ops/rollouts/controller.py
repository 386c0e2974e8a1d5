"""The controller of a prefix's rollouts: one is active, others stand by, and nothing is kept but in Kafka.

The controllers are a group of their own over the control topic's one partition: who has it is active. What it writes
goes out in a transaction with that partition's offset, so that the brokers refuse it once another controller is the
active one, however late the older one notices.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.consumers.assignor import UnitAssignor
from headrace.consumers.control import ControlFollower, ControlRecords
from headrace.consumers.group_members import GroupLooker, look_at_group
from headrace.consumers.kafka import RequestConsumer
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.rollouts import RolloutId, RolloutState, rollout_record
from headrace.ops.rollouts.reading import AnswerReader
from headrace.ops.rollouts.steps import GroupSeen, Next, Seen, decide
from headrace.ops.rollouts.watching import Watch
from headrace.producers.kafka import CommitBatch, GuardedTransaction, OutgoingRecord
from headrace.schemas.errors import HeadraceError, StaleGeneration, TransactionHung
from headrace.topics.names import ContractNames, control_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.consumers.group_members import GroupMembers
    from headrace.schemas.settings import Settings

log = logging.getLogger(__name__)

TICK_S = 0.5
SESSION_TIMEOUT_MS = 10_000  # after which another controller takes the place of one that has vanished


@dataclass(frozen=True, slots=True)
class Looked:
    """What the active controller saw of one rollout at its last look, and what it made of it."""

    id: RolloutId
    state: RolloutState
    seen: Seen
    watch: Watch
    why: str


def seen_group(found: GroupMembers) -> GroupSeen:
    """A group as its coordinator describes it, as rollouts are decided by it."""
    return GroupSeen(
        found.units, found.owned(), found.live(), found.capacity(), found.is_stable, found.waiting_for()
    )


class _Watched:
    """One open rollout: its group, its results, and what they add up to."""

    def __init__(self, settings: Settings, of: RolloutId, state: RolloutState) -> None:
        rollout = state.rollout
        assert rollout is not None
        self.id = of
        self.watch = Watch(rollout.to)
        self._settings = settings
        self._names = ContractNames(settings.prefix, rollout.model, rollout.contract)
        self._looker: GroupLooker | None = None
        self._connections = ExitStack()  # the looker's
        self._reader = AnswerReader(settings, self._names, rollout.at)

    def look(self, state: RolloutState) -> Seen:
        """Raises TopicsError, KafkaUnavailable, KafkaFailed, BrokerNotFound: what was read of the results is kept."""
        self.watch.follow(state)
        try:
            group = seen_group(self._look_at_group())
        except HeadraceError:
            self.watch.lose_sight()
            self._disconnect()
            raise
        caught_up = self._reader.caught_up.is_set()  # asked first: what was there then is taken now
        for answer in self._reader.take():
            self.watch.take(answer)
        return self.watch.look(group, int(time.time() * 1000), caught_up=caught_up)

    def _look_at_group(self) -> GroupMembers:
        if self._looker is None:
            self._looker = self._connections.enter_context(look_at_group(self._settings, self._names))
        return self._looker.look()

    def _disconnect(self) -> None:
        self._looker = None
        self._connections.close()

    def close(self) -> None:
        try:
            self._disconnect()
        finally:
            self._reader.close()


class Controller:
    """`run` is a thread's body, or a command's; `stop` is for any thread."""

    def __init__(
        self, settings: Settings, looked: Callable[[Looked], None] | None = None, name: str | None = None
    ) -> None:
        """`looked` is called in the running thread after each look at a rollout, by the active controller alone."""
        # A controller that is killed is followed soon; a broker's own minimum may be higher and is said then.
        self._settings = settings.model_copy(
            update={"session_timeout_ms": min(settings.session_timeout_ms, SESSION_TIMEOUT_MS)}
        )
        self._looked = looked
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._group = f"{settings.prefix}.rollouts"
        self._tp = TopicPartition(control_topic(settings.prefix), 0)
        self._stop = threading.Event()
        self._active = False
        self._written = 0  # batches, so that each changes what is committed
        self._watched: dict[RolloutId, _Watched] = {}
        self._control = ControlFollower(settings, ControlRecords)

    @property
    def active(self) -> bool:
        """Whether this controller is the one that decides."""
        return self._active

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()

    def run(self) -> None:
        """Decide, or stand by, until `stop()`. Raises KafkaFailed for what waiting cannot mend, SlotTaken, and
        TransactionHung: then the process must end, and another controller goes on."""
        following = threading.Thread(target=self._control.run, name="control reader", daemon=True)
        following.start()
        try:
            with ExitStack() as stack:
                transaction = GuardedTransaction(self._settings, f"{self._group}.{self.name}")
                stack.callback(transaction.close)
                transaction.open()
                consumer = self._consumer()
                stack.callback(consumer.close, leave_group=True)
                stack.callback(self._unwatch)
                self._serve(consumer, transaction)
        finally:
            self._active = False
            self._control.stop()
            following.join()

    def _consumer(self) -> RequestConsumer:
        assignor = UnitAssignor(slot=self.name, incarnation=uuid.uuid4().hex, version="", capacity=1)
        return RequestConsumer(
            self._settings, group=self._group, slot=self.name, topics=[self._tp.topic], assignor=assignor
        )

    def _serve(self, consumer: RequestConsumer, transaction: GuardedTransaction) -> None:
        next_look = time.monotonic()
        while not self._stop.is_set():
            poll = consumer.poll(max(0.0, next_look - time.monotonic()), 1)
            if self._tp in poll.revoked:
                self._become(active=False)
            if self._tp in poll.assigned:
                self._become(active=True)
            if 0 in consumer.draining():
                self._become(active=False)
                consumer.release({0})
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + TICK_S
                if self._active and self._control.ready:
                    self._look_at_all(consumer, transaction)

    def _become(self, *, active: bool) -> None:
        if active != self._active:
            log.info("controller %s %s", self.name, "is the active one" if active else "stands by")
        self._active = active
        if not active:
            self._unwatch()

    def _unwatch(self) -> None:
        while self._watched:
            self._watched.popitem()[1].close()

    def _look_at_all(self, consumer: RequestConsumer, transaction: GuardedTransaction) -> None:
        found = self._control.asked(_open_rollouts)
        for gone in self._watched.keys() - found.keys():
            self._watched.pop(gone).close()
        for of, state in found.items():
            try:
                self._look(of, state, consumer, transaction)
            except StaleGeneration as error:
                log.warning("rollout %s of %s: the group of controllers moved on: %s", of[1], of[0], error)
                self._become(active=False)
                # Let go, so that a poll says who has it now. What is claimed on and kept is never reported, and this
                # controller would stand by for itself.
                consumer.release({0})
                return
            except TransactionHung:  # whether it is written is not known, and nothing more can be written
                raise
            except HeadraceError as error:
                log.warning("rollout %s of %s: trying on: %s", of[1], of[0], error)

    def _look(
        self, of: RolloutId, state: RolloutState, consumer: RequestConsumer, transaction: GuardedTransaction
    ) -> None:
        watched = self._watched.get(of)
        if watched is None:
            watched = self._watched[of] = _Watched(self._settings, of, state)
        seen = watched.look(state)
        decided = decide(state, seen)
        self._write(of, decided, consumer, transaction)
        if self._looked is not None:
            self._looked(Looked(of, state, seen, watched.watch, decided.why))

    def _write(
        self, of: RolloutId, decided: Next, consumer: RequestConsumer, transaction: GuardedTransaction
    ) -> None:
        values = [each for each in (decided.rollback, decided.plan, decided.progress) if each is not None]
        if not values:
            return
        self._written += 1
        point = CommitPoint(0, f"{self.name}.{self._written}")
        records = [OutgoingRecord(self._tp.topic, *rollout_record(of, value)) for value in values]
        transaction.commit(CommitBatch(records, {self._tp: point}, consumer.group_metadata()))
        log.info("rollout %s of %s: %s", of[1], of[0], decided.why)
        self._wait_until_read(of, decided)

    def _wait_until_read(self, of: RolloutId, decided: Next) -> None:
        """What is decided next is decided by what was just written."""
        deadline = time.monotonic() + self._settings.transaction_timeout_ms / 1000

        def is_read(records: ControlRecords) -> bool:
            state = records.rollouts.groups[of[0]][of[1]]
            return (
                decided.rollback in (None, state.rollback)
                and decided.plan in (None, state.planned)
                and decided.progress in (None, state.progress)
            )

        while not self._control.asked(is_read) and time.monotonic() < deadline:
            self._stop.wait(0.01)


def _open_rollouts(records: ControlRecords) -> dict[RolloutId, RolloutState]:
    found: dict[RolloutId, RolloutState] = {}
    for group in records.rollouts.groups:
        one = records.rollouts.open_rollout(group)
        if one is not None:
            found[group, one[0]] = replace(
                one[1]
            )  # as it is now: records go on being taken in another thread
    return found
