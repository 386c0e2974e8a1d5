"""What a rebalance took and gave, noted for the next poll; and what the consumer needs of its assignor for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol

from headrace.consumers.records import TopicPartition
from headrace.consumers.sharing import Plan
from headrace.consumers.untyped_kafka import ConsumerRebalanceListener


class GroupAssignor(Protocol):
    """What the consumer needs of its assignor beyond kafka-python's port."""

    @property
    def units(self) -> frozenset[int]:
        """Assigned and not released."""
        ...

    @property
    def draining(self) -> frozenset[int]:
        """Units that are to be drained and then released."""
        ...

    @property
    def moving(self) -> bool:
        """Whether another round is to be expected soon."""
        ...

    @property
    def lowest_offset_format(self) -> int:
        """The newest format of offset metadata that every member reads."""
        ...

    def predecessor(self, unit: int) -> str | None:
        """The slot that may have left a transaction open over the unit."""
        ...

    def release(self, units: Collection[int]) -> None:
        """Claim these no longer."""
        ...

    def offer_plan(self, plan: Plan) -> None:
        """Make a plan known to the group. From any thread."""
        ...

    def leave(self) -> None:
        """Want no units any more."""
        ...

    def take_reopened(self) -> frozenset[int]:
        """Units that were released, and are owned again or still. Each once."""
        ...

    def lost(self) -> None:
        """The membership was lost, and with it everything that was assigned."""
        ...

    def take_rejoin_wish(self) -> bool:
        """Whether the member should join again. True once for each reason."""
        ...


class Changes(ConsumerRebalanceListener):
    """Notes what a rebalance took and gave. Runs on the client's IO thread: it must not block, and does
    not."""

    def __init__(self, assignor: GroupAssignor) -> None:
        self.revoked: set[TopicPartition] = set()
        self.assigned: set[TopicPartition] = set()
        self._reported: set[TopicPartition] = set()
        self._assignor = assignor

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        gone = {TopicPartition(*tp) for tp in revoked}
        self.assigned -= gone
        self.revoked |= gone & self._reported

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._assignor.lost()
        self.on_partitions_revoked(lost)

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self.assigned |= {TopicPartition(*tp) for tp in assigned}

    def reopened(self, partitions: Iterable[TopicPartition]) -> None:
        """Let go and come back, without the client's having noticed: both is to be reported."""
        self.on_partitions_revoked(partitions)
        self.on_partitions_assigned(partitions)

    def take(self) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        """What is to be reported now: revoked, assigned."""
        revoked, assigned = frozenset(self.revoked), frozenset(self.assigned)
        self._reported = (self._reported - revoked) | assigned
        self.revoked.clear()
        self.assigned.clear()
        return revoked, assigned
