"""Transactions whose end is in doubt: a proxy before the broker cuts off one kind of request, or loses an answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition
from kafka_fixtures import not_to_be_had
from kafka_members import (
    WITHIN_S,
    Member,
    admin_client,
    create_topics,
    poll_until,
    produce,
    read_all,
    settings_for,
)
from tcp_proxy import END_TXN, INIT_PRODUCER_ID, PRODUCE, KafkaProxy
from waiting import wait_until

from headrace.consumers.group import read_committed_offsets
from headrace.consumers.records import CommitPoint, RecordLocation, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.ops.java import find_java
from headrace.ops.kafka_process import start_cluster
from headrace.ops.ports import free_ports
from headrace.producers.kafka import CommitBatch, GuardedTransaction, OutgoingRecord
from headrace.schemas.errors import KafkaFailed, KafkaUnavailable, TransactionHung
from headrace.schemas.settings import Settings

TRANSACTION_TIMEOUT_MS = 3_000

# kafka-python drops a connection whose broker does not answer without closing its socket: here the proxy holds it open.
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings(r"ignore:unclosed <socket\.socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def proxy() -> Iterator[KafkaProxy]:
    """A broker of our own that its clients reach only through the proxy."""
    home, java = os.environ.get("KAFKA_HOME"), find_java()
    if not home or java is None or not java.runs_kafka:
        not_to_be_had("this needs a Kafka of its own: set KAFKA_HOME and have Java 17")
    assert home
    assert java
    port = free_ports(1)[0]
    made = KafkaProxy(port)
    cluster = start_cluster(
        Path(home),
        java.command,
        port=port,
        extra=lambda _: {
            "advertised.listeners": f"PLAINTEXT://{made.address}",
            "auto.create.topics.enable": "true",  # so that a client which asks for it is found out
        },
    )
    yield made
    made.close()
    cluster.stop()


class Work:
    """A group with one member, its topic of results, and what is committed and published."""

    def __init__(self, proxy: KafkaProxy, prefix: str) -> None:
        self.requests, self.results, self.group = f"{prefix}.requests", f"{prefix}.results", prefix
        create_topics(proxy.address, **{self.requests: 1, self.results: 1})
        self.settings: Settings = settings_for(
            proxy.address, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, session_timeout_ms=60_000
        )
        self.tp = TopicPartition(self.requests, 0)
        self.member = Member(self.settings, [self.requests], group=self.group, slot="a")
        poll_until(lambda: self.member.owned, self.member)
        self.transaction = GuardedTransaction(self.settings, f"{self.group}.a")
        self.transaction.open()

    def batch(self, value: bytes, offset: int) -> CommitBatch:
        records = [OutgoingRecord(self.results, b"k", value)]
        return CommitBatch(records, {self.tp: CommitPoint(offset, "")}, self.member.consumer.group_metadata())

    def committed(self) -> CommitPoint | None:
        return read_committed_offsets(self.settings, self.group, [self.tp], WITHIN_S)[self.tp]

    def published(self) -> list[bytes | None]:
        return [record.value for record in read_all(self.settings, self.results)]


@pytest.fixture
def work(proxy: KafkaProxy, unique_prefix: str) -> Iterator[Work]:
    made = Work(proxy, unique_prefix)
    yield made
    proxy.heal()
    made.transaction.close()
    made.member.consumer.close(leave_group=False)


def heal_once_aborted(work: Work, proxy: KafkaProxy) -> threading.Thread:
    """Let records through again when the broker has aborted the transaction for its age."""

    def heal() -> None:
        wait_until(lambda: "Ongoing" in state(work, proxy), WITHIN_S, "the transaction to begin")
        wait_until(lambda: "Abort" in state(work, proxy), WITHIN_S, "the broker to abort the transaction")
        proxy.heal()

    thread = threading.Thread(target=heal)
    thread.start()
    return thread


def state(work: Work, proxy: KafkaProxy) -> str:
    with admin_client(proxy.address) as admin:
        return str(admin.describe_transactions([f"{work.group}.a"]))


def test_the_stock_sequence_loses_results_when_a_leader_is_cut_off_for_longer_than_the_transaction(
    work: Work, proxy: KafkaProxy
) -> None:
    producer = KafkaProducer(
        bootstrap_servers=proxy.address,
        transactional_id=f"{work.group}.a",
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    producer.init_transactions()

    def commit(value: bytes, offset: int) -> None:
        producer.begin_transaction()
        producer.send(work.results, value)
        offsets = {KafkaTopicPartition(*work.tp): OffsetAndMetadata(offset, "", -1)}
        producer.send_offsets_to_transaction(offsets, work.member.consumer._coordinator.group_metadata())
        producer.commit_transaction()

    commit(b"1", 1)
    proxy.refuse(PRODUCE)
    healing = heal_once_aborted(work, proxy)
    commit(b"2", 2)  # returns as if it were committed
    healing.join()
    commit(b"3", 3)
    producer.close()
    assert work.committed() == CommitPoint(3, "")
    assert work.published() == [b"1", b"3"], "upstream is mended: the guard may go"


def test_the_guarded_transaction_loses_and_doubles_nothing_under_the_same_cut(
    work: Work, proxy: KafkaProxy
) -> None:
    work.transaction.commit(work.batch(b"1", 1))
    proxy.refuse(PRODUCE)
    healing = heal_once_aborted(work, proxy)
    locations = work.transaction.commit(work.batch(b"2", 2))
    healing.join()
    work.transaction.commit(work.batch(b"3", 3))
    assert work.committed() == CommitPoint(3, "")
    assert work.published() == [b"1", b"2", b"3"]
    assert locations == [record.location for record in read_all(work.settings, work.results)][1:2]


def test_a_commit_whose_answer_is_lost_is_found_committed_and_not_published_again(
    work: Work, proxy: KafkaProxy, caplog: pytest.LogCaptureFixture
) -> None:
    work.transaction.commit(work.batch(b"1", 1))
    proxy.lose_next_answer(END_TXN)
    assert work.transaction.commit(work.batch(b"2", 2)) == [RecordLocation(work.results, 0, 2)]
    assert "in doubt" in caplog.text
    work.transaction.commit(work.batch(b"3", 3))
    assert work.published() == [b"1", b"2", b"3"]
    assert work.committed() == CommitPoint(3, "")


def test_a_commit_that_never_arrives_is_found_aborted_and_published_again(
    work: Work, proxy: KafkaProxy, caplog: pytest.LogCaptureFixture
) -> None:
    work.transaction.commit(work.batch(b"1", 1))
    proxy.refuse(END_TXN)
    proxy.heal_at(INIT_PRODUCER_ID)  # which only a new producer sends
    work.transaction.commit(work.batch(b"2", 2))
    assert "in doubt" in caplog.text
    assert work.published() == [b"1", b"2"]
    assert work.committed() == CommitPoint(2, "")


def test_a_transaction_that_does_not_end_within_its_bound_is_given_up(proxy: KafkaProxy, work: Work) -> None:
    impatient = settings_for(proxy.address, transaction_timeout_ms=500)
    transaction = GuardedTransaction(impatient, f"{work.group}.impatient")
    transaction.open()
    proxy.cut()
    ended = threading.Event()
    caught: list[BaseException] = []

    def commit() -> None:
        try:
            transaction.commit(work.batch(b"1", 1))
        except TransactionHung as error:
            caught.append(error)
        ended.set()

    threading.Thread(target=commit).start()
    wait_until(lambda: transaction.deadline is not None or ended.is_set(), WITHIN_S, "the commit to begin")
    assert ended.wait(WITHIN_S)
    assert caught
    assert transaction.deadline is None
    proxy.heal()
    assert work.published() == []
    transaction.close()


def test_an_outage_does_not_come_out_of_polls(work: Work, proxy: KafkaProxy) -> None:
    reader = TailReader(work.settings, [work.tp], "end")
    proxy.cut()
    for _ in range(20):
        assert not work.member.poll()
        assert reader.poll(0.05) == []
    proxy.heal()
    produce(proxy.address, work.requests, 0, [b"after"])
    poll_until(lambda: work.member.values == [b"after"], work.member)
    wait_until(lambda: [record.value for record in reader.poll(0.1)] == [b"after"], WITHIN_S, "the reader")
    reader.close()


def test_no_client_makes_a_topic_by_accident(work: Work, proxy: KafkaProxy) -> None:
    missing = [f"{work.group}.{name}" for name in ("results2", "requests2", "tail")]
    batch = work.batch(b"1", 1)
    batch.records[0] = batch.records[0]._replace(topic=missing[0])
    with pytest.raises(KafkaFailed, match="does not exist"):
        work.transaction.commit(batch)
    member = Member(work.settings, [missing[1]], group=f"{work.group}.other", slot="a")
    for _ in range(10):
        member.poll()
    member.consumer.close(leave_group=False)
    with pytest.raises(KafkaUnavailable):
        TailReader(work.settings, [TopicPartition(missing[2], 0)], "end", timeout_s=1)
    with admin_client(proxy.address) as admin:
        assert not set(missing) & set(admin.list_topics())
