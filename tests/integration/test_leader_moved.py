"""A partition whose leader has moved, asked about by a client that has not heard of it, on a real Kafka.

The stock client is seen to fail; where it does not fail any more, the test says which cure may go.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import NewTopic
from kafka.errors import KafkaTimeoutError
from kafka_members import WITHIN_S, produce, settings_for
from waiting import wait_until

from headrace.consumers.kafka_client import kafka_partition
from headrace.consumers.records import TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.ops.java import find_java
from headrace.ops.kafka_process import start_cluster

STOCK_WITHIN_MS = 3_000


@pytest.fixture
def two_brokers(kafka_home: Path) -> Iterator[str]:
    java = find_java()
    assert java is not None
    cluster = start_cluster(kafka_home, java.command, brokers=2)
    try:
        yield cluster.bootstrap_servers
    finally:
        cluster.stop()


def test_offsets_are_asked_of_the_new_leader_by_a_client_that_knows_the_former(two_brokers: str) -> None:
    """Answered by the former with "not the leader", the stock client asks it again at once, and again, until it
    refreshes what it knows of its own accord: after five minutes. Meanwhile a worker could not open the partition."""
    servers, moving = two_brokers.split(","), kafka_partition(TopicPartition("moving", 0))
    admin: Any = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics(
        [NewTopic("moving", num_partitions=-1, replication_factor=-1, replica_assignments={0: [1]})]
    )
    produce(two_brokers, "moving", 0, [b"x"] * 3)
    stock: Any = KafkaConsumer(bootstrap_servers=servers)
    ours = TailReader(
        settings_for(two_brokers), [TopicPartition("moving", 0)], start={TopicPartition("moving", 0): 3}
    )
    try:
        assert stock.end_offsets([moving]) == {moving: 3}
        assert ours.end_offsets() == {TopicPartition("moving", 0): 3}

        admin.alter_partition_reassignments({moving: [2]})

        def leader() -> int:
            (topic,) = admin.describe_topics(["moving"])
            return topic["partitions"][0]["leader_id"]

        wait_until(lambda: leader() == 2, WITHIN_S, "the leader to move")
        try:
            stock.end_offsets([moving], timeout_ms=STOCK_WITHIN_MS)
        except KafkaTimeoutError:
            pass
        else:
            pytest.fail("upstream is mended: FetchingConsumer._ask_offsets may go")
        assert ours.end_offsets() == {TopicPartition("moving", 0): 3}
    finally:
        ours.close()
        stock.close(autocommit=False)
        admin.close()
