"""The ids of the last results of a partition, read from a real Kafka: what is among them, and what is waited for."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.structs import TopicPartition as KafkaTopicPartition
from kafka_members import WITHIN_S, admin_client, create_topics, read_all, settings_for

from headrace.consumers import recent_results as module
from headrace.consumers.recent_results import RecentResults, recent_results
from headrace.consumers.records import AnsweredId, TopicPartition
from headrace.consumers.untyped_kafka import KafkaConsumer
from headrace.schemas.errors import KafkaUnavailable

ALL = 1_000


class Results:
    """A topic of results and, for each name, a transactional producer."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        create_topics(bootstrap, **{topic: partitions})
        self.settings = settings_for(bootstrap)
        self.producers: dict[str, Any] = {}

    def _producer(self, name: str, **options: Any) -> Any:
        if name not in self.producers:
            made = KafkaProducer(
                bootstrap_servers=self.bootstrap, transactional_id=f"{self.topic}.{name}", **options
            )
            made.init_transactions()
            self.producers[name] = made
        return self.producers[name]

    def begin(self, name: str, ids: Sequence[str], *, partition: int = 0, **options: Any) -> Any:
        """Publish in a transaction that stays open."""
        producer = self._producer(name, **options)
        producer.begin_transaction()
        self.send(producer, ids, partition)
        return producer

    def send(self, producer: Any, ids: Sequence[str], partition: int = 0) -> None:
        sent = [
            producer.send(
                self.topic,
                b"value" * 20,
                key=b"key" if len(each) % 2 else None,
                partition=partition,
                headers=[("status", b"ok"), ("request-id", each.encode()), ("job", b"nightly")],
            )
            for each in ids
        ]
        for each in sent:
            each.get(timeout=WITHIN_S)

    def publish(self, *ids: str, partition: int = 0, name: str = "a", **options: Any) -> None:
        self.begin(name, ids, partition=partition, **options).commit_transaction()

    def read(self, window: int = ALL, partition: int = 0) -> list[tuple[str, int]]:
        """Ids and offsets."""
        return places(
            recent_results(self.settings, TopicPartition(self.topic, partition), window, deadline_s=WITHIN_S)
        )

    def close(self) -> None:
        for producer in self.producers.values():
            producer.close(timeout=5)


def places(found: Sequence[AnsweredId]) -> list[tuple[str, int]]:
    return [(each.request_id, each.offset) for each in found]


@pytest.fixture
def results(kafka_bootstrap: str, unique_prefix: str) -> Iterator[Results]:
    made = Results(kafka_bootstrap, unique_prefix, 3)
    yield made
    made.close()


@contextmanager
def reader_of(results: Results) -> Iterator[RecentResults]:
    reader = RecentResults(results.settings, results.topic)
    try:
        yield reader
    finally:
        reader.close()


def test_fewer_than_the_window_come_oldest_first_with_their_offsets(results: Results) -> None:
    results.publish("a", "b")
    results.publish("c")
    assert results.read() == [("a", 0), ("b", 1), ("c", 3)]  # 2 and 4 are markers


def test_the_last_offsets_are_counted_markers_included_and_not_the_batch_that_they_begin_in(
    results: Results,
) -> None:
    results.publish("a", "b", "c", "d")  # offsets 0 to 3, the marker is 4
    results.publish("e")  # 5, 6
    assert {window: results.read(window) for window in (1, 2, 3, 4, 5, 6, 7, 8)} == {
        1: [],
        2: [("e", 5)],
        3: [("e", 5)],
        4: [("d", 3), ("e", 5)],
        5: [("c", 2), ("d", 3), ("e", 5)],
        6: [("b", 1), ("c", 2), ("d", 3), ("e", 5)],
        7: [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 5)],
        8: [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 5)],
    }


def test_an_empty_partition_and_a_window_of_nothing_have_no_ids(results: Results) -> None:
    results.publish("a")
    assert results.read(partition=1) == []
    assert results.read(0) == []


def test_what_was_aborted_is_not_there(results: Results) -> None:
    results.publish("a")
    results.begin("a", ["aborted"]).abort_transaction()
    aborts, commits = results.begin("b", ["aborted too"]), results.begin("c", ["b"])
    results.send(aborts, ["aborted as well"])
    results.send(commits, ["c"])
    aborts.abort_transaction()
    results.send(commits, ["d"])
    commits.commit_transaction()
    results.publish("e", name="b")
    assert [request_id for request_id, _ in results.read()] == ["a", "b", "c", "d", "e"]


def test_records_without_a_request_id_are_passed_over(results: Results) -> None:
    producer = KafkaProducer(bootstrap_servers=results.bootstrap)
    for headers in (
        [],
        [("status", b"ok")],
        [("request-id", "ä".encode()), ("request-id", b"second")],
        [("request-id-2", b"x")],
        [("x", b"\x14request-id\x02x"), ("request-id", b"\xff")],
    ):
        producer.send(results.topic, None, key=b"k", partition=0, headers=headers).get(timeout=WITHIN_S)
    producer.close()
    assert results.read() == [("ä", 2), ("\ufffd", 4)]


def test_what_was_rejected_is_no_answer_to_the_id_that_it_bears_and_only_ok_is_ok(results: Results) -> None:
    producer = KafkaProducer(bootstrap_servers=results.bootstrap)
    for number, status in enumerate((b"ok", b"rejected", b"failed", b"rejected too", None, b"rejected")):
        headers = [("job", b"rejected")] + ([] if status is None else [("status", status)])
        headers.insert(number % 2, ("request-id", b"r%d" % number))
        producer.send(results.topic, None, key=b"k", partition=0, headers=headers).get(timeout=WITHIN_S)
    producer.close()
    found = recent_results(results.settings, TopicPartition(results.topic, 0), ALL, deadline_s=WITHIN_S)
    assert found == [("r0", 0, True), ("r2", 2, False), ("r3", 3, False), ("r4", 4, False)]


def batch_of(*headers: list[tuple[str, bytes | None]]) -> Any:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10_000)
    for number, some in enumerate(headers):
        builder.append(number, 1_000, None, b"value", some)
    return DefaultRecordBatch(builder.build())


def test_headers_without_a_value_are_passed_over() -> None:
    """Which other clients may write, kafka-python's producer not."""
    batch = batch_of([("request-id", None)], [("x", None), ("request-id", b"a")], [("request-id", b"")])
    assert places(module._ids(batch)) == [("a", 1), ("", 2)]


def test_a_batch_that_is_cut_short_is_corrupt() -> None:
    batch = batch_of([("request-id", b"a")], [("request-id", b"b")])
    batch._buffer = batch._buffer[:-12]
    with pytest.raises(kafka_errors.CorruptRecordError):
        module._ids(batch)


@pytest.mark.parametrize("seed", range(3))
def test_what_any_consumer_of_committed_records_sees_is_what_is_read(results: Results, seed: int) -> None:
    chance = random.Random(seed)
    number = 0
    for _ in range(12):
        names = chance.sample("abc", chance.randint(1, 3))
        under_way: list[Any] = []
        for name in names:
            ids = [f"{number + n}{'x' * chance.randint(0, 200)}" for n in range(chance.randint(1, 9))]
            number += len(ids)
            compression = {"a": None, "b": "gzip", "c": None}[name]
            under_way.append(results.begin(name, ids, compression_type=compression))
        for producer in chance.sample(under_way, len(under_way)):
            end = producer.commit_transaction if chance.random() < 0.6 else producer.abort_transaction
            end()
    seen = [
        ((dict(record.headers)["request-id"] or b"").decode(), record.offset)
        for record in read_all(results.settings, results.topic, 3)
    ]
    assert len(seen) > 10
    end_offset = max(offset for _, offset in results.read()) + 1
    with reader_of(results) as reader:
        everything = reader.read(0, ALL, WITHIN_S)
        assert places(everything) == seen
        for window in (5, 17, end_offset // 2, end_offset):
            found = reader.read(0, window, WITHIN_S)
            assert found == everything[len(everything) - len(found) :]
            assert len(found) <= window


def test_one_client_reads_many_partitions_and_what_came_since(results: Results) -> None:
    for partition in range(3):
        results.publish(f"first of {partition}", partition=partition)
    with reader_of(results) as reader:
        for partition in (0, 1, 2):
            assert places(reader.read(partition, ALL, WITHIN_S)) == [(f"first of {partition}", 0)]
        results.publish("second", partition=1)
        assert places(reader.read(1, ALL, WITHIN_S)) == [("first of 1", 0), ("second", 2)]
        assert places(reader.read(0, ALL, WITHIN_S)) == [("first of 0", 0)]
        results.publish("second", partition=0)
        assert places(reader.read(0, ALL, WITHIN_S)) == [("first of 0", 0), ("second", 2)]


def when_the_end_is_known(patch: pytest.MonkeyPatch, act: Any) -> list[int]:
    """Call `act` once, when the reader under way knows to where it is to read; returns the polls after that."""
    poll = RecentResults._poll
    after: list[int] = []

    def polled(self: RecentResults) -> list[AnsweredId]:
        found = poll(self)
        (tp,) = self._client.assignment()
        if self._client.highwater(tp) is not None:
            if not after:
                act()
            after.append(len(found))
        return found

    patch.setattr(RecentResults, "_poll", polled)
    return after


@pytest.mark.parametrize("committed_before", [True, False])
def test_a_transaction_that_ends_while_it_is_waited_for_is_read(
    results: Results, monkeypatch: pytest.MonkeyPatch, committed_before: bool
) -> None:
    if committed_before:
        results.publish("a")
    predecessor = results.begin("b", ["b", "c"])
    polls = when_the_end_is_known(monkeypatch, predecessor.commit_transaction)
    first = 2 if committed_before else 0
    assert results.read() == [("a", 0)] * committed_before + [("b", first), ("c", first + 1)]
    assert len(polls) > 1, "it was over before it was waited for"


def test_a_transaction_that_is_aborted_while_it_is_waited_for_is_not_read_but_what_lay_behind_it(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    predecessor = results.begin("b", ["b"])
    results.publish("behind")
    polls = when_the_end_is_known(monkeypatch, predecessor.abort_transaction)
    assert results.read() == [("behind", 1)]
    assert len(polls) > 1, "it was over before it was waited for"


def test_what_begins_while_the_end_is_waited_for_is_not_waited_for(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 3600)
    predecessor = results.begin("b", ["b"])

    def act() -> None:
        results.begin("c", ["stays open"])
        predecessor.commit_transaction()

    when_the_end_is_known(monkeypatch, act)
    assert results.read() == [("b", 0)]


def test_the_end_that_an_earlier_read_was_told_is_forgotten_when_the_broker_is_slow(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    results.publish("a")
    with reader_of(results) as reader:
        assert places(reader.read(0, 1, WITHIN_S)) == []  # the marker
        results.publish("b")
        poll, answers_late = RecentResults._poll, [False] * 100 + [True]
        monkeypatch.setattr(RecentResults, "_poll", lambda self: [] if answers_late.pop() else poll(self))
        monkeypatch.setattr(RecentResults, "_bounds", lambda *_: (2, 2))  # where the earlier end was
        assert places(reader.read(0, ALL, WITHIN_S)) == [("b", 2)]


def test_a_transaction_that_does_not_end_is_left_out_and_named(
    results: Results, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.2)
    results.publish("a")
    results.begin("b", ["open"])
    results.publish("behind", partition=0)
    assert results.read() == [("a", 0)]
    assert "the transaction at offset 2 does not end" in caplog.text


def test_a_broker_that_falls_silent_is_no_transaction_that_does_not_end(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.2)
    results.publish("a")
    results.begin("b", ["open"])

    def silent(*_: object) -> dict[TopicPartition, int]:
        raise KafkaUnavailable("no answer")

    when_the_end_is_known(monkeypatch, lambda: monkeypatch.setattr(module, "log_offsets", silent))
    with pytest.raises(KafkaUnavailable, match="no answer"):
        results.read()


def test_what_retention_removed_is_not_asked_for(results: Results) -> None:
    results.publish("a", "b", "c")
    with admin_client(results.bootstrap) as admin:
        admin.delete_records({KafkaTopicPartition(results.topic, 0): 2})
    assert results.read() == [("c", 2)]


def test_a_log_that_is_cut_while_it_is_read_is_read_again(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    results.publish("a")
    results.publish("c")
    with admin_client(results.bootstrap) as admin:
        admin.delete_records({KafkaTopicPartition(results.topic, 0): 2})
    bounds = RecentResults._bounds
    stale = [(0, 4)]
    monkeypatch.setattr(RecentResults, "_bounds", lambda *of: stale.pop() if stale else bounds(*of))
    assert results.read() == [("c", 2)]
    assert not stale


def test_a_partition_that_does_not_exist_is_unavailable_and_is_not_made(results: Results) -> None:
    with reader_of(results) as reader, pytest.raises(KafkaUnavailable, match="do the topics exist"):
        reader.read(7, ALL, 0.5)
    missing = f"{results.topic}.missing"
    with pytest.raises(KafkaUnavailable, match=missing):
        recent_results(results.settings, TopicPartition(missing, 0), ALL, deadline_s=0.5)
    with admin_client(results.bootstrap) as admin:
        assert missing not in admin.list_topics()


def test_a_reader_that_is_given_up_stops_in_the_middle(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 3600)
    results.begin("b", ["open"])
    with reader_of(results) as reader:
        given_up: list[threading.Thread] = []

        def give_up() -> None:
            given_up.append(threading.Thread(target=reader.give_up))
            given_up[0].start()

        when_the_end_is_known(monkeypatch, give_up)
        with pytest.raises(KafkaUnavailable, match="not read any more"):
            reader.read(0, ALL, 3600)
        given_up[0].join()


def names_in(of: type) -> set[str]:
    """Attributes of a class, those that its methods use included."""
    codes = [code for member in vars(of).values() if (code := getattr(member, "__code__", None))]
    return set(dir(of)) | {name for code in codes for name in code.co_names}


@pytest.mark.parametrize(
    ("of", "used"),
    [
        (KafkaConsumer, "consumer"),
        (Fetcher, "fetcher"),
        (Fetcher.PartitionRecords, "partition_records"),
        (DefaultRecordBatch, "batch"),
    ],
)
def test_what_is_used_of_kafka_python_is_there(of: type, used: str) -> None:
    assert set(module.PRIVATE_ATTRIBUTES[used]) <= names_in(of)
