"""Bringing a cluster's topics in line with their layout: the edge to the brokers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.schemas.errors import KafkaUnavailable, TopicsError
from headrace.topics.admin import ConfigResource, KafkaTopicPartition, kafka_errors, open_admin, refused
from headrace.topics.changes import (
    AddPartitions,
    AlterConfig,
    Change,
    ClusterState,
    Create,
    FoundTopic,
    Refuse,
    diff,
)
from headrace.topics.layout import (
    DEFAULT_PARTITIONS,
    TopicLayout,
    default_replication,
    layout,
    shadow_layout,
    with_configs,
)
from headrace.topics.names import ContractNames, ShadowNames, control_topic, replies_topic

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

# Of Kafka's ListOffsets.
EARLIEST, LATEST = -2, -1
SETTLE_TIMEOUT_S = 15.0  # what a cluster takes to tell all its brokers
ALTERED_TIMEOUT_S = 5.0
RETRY_PAUSE_S = 0.1
UNKNOWN_TOPIC: int = kafka_errors.UnknownTopicOrPartitionError.errno


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """What of a layout can be chosen.

    `partitions` None: what the contract's topics have, else 16. `replication` None: three, or as many as there are
    brokers.
    `configs` goes over the layout's own: `{("requests", "retention.bytes"): "1000000"}`.
    """

    partitions: int | None = None
    replication: int | None = None
    configs: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    accept_reorder: bool = False


def compare(settings: Settings, names: ContractNames, options: LayoutOptions | None = None) -> list[Change]:
    """What it would take to bring the cluster in line with a contract's layout; changes nothing.

    Raises SettingsError, BrokerNotFound, KafkaUnavailable, KafkaFailed; TopicsError for a shadow of a contract that
    has no topics.
    """
    with open_admin(settings, "reading the topics") as admin:
        return _compare(admin, settings, names, options or LayoutOptions())


def bring_in_line(
    settings: Settings, names: ContractNames, options: LayoutOptions | None = None
) -> list[Change]:
    """Bring the cluster in line with a contract's layout; returns what was changed, with `Same` for the rest.

    Raises TopicsError, having changed nothing, when any of it is refused; and what `compare` raises.
    """
    with open_admin(settings, "bringing the topics in line") as admin:
        changes = _compare(admin, settings, names, options or LayoutOptions())
        refusals = [change for change in changes if isinstance(change, Refuse)]
        if refusals:
            raise TopicsError(f"nothing was changed. {_reasons(refusals)}")
        apply(admin, changes)
        return changes


def _reasons(refusals: Sequence[Refuse]) -> str:
    topics_of: dict[str, list[str]] = {}
    for each in refusals:
        topics_of.setdefault(each.reason, []).append(each.topic)
    return "; ".join(f"{', '.join(topics)}: {reason}" for reason, topics in topics_of.items())


def _compare(admin: Any, settings: Settings, names: ContractNames, options: LayoutOptions) -> list[Change]:
    found = read_cluster(admin, names)
    replication = options.replication or default_replication(found.brokers)
    if isinstance(names, ShadowNames):
        wanted = shadow_layout(
            names,
            units=units_of_contract(found, names),
            replication=replication,
            max_record_bytes=settings.max_record_bytes,
        )
    else:
        wanted = layout(
            names,
            partitions=options.partitions or units_found(found, names) or DEFAULT_PARTITIONS,
            replication=replication,
            max_record_bytes=settings.max_record_bytes,
        )
    return diff(with_configs(wanted, options.configs), found, accept_reorder=options.accept_reorder)


def units_of_contract(found: ClusterState, names: ShadowNames) -> int:
    """The number of units of the contract that a shadow reads. Raises TopicsError where it has no topics."""
    units = [found.topics[each].partitions for each in names.request_topics if each in found.topics]
    if not units:
        raise TopicsError(
            f"{names.base} has no topics that a shadow could read: create them first, with `headrace topics apply`"
        )
    return max(units)


def units_found(found: ClusterState, names: ContractNames) -> int:
    """The number of units of a contract whose topics are there: a second `apply` needs no --partitions. 0: none is."""
    there = [found.topics[each] for each in (*names.request_topics, names.results) if each in found.topics]
    return max((each.partitions for each in there), default=0)


def live_brokers(admin: Any) -> int:
    """How many brokers are up. A broker that was lost stays in the list of Apache Kafka 4, marked as fenced."""
    brokers: list[dict[str, Any]] = admin.describe_cluster()["brokers"]
    return sum(not broker.get("is_fenced", False) for broker in brokers)


def read_cluster(admin: Any, names: ContractNames) -> ClusterState:
    """The contract's topics, the two shared ones, and what of the requests the contract's group has not done yet."""
    topics = [*names.request_topics, names.results, names.dead, names.cancels]
    topics += [replies_topic(names.prefix), control_topic(names.prefix)]
    described: list[dict[str, Any]] = admin.describe_topics(topics)
    partitions: dict[str, list[dict[str, Any]]] = {}
    for topic in described:
        if topic["error_code"] == UNKNOWN_TOPIC:
            continue
        if topic["error_code"]:
            raise refused(topic["error_code"], topic["name"], "reading the topics")
        partitions[topic["name"]] = topic["partitions"]
    configs = _read_configs(admin, list(partitions))
    found = {
        topic: FoundTopic(
            partitions=len(each),
            replication=max((len(partition["replica_nodes"]) for partition in each), default=0),
            configs=configs.get(topic) or None,
        )
        for topic, each in partitions.items()
    }
    requests = {topic: len(partitions[topic]) for topic in names.request_topics if topic in partitions}
    return ClusterState(live_brokers(admin), found, _unread(admin, names.group, requests))


def apply(admin: Any, changes: Iterable[Change]) -> None:
    """Carry out the changes: topics made first, then partitions, then configs.

    Raises TopicsError, KafkaUnavailable or KafkaFailed at the first that fails; running it again goes on from there.
    """
    changes = list(changes)
    _create(admin, [change.layout for change in changes if isinstance(change, Create)])
    _add_partitions(admin, {each.topic: each.wanted for each in changes if isinstance(each, AddPartitions)})
    altered = [change for change in changes if isinstance(change, AlterConfig)]
    for change in altered:
        _alter(admin, change)
    _await_configs(admin, altered)


def _create(admin: Any, layouts: Sequence[TopicLayout]) -> None:
    if not layouts:
        return
    wanted = {
        each.name: {
            "num_partitions": each.partitions,
            "replication_factor": each.replication,
            "configs": dict(each.configs),
        }
        for each in layouts
    }
    answer = admin.create_topics(wanted, raise_errors=False)
    for topic in answer["topics"]:
        _check(topic["error_code"], topic.get("error_message"), f"creating {topic['name']}")
    admin.wait_for_topics(list(wanted))


def _add_partitions(admin: Any, wanted: Mapping[str, int]) -> None:
    if not wanted:
        return
    for each in admin.create_partitions(wanted, raise_errors=False).results:
        _check(each.error_code, each.error_message, f"adding partitions to {each.name}")
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:  # brokers learn of the new partitions one after the other
        there = {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics(list(wanted))}
        missing = [topic for topic, count in wanted.items() if there.get(topic, 0) < count]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise KafkaUnavailable(
                f"partitions were added to {', '.join(missing)}, and are not to be seen yet"
            )
        time.sleep(RETRY_PAUSE_S)


def _alter(admin: Any, change: AlterConfig) -> None:
    new = {name: value for name, (_, value) in change.configs.items()}
    # Without the client's own check, which would fetch all configs once more: the broker checks them anyway.
    answer = admin.alter_configs([ConfigResource("TOPIC", change.topic, new)], raise_on_unknown=False)
    outcome: str = answer["topic"][change.topic]  # "OK", or an error's text
    if outcome != "OK":
        raise TopicsError(f"altering {change.topic}: {outcome}")


def _await_configs(admin: Any, altered: Sequence[AlterConfig]) -> None:
    """Wait until the brokers tell the new values, so that a comparison right after finds them.

    A broker may write a value in another way than it was given, so this is no reason to fail.
    """
    deadline = time.monotonic() + ALTERED_TIMEOUT_S
    while altered and time.monotonic() < deadline:
        told = _read_configs(admin, [change.topic for change in altered])
        if all(
            told.get(change.topic, {}).get(name) == new
            for change in altered
            for name, (_, new) in change.configs.items()
        ):
            return
        time.sleep(RETRY_PAUSE_S)


def _check(code: int, message: object, doing: str) -> None:
    if code:
        raise refused(code, message, doing)


def _read_configs(admin: Any, topics: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """All configs of each topic, defaults too; nothing for those that a broker does not tell."""
    if not topics:
        return {}
    try:
        answer = admin.describe_configs(
            [ConfigResource("TOPIC", each) for each in topics], config_filter="all"
        )
    except kafka_errors.UnsupportedVersionError:
        return {}
    return {
        topic: {name: config["value"] for name, config in configs.items()}
        for topic, configs in answer.get("topic", {}).items()
    }


def _unread(admin: Any, group: str, partitions: Mapping[str, int]) -> dict[str, int]:
    """Records between what the group has committed and the end of each topic.

    Offsets done out of order above the committed one count as unread, and transaction markers do: too many rather
    than too few.
    """
    if not partitions:
        return {}
    all_of = [
        KafkaTopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)
    ]
    begin = admin.list_partition_offsets(dict.fromkeys(all_of, EARLIEST))
    end = admin.list_partition_offsets(dict.fromkeys(all_of, LATEST))
    if all(end[each].offset <= begin[each].offset for each in all_of):
        return dict.fromkeys(partitions, 0)
    committed = _committed(admin, group)
    unread = dict.fromkeys(partitions, 0)
    for each in all_of:
        done_to = max(committed.get(each, -1), begin[each].offset)
        unread[each.topic] += max(0, end[each].offset - done_to)
    return unread


def _committed(admin: Any, group: str) -> dict[Any, int]:
    """The group's offsets. A cluster's first group has to wait until the topic of offsets has been made."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        try:
            offsets = admin.list_group_offsets(group)
        except (
            kafka_errors.CoordinatorNotAvailableError,
            kafka_errors.CoordinatorLoadInProgressError,
            kafka_errors.NotCoordinatorError,
        ):
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_PAUSE_S)
        except kafka_errors.GroupIdNotFoundError:
            return {}
        else:
            return {each: at.offset for each, at in offsets.get(group, {}).items()}
