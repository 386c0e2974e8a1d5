"""kafka-python's port to `sharing`: each member tells the leader what it claims, and the leader, whichever
member that is, tells each what it gets and what of it to drain.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.consumers.claims import Told, decode_claim, decode_told, encode_claim, encode_told
from headrace.consumers.sharing import (
    Assigned,
    Claim,
    Plan,
    assign_units,
    holders_after,
    keep_units,
    lowest_offset_format,
    newest_plan,
)
from headrace.consumers.untyped_kafka import (
    AbstractPartitionAssignor,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    RebalanceProtocol,
)

logger = logging.getLogger(__name__)

# The name carries the version, so that old and new workers in one group agree on one that both know.
NAME = "headrace-1"
# Subscriptions from version 2 on have the owned partitions and their generation beside our own data.
PROTOCOL_VERSION = 2
# While anything is unowned or drained, the leader calls for another round this often.
LOOK_AGAIN_S = 30.0
# The newest format of offset metadata that this version of Headrace reads.
READS_OFFSET_FORMAT = 2


@dataclass(frozen=True, slots=True)
class _Member:
    id: str
    claim: Claim
    topics: frozenset[str]
    owned: frozenset[tuple[str, int]]  # partitions


class UnitAssignor(AbstractPartitionAssignor):
    """The cooperative assignor `headrace-1` of one process, which is one incarnation of its slot.

    kafka-python calls it on its IO thread, `on_assignment` and `lost` while the consumer thread waits in a
    poll. `offer_plan` is for any thread, the rest for the consumer thread.
    """

    name = NAME

    def __init__(
        self,
        *,
        slot: str,
        incarnation: str,
        version: str,
        capacity: int,
        reads_offset_format: int = READS_OFFSET_FORMAT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`capacity`: requests that can be in flight; `clock`: monotonic seconds."""
        self._self = Claim(slot, incarnation, version, capacity, reads_offset_format)
        self._clock = clock
        self._owned: frozenset[tuple[str, int]] = frozenset()
        self._generation = -1
        self._told = Told()
        self._drain: frozenset[int] = frozenset()
        self._predecessors: dict[int, str] = {}
        self._released: frozenset[int] = frozenset()
        self._known_released: frozenset[int] = frozenset()  # to the leader, as of the last join
        self._reopened: frozenset[int] = frozenset()
        self._leaving = False
        self._plan: Plan | None = None
        self._plan_lock = threading.Lock()
        self._rejoin_wished = threading.Event()
        self._rejoined_for_plan = -1  # its revision
        self._rejoined_for_incarnation = False
        self._leads = False  # it has assigned in the round under way, or else in the last
        self._look_again_at: float | None = None
        self._without_members: frozenset[str] = (
            frozenset()
        )  # planned versions that no member serves, as was said

    # --- what this member has ---

    @property
    def units(self) -> frozenset[int]:
        """The units that this member owns: assigned and not released."""
        return _units(self._owned) - self._released

    @property
    def draining(self) -> frozenset[int]:
        """The owned units that are to be drained and then released, by the latest assignment."""
        return self._drain & self.units

    @property
    def lowest_offset_format(self) -> int:
        """The newest format of offset metadata that every member reads; 1 while that is not known."""
        return self._told.lowest_offset_format

    @property
    def moving(self) -> bool:
        """Whether another round is to be expected soon, by the latest assignment."""
        return self._told.moving

    @property
    def plan(self) -> Plan | None:
        """The newest plan known here."""
        return self._plan

    def predecessor(self, unit: int) -> str | None:
        """The slot that may have left a transaction open over this unit; None: no such slot, or it lives."""
        return self._predecessors.get(unit)

    # --- what it wants ---

    def release(self, units: Collection[int]) -> None:
        """No longer claim these. The group learns of it with the next join."""
        self._released |= self.units & frozenset(units)

    def leave(self) -> None:
        """Want nothing any more: from the next join on, what is owned is to be drained. For good."""
        self._leaving = True

    def offer_plan(self, plan: Plan) -> None:
        """Make a plan known to the group, unless a newer one is known. From any thread."""
        with self._plan_lock:
            if self._plan is None or plan.revision > self._plan.revision:
                self._plan = plan
                self._rejoined_for_plan = plan.revision
                self._rejoin_wished.set()

    def take_reopened(self) -> frozenset[int]:
        """Units that were released and are owned again, or still: a new tenure each. Each is told once."""
        reopened, self._reopened = self._reopened, frozenset()
        return reopened

    def take_rejoin_wish(self) -> bool:
        """Whether this member should join once more. True once for each reason."""
        now = self._clock()
        if self._look_again_at is not None and now >= self._look_again_at:
            self._look_again_at = now + LOOK_AGAIN_S
            self._rejoin_wished.set()
        if not self._rejoin_wished.is_set():
            return False
        self._rejoin_wished.clear()
        return True

    # --- kafka-python's port, as a member ---

    def supported_protocols(self) -> list[Any]:
        return [RebalanceProtocol.COOPERATIVE]

    def metadata(self, topics: Iterable[str]) -> Any:
        """What this member tells the leader."""
        released = self._known_released = self._released
        self._leads = False
        units = _units(self._owned) - released
        me = self._self
        claim = Claim(
            me.slot,
            me.incarnation,
            me.version,
            me.capacity,
            me.reads_offset_format,
            draining=self._drain & units,
            leaving=self._leaving,
            plan=self._plan,
            holders=self._told.holders,
        )
        return ConsumerProtocolSubscription(
            version=PROTOCOL_VERSION,
            topics=sorted(topics),
            user_data=encode_claim(claim),
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in _by_topic(each for each in self._owned if each[1] not in released)
            ],
            generation_id=self._generation,
        )

    def on_assignment(self, assignment: Any, generation: int) -> None:
        """Take note of what this member was given, and whether it was meant for this incarnation.

        A process that restarts within its session gets its predecessor's assignment without the leader's
        knowledge, and if the predecessor led, nobody leads any more: it joins once more then, which the
        leader cannot overlook. What was released after the leader was told what is claimed stays released if
        it is to be drained still; whatever else was released and comes is open again.
        """
        before = self.units
        self._owned = frozenset((tp.topic, tp.partition) for tp in assignment.partitions())
        self._generation = generation
        self._told = told = decode_told(assignment.user_data)
        units = _units(self._owned)
        meant_for_us = (told.incarnation, told.version) == (self._self.incarnation, self._self.version)
        self._drain = told.drain & units if meant_for_us else frozenset()
        unheard = self._released - self._known_released
        reopened = (self._released & units) - (unheard & self._drain)
        self._released = self._released & units - reopened
        self._reopened = self._reopened & units | reopened
        given = (units - before) | reopened
        self._predecessors = {
            unit: predecessor
            for found, which in ((self._predecessors, units - given), (told.predecessors, given))
            for unit, predecessor in found.items()
            if unit in which
        }
        if not self._leads:
            self._look_again_at = None
        self._learn_plan(told.plan)
        if not meant_for_us and not self._rejoined_for_incarnation:
            self._rejoined_for_incarnation = True
            self._rejoin_wished.set()

    def _learn_plan(self, followed: Plan | None) -> None:
        with self._plan_lock:
            known = -1 if self._plan is None else self._plan.revision
            used = -1 if followed is None else followed.revision
            if used > known:
                self._plan = followed
            elif used < known and self._rejoined_for_plan < known:
                self._rejoined_for_plan = known
                self._rejoin_wished.set()

    def lost(self) -> None:
        """The membership was lost: nothing is owned, and nothing claimed."""
        self._owned = frozenset()
        self._drain = self._released = self._reopened = frozenset()
        self._generation = -1
        self._told = Told()
        self._predecessors = {}
        self._look_again_at = None

    # --- and as the leader ---

    def assign(self, cluster: Any, members: Sequence[Any]) -> dict[str, Any]:
        """What each member gets; run by the leader. Never raises: that would end the leader's poll."""
        told = {member.member_id: _member(member) for member in members}
        claims = {member.id: member.claim for member in told.values()}
        counts: dict[str, int] = {}
        try:
            counts = _partition_counts(cluster, told.values())
            given = assign_units(claims, max(counts.values(), default=0))
            holders = holders_after(claims, given)
            settled = _is_settled(given, counts)
        except Exception:  # whatever it is, the group must go on
            logger.exception("assigning units failed: every member keeps what it has")
            given, holders, settled = keep_units(claims), {}, False
        self._leads = True
        self._look_again_at = None if settled else self._clock() + LOOK_AGAIN_S
        plan, format_ = newest_plan(claims), lowest_offset_format(claims)
        self._say_who_is_missing(plan, claims)
        return {
            member.id: ConsumerProtocolAssignment(
                PROTOCOL_VERSION,
                _by_topic(_partitions(member, given[member.id].units, counts)),
                encode_told(
                    Told(
                        incarnation=member.claim.incarnation,
                        version=member.claim.version,
                        plan=plan,
                        drain=given[member.id].drain,
                        predecessors=given[member.id].predecessors,
                        holders=holders,
                        lowest_offset_format=format_,
                        moving=not settled,
                    )
                ),
            )
            for member in told.values()
        }

    def _say_who_is_missing(self, plan: Plan | None, claims: Mapping[str, Claim]) -> None:
        """The leader's word on planned versions whose share goes to the others; once, until it changes."""
        planned = (
            {version for version, weight in plan.shares.items() if weight} if plan is not None else set[str]()
        )
        missing = frozenset(planned - {claim.version for claim in claims.values() if not claim.leaving})
        for version in sorted(missing - self._without_members):
            logger.warning("version %s is planned and has no member: its share goes to the others", version)
        for version in sorted(self._without_members - missing):
            logger.warning("version %s has a member again, or no share any more", version)
        self._without_members = missing


def _member(joining: Any) -> _Member:
    """What a member said. What cannot be read counts as not said: then it claims what its client says that it
    owns, and gives way to whoever of us claims that too."""
    subscription = joining.metadata
    owned = frozenset(
        (topic.topic, partition)
        for topic in subscription.owned_partitions or ()
        for partition in topic.partitions
    )
    claim = decode_claim(
        subscription.user_data, owned=_units(owned), generation=subscription.generation_id
    ) or Claim(joining.group_instance_id or joining.member_id, owned=_units(owned))
    return _Member(joining.member_id, claim, frozenset(subscription.topics), owned)


def _partition_counts(cluster: Any, members: Iterable[_Member]) -> dict[str, int]:
    topics = sorted({topic for member in members for topic in member.topics})
    # None: the leader has not heard of the topic yet, or there is none of that name.
    return {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}


def _is_settled(given: Mapping[str, Assigned], counts: Mapping[str, int]) -> bool:
    """Whether every topic is known, and every unit has an owner who may keep it."""
    owned = {unit for assigned in given.values() for unit in assigned.units}
    unowned = set(range(max(counts.values(), default=0))) - owned
    return all(counts.values()) and not unowned and not any(assigned.drain for assigned in given.values())


def _partitions(member: _Member, units: Iterable[int], counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return [
        (topic, unit)
        for topic in sorted(member.topics)
        for unit in units
        if unit < counts.get(topic, 0) or (topic, unit) in member.owned
    ]


def _units(partitions: Iterable[tuple[str, int]]) -> frozenset[int]:
    return frozenset(partition for _, partition in partitions)


def _by_topic(partitions: Iterable[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """As the protocol wants them."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())
