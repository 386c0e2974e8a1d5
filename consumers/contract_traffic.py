"""Who asks a contract, how much, and what waits: of many contracts at once, over one set of connections.

Every question goes to the brokers for all contracts together, and of each contract one record is read. So fifty take
hardly longer than one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.consumers.backlog import backlog_of
from headrace.consumers.group_members import GONE, Member, described_members
from headrace.consumers.partitions import LATEST, NO_SUCH_RECORD
from headrace.consumers.records import CommitPoint, Record, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.consumers.untyped_kafka import KafkaTopicPartition
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.schemas.codec import Codec
from headrace.schemas.errors import HeadraceError, KafkaFailed, UnknownWriterSchema
from headrace.schemas.headers import REPLAY_OF, REPLY_PARTITION, REPLY_TOPIC, SUPERSEDES
from headrace.schemas.messages import Request
from headrace.topics.admin import open_admin, refused

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

# Of Kafka's ListOffsets: the first offset, and the record with the greatest time.
EARLIEST, NEWEST = -2, -3
UNKNOWN_TOPIC: int = kafka_errors.UnknownTopicOrPartitionError.errno
COORDINATOR_TIMEOUT_S = 30.0  # a cluster's first group waits until the topic of offsets has been made
RETRY_PAUSE_S = 0.1
LAST_WITHIN_S = 5.0  # for the newest records of all contracts together
LOOK_BACK = 50  # offsets; behind the newest record lie transaction markers
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class LastRequest:
    """The newest request of a contract, as far as it can be seen. None or empty: it does not say."""

    at_ms: int  # since the epoch: when it was appended; -1: the log has no times
    place: TopicPartition
    id: str | None = None
    key: str | None = None
    tenant: str | None = None
    job: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    reply_to: str | None = None  # topic-partition
    sent_again: str | None = None  # what of: the place of a dead letter or a result
    unreadable: str | None = None  # why no more is known


@dataclass(frozen=True, slots=True)
class ContractTraffic:
    """How a contract stands. Requests are counted by their offsets, so transaction markers count as some."""

    recent: int  # requests that came within the window
    waiting: int  # requests that are not done, those in an engine too
    held: int  # requests that the topics hold, done or not
    members: Sequence[Member]
    is_stable: bool  # no rebalance is under way
    has_group: bool
    last: LastRequest | None  # None: the topics hold no request
    missing: Sequence[str]  # request topics that are not there
    ends: Mapping[TopicPartition, int]

    def live(self) -> dict[str, int]:
        """Members by version; "": what they said cannot be read. Those that are leaving still work."""
        found: dict[str, int] = {}
        for member in self.members:
            found[member.version] = found.get(member.version, 0) + 1
        return found


class Newest(NamedTuple):
    """Where the record with the greatest time lies; a batch tells one offset for all of it."""

    offset: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """What the brokers say of partitions. `since`: the first record of the window or later, else the end."""

    beginnings: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    since: Mapping[TopicPartition, int]
    newest: Mapping[TopicPartition, Newest]


# --- pure ---------------------------------------------------------------------------------------------------------


def waiting_of(offsets: Offsets, points: Mapping[TopicPartition, CommitPoint | None]) -> int:
    """Requests that are not done. What retention has taken counts no more, done or not."""
    return sum(
        min(backlog_of({tp: end}, {tp: points.get(tp)}).ahead, end - offsets.beginnings[tp])
        for tp, end in offsets.ends.items()
    )


def newest_partition(offsets: Offsets) -> TopicPartition | None:
    """The partition that the newest record lies in; None: there is no record."""
    there = [tp for tp, found in offsets.newest.items() if found.offset >= 0]
    return max(there, key=lambda tp: (offsets.newest[tp].at_ms, tp), default=None)


def seen_of(record: Record, codec: Codec) -> LastRequest:
    """What a record says of who sent it. It may be anything: whatever cannot be read is said to be so."""
    headers = {name: value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    reply_to = None
    if REPLY_TOPIC in headers:
        reply_to = f"{headers[REPLY_TOPIC]}-{headers.get(REPLY_PARTITION, '?')}"
    key = None if record.key is None else record.key.decode("utf-8", "replace")
    sent_again = headers.get(REPLAY_OF) or headers.get(SUPERSEDES)
    place = record.topic_partition
    try:
        request = codec.decode(Request, record.value).message
    except HeadraceError as error:
        why = "its schema is not known" if isinstance(error, UnknownWriterSchema) else str(error)
        return LastRequest(
            record.timestamp_ms, place, key=key, reply_to=reply_to, sent_again=sent_again, unreadable=why
        )
    return LastRequest(
        record.timestamp_ms,
        place,
        request.id,
        key,
        request.tenant,
        request.job,
        request.attributes,
        reply_to,
        sent_again,
    )


# --- the edge -----------------------------------------------------------------------------------------------------


def read_traffic(
    settings: Settings, contracts: Iterable[ContractNames], window_s: float
) -> dict[ContractNames, ContractTraffic]:
    """The traffic of each contract; `window_s` seconds count as recent.

    Changes nothing, joins nothing. Raises KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    wanted = list(contracts)
    if not wanted:
        return {}
    since_ms = int((time.time() - window_s) * 1000)
    with open_admin(settings, "reading the traffic of contracts") as admin:
        there = _partitions(admin, [topic for names in wanted for topic in names.request_topics])
        groups = [names.group for names in wanted]
        described: Mapping[str, Any] = _describe(admin, groups)
        # Before the logs' ends: what is committed meanwhile must not seem to lie beyond them.
        committed: Mapping[str, Mapping[Any, Any]] = _of_coordinators(
            lambda: admin.list_group_offsets(dict.fromkeys(groups))
        )
        offsets = _offsets(admin, [tp for tps in there.values() for tp in tps], since_ms)
    by_contract = {
        names: _only(offsets, [tp for topic in names.request_topics for tp in there.get(topic, ())])
        for names in wanted
    }
    last = _last_requests(settings, by_contract)
    found: dict[ContractNames, ContractTraffic] = {}
    for names, of in by_contract.items():
        members, is_stable = described_members(names.group, described[names.group])
        points = {
            TopicPartition(*tp): CommitPoint(at.offset, at.metadata or "")
            for tp, at in committed.get(names.group, {}).items()
            if at.offset >= 0
        }
        found[names] = ContractTraffic(
            recent=sum(end - of.since[tp] for tp, end in of.ends.items()),
            waiting=waiting_of(of, points),
            held=sum(end - of.beginnings[tp] for tp, end in of.ends.items()),
            members=members,
            is_stable=is_stable,
            has_group=described[names.group]["group_state"] != GONE,
            last=last.get(names),
            missing=[topic for topic in names.request_topics if topic not in there],
            ends=of.ends,
        )
    return found


def members_of(settings: Settings, groups: Sequence[str]) -> dict[str, list[Member]]:
    """Who is in each of these groups; nobody in those that there are not.

    Raises KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    if not groups:
        return {}
    with open_admin(settings, "describing groups") as admin:
        described: Mapping[str, Any] = _describe(admin, groups)
    return {group: described_members(group, described[group])[0] for group in groups}


def _partitions(admin: Any, topics: Sequence[str]) -> dict[str, list[TopicPartition]]:
    """Of the topics that are there."""
    found: dict[str, list[TopicPartition]] = {}
    for topic in admin.describe_topics(list(topics)):
        if topic["error_code"] == UNKNOWN_TOPIC:
            continue
        if topic["error_code"]:
            raise refused(topic["error_code"], topic["name"], "reading the topics")
        name = topic["name"]
        found[name] = [TopicPartition(name, each["partition_index"]) for each in topic["partitions"]]
    return found


def _describe(admin: Any, groups: Sequence[str]) -> Mapping[str, Any]:
    """The groups as their coordinators describe them: they are asked again while they are loading."""
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
    while True:
        found: Mapping[str, Any] = _of_coordinators(lambda: admin.describe_groups(list(groups)))
        is_whole = all(each["group_state"] == GONE or not each["error"] for each in found.values())
        if is_whole or time.monotonic() > deadline:
            return found
        time.sleep(RETRY_PAUSE_S)


def _of_coordinators(ask: Any) -> Any:
    """What the groups' coordinators answer; they are asked again while they are being chosen."""
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
    while True:
        try:
            return ask()
        except (
            kafka_errors.CoordinatorNotAvailableError,
            kafka_errors.CoordinatorLoadInProgressError,
            kafka_errors.NotCoordinatorError,
        ):
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_PAUSE_S)
        except ValueError as error:  # of the client, which does not understand the embedded broker's answer
            raise KafkaFailed(f"describing groups: {error}; use Apache Kafka") from error


def _offsets(admin: Any, partitions: Sequence[TopicPartition], since_ms: int) -> Offsets:
    def ask(spec: int) -> dict[TopicPartition, Any]:
        wanted = {KafkaTopicPartition(*tp): spec for tp in partitions}
        return {TopicPartition(*tp): at for tp, at in admin.list_partition_offsets(wanted).items()}

    if not partitions:
        return Offsets({}, {}, {}, {})
    # The ends last: a request that comes meanwhile counts as one that has come.
    beginnings, newest, since = ask(EARLIEST), ask(NEWEST), ask(since_ms)
    ends = {tp: at.offset for tp, at in ask(LATEST).items()}
    return Offsets(
        {tp: at.offset for tp, at in beginnings.items()},
        ends,
        {tp: ends[tp] if at.offset == NO_SUCH_RECORD else at.offset for tp, at in since.items()},
        {tp: Newest(at.offset, at.timestamp) for tp, at in newest.items()},
    )


def _only(offsets: Offsets, partitions: Sequence[TopicPartition]) -> Offsets:
    return Offsets(
        {tp: offsets.beginnings[tp] for tp in partitions},
        {tp: offsets.ends[tp] for tp in partitions},
        {tp: offsets.since[tp] for tp in partitions},
        {tp: offsets.newest[tp] for tp in partitions},
    )


def _last_requests(
    settings: Settings, by_contract: Mapping[ContractNames, Offsets]
) -> dict[ContractNames, LastRequest]:
    places = {names: tp for names, of in by_contract.items() if (tp := newest_partition(of)) is not None}
    if not places:
        return {}
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for names, tp in places.items():
        ends[tp] = by_contract[names].ends[tp]
        starts[tp] = max(by_contract[names].newest[tp].offset, ends[tp] - LOOK_BACK)
    records = _read(settings, starts, ends)
    codec = Codec.with_registry_at(settings.schema_registry_url)
    found: dict[ContractNames, LastRequest] = {}
    for names, tp in places.items():
        if tp in records:
            found[names] = seen_of(records[tp], codec)
        else:
            at_ms = by_contract[names].newest[tp].at_ms
            found[names] = LastRequest(at_ms, tp, unreadable="it could not be read in time")
    return found


def _read(
    settings: Settings, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Record]:
    """The newest record of each partition between two offsets, those that come in time."""
    deadline = time.monotonic() + LAST_WITHIN_S
    found: dict[TopicPartition, Record] = {}
    # An open transaction is not waited for: who sends in one is a caller too.
    tail = TailReader(settings, list(starts), starts, "read_uncommitted")
    try:
        while time.monotonic() < deadline and any((tail.position(tp) or 0) < end for tp, end in ends.items()):
            for record in tail.poll(POLL_S):
                found[record.topic_partition] = record
    finally:
        tail.close()
    return found
