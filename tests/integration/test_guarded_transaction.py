"""The guarded transaction on a real Kafka: what is published and committed, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition
from kafka_members import WITHIN_S, Member, create_topics, poll_until, read_all, settings_for

from headrace.consumers.group import read_committed_offsets, remove_member
from headrace.consumers.records import CommitPoint, GroupMetadata, TopicPartition
from headrace.producers.kafka import CommitBatch, GuardedTransaction, OutgoingRecord, PlainProducer
from headrace.schemas.errors import (
    KafkaFailed,
    KafkaUnavailable,
    ResultTooLarge,
    StaleGeneration,
    TopicMissing,
)
from headrace.schemas.settings import Settings


class Work:
    """A group of one member that owns both partitions of its request topic, and a topic for results."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.requests, self.results, self.group = f"{prefix}.requests", f"{prefix}.results", prefix
        create_topics(bootstrap, **{self.requests: 2, self.results: 1})
        self.settings: Settings = settings_for(bootstrap)
        self.tps = [TopicPartition(self.requests, n) for n in range(2)]
        self.member = Member(self.settings, [self.requests], group=self.group, slot="a")
        self.transaction = GuardedTransaction(self.settings, f"{self.group}.a")
        self.transaction.open()
        poll_until(lambda: len(self.member.owned) == 2, self.member)

    def batch(self, *values: bytes, partition: int = 0, offset: int, metadata: str = "") -> CommitBatch:
        return CommitBatch(
            [OutgoingRecord(self.results, b"k", value, (("status", b"ok"),)) for value in values],
            {self.tps[partition]: CommitPoint(offset, metadata)},
            self.member.consumer.group_metadata(),
        )

    def committed(self) -> list[CommitPoint | None]:
        found = read_committed_offsets(self.settings, self.group, self.tps, WITHIN_S)
        return [found[tp] for tp in self.tps]

    def published(self) -> list[bytes | None]:
        return [record.value for record in read_all(self.settings, self.results)]

    def close(self) -> None:
        self.transaction.close()
        self.member.consumer.close(leave_group=False)


@pytest.fixture
def work(kafka_bootstrap: str, unique_prefix: str) -> Iterator[Work]:
    made = Work(kafka_bootstrap, unique_prefix)
    yield made
    made.close()


def test_records_and_offsets_are_there_together(work: Work) -> None:
    locations = work.transaction.commit(work.batch(b"1", b"2", offset=1, metadata="done 3"))
    assert locations == [(work.results, 0, 0), (work.results, 0, 1)]
    assert work.transaction.commit(work.batch(b"3", offset=2)) == [(work.results, 0, 3)]  # 2 is a marker
    assert work.committed() == [CommitPoint(2, ""), None]
    found = read_all(work.settings, work.results)
    assert [record.value for record in found] == [b"1", b"2", b"3"]
    assert (found[0].key, list(found[0].headers)) == (b"k", [("status", b"ok")])
    assert work.transaction.deadline is None


def test_offsets_alone_can_be_committed_and_again(work: Work) -> None:
    for _ in range(2):
        assert work.transaction.commit(work.batch(offset=4)) == []
    assert work.committed() == [CommitPoint(4, ""), None]


def test_the_most_metadata_that_fits_comes_back_as_it_was(work: Work) -> None:
    metadata = "ä" * 1000 + "x" * 3096
    work.transaction.commit(work.batch(b"1", offset=1, metadata=metadata))
    assert work.committed() == [CommitPoint(1, metadata), None]
    with pytest.raises(ValueError, match="4097 characters"):
        work.transaction.commit(work.batch(b"2", offset=2, metadata="x" * 4097))


def test_a_batch_that_would_leave_no_trace_is_a_mistake(work: Work) -> None:
    work.transaction.commit(work.batch(b"1", offset=1))
    with pytest.raises(ValueError, match="moves no offset"):
        work.transaction.commit(work.batch(b"2", offset=1))
    with pytest.raises(ValueError, match="without offsets"):
        work.transaction.commit(replace(work.batch(b"2", offset=2), offsets={}))


def test_nothing_is_committed_for_who_is_no_member(work: Work) -> None:
    nobody = GroupMetadata(work.group, -1, "", None)
    with pytest.raises(StaleGeneration, match="no member"):
        work.transaction.commit(replace(work.batch(b"1", offset=1), group=nobody))
    assert work.committed() == [None, None]


def test_a_stale_generation_publishes_nothing_and_the_next_batch_is_fine(work: Work) -> None:
    stale = work.batch(b"stale", partition=1, offset=7)
    work.member.consumer.rejoin()
    poll_until(lambda: work.member.generation > stale.group.generation, work.member)
    with pytest.raises(StaleGeneration):
        work.transaction.commit(stale)
    work.transaction.commit(work.batch(b"fine", offset=1))
    assert work.published() == [b"fine"]
    assert work.committed() == [CommitPoint(1, ""), None]


def test_the_stock_producer_sends_refused_offsets_with_its_next_transaction(work: Work) -> None:
    """So a producer whose offsets were refused is not used again."""
    producer = KafkaProducer(
        bootstrap_servers=work.settings.bootstrap_servers, transactional_id=f"{work.group}.stock"
    )
    producer.init_transactions()
    current: Any = work.member.consumer._coordinator.group_metadata()
    work.member.consumer.rejoin()
    poll_until(lambda: work.member.generation > current.generation_id, work.member)

    def send_offsets(partition: int, offset: int, group: ConsumerGroupMetadata) -> None:
        producer.begin_transaction()
        tp = KafkaTopicPartition(work.requests, partition)
        producer.send_offsets_to_transaction({tp: OffsetAndMetadata(offset, "", -1)}, group)

    with pytest.raises(kafka_errors.CommitFailedError):
        send_offsets(1, 7, current)
    producer.abort_transaction()
    send_offsets(0, 1, work.member.consumer._coordinator.group_metadata())
    producer.commit_transaction()
    producer.close()
    assert work.committed() == [CommitPoint(1, ""), CommitPoint(7, "")], "upstream is mended"


def test_a_slot_that_is_another_member_by_now_publishes_nothing_and_leaves_the_others_producer_alone(
    work: Work,
) -> None:
    newer = Member(work.settings, [work.requests], group=work.group, slot="a", incarnation="2")
    old = work.batch(b"older", offset=1)
    poll_until(lambda: newer.owned, newer)
    with pytest.raises(StaleGeneration, match="another member"):
        work.transaction.commit(old)
    assert work.transaction._producer is None, "whether there is another process is the consumer's to say"
    newer.consumer.close(leave_group=False)
    assert work.published() == []
    assert work.committed() == [None, None]


def test_a_member_that_was_expelled_and_has_joined_again_commits_under_its_new_id(work: Work) -> None:
    """Its old member id is fenced then, as a twin's would be: that must not end the worker."""
    old = work.batch(b"under the old id", offset=1)
    assert remove_member(work.settings, work.group, "a")
    poll_until(
        lambda: work.member.consumer.group_metadata().member_id not in ("", old.group.member_id), work.member
    )
    with pytest.raises(StaleGeneration):
        work.transaction.commit(old)
    work.transaction.commit(work.batch(b"under the new one", offset=1))
    assert work.published() == [b"under the new one"]


def test_a_transaction_that_a_dead_predecessor_left_open_is_ended_by_open(work: Work) -> None:
    dead = KafkaProducer(
        bootstrap_servers=work.settings.bootstrap_servers,
        transactional_id=f"{work.group}.a",
        transaction_timeout_ms=600_000,  # nobody waits for that
    )
    dead.init_transactions()
    dead.begin_transaction()
    dead.send(work.results, b"never").get(timeout=WITHIN_S)
    offsets = {KafkaTopicPartition(*work.tps[0]): OffsetAndMetadata(3, "", -1)}
    dead.send_offsets_to_transaction(offsets, work.member.consumer._coordinator.group_metadata())
    with pytest.raises(KafkaUnavailable):
        read_committed_offsets(work.settings, work.group, work.tps, 0.5)
    successor = GuardedTransaction(work.settings, f"{work.group}.a")
    successor.open()
    assert work.committed() == [None, None]
    successor.commit(work.batch(b"next", offset=1))
    successor.close()
    assert work.published() == [b"next"]
    dead._sender.force_close()
    dead.close(timeout=5)


def test_a_record_larger_than_any_topic_takes_is_refused_before_it_costs_a_transaction(work: Work) -> None:
    large = OutgoingRecord(work.results, b"k", b"x" * work.settings.max_record_bytes)
    with pytest.raises(ResultTooLarge):
        work.transaction.check_size(large)
    batch = work.batch(b"fine", b"too large", offset=1)
    batch.records[1] = large
    with pytest.raises(ResultTooLarge) as refused:
        work.transaction.commit(batch)
    assert refused.value.index == 1


def test_a_record_larger_than_its_topic_takes_is_named_and_nothing_is_published(work: Work) -> None:
    batch = work.batch(b"fine", b"x" * 2_000_000, b"fine too", offset=1)  # the topic has the broker's 1 MB
    with pytest.raises(ResultTooLarge, match=r"max\.message\.bytes") as refused:
        work.transaction.commit(batch)
    assert refused.value.index == 1
    del batch.records[1]
    work.transaction.commit(batch)
    assert work.published() == [b"fine", b"fine too"]


@pytest.mark.parametrize("where", [{"topic": "missing"}, {"partition": 9}])
def test_a_topic_or_partition_that_does_not_exist_is_named_and_nothing_is_published(
    work: Work, where: dict[str, Any]
) -> None:
    batch = work.batch(b"fine", b"lost", offset=1)
    batch.records[1] = batch.records[1]._replace(**where)
    with pytest.raises(TopicMissing) as refused:
        work.transaction.commit(batch)
    assert refused.value.index == 1
    assert work.published() == []
    assert work.committed() == [None, None]


def test_the_plain_producer_says_where_a_record_lies_and_why_one_does_not(work: Work) -> None:
    producer = PlainProducer(work.settings)
    fine = [producer.send(OutgoingRecord(work.results, None, b"%d" % n, (), 0)) for n in range(3)]
    producer.flush(WITHIN_S)
    assert [future.result(0) for future in fine] == [(work.results, 0, n) for n in range(3)]
    refused = {
        ResultTooLarge: OutgoingRecord(work.results, b"k", b"x" * work.settings.max_record_bytes),
        TopicMissing: OutgoingRecord("missing", b"k", b"v"),
        KafkaFailed: OutgoingRecord(work.results, None, None),
    }
    for error, record in refused.items():
        assert isinstance(producer.send(record).exception(WITHIN_S), error)
    too_large_for_its_topic = producer.send(OutgoingRecord(work.results, b"k", b"x" * 2_000_000))
    assert isinstance(too_large_for_its_topic.exception(WITHIN_S), ResultTooLarge)
    producer.close()
