"""What FetchingConsumer asks of a real Kafka, and when: an idle one asks for next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka_members import WITHIN_S, create_topics, produce, settings_for
from waiting import wait_until

from headrace.consumers.connection import client_options
from headrace.consumers.kafka_client import (
    PARTIAL_FETCH_MAX_WAIT_MS,
    UNHURRIED_FETCH_MAX_WAIT_MS,
    FetchingConsumer,
    kafka_partition,
)
from headrace.consumers.records import TopicPartition

LONG_MS = 400


@contextmanager
def reader(
    bootstrap: str, tps: list[TopicPartition], unhurried_topics: Sequence[str] = ()
) -> Generator[FetchingConsumer]:
    consumer = FetchingConsumer(
        **client_options(settings_for(bootstrap)),
        group_id=None,
        auto_offset_reset="none",
        enable_auto_commit=False,
        fetch_max_wait_ms=LONG_MS,
        unhurried_topics=unhurried_topics,
    )
    try:
        client: Any = consumer
        client.assign([kafka_partition(tp) for tp in tps])
        for tp in tps:
            client.seek(kafka_partition(tp), 0)
        yield consumer
    finally:
        consumer.close(autocommit=False)


class Requests:
    """Notes each fetch that is sent: how long it may be held back, and the partitions of its session."""

    def __init__(self, consumer: Any) -> None:
        self.sent: list[tuple[int, set[Any]]] = []
        self._create: Callable[[], dict[int, tuple[Any, dict[Any, int]]]] = (
            consumer._fetcher._create_fetch_requests
        )
        consumer._fetcher._create_fetch_requests = self._noted

    def _noted(self) -> dict[int, tuple[Any, dict[Any, int]]]:
        created = self._create()
        self.sent += [(request.max_wait_ms, set(offsets)) for request, offsets in created.values()]
        return created


def fetch_until(
    consumer: FetchingConsumer, condition: Callable[[], Any], what: str, at_most: int = 100
) -> None:
    def fetched() -> Any:
        consumer.fetch(at_most)
        consumer.wait(0.05)
        return condition()

    wait_until(fetched, WITHIN_S, what)


def two_partitions(bootstrap: str, topic: str) -> list[TopicPartition]:
    create_topics(bootstrap, **{topic: 2})
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]


def test_while_all_is_being_fetched_a_fetch_does_not_visit_the_io_thread(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    with reader(kafka_bootstrap, two_partitions(kafka_bootstrap, unique_prefix)) as consumer:
        requests = Requests(consumer)
        fetch_until(consumer, lambda: len(requests.sent) > 1, "a fetch session")
        net: Any = consumer._client._manager._net
        visits: list[object] = []
        run: Callable[..., Any] = net.run

        def counted(*args: Any) -> Any:
            visits.append(args)
            return run(*args)

        net.run = counted
        before = len(requests.sent)
        for _ in range(200):
            consumer.fetch(100)
        # After each fetch that ended meanwhile, and now and then besides.
        assert len(visits) < 20
        assert len(requests.sent) - before <= len(visits)


def test_a_fetch_that_leaves_a_partition_out_is_not_held_back_for_long(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    tps = two_partitions(kafka_bootstrap, unique_prefix)
    with reader(kafka_bootstrap, tps) as consumer:
        client: Any = consumer
        requests = Requests(consumer)
        fetch_until(consumer, lambda: requests.sent, "the first fetch")
        assert requests.sent[0] == (LONG_MS, set(tps))
        client.pause(kafka_partition(tps[0]))
        fetch_until(consumer, lambda: len(requests.sent) > 1, "the fetch after the pause")
        assert requests.sent[1] == (PARTIAL_FETCH_MAX_WAIT_MS, {tps[1]})
        client.resume(kafka_partition(tps[0]))
        fetch_until(consumer, lambda: len(requests.sent) > 2, "the fetch after the resumption")
        assert requests.sent[2] == (LONG_MS, set(tps))


def test_a_fetch_that_leaves_out_what_is_in_no_hurry_may_be_held_back_longer(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    slow, quick = f"{unique_prefix}.slow", f"{unique_prefix}.quick"
    create_topics(kafka_bootstrap, **{slow: 1, quick: 2})
    tps = [TopicPartition(slow, 0), TopicPartition(quick, 0), TopicPartition(quick, 1)]
    with reader(kafka_bootstrap, tps, unhurried_topics=[slow]) as consumer:
        client: Any = consumer
        requests = Requests(consumer)
        fetch_until(consumer, lambda: requests.sent, "the first fetch")
        client.pause(kafka_partition(tps[0]))
        fetch_until(consumer, lambda: len(requests.sent) > 1, "the fetch after the pause")
        assert requests.sent[1] == (UNHURRIED_FETCH_MAX_WAIT_MS, set(tps[1:]))
        client.pause(kafka_partition(tps[1]))
        fetch_until(consumer, lambda: requests.sent[-1][1] == {tps[2]}, "the fetch after the second pause")
        assert requests.sent[-1] == (PARTIAL_FETCH_MAX_WAIT_MS, {tps[2]})


def test_a_partition_with_records_still_to_be_taken_is_not_waited_for_long(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    tps = two_partitions(kafka_bootstrap, unique_prefix)
    with reader(kafka_bootstrap, tps) as consumer:
        requests = Requests(consumer)
        # The first answer of a session tells of every partition, later ones of those with records.
        fetch_until(consumer, lambda: len(requests.sent) > 1, "a fetch session")
        produce(kafka_bootstrap, tps[0].topic, 0, [b"1", b"2", b"3"])
        found: list[bytes | None] = []

        def taken() -> bool:
            records, _ = consumer.fetch(1)
            found.extend(record.value for some in records.values() for record in some)
            if not records:
                consumer.wait(0.05)
            return len(found) == 3

        wait_until(taken, WITHIN_S, "three records, one by one")
        fetch_until(consumer, lambda: requests.sent[-1] == (LONG_MS, set(tps)), "a fetch of both again")
        assert found == [b"1", b"2", b"3"]
        partial = [sent for sent in requests.sent if sent[1] != set(tps)]
        assert partial
        assert {wait for wait, _ in partial} == {PARTIAL_FETCH_MAX_WAIT_MS}
