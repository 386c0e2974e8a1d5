"""How long a group's leader thinks, and how much its members tell each other: `headrace bench rollout --only assignor`.

Members go through a whole rollout without a broker. What goes between them is encoded and decoded as on the way to the
brokers and back, and the leader's part is timed as kafka-python calls it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from headrace.consumers.assignor import UnitAssignor
from headrace.consumers.sharing import Plan
from headrace.consumers.untyped_kafka import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from headrace.ops.bench.ground import BenchFailed

LANES = ("interactive", "standard", "backfill")
VERSIONS = ("3", "4", "5")
STEPS = (6, 25, 50, 100)
MOST_ROUNDS = 20  # of one plan
BROKER_RECORD_BYTES = 1_048_588  # message.max.bytes, which holds for the brokers' own topics too


@dataclass(frozen=True, slots=True)
class AssignorFigures:
    """Of all rounds: the longest of each, in ms and bytes."""

    units: int
    lanes: int
    members: int
    versions: int
    rounds: int
    slowest_ms: float  # decoding what members said, assigning, encoding what they are told
    median_ms: float
    claim_bytes: int  # of one member's subscription, its protocol's own fields included
    told_bytes: int  # of one member's assignment
    group_bytes: int  # both of all members: one record of the topic in which the brokers keep groups


class Cluster:
    """As much of kafka-python's cluster metadata as an assignor reads."""

    def __init__(self, units: int) -> None:
        self._partitions = set(range(units))

    def partitions_for_topic(self, topic: str) -> set[int]:
        """All are alike."""
        return self._partitions if topic else set()


@dataclass(slots=True)
class _Group:
    """Members by id; of each the bytes that it said last."""

    cluster: Cluster
    members: dict[str, UnitAssignor]
    topics: Sequence[str]
    generation: int = 0
    took_ms: list[float] = field(default_factory=list[float])
    claim_bytes: int = 0
    told_bytes: int = 0
    group_bytes: int = 0

    def round(self) -> None:
        """All join, the leader assigns, each is told; what is to be drained is released at once."""
        self.generation += 1
        said = {id_: bytes(member.metadata(self.topics).encode()) for id_, member in self.members.items()}
        leader = next(iter(self.members.values()))
        began = time.perf_counter()
        joined = [
            SimpleNamespace(
                member_id=id_, group_instance_id=id_, metadata=ConsumerProtocolSubscription.decode(each)
            )
            for id_, each in said.items()
        ]
        given: Mapping[str, Any] = leader.assign(self.cluster, joined)
        told = {id_: bytes(each.encode()) for id_, each in given.items()}
        self.took_ms.append(1000 * (time.perf_counter() - began))
        self.claim_bytes = max(self.claim_bytes, *map(len, said.values()))
        self.told_bytes = max(self.told_bytes, *map(len, told.values()))
        self.group_bytes = max(self.group_bytes, sum(map(len, said.values())) + sum(map(len, told.values())))
        for id_, member in self.members.items():
            member.on_assignment(ConsumerProtocolAssignment.decode(told[id_]), self.generation)
            member.release(member.draining)

    def settle(self) -> None:
        """Rounds until nobody has anything to give away."""
        for _ in range(MOST_ROUNDS):
            self.round()
            if not any(member.moving for member in self.members.values()):
                return
        raise BenchFailed(f"the group is not at rest after {MOST_ROUNDS} rounds")


def measure(units: int, members: int = 40) -> AssignorFigures:
    """A rollout in steps, then a tenth of the members gone without a word, then all back. Raises BenchFailed."""
    versions = [VERSIONS[number % len(VERSIONS)] for number in range(members)]

    def member(number: int, life: int) -> UnitAssignor:
        return UnitAssignor(
            slot=f"movie-tagger-worker-{number}",
            incarnation=f"{number:016x}{life:016x}",
            version=versions[number],
            capacity=256,
        )

    topics = [f"headrace.movie-tagger.1.requests.{lane}" for lane in LANES]
    group = _Group(
        Cluster(units), {f"worker-{number:03}": member(number, 0) for number in range(members)}, topics
    )
    group.settle()
    for revision, percent in enumerate(STEPS, start=1):
        shares = {"3": 100 - percent, "4": percent}
        group.members["worker-000"].offer_plan(Plan(revision, "4.20261130T101500", shares))
        group.settle()
    for number in range(0, members, 10):  # killed: nobody takes its leave
        del group.members[f"worker-{number:03}"]
    group.settle()
    for number in range(0, members, 10):
        group.members[f"worker-{number:03}"] = member(number, 1)
    group.settle()
    took = sorted(group.took_ms)
    return AssignorFigures(
        units,
        len(LANES),
        members,
        len(VERSIONS),
        len(took),
        took[-1],
        took[len(took) // 2],
        group.claim_bytes,
        group.told_bytes,
        group.group_bytes,
    )


def goals(figures: AssignorFigures) -> Mapping[str, bool]:
    """What Headrace means to keep to."""
    within_ms = 50 if figures.units <= 16 else 500
    return {
        f"within {within_ms} ms": figures.slowest_ms <= within_ms,
        "fits into a broker's record of its default size": figures.group_bytes <= BROKER_RECORD_BYTES,
    }
