"""What RequestConsumer cures of the stock client, on a real Kafka: the stock client is seen to fail, and ours not.

Where the stock client does not fail any more, the test says which cure may go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka_members import (
    WITHIN_S,
    Member,
    closing,
    create_topics,
    join_is_under_way,
    poll_until,
    produce,
    settings_for,
)
from waiting import wait_until

from headrace.consumers.assignor import UnitAssignor
from headrace.consumers.connection import client_options
from headrace.consumers.group import remove_member
from headrace.consumers.kafka_client import FetchingConsumer, kafka_partition
from headrace.consumers.records import TopicPartition
from headrace.schemas.errors import SlotTaken


def stock_member(bootstrap: str, topic: str, group: str, listener: Any = None, **options: Any) -> Any:
    consumer = KafkaConsumer(
        **{
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "partition_assignment_strategy": [CooperativeStickyAssignor],
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 200,
            "fetch_max_wait_ms": 50,
        }
        | options
    )
    # Before it can lead: a stock leader that has not heard of the topic gives nothing to anybody, for minutes.
    wait_until(lambda: consumer.partitions_for_topic(topic), WITHIN_S, "metadata of the topic")
    consumer.subscribe([topic], listener=listener)
    return consumer


def test_a_join_that_ends_between_two_polls_is_used(kafka_bootstrap: str, unique_prefix: str) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    stock = stock_member(kafka_bootstrap, unique_prefix, f"{unique_prefix}.stock")

    def generation_of_stock() -> int:  # each poll sends a join, which ends before the next
        stock.poll(timeout_ms=0)
        wait_until(lambda: not join_is_under_way(stock._coordinator), WITHIN_S, "the join to end")
        return stock._coordinator._generation.generation_id

    wait_until(lambda: generation_of_stock() >= 5, WITHIN_S, "five generations")
    assert not stock.assignment(), "upstream is mended: RequestCoordinator.join_group_async may go"
    stock.close()

    member = Member(settings_for(kafka_bootstrap), [unique_prefix], group=unique_prefix, slot="a")
    with closing(member):

        def is_assigned() -> bool:
            member.poll(0)
            coordinator = member.consumer._coordinator
            wait_until(lambda: not join_is_under_way(coordinator), WITHIN_S, "the join to end")
            return bool(member.owned)

        wait_until(is_assigned, WITHIN_S, "the partition")
        assert member.generation <= 2, "one before the leader has heard of the topic, and one after"


def test_owned_partitions_are_read_while_another_member_has_yet_to_rejoin(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 4})
    stock, busy, late = (
        stock_member(kafka_bootstrap, unique_prefix, f"{unique_prefix}.stock") for _ in range(3)
    )

    def both_served() -> bool:
        for each in (stock, busy):
            each.poll(timeout_ms=50)
        return len(stock.assignment()) == 2 and len(busy.assignment()) == 2

    wait_until(both_served, WITHIN_S, "two stock members to share the topic")
    late.poll(timeout_ms=50)  # makes the others rejoin; `busy` does not come

    def stock_rejoins() -> bool:
        stock.poll(timeout_ms=50)
        return join_is_under_way(stock._coordinator)

    wait_until(stock_rejoins, WITHIN_S, "the stock member to rejoin")
    for partition in range(4):
        produce(kafka_bootstrap, unique_prefix, partition, [b"x"])
    assert [stock.poll(timeout_ms=200) for _ in range(5)] == [{}] * 5, "upstream is mended: fetch() may go"
    assert join_is_under_way(stock._coordinator)
    for each in (stock, busy, late):
        each.close(timeout_ms=500)

    settings = settings_for(kafka_bootstrap)
    a, b, c = (Member(settings, [unique_prefix], group=unique_prefix, slot=slot) for slot in "abc")
    with closing(a, b, c):
        poll_until(lambda: len(a.owned) == 2 and len(b.owned) == 2, a, b)
        poll_until(lambda: join_is_under_way(a.consumer._coordinator), a, c)
        for tp in a.owned:
            produce(kafka_bootstrap, *tp, [b"y"])
        poll_until(lambda: a.values.count(b"y") == 2, a)
        assert join_is_under_way(a.consumer._coordinator), "read while the join was under way"


def test_nobody_joins_once_more_for_a_unit_that_was_released(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 2})
    assignor = UnitAssignor(slot="stock", incarnation="1", version="1", capacity=1)
    settings, group = settings_for(kafka_bootstrap), f"{unique_prefix}.stock"
    leader = Member(settings, [unique_prefix], group=group, slot="leader")
    stock = stock_member(
        kafka_bootstrap,
        unique_prefix,
        group,
        partition_assignment_strategy=[assignor],
        group_instance_id="stock",
    )
    coordinator = stock._coordinator
    complete, ask = coordinator._on_join_complete_async, coordinator.request_rejoin
    completing = [False]
    asked: list[int] = []

    async def completed(*join: Any) -> None:
        completing[0] = True
        await complete(*join)
        completing[0] = False

    def asked_to_rejoin() -> None:
        if completing[0]:
            asked.append(coordinator._generation.generation_id)
        ask()

    def polled(condition: Callable[[], Any]) -> Any:
        leader.poll()
        stock.poll(timeout_ms=300)
        return condition()

    with closing(leader):
        poll_until(lambda: len(leader.owned) == 2, leader)  # so that it leads
        wait_until(
            lambda: polled(lambda: len(stock.assignment()) == 1), WITHIN_S, "a partition for the stock member"
        )
        coordinator._on_join_complete_async, coordinator.request_rejoin = completed, asked_to_rejoin
        assignor.leave()
        ask()
        wait_until(lambda: polled(lambda: assignor.draining), WITHIN_S, "the drain")
        assignor.release(assignor.draining)
        ask()
        wait_until(
            lambda: polled(lambda: len(leader.owned) == 2 and not stock.assignment()), WITHIN_S, "the move"
        )
    stock.close(timeout_ms=500)
    assert asked, "upstream is mended: what RequestCoordinator._complete_join does to rejoin_needed may go"

    a, b = (Member(settings, [unique_prefix], group=unique_prefix, slot=slot) for slot in "ab")
    with closing(a, b):
        poll_until(lambda: len(a.owned) == 1 and len(b.owned) == 1, a, b)
        generation = a.generation
        for _ in range(20):
            poll_until(lambda: not join_is_under_way(a.consumer._coordinator), a, b)
        assert a.generation == generation


def test_the_older_of_two_processes_with_one_slot_is_told(
    kafka_bootstrap: str, unique_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    group = f"{unique_prefix}.stock"
    older_stock, newer_stock = (
        stock_member(kafka_bootstrap, unique_prefix, group, group_instance_id="a") for _ in range(2)
    )
    wait_until(
        lambda: older_stock.poll(timeout_ms=300) or older_stock.assignment(), WITHIN_S, "the partition"
    )
    wait_until(
        lambda: newer_stock.poll(timeout_ms=300) or newer_stock.assignment(), WITHIN_S, "the partition"
    )
    wait_until(lambda: "caught fenced group_instance_id" in caplog.text, WITHIN_S, "its heartbeats to end")
    assert older_stock.poll(timeout_ms=0) == {}, "upstream is mended: RequestCoordinator.fenced may go"
    for each in (older_stock, newer_stock):
        each.close(timeout_ms=500)

    settings = settings_for(kafka_bootstrap)
    older, newer = (
        Member(settings, [unique_prefix], group=unique_prefix, slot="a", incarnation=life) for life in "12"
    )
    with closing(older, newer):
        poll_until(lambda: older.owned, older)
        poll_until(lambda: newer.owned, newer)
        with pytest.raises(SlotTaken):
            poll_until(lambda: False, newer, older)


class Lost(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.lost: list[Any] = []

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.lost += revoked

    def on_partitions_lost(self, lost: Any) -> None:
        self.lost += lost

    def on_partitions_assigned(self, assigned: Any) -> None:
        pass


def test_a_member_that_is_found_expelled_by_its_own_join_is_told_that_it_lost_its_partitions(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    """Heartbeats are too rare to tell it; another member may have had the partitions meanwhile."""
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    settings = settings_for(kafka_bootstrap, heartbeat_interval_ms=9_000, session_timeout_ms=30_000)
    group, listener = f"{unique_prefix}.stock", Lost()
    stock = stock_member(
        kafka_bootstrap,
        unique_prefix,
        group,
        listener,
        group_instance_id="a",
        heartbeat_interval_ms=9_000,
        session_timeout_ms=30_000,
    )
    wait_until(lambda: stock.poll(timeout_ms=300) or stock.assignment(), WITHIN_S, "the partition")
    member_id = stock._coordinator._generation.member_id
    assert remove_member(settings, group, "a")
    stock._coordinator.request_rejoin()

    def joined_anew() -> bool:
        stock.poll(timeout_ms=300)
        return stock._coordinator._generation.member_id not in ("", member_id) and stock._coordinator.stable()

    wait_until(joined_anew, WITHIN_S, "the member to join anew")
    assert listener.lost == [], "upstream is mended: RequestCoordinator.reset_generation may go"
    stock.close(timeout_ms=500)

    member = Member(settings, [unique_prefix], group=unique_prefix, slot="a")
    with closing(member):
        poll_until(lambda: member.owned, member)
        assert remove_member(settings, unique_prefix, "a")
        member.consumer.rejoin()
        poll_until(lambda: member.revoked and member.owned, member)


def test_what_was_parked_when_its_partition_was_paused_is_returned_once_it_is_resumed(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    """The stock client keeps it for ever where another partition was read meanwhile."""
    create_topics(kafka_bootstrap, **{unique_prefix: 2})
    long, short = (kafka_partition(TopicPartition(unique_prefix, number)) for number in (0, 1))
    produce(kafka_bootstrap, unique_prefix, 0, [b"%d" % number for number in range(30)])
    options: dict[str, Any] = {"enable_auto_commit": False, "fetch_max_wait_ms": 50}
    stock: Any = KafkaConsumer(bootstrap_servers=kafka_bootstrap, **options)
    ours: Any = FetchingConsumer(
        **client_options(settings_for(kafka_bootstrap)), group_id=None, auto_offset_reset="none", **options
    )
    stock_found = Found(stock, lambda: stock.poll(20, max_records=10))
    stock_found.park(long, short, lambda: produce(kafka_bootstrap, unique_prefix, 1, [b"x"]))
    for _ in range(50):
        stock_found.take()
    assert stock_found.counts[long] == 10, "upstream is mended: its cure in FetchingConsumer.fetch may go"
    found = Found(ours, lambda: ours.fetch(10)[0])
    found.park(long, short, lambda: None)
    wait_until(lambda: found.take()[long] == 30, WITHIN_S, "the rest of the long one")
    for consumer in (stock, ours):
        consumer.close(autocommit=False)


class Found:
    """How many records a consumer has returned of each partition."""

    def __init__(self, consumer: Any, taken: Callable[[], Any]) -> None:
        self.counts: Counter[Any] = Counter()
        self._consumer = consumer
        self._taken = taken

    def take(self) -> Counter[Any]:
        for tp, records in self._taken().items():
            self.counts[kafka_partition(TopicPartition(*tp))] += len(records)
        return self.counts

    def park(self, long: Any, short: Any, send_short: Callable[[], None]) -> None:
        """Pause a partition of which a part was taken, read another meanwhile, and resume it."""
        self._consumer.assign([long, short])
        self._consumer.seek(long, 0)
        wait_until(lambda: self.take()[long] == 10, WITHIN_S, "a third of the long one")
        self._consumer.pause(long)
        send_short()
        self._consumer.seek(short, 0)
        wait_until(lambda: self.take()[short] == 1, WITHIN_S, "the short one")
        self._consumer.resume(long)
