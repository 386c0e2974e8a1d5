"""RequestConsumer as a member of a group, on a real Kafka."""

from __future__ import annotations

import threading
import time

import pytest
from kafka import KafkaProducer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition
from kafka_members import (
    WITHIN_S,
    Member,
    admin_client,
    closing,
    create_topics,
    join_is_under_way,
    poll_until,
    produce,
    settings_for,
)
from waiting import wait_until

from headrace.consumers.group import remove_member
from headrace.consumers.records import TopicPartition
from headrace.schemas.errors import KafkaFailed, KafkaUnavailable, SlotTaken


def test_units_are_shared_and_every_record_is_read(kafka_bootstrap: str, unique_prefix: str) -> None:
    one, two = f"{unique_prefix}.one", f"{unique_prefix}.two"
    create_topics(kafka_bootstrap, **{one: 4, two: 2})
    for partition in range(4):
        produce(kafka_bootstrap, one, partition, [b"%d" % partition])
    settings = settings_for(kafka_bootstrap)
    a, b = (Member(settings, [one, two], group=unique_prefix, slot=slot) for slot in "ab")
    with closing(a, b):
        poll_until(lambda: len(a.owned) == 6, a)
        poll_until(lambda: len(a.owned) + len(b.owned) == 6 and b.owned, a, b)
        units = [{tp.partition for tp in member.owned} for member in (a, b)]
        assert [len(some) for some in units] == [2, 2]
        assert not units[0] & units[1], "a unit is all partitions of one number"
        poll_until(lambda: set(a.values) | set(b.values) == {b"0", b"1", b"2", b"3"}, a, b)
        assert set(a.revoked) == b.owned


def test_a_new_partition_gives_nothing_before_start_at(kafka_bootstrap: str, unique_prefix: str) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    produce(kafka_bootstrap, unique_prefix, 0, [b"0", b"1", b"2"])
    tp = TopicPartition(unique_prefix, 0)
    member = Member(settings_for(kafka_bootstrap), [unique_prefix], group=unique_prefix, slot="a", start=None)
    with closing(member):
        poll_until(lambda: member.owned, member)
        for _ in range(10):
            member.poll()
        assert member.records == []
        assert member.consumer.position(tp) is None
        member.consumer.start_at(tp, 1)
        poll_until(lambda: member.records, member)
        assert member.values == [b"1", b"2"]
        assert member.consumer.position(tp) == 3
        assert member.consumer.lag(tp) == 0
        with pytest.raises(KafkaFailed, match="not assigned"):
            member.consumer.start_at(TopicPartition(unique_prefix, 7), 0)


def test_paused_partitions_give_nothing_until_they_are_resumed(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 2})
    tps = [TopicPartition(unique_prefix, n) for n in range(2)]
    member = Member(settings_for(kafka_bootstrap), [unique_prefix], group=unique_prefix, slot="a")
    with closing(member):
        poll_until(lambda: len(member.owned) == 2, member)
        member.consumer.pause(tps[:1])
        for partition in range(2):
            produce(kafka_bootstrap, unique_prefix, partition, [b"%d" % partition])
        poll_until(lambda: member.records, member)
        member.poll()
        assert member.values == [b"1"]
        member.consumer.resume(tps[:1])
        poll_until(lambda: len(member.records) == 2, member)


def test_new_claims_during_a_join_are_not_lost(kafka_bootstrap: str, unique_prefix: str) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    member = Member(settings_for(kafka_bootstrap), [unique_prefix], group=unique_prefix, slot="a")
    with closing(member):
        poll_until(lambda: member.owned, member)
        generation = member.generation
        member.consumer.rejoin()
        member.poll(0)
        assert member.consumer._coordinator._join_task is not None
        member.consumer.rejoin()  # what the join under way says is out of date now
        poll_until(lambda: member.generation == generation + 2, member)


def test_partitions_added_later_are_noticed_and_assigned(kafka_bootstrap: str, unique_prefix: str) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    member = Member(settings_for(kafka_bootstrap), [unique_prefix], group=unique_prefix, slot="a")
    with closing(member), admin_client(kafka_bootstrap) as admin:
        poll_until(lambda: member.owned, member)
        admin.create_partitions({unique_prefix: 3})
        member.consumer._client._cluster.request_update()
        poll_until(lambda: len(member.owned) == 3, member)
        assert member.revoked == []


def test_the_older_of_two_processes_with_one_slot_is_told(kafka_bootstrap: str, unique_prefix: str) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    settings = settings_for(kafka_bootstrap)
    older = Member(settings, [unique_prefix], group=unique_prefix, slot="a", incarnation="1")
    newer = Member(settings, [unique_prefix], group=unique_prefix, slot="a", incarnation="2")
    with closing(older, newer):
        poll_until(lambda: older.owned, older)
        older.consumer.check_alive()
        poll_until(lambda: newer.owned, newer)

        def told() -> bool:
            newer.poll()
            try:
                older.consumer.check_alive()
            except SlotTaken:
                return True
            return False

        wait_until(told, WITHIN_S, "the older process to be told")
        with pytest.raises(SlotTaken, match="give each worker a slot of its own"):
            older.poll()
        newer.consumer.check_alive()


def test_a_slot_that_restarts_within_its_session_leads_again(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    settings = settings_for(kafka_bootstrap)
    first = Member(settings, [unique_prefix], group=unique_prefix, slot="a", incarnation="1")
    poll_until(lambda: first.owned, first)
    first.consumer.close(leave_group=False)
    second = Member(settings, [unique_prefix], group=unique_prefix, slot="a", incarnation="2")
    with closing(second):
        poll_until(lambda: second.owned and second.consumer._coordinator._is_leader, second)
        assert second.revoked == []


def test_an_expelled_member_reports_its_partitions_lost_though_they_come_back(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 2})
    settings = settings_for(kafka_bootstrap)
    member = Member(settings, [unique_prefix], group=unique_prefix, slot="a")
    with closing(member):
        poll_until(lambda: len(member.owned) == 2, member)
        assert remove_member(settings, unique_prefix, "a")
        poll_until(lambda: len(member.revoked) == 2 and len(member.owned) == 2, member)


def test_a_member_that_is_found_expelled_by_its_own_join_reports_its_partitions_lost(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    """Heartbeats are too rare to tell it; another member may have had the partitions meanwhile."""
    create_topics(kafka_bootstrap, **{unique_prefix: 2})
    settings = settings_for(kafka_bootstrap, heartbeat_interval_ms=9_000, session_timeout_ms=30_000)
    member = Member(settings, [unique_prefix], group=unique_prefix, slot="a")
    with closing(member):
        poll_until(lambda: len(member.owned) == 2, member)
        assert remove_member(settings, unique_prefix, "a")
        member.consumer.rejoin()
        poll_until(lambda: len(member.revoked) == 2 and len(member.owned) == 2, member)


@pytest.mark.parametrize("how", ["close", "remove_member"])
def test_partitions_of_a_member_that_leaves_for_good_move_at_once(
    kafka_bootstrap: str, unique_prefix: str, how: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 2})
    settings = settings_for(kafka_bootstrap, session_timeout_ms=300_000)  # nobody waits for that
    a, b = (Member(settings, [unique_prefix], group=unique_prefix, slot=slot) for slot in "ab")
    with closing(a):
        poll_until(lambda: len(a.owned) == 1 and len(b.owned) == 1, a, b)
        b.consumer.close(leave_group=how == "close")
        if how == "remove_member":
            assert remove_member(settings, unique_prefix, "b")
            assert not remove_member(settings, unique_prefix, "b")
        poll_until(lambda: len(a.owned) == 2, a)


def test_a_member_can_leave_for_good_in_the_middle_of_a_join(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    """The broker handles no further request of a connection that waits for a join."""
    create_topics(kafka_bootstrap, **{unique_prefix: 3})
    settings = settings_for(kafka_bootstrap, session_timeout_ms=300_000)  # nobody waits for that
    a, busy, leaving = (Member(settings, [unique_prefix], group=unique_prefix, slot=slot) for slot in "abc")
    with closing(a, busy):
        poll_until(lambda: len(a.owned) + len(busy.owned) == 3 and busy.owned, a, busy)
        poll_until(lambda: join_is_under_way(leaving.consumer._coordinator), leaving)
        leaving.consumer.close(leave_group=True)
        poll_until(lambda: len(a.owned) + len(busy.owned) == 3 and a.generation > 2, a, busy)
        assert not remove_member(settings, unique_prefix, "c")


def test_a_position_that_retention_removed_is_reported_and_others_go_on(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 2})
    gone, fine = (TopicPartition(unique_prefix, n) for n in range(2))
    for partition in range(2):
        produce(kafka_bootstrap, unique_prefix, partition, [b"%d.%d" % (partition, n) for n in range(4)])
    with admin_client(kafka_bootstrap) as admin:
        admin.delete_records({KafkaTopicPartition(*gone): 3})
    member = Member(settings_for(kafka_bootstrap), [unique_prefix], group=unique_prefix, slot="a", start=1)
    with closing(member):
        poll_until(lambda: member.out_of_range and len(member.records) == 3, member)
        assert member.out_of_range == {gone: 1}
        assert {record.topic_partition for record in member.records} == {fine}
        assert member.consumer.position(gone) is None
        begins = member.consumer.beginning_offsets([gone])
        assert begins == {gone: 3}
        member.consumer.start_at(gone, begins[gone])
        poll_until(lambda: b"0.3" in member.values, member)
        assert member.consumer.end_offsets([gone, fine]) == {gone: 4, fine: 4}


def test_committed_offsets_are_waited_for_while_a_transaction_is_open_over_them(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    tp = TopicPartition(unique_prefix, 0)
    producer = KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=unique_prefix)
    producer.init_transactions()
    member = Member(settings_for(kafka_bootstrap), [unique_prefix], group=unique_prefix, slot="a")
    with closing(member):
        poll_until(lambda: member.owned, member)
        assert member.consumer.committed([tp], 10) == {tp: None}
        producer.begin_transaction()
        offsets = {KafkaTopicPartition(*tp): OffsetAndMetadata(1, "done", -1)}
        producer.send_offsets_to_transaction(offsets, member.consumer._coordinator.group_metadata())
        with pytest.raises(KafkaUnavailable):
            member.consumer.committed([tp], 0.3)
        threading.Timer(0.3, producer.commit_transaction).start()
        assert member.consumer.committed([tp], WITHIN_S) == {tp: (1, "done")}
    producer.close()


def test_a_poll_that_waits_can_be_woken(kafka_bootstrap: str, unique_prefix: str) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    member = Member(settings_for(kafka_bootstrap), [unique_prefix], group=unique_prefix, slot="a")
    with closing(member):
        poll_until(lambda: member.owned, member)
        threading.Timer(0.2, member.consumer.wake_up).start()
        started = time.monotonic()
        assert not member.consumer.poll(600, 1)
        assert time.monotonic() - started < 60
