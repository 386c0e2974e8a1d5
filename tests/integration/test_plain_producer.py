"""The producer without transactions on a real Kafka: what brokers refuse costs that record, and no other."""

from __future__ import annotations

import pytest

from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.errors import KafkaFailed, TopicMissing
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, control_topic
from headrace.topics.provision import LayoutOptions, bring_in_line

WITHIN_S = 30.0


@pytest.fixture
def settings(kafka_bootstrap: str, unique_prefix: str) -> Settings:
    made = Settings(bootstrap_servers=kafka_bootstrap, prefix=unique_prefix)
    layout = LayoutOptions(partitions=1, replication=1)
    bring_in_line(made, ContractNames(unique_prefix, "storyteller", 1), layout)
    return made


def test_a_refused_record_fails_alone_and_the_producer_goes_on(settings: Settings) -> None:
    topic = control_topic(settings.prefix)  # compacted: brokers refuse records without a key
    producer = PlainProducer(settings)
    try:
        for number in range(3):
            producer.send(OutgoingRecord(topic, b"note/before", str(number).encode())).result(WITHIN_S)
            with pytest.raises(KafkaFailed, match="InvalidRecord"):
                producer.send(OutgoingRecord(topic, None, b"without a key")).result(WITHIN_S)
        places = [
            producer.send(OutgoingRecord(topic, b"note/after", str(number).encode())).result(WITHIN_S)
            for number in range(3)
        ]
        assert [place.offset for place in places] == sorted({place.offset for place in places})
    finally:
        producer.close()


def test_a_topic_is_known_from_its_first_record_on_and_one_that_is_missing_never(settings: Settings) -> None:
    topic, missing = control_topic(settings.prefix), f"{settings.prefix}.missing"
    producer = PlainProducer(settings)
    try:
        assert not producer.knows(topic)
        producer.send(OutgoingRecord(topic, b"note/first", b".")).result(WITHIN_S)
        assert producer.knows(topic)
        with pytest.raises(TopicMissing):
            producer.send(OutgoingRecord(missing, b"k", b".")).result(WITHIN_S)
        assert not producer.knows(missing)
        assert producer.knows(topic)
    finally:
        producer.close()


def test_what_was_refused_is_said_and_what_was_sent_is_there(settings: Settings) -> None:
    """Many at once: none vanishes, each is in the log or its sender hears that it may not be."""
    topic = control_topic(settings.prefix)
    producer = PlainProducer(settings)
    try:
        sent = [
            producer.send(OutgoingRecord(topic, f"note/{number}".encode() if number % 40 else None, b"."))
            for number in range(200)
        ]
        failed = [number for number, each in enumerate(sent) if each.exception(WITHIN_S) is not None]
        assert {0, 40, 80, 120, 160} <= set(failed)
        producer.send(OutgoingRecord(topic, b"note/last", b".")).result(WITHIN_S)
    finally:
        producer.close()
