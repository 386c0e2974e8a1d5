"""TailReader on a real Kafka: partitions read without a group."""

from __future__ import annotations

import threading
import time

import pytest
from kafka import KafkaProducer
from kafka.structs import TopicPartition as KafkaTopicPartition
from kafka_members import WITHIN_S, admin_client, create_topics, produce, read_all, settings_for
from waiting import wait_until

from headrace.consumers.records import Record, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.schemas.errors import BrokerNotFound, KafkaUnavailable
from headrace.schemas.settings import Settings


def read(reader: TailReader, count: int) -> list[Record]:
    found: list[Record] = []

    def enough() -> bool:
        found.extend(reader.poll(0.1))
        return len(found) >= count

    wait_until(enough, WITHIN_S, f"{count} records")
    return found


def test_from_the_end_only_what_comes_later_is_read(kafka_bootstrap: str, unique_prefix: str) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 2})
    produce(kafka_bootstrap, unique_prefix, 0, [b"before"])
    tps = [TopicPartition(unique_prefix, n) for n in range(2)]
    reader = TailReader(settings_for(kafka_bootstrap), tps, "end")
    produce(kafka_bootstrap, unique_prefix, 0, [b"after"])
    (record,) = read(reader, 1)
    assert (record.value, record.offset, record.key, list(record.headers)) == (b"after", 1, None, [])
    assert record.timestamp_ms == pytest.approx(time.time() * 1000, abs=600_000)
    assert [reader.position(tp) for tp in tps] == [2, 0]
    reader.close()


def test_from_given_offsets_and_from_the_beginning(kafka_bootstrap: str, unique_prefix: str) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    produce(kafka_bootstrap, unique_prefix, 0, [b"0", b"1", b"2"])
    settings, tp = settings_for(kafka_bootstrap), TopicPartition(unique_prefix, 0)
    reader = TailReader(settings, [tp], {tp: 1})
    assert [record.value for record in read(reader, 2)] == [b"1", b"2"]
    assert reader.beginning_offsets() == {tp: 0}
    assert reader.end_offsets() == {tp: 3}
    reader.close()
    assert [record.value for record in read_all(settings, unique_prefix)] == [b"0", b"1", b"2"]


def test_only_what_is_committed_is_read_unless_asked_otherwise(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    producer = KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=unique_prefix)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(unique_prefix, b"aborted").get(timeout=WITHIN_S)
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(unique_prefix, b"committed").get(timeout=WITHIN_S)
    producer.commit_transaction()
    producer.close()
    settings = settings_for(kafka_bootstrap)
    assert [record.value for record in read_all(settings, unique_prefix)] == [b"committed"]
    everything = read_all(settings, unique_prefix, isolation="read_uncommitted")
    assert [record.value for record in everything] == [b"aborted", b"committed"]


def test_what_retention_removed_is_skipped_and_counted(
    kafka_bootstrap: str, unique_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    tp = TopicPartition(unique_prefix, 0)
    produce(kafka_bootstrap, unique_prefix, 0, [b"%d" % n for n in range(5)])
    with admin_client(kafka_bootstrap) as admin:
        admin.delete_records({KafkaTopicPartition(*tp): 3})
    reader = TailReader(settings_for(kafka_bootstrap), [tp], {tp: 1})
    assert [record.value for record in read(reader, 2)] == [b"3", b"4"]
    assert reader.skipped == {tp: 2}
    assert "2 offsets were not read" in caplog.text
    reader.close()


def test_a_poll_that_waits_can_be_woken(kafka_bootstrap: str, unique_prefix: str) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: 1})
    reader = TailReader(settings_for(kafka_bootstrap), [TopicPartition(unique_prefix, 0)], "end")
    threading.Timer(0.2, reader.wake_up).start()
    started = time.monotonic()
    assert reader.poll(600) == []
    assert time.monotonic() - started < 60
    reader.close()


def test_a_topic_that_does_not_exist_is_named(kafka_bootstrap: str, unique_prefix: str) -> None:
    with pytest.raises(KafkaUnavailable, match=rf"{unique_prefix} \(do the topics exist\?\)"):
        TailReader(settings_for(kafka_bootstrap), [TopicPartition(unique_prefix, 0)], "end", timeout_s=0.5)


def test_without_bootstrap_servers_the_variable_is_named() -> None:
    with pytest.raises(BrokerNotFound, match="HEADRACE_BOOTSTRAP_SERVERS"):
        TailReader(Settings(bootstrap_servers=None), [TopicPartition("t", 0)], "end")
