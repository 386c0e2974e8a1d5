"""kafka-python's group coordinator with its defects cured, and a member that learns when it was fenced.

Written against kafka-python 3.0.12, whose inner workings it leans on (`PRIVATE_ATTRIBUTES`, held by a
test); each cure has a test in which the stock client fails, so that it can go once upstream is mended.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from headrace.consumers.untyped_kafka import ConsumerCoordinator, ConsumerProtocolAssignment, MemberState
from headrace.consumers.untyped_kafka import errors as kafka_errors

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# What the subclass reads or writes of ConsumerCoordinator beyond its public methods.
PRIVATE_ATTRIBUTES = (
    "_disable_heartbeat",
    "_do_join_and_sync_async",
    "_enable_heartbeat",
    "_generation",
    "_handle_heartbeat_response",
    "_heartbeat_wakeup",
    "_join_task",
    "_lock",
    "_manager",
    "_maybe_start_heartbeat_loop",
    "_net",
    "_on_join_complete_async",
    "_on_join_prepare_async",
    "_subscription",
)

# Errors of a join whose side effects (a generation reset, a lost coordinator) were applied when the
# response came: the member tries again at once.
_TRY_AGAIN_AT_ONCE = (
    kafka_errors.UnknownMemberIdError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.MemberIdRequiredError,
)

# Between two heartbeats while a unit is on its way: members hear by them that it was released, and it has no owner
# until all have heard.
MOVING_HEARTBEAT_MS = 100


class RequestCoordinator(ConsumerCoordinator):
    """A group member that keeps what a join brought, whenever the next poll comes.

    The stock coordinator throws a join away that finished between two polls and sends another one: with a
    poll of 20 ms and 60 ms of other work, 4 joins took 47 generations. And after a join that was caused by
    new topic metadata alone, the leader believes that there is nothing to do while its own join is still
    under way: it hangs with its heartbeats off. Here a join that is under way is always completed, and its
    result used.
    """

    def __init__(self, client: Any, subscription: Any, **configs: Any) -> None:
        _stock(super()).__init__(client, subscription, **configs)
        self._join_task: Any = None
        self.joins = 0  # that were answered
        self.fenced = False  # another process has our group.instance.id
        self.leaves_on_close = False
        self._claims_changed = False
        self._no_join_before = 0.0
        self._last_heartbeat_answer = time.monotonic()
        self._heartbeat_interval_ms = self.heartbeat.config["heartbeat_interval_ms"]
        self.is_moving: Callable[[], bool] = (
            _never  # whether the latest assignment says that a unit is on its way
        )
        self.wake: Callable[[], None] = _nothing  # called when there is something that a poll should look at

    def rejoin_with_new_claims(self) -> None:
        """Join again although nobody else asks for it, since what we have to say has changed.

        Unlike `request_rejoin()` it is not lost when a join with the old claims is under way.
        """
        self._claims_changed = True
        self.wake()

    def need_rejoin(self) -> bool:
        return self._join_task is not None or self._claims_changed or _stock(super()).need_rejoin()

    def group_protocols(self) -> list[tuple[str, Any]]:
        self._claims_changed = False  # what changes after this line needs another join
        return _stock(super()).group_protocols()

    def reset_generation(self, *args: Any, **kwargs: Any) -> None:
        # The stock client does not prepare a join anew when the membership is found lost by a join's
        # answer. Then the partitions would seem to have been ours all along, though another member may have
        # had them meanwhile.
        _stock(super()).reset_generation(*args, **kwargs)
        self.rejoining = False
        self.wake()

    def is_dynamic_member(self) -> bool:
        # Only dynamic members tell the broker that they leave. A static one does so when it leaves for good.
        return self.leaves_on_close or _stock(super()).is_dynamic_member()

    @property
    def join_is_under_way(self) -> bool:
        """Whether a join was sent and has not been answered yet."""
        return self._join_task is not None and not self._join_task.is_done

    @property
    def seconds_without_heartbeat(self) -> float:
        """How long ago the broker last confirmed this member: by a heartbeat, or by a join."""
        return time.monotonic() - self._last_heartbeat_answer

    async def join_group_async(self, timeout_ms: float | None = None) -> bool:
        """Join, or wait for the join under way; False when `timeout_ms` is over first."""
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while self.need_rejoin():
            if not await self.ensure_coordinator_ready_async(timeout_ms=_remaining_ms(deadline)):
                return False
            if self._join_task is None:
                if not await self._backed_off(deadline):
                    return False
                await self._begin_join(deadline)
            joining: Any = self._join_task
            try:
                assignment = await self._manager.wait_for(joining, _remaining_ms(deadline))
            except kafka_errors.KafkaError as error:
                if not joining.failed():
                    return False  # our wait is over, not the join: a later poll completes it
                self._join_failed(error)
            else:
                if await self._complete_join(assignment):
                    return True
        return True

    async def _begin_join(self, deadline: float | None) -> None:
        if not self.rejoining:
            await self._on_join_prepare_async(
                self._generation.generation_id, self._generation.member_id, timeout_ms=_remaining_ms(deadline)
            )
            self.rejoining = True
            self._disable_heartbeat()
        self.rejoin_needed = True  # until this or a later join succeeds, whoever asked for this one
        self._join_task = self._manager.call_soon(self._do_join_and_sync_async)
        self._join_task.add_both(self._join_ended)

    def _join_ended(self, _: Any) -> None:
        self.wake()

    async def _complete_join(self, assignment: bytes) -> bool:
        self._join_task = None
        self.joins += 1
        with self._lock:
            if self.state is not MemberState.REBALANCING or self._generation.is_lost():
                return False  # the membership was reset after the join's answer: join again
            self.rejoining = False
            self.rejoin_needed = False
            self.state = MemberState.STABLE
            self._last_heartbeat_answer = time.monotonic()
            self._enable_heartbeat()
        await self._on_join_complete_async(
            self._generation.generation_id, self._generation.member_id, self._generation.protocol, assignment
        )
        usual = self._heartbeat_interval_ms
        interval_ms = min(usual, MOVING_HEARTBEAT_MS) if self.is_moving() else usual
        self.heartbeat.config["heartbeat_interval_ms"] = interval_ms
        self._heartbeat_wakeup.notify()
        # Where partitions were let go the stock client joins once more, so that others get them. Here a unit
        # is taken from a member only after it has ceased to claim it: somebody has it already.
        given = set(ConsumerProtocolAssignment.decode(assignment).partitions())
        if given == self._subscription.assigned_partitions():
            self.rejoin_needed = False
        return True

    def _join_failed(self, error: Any) -> None:
        """Ready the next try, or raise what no other try can mend."""
        self._join_task = None
        if isinstance(error, _TRY_AGAIN_AT_ONCE):
            return
        if not isinstance(error, kafka_errors.RetriableError):
            self.fenced = self.fenced or isinstance(error, kafka_errors.FencedInstanceIdError)
            raise error
        self._no_join_before = time.monotonic() + self.config["retry_backoff_ms"] / 1000

    async def _backed_off(self, deadline: float | None) -> bool:
        """Wait until the next join may be sent; False when `deadline` comes first."""
        now = time.monotonic()
        if self._no_join_before > (now if deadline is None else max(now, deadline)):
            return False
        if self._no_join_before > now:
            await self._net.sleep(self._no_join_before - now)
        return True

    def _handle_heartbeat_response(self, response: Any, send_time: float) -> None:
        """Note what the stock client swallows: that another process has taken our slot."""
        try:
            _stock(super())._handle_heartbeat_response(response, send_time)
        except kafka_errors.FencedInstanceIdError:
            self.fenced = True
            self.wake()
            raise
        except kafka_errors.RebalanceInProgressError:
            self._last_heartbeat_answer = time.monotonic()
            self.wake()
            raise
        except kafka_errors.KafkaError:
            self.wake()
            raise
        self._last_heartbeat_answer = time.monotonic()

    def poll_heartbeat(self) -> None:
        """Say that we are alive, and start the heartbeat loop again where an error has ended it.

        The stock client starts it again only when it next joins, which without heartbeats is when it was
        expelled.
        """
        try:
            _stock(super()).poll_heartbeat()
        finally:
            if self.stable():
                self._maybe_start_heartbeat_loop()


def _stock(of: Any) -> Any:
    """`super()` without the types that it does not have."""
    return of


def _nothing() -> None:
    pass


def _never() -> bool:
    return False


def _remaining_ms(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
