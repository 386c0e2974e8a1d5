"""What the cluster says of topics before they are read: their partitions, and the offsets of a time."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from headrace.consumers.records import TopicPartition
from headrace.consumers.untyped_kafka import KafkaTopicPartition
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.schemas.errors import TopicsError
from headrace.topics.admin import open_admin

if TYPE_CHECKING:
    from datetime import datetime

    from headrace.schemas.settings import Settings

# A topic is unknown to a broker for a moment after it was created.
CREATION_TIMEOUT_S = 2.0
RETRY_PAUSE_S = 0.1

# Of Kafka's ListOffsets: asks for the end; answers that no record is so young.
LATEST = -1
NO_SUCH_RECORD = -1

UNKNOWN_TOPIC: int = kafka_errors.UnknownTopicOrPartitionError.errno


def partitions_of(settings: Settings, topics: Collection[str]) -> dict[str, list[TopicPartition]]:
    """The partitions of each topic, in order.

    Raises TopicsError where a topic does not exist, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    with open_admin(settings, f"looking up {', '.join(topics)}") as admin:
        deadline = time.monotonic() + CREATION_TIMEOUT_S
        while True:
            found: list[dict[str, Any]] = admin.describe_topics(list(topics))
            missing = [topic["name"] for topic in found if topic["error_code"] == UNKNOWN_TOPIC]
            if not missing:
                break
            if time.monotonic() > deadline:
                raise TopicsError(
                    f"there is no topic {', '.join(sorted(missing))}: create it with `headrace topics apply`, "
                    "or check the model, the contract and HEADRACE_PREFIX"
                )
            time.sleep(RETRY_PAUSE_S)
        for topic in found:
            if topic["error_code"]:
                raise kafka_errors.for_code(topic["error_code"])(topic["name"])
    return {
        topic["name"]: sorted(
            TopicPartition(topic["name"], each["partition_index"]) for each in topic["partitions"]
        )
        for topic in found
    }


def offsets_at(
    settings: Settings, partitions: Collection[TopicPartition], moment: datetime
) -> dict[TopicPartition, int]:
    """The offset of each partition's first record of that time or later; its end, where there is none yet.

    Raises KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    timestamp_ms = int(moment.timestamp() * 1000)
    with open_admin(settings, "looking up the offsets of a time") as admin:
        found = _look_up(admin, partitions, timestamp_ms)
        later = [tp for tp, offset in found.items() if offset == NO_SUCH_RECORD]
        return found | (_look_up(admin, later, LATEST) if later else {})


def _look_up(admin: Any, partitions: Collection[TopicPartition], spec: int) -> dict[TopicPartition, int]:
    found: dict[Any, Any] = admin.list_partition_offsets(
        {KafkaTopicPartition(*tp): spec for tp in partitions}
    )
    return {TopicPartition(*tp): at.offset for tp, at in found.items()}
