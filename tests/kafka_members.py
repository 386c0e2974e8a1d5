"""Topics and group members for tests on a real Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from waiting import wait_until

from headrace.consumers.assignor import UnitAssignor
from headrace.consumers.kafka import RequestConsumer
from headrace.consumers.records import Poll, Record, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.schemas.settings import Settings

WITHIN_S = 30.0


def settings_for(bootstrap: str, **values: Any) -> Settings:
    return Settings(**{"bootstrap_servers": bootstrap, "heartbeat_interval_ms": 200} | values)


@contextmanager
def admin_client(bootstrap: str) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        yield admin
    finally:
        admin.close()


def create_topics(bootstrap: str, **partitions: int) -> None:
    with admin_client(bootstrap) as admin:
        admin.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()])


def produce(bootstrap: str, topic: str, partition: int, values: Sequence[bytes]) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    try:
        futures = [producer.send(topic, value, partition=partition) for value in values]
        for future in futures:
            future.get(timeout=WITHIN_S)
    finally:
        producer.close()


class Member:
    """A worker's consumer, which starts every partition that it gets at `start`, unless that is None, and
    releases at once what it is to drain, unless `drains` is False."""

    def __init__(
        self,
        settings: Settings,
        topics: Sequence[str],
        *,
        group: str,
        slot: str,
        incarnation: str = "1",
        start: int | None = 0,
        drains: bool = True,
    ) -> None:
        self.assignor = UnitAssignor(slot=slot, incarnation=incarnation, version="1", capacity=4)
        self.consumer = RequestConsumer(
            settings, group=group, slot=slot, topics=topics, assignor=self.assignor
        )
        self.drains = drains
        self.start = start
        self.owned: set[TopicPartition] = set()
        self.revoked: list[TopicPartition] = []
        self.records: list[Record] = []
        self.out_of_range: dict[TopicPartition, int] = {}

    def poll(self, timeout_s: float = 0.05) -> Poll:
        poll = self.consumer.poll(timeout_s, 100)
        self.owned -= poll.revoked
        self.revoked += poll.revoked
        self.owned |= poll.assigned
        for tp in poll.assigned:
            if self.start is not None:
                self.consumer.start_at(tp, self.start)
        for tp, records in poll.records.items():
            assert tp in self.owned, "a record of a partition that was taken away"
            self.records += records
        self.out_of_range |= poll.out_of_range
        if self.drains:
            self.consumer.release(self.consumer.draining())
        return poll

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]

    @property
    def generation(self) -> int:
        return self.consumer.group_metadata().generation


def join_is_under_way(coordinator: Any) -> bool:
    task = coordinator._join_task
    return task is not None and not task.is_done


@contextmanager
def closing(*members: Member) -> Iterator[None]:
    try:
        yield
    finally:
        for member in members:
            member.consumer.close(leave_group=False)


def poll_until(
    condition: Callable[[], Any], *members: Member, what: str = "the members to get there"
) -> None:
    """Poll the members in turn until the condition holds."""

    def polled() -> Any:
        for member in members:
            member.poll()
        return condition()

    wait_until(polled, WITHIN_S, what)


def read_all(
    settings: Settings, topic: str, partitions: int = 1, isolation: Any = "read_committed"
) -> list[Record]:
    """Every record that lies in a topic now."""
    tps = [TopicPartition(topic, n) for n in range(partitions)]
    reader = TailReader(settings, tps, "beginning", isolation)
    try:
        ends = reader.end_offsets()
        found: list[Record] = []

        def read() -> bool:
            found.extend(reader.poll(0.1))
            return all((reader.position(tp) or 0) >= end for tp, end in ends.items())

        wait_until(read, WITHIN_S, f"all of {topic}")
        return found
    finally:
        reader.close()
