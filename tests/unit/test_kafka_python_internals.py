"""The parts of kafka-python that Headrace uses though they are private, for the pinned version.

When a new version fails here, read its coordinator, fetcher and transaction manager again before raising the pin.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.cluster import ClusterMetadata
from kafka.consumer.fetcher import Fetcher
from kafka.consumer.subscription_state import SubscriptionState
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import TransactionManager

from headrace.consumers import kafka_client, kafka_coordinator
from headrace.consumers.untyped_kafka import ConsumerCoordinator, KafkaConsumer
from headrace.producers import outgoing, transaction


def test_the_version_is_the_pinned_one() -> None:
    assert version("kafka-python") == "3.0.12"


def names_in(*of: Any) -> set[str]:
    """Attributes of classes, those that their methods set on `self` included."""
    found: set[str] = set()
    for each in of:
        for cls in each.__mro__:
            found |= set(vars(cls))
            for member in vars(cls).values():
                if code := getattr(member, "__code__", None):
                    found |= set(code.co_names)
    return found


@pytest.mark.parametrize(
    ("classes", "used"),
    [
        ([ConsumerCoordinator], kafka_coordinator.PRIVATE_ATTRIBUTES),
        ([ConsumerCoordinator], kafka_client.PRIVATE_ATTRIBUTES["coordinator"]),
        ([KafkaConsumer], kafka_client.PRIVATE_ATTRIBUTES["consumer"]),
        ([Fetcher], kafka_client.PRIVATE_ATTRIBUTES["fetcher"]),
        ([SubscriptionState], kafka_client.PRIVATE_ATTRIBUTES["subscription"]),
        ([KafkaProducer], transaction.PRIVATE_ATTRIBUTES["producer"]),
        ([KafkaProducer], outgoing.PRIVATE_ATTRIBUTES["producer"]),
        ([TransactionManager], outgoing.PRIVATE_ATTRIBUTES["manager"]),
        ([ClusterMetadata], outgoing.PRIVATE_ATTRIBUTES["metadata"]),
        ([Sender], transaction.PRIVATE_ATTRIBUTES["sender"]),
        ([TransactionManager], transaction.PRIVATE_ATTRIBUTES["manager"]),
    ],
)
def test_what_is_used_is_there(classes: list[Any], used: tuple[str, ...]) -> None:
    assert set(used) <= names_in(*classes)
