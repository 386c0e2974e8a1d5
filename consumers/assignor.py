"""Which member of a group serves which unit: partition n of all its topics.

`assign_units` decides and is pure. `UnitAssignor` is what kafka-python runs: each member tells the leader
what it claims, and the leader, whichever member that is, tells each what it gets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.consumers.untyped_kafka import (
    AbstractPartitionAssignor,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    RebalanceProtocol,
)

logger = logging.getLogger(__name__)

FORMAT = 1
# The name carries the version, so that old and new workers in one group agree on one that both know.
NAME = "headrace-1"
# Subscriptions from version 2 on have the owned partitions and their generation beside our own data.
PROTOCOL_VERSION = 2


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member says of itself when it joins."""

    slot: str
    version: str = ""  # of the model that it serves
    capacity: int = 1  # requests that it can have in flight
    generation: int = -1  # the one in which it got what it owns
    owned: frozenset[int] = frozenset()  # units


def assign_units(members: Mapping[str, Claim], units: int) -> dict[str, list[int]]:
    """Share out units 0 to `units - 1`, by member id.

    Equal shares, within one, and as few units move as that allows. A unit that a member claims is never
    given to another: a member with more than its share keeps its share alone, lets the rest go, and the
    next round gives that away. Where two claim one unit, the claim of the higher generation holds, the
    other is from a past life. A claimed unit that is not below `units` stays where it is (the leader may
    not have heard of it yet).
    """
    order = sorted(members, key=lambda member: (members[member].slot, member))
    holders = _holders(members, order)
    held: dict[str, list[int]] = {member: [] for member in order}
    beyond: dict[str, list[int]] = {member: [] for member in order}
    for unit, member in sorted(holders.items()):
        (held if unit < units else beyond)[member].append(unit)
    share = _shares(held, units)
    assigned = {member: held[member][: share[member]] for member in order}
    for unit in range(units):
        if unit not in holders:
            member = max(order, key=lambda member: share[member] - len(assigned[member]), default=None)
            if member is not None:
                assigned[member].append(unit)
    return {member: sorted(assigned[member] + beyond[member]) for member in order}


def _holders(members: Mapping[str, Claim], order: Sequence[str]) -> dict[int, str]:
    """The member that holds each claimed unit."""
    holders: dict[int, str] = {}
    for member in sorted(order, key=lambda member: members[member].generation):
        holders.update(dict.fromkeys(members[member].owned, member))
    return holders


def _shares(held: Mapping[str, Sequence[int]], units: int) -> dict[str, int]:
    """How many units each member is to have: those who hold most get the larger shares, so that fewest
    move."""
    if not held:
        return {}
    least, larger = divmod(units, len(held))
    by_holding = sorted(held, key=lambda member: -len(held[member]))
    return {member: least + (place < larger) for place, member in enumerate(by_holding)}


# --- kafka-python's port
# ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Member:
    id: str
    claim: Claim
    incarnation: str
    topics: frozenset[str]
    owned: frozenset[tuple[str, int]]  # partitions, as the client itself lists them


class UnitAssignor(AbstractPartitionAssignor):
    """The cooperative assignor `headrace-1` of one process, which is one incarnation of its slot."""

    name = NAME

    def __init__(self, *, slot: str, incarnation: str, version: str, capacity: int) -> None:
        self._slot = slot
        self._incarnation = incarnation
        self._version = version
        self._capacity = capacity
        self._owned: list[tuple[str, int]] = []
        self._generation = -1
        self._told_to_rejoin = False
        self._wants_rejoin = False

    @property
    def units(self) -> frozenset[int]:
        """The units that this member was last given."""
        return frozenset(partition for _, partition in self._owned)

    def supported_protocols(self) -> list[Any]:
        return [RebalanceProtocol.COOPERATIVE]

    def metadata(self, topics: Iterable[str]) -> Any:
        """What this member tells the leader."""
        said = {
            "f": FORMAT,
            "slot": self._slot,
            "incarnation": self._incarnation,
            "version": self._version,
            "capacity": self._capacity,
            "generation": self._generation,
            "own": sorted(self.units),
        }
        return ConsumerProtocolSubscription(
            version=PROTOCOL_VERSION,
            topics=sorted(topics),
            user_data=json.dumps(said).encode(),
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in _by_topic(self._owned)
            ],
            generation_id=self._generation,
        )

    def on_assignment(self, assignment: Any, generation: int) -> None:
        """Take note of what this member was given, and whether it was meant for this incarnation.

        A process that restarts within its session gets its predecessor's assignment without the leader's
        knowledge, and if the predecessor led, nobody leads any more: it joins once more then, which the
        leader cannot overlook.
        """
        self._owned = [(tp.topic, tp.partition) for tp in assignment.partitions()]
        self._generation = generation
        made_for = _decode(assignment.user_data)
        meant_for = (made_for.get("incarnation"), made_for.get("version"))
        if meant_for != (self._incarnation, self._version) and not self._told_to_rejoin:
            self._told_to_rejoin = self._wants_rejoin = True

    def lost(self) -> None:
        """The membership was lost: nothing is owned, and nothing claimed."""
        self._owned = []
        self._generation = -1

    def take_rejoin_wish(self) -> bool:
        """Whether this member should join once more. True once."""
        wish, self._wants_rejoin = self._wants_rejoin, False
        return wish

    def assign(self, cluster: Any, members: Sequence[Any]) -> dict[str, Any]:
        """What each member gets; run by the leader. Never raises: that would end the leader's poll."""
        told = [_member(member) for member in members]
        try:
            given = _assign(cluster, told)
        except Exception:  # whatever it is, the group must go on
            logger.exception("assigning units failed: every member keeps what it has")
            given = _keep_claims(told)
        return {
            member.id: ConsumerProtocolAssignment(
                PROTOCOL_VERSION, _by_topic(given[member.id]), _echo(member)
            )
            for member in told
        }


def _assign(cluster: Any, members: Sequence[_Member]) -> dict[str, list[tuple[str, int]]]:
    topics = sorted({topic for member in members for topic in member.topics})
    # None: the leader has not heard of the topic yet, or there is none of that name.
    counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
    units = assign_units({member.id: member.claim for member in members}, max(counts.values(), default=0))
    return {
        member.id: [
            (topic, unit)
            for topic in topics
            for unit in units[member.id]
            if topic in member.topics and (unit < counts[topic] or (topic, unit) in member.owned)
        ]
        for member in members
    }


def _keep_claims(members: Sequence[_Member]) -> dict[str, list[tuple[str, int]]]:
    """Everything stays with the member that got it last."""
    holders: dict[tuple[str, int], str] = {}
    for member in sorted(members, key=lambda member: member.claim.generation):
        holders.update(dict.fromkeys(member.owned, member.id))
    return {
        member.id: sorted(partition for partition, holder in holders.items() if holder == member.id)
        for member in members
    }


def _member(joining: Any) -> _Member:
    """What a member said. What cannot be read counts as not said."""
    subscription = joining.metadata
    owned = frozenset(
        (topic.topic, partition)
        for topic in subscription.owned_partitions or ()
        for partition in topic.partitions
    )
    said = _decode(subscription.user_data)
    claim = _claim(said)
    if claim is None:
        slot = joining.group_instance_id or joining.member_id
        units = frozenset(partition for _, partition in owned)
        claim = Claim(slot, generation=subscription.generation_id, owned=units)
    incarnation = said.get("incarnation")
    return _Member(
        joining.member_id,
        claim,
        incarnation if isinstance(incarnation, str) else "",
        frozenset(subscription.topics),
        owned,
    )


def _claim(said: Mapping[str, Any]) -> Claim | None:
    slot, version = said.get("slot"), said.get("version")
    capacity, generation, own = said.get("capacity"), said.get("generation"), said.get("own")
    if said.get("f") != FORMAT or not isinstance(slot, str) or not isinstance(version, str):
        return None
    if not _is_int(capacity) or not _is_int(generation) or not isinstance(own, list):
        return None
    units = cast("list[Any]", own)
    if not all(_is_int(unit) and unit >= 0 for unit in units):
        return None
    return Claim(slot, version, cast("int", capacity), cast("int", generation), frozenset(units))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _echo(member: _Member) -> bytes:
    """Whom the assignment was made for, so that another incarnation of the slot sees that it was not."""
    return json.dumps(
        {"f": FORMAT, "incarnation": member.incarnation, "version": member.claim.version}
    ).encode()


def _decode(user_data: bytes | None) -> dict[str, Any]:
    """The object in it; {} for anything else."""
    try:
        found: Any = json.loads(user_data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _by_topic(partitions: Iterable[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """As the protocol wants them."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())
