"""Taking a contract's topics and its group off a cluster: the edge to the brokers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.schemas.errors import KafkaUnavailable, TopicsError
from headrace.topics.admin import KafkaTopicPartition, kafka_errors, open_admin, refused

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

# Of Kafka's ListOffsets.
EARLIEST, LATEST = -2, -1
SETTLE_TIMEOUT_S = 15.0  # what a cluster takes to tell all its brokers
RETRY_PAUSE_S = 0.1
UNKNOWN_TOPIC: int = kafka_errors.UnknownTopicOrPartitionError.errno
# Names of errors, which is how the client tells them of groups.
NO_SUCH_GROUP, HAS_MEMBERS = (
    kafka_errors.GroupIdNotFoundError.__name__,
    kafka_errors.NonEmptyGroupError.__name__,
)
COORDINATOR_MOVES = {
    kafka_errors.CoordinatorNotAvailableError.__name__,
    kafka_errors.CoordinatorLoadInProgressError.__name__,
    kafka_errors.NotCoordinatorError.__name__,
}


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """A topic and what lies in it."""

    name: str
    partitions: int
    records: int  # offsets: transaction markers count too
    size: int | None  # bytes on the disks of all brokers; None: they do not say


def held_topics(settings: Settings, topics: Sequence[str]) -> list[HeldTopic]:
    """Those of the topics that are there. Raises KafkaUnavailable, KafkaFailed, BrokerNotFound."""
    with open_admin(settings, "reading the topics") as admin:
        partitions = _partitions(admin, topics)
        all_of = [
            KafkaTopicPartition(topic, number)
            for topic, count in partitions.items()
            for number in range(count)
        ]
        if not all_of:
            return []
        begin = admin.list_partition_offsets(dict.fromkeys(all_of, EARLIEST))
        end = admin.list_partition_offsets(dict.fromkeys(all_of, LATEST))
        sizes = _sizes(admin, list(partitions))
    return [
        HeldTopic(
            topic,
            partitions[topic],
            sum(end[tp].offset - begin[tp].offset for tp in all_of if tp.topic == topic),
            sizes.get(topic) if sizes else None,
        )
        for topic in topics
        if topic in partitions
    ]


def shadows_of(settings: Settings, base: str) -> dict[str, list[str]]:
    """The groups of versions that run, or ran, in the shadow of a contract, each with its topics.

    `base` is the contract's group. Raises KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    with open_admin(settings, "listing the topics") as admin:
        topics: list[str] = sorted(admin.list_topics())
    found: dict[str, list[str]] = {}
    for topic in topics:
        if topic.startswith(f"{base}.shadow."):
            found.setdefault(topic.rpartition(".")[0], []).append(topic)
    return found


def _partitions(admin: Any, topics: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for topic in admin.describe_topics(list(topics)):
        if topic["error_code"] == UNKNOWN_TOPIC:
            continue
        if topic["error_code"]:
            raise refused(topic["error_code"], topic["name"], "reading the topics")
        found[topic["name"]] = len(topic["partitions"])
    return found


def _sizes(admin: Any, topics: Sequence[str]) -> dict[str, int]:
    """Bytes by topic; none where the brokers do not say, or not to this client."""
    try:
        told: list[dict[str, Any]] = admin.describe_log_dirs(list(topics))
    except (kafka_errors.UnsupportedVersionError, kafka_errors.AuthorizationError):
        return {}
    sizes: dict[str, int] = {}
    for place in (each for broker in told for each in broker["log_dirs"]):
        for topic in place["topics"]:
            size = sum(partition["partition_size"] for partition in topic["partitions"])
            sizes[topic["name"]] = sizes.get(topic["name"], 0) + size
    return sizes


def remove_topics(settings: Settings, topics: Sequence[str]) -> None:
    """Delete topics and wait until the brokers know them no more. One that is gone already is no error.

    Raises TopicsError, KafkaUnavailable or KafkaFailed at the first that fails; running it again goes on from there.
    """
    if not topics:
        return
    with open_admin(settings, "removing topics") as admin:
        for topic in admin.delete_topics(list(topics), raise_errors=False)["topics"]:
            if topic["error_code"] not in (0, UNKNOWN_TOPIC):
                raise refused(topic["error_code"], topic.get("error_message"), f"removing {topic['name']}")
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while left := sorted(_partitions(admin, topics)):
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"{', '.join(left)} are still there {SETTLE_TIMEOUT_S:g} s after they were removed: whoever sends "
                    "to them may make them anew, where brokers have auto.create.topics.enable"
                )
            time.sleep(RETRY_PAUSE_S)


def remove_group(settings: Settings, group: str) -> None:
    """Delete a group with its offsets. One that is gone already is no error.

    Raises TopicsError where it has members, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    with open_admin(settings, f"removing group {group}") as admin:
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            try:
                outcome: str = admin.delete_groups([group])[group]
            except kafka_errors.CoordinatorNotAvailableError as error:
                outcome = type(error).__name__
            if outcome in ("OK", NO_SUCH_GROUP):
                return
            if outcome == HAS_MEMBERS:
                raise TopicsError(f"group {group} has members again: stop them, and do this once more")
            if outcome not in COORDINATOR_MOVES or time.monotonic() > deadline:
                raise KafkaUnavailable(f"removing group {group}: {outcome}; do this once more")
            time.sleep(RETRY_PAUSE_S)
