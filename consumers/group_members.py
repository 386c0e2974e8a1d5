"""Who is in a contract's group, what each serves, and what waits for it; asked of the coordinator, not joined."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.consumers.backlog import backlog_of
from headrace.consumers.claims import decode_claim
from headrace.consumers.group import asking_about, committed_points, log_offsets, translated
from headrace.consumers.kafka_client import FetchingConsumer
from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import TopicPartition
from headrace.consumers.sharing import Claim
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.schemas.errors import KafkaUnavailable
from headrace.topics.admin import open_admin

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

READ_WITHIN_S = 10.0
STABLE, EMPTY, GONE = "Stable", "Empty", "Dead"


@dataclass(frozen=True, slots=True)
class Member:
    """A member by what it said when it joined last, and the units that it was given."""

    slot: str
    version: str  # "": what it said cannot be read
    capacity: int  # requests in flight
    units: frozenset[int]
    leaving: bool


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The group as its coordinator describes it. `waiting`: requests that are not done, by unit, all lanes together."""

    members: Sequence[Member]
    units: int
    is_stable: bool  # no rebalance is under way
    waiting: Mapping[int, int] = field(default_factory=dict[int, int])

    def owned(self) -> dict[str, int]:
        """Units by version."""
        return _by_version((member, len(member.units)) for member in self.members)

    def live(self) -> dict[str, int]:
        """Members that stay, by version."""
        return _by_version((member, 1) for member in self.members if not member.leaving)

    def capacity(self) -> dict[str, int]:
        """Requests in flight that the members that stay can have, by version."""
        return _by_version((member, member.capacity) for member in self.members if not member.leaving)

    def waiting_for(self) -> dict[str, int]:
        """Requests that are not done, by the version of their unit's owner; "": the unit has no owner."""
        owner = {unit: member.version for member in self.members for unit in member.units}
        found: dict[str, int] = {}
        for unit, waiting in self.waiting.items():
            version = owner.get(unit, "")
            found[version] = found.get(version, 0) + waiting
        return found


def _by_version(counts: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for member, count in counts:
        found[member.version] = found.get(member.version, 0) + count
    return found


class GroupLooker:
    """Looks at a contract's group as often as it is asked to, over connections that stay open."""

    def __init__(self, names: ContractNames, admin: Any, client: FetchingConsumer) -> None:
        """Use `look_at_group`."""
        self._names = names
        self._admin = admin
        self._client = client

    def look(self) -> GroupMembers:
        """The group now. Raises KafkaUnavailable, KafkaFailed."""
        with translated(f"describing group {self._names.group}"):
            found: Mapping[str, Any] = self._admin.describe_groups([self._names.group])
        group = found[self._names.group]
        members, is_stable = described_members(self._names.group, group)
        units = self._units()
        return GroupMembers(members, units, is_stable, self._waiting(units))

    def _units(self) -> int:
        """Asked each time: partitions that are added have owners as soon as the workers have heard of them."""
        topics = self._names.request_topics
        with translated(f"looking up the partitions of {', '.join(topics)}"):
            found: list[dict[str, Any]] = self._admin.describe_topics(list(topics))
            for topic in found:
                if topic["error_code"]:
                    raise kafka_errors.for_code(topic["error_code"])(topic["name"])
        return min(len(topic["partitions"]) for topic in found)

    def _waiting(self, units: int) -> dict[int, int]:
        topics = self._names.request_topics
        partitions = [TopicPartition(topic, unit) for topic in topics for unit in range(units)]
        deadline = time.monotonic() + READ_WITHIN_S
        # Before the logs' ends: what is committed meanwhile must not seem to lie beyond them.
        points = committed_points(self._client, self._names.group, partitions, READ_WITHIN_S)
        ends = log_offsets(self._client, "end_offsets", partitions, max(1.0, deadline - time.monotonic()))
        return {
            unit: sum(
                backlog_of({tp: ends[tp]}, {tp: points[tp]}).ahead
                for topic in topics
                if (tp := TopicPartition(topic, unit)) in ends
            )
            for unit in range(units)
        }


@contextlib.contextmanager
def look_at_group(settings: Settings, names: ContractNames) -> Generator[GroupLooker]:
    """Connect. Raises TopicsError where the contract has no topics, KafkaUnavailable, KafkaFailed, BrokerNotFound."""
    partitions_of(settings, names.request_topics)  # says which topics are missing
    with (
        open_admin(settings, f"looking at group {names.group}") as admin,
        asking_about(settings, names.group) as client,
    ):
        yield GroupLooker(names, admin, client)


def described_members(group: str, described: Mapping[str, Any]) -> tuple[list[Member], bool]:
    """Who is in a group as its coordinator describes it, and whether no rebalance is under way.

    Raises KafkaUnavailable where the coordinator cannot say.
    """
    state: str = described["group_state"]
    if state == GONE:
        return [], True  # Apache Kafka 4 names that it does not exist as an error
    if described["error"]:
        raise KafkaUnavailable(f"describing group {group}: {described['error']}")
    members = [] if state == EMPTY else [_member(each) for each in described["members"]]
    return members, state in (STABLE, EMPTY)


def _member(described: Mapping[str, Any]) -> Member:
    subscription, assignment = described["member_metadata"], described["member_assignment"]
    units = frozenset(
        partition
        for topic in (assignment["assigned_partitions"] if assignment else ())
        for partition in topic["partitions"]
    )
    said = subscription["user_data"] if subscription else None
    claim = decode_claim(said, owned=units, generation=0) or Claim(
        described["group_instance_id"] or "?", capacity=0
    )
    return Member(claim.slot, claim.version, claim.capacity, units, claim.leaving)
