"""How long the metadata of a committed offset may be in this cluster."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from headrace.consumers.offset_encoding import SMALLEST_LIMIT
from headrace.consumers.offsets import METADATA_LIMIT
from headrace.schemas.errors import KafkaFailed
from headrace.topics.admin import ConfigResource, kafka_errors, open_admin

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

log = logging.getLogger(__name__)

LONGEST_METADATA = 16 * METADATA_LIMIT  # what is longer costs each commit more than room for it is worth
_NAME = "offset.metadata.max.bytes"


def offset_metadata_limit(settings: Settings) -> int:
    """Characters of metadata that every broker takes: the least `offset.metadata.max.bytes` of those that answer.

    Any of them may come to coordinate the group. Brokers that do not say (the embedded one has no such
    setting; a principal without the right to describe configurations is told nothing) count with Apache
    Kafka's default of 4,096. Never more than 65,536.
    Raises BrokerNotFound, KafkaUnavailable, and KafkaFailed (also for a limit too small to work with).
    """
    with open_admin(settings, f"reading {_NAME} of the brokers") as admin:
        limit = min(_limits(admin))
    if limit < SMALLEST_LIMIT:
        raise KafkaFailed(
            f"{_NAME} of this cluster is {limit}: set it to {METADATA_LIMIT} (Apache Kafka's default) on all brokers; "
            f"Headrace needs {SMALLEST_LIMIT} at least, and keeps more requests outstanding the longer it is"
        )
    return min(limit, LONGEST_METADATA)


def _limits(admin: Any) -> list[int]:
    """The limit of each broker that says it, or the default.

    A broker that was lost and is listed still must not stop a start; the embedded one ends the connection at this
    question.
    """
    limits: list[int] = []
    brokers: list[dict[str, Any]] = admin.describe_cluster()["brokers"]
    for broker in brokers:
        if broker.get("is_fenced", False):  # lost, and Apache Kafka 4 knows
            continue
        with contextlib.suppress(kafka_errors.RetriableError):
            limits.append(_limit_of(admin, str(broker["broker_id"])))
    if not limits:
        log.info("no broker says its %s: counting with the default of %d", _NAME, METADATA_LIMIT)
    return limits or [METADATA_LIMIT]


def _limit_of(admin: Any, broker: str) -> int:
    try:
        answer: dict[str, Any] = admin.describe_configs(
            [ConfigResource("BROKER", broker, {_NAME: None})], config_filter="all"
        )
    except (kafka_errors.UnsupportedVersionError, kafka_errors.IncompatibleBrokerVersion):
        return METADATA_LIMIT
    value = answer.get("broker", {}).get(broker, {}).get(_NAME, {}).get("value")
    return int(value) if value else METADATA_LIMIT
