"""Dead letters in a real broker: read, filtered, and their requests sent again byte for byte."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from headrace.consumers.dead_letters import (
    DeadLetterFilter,
    DeadLetters,
    ReadDeadLetter,
    ToTheEnd,
    record_at,
)
from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import Record, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.ops import dead_letters as module
from headrace.ops.dead_letters import Replay
from headrace.schemas.codec import Codec
from headrace.schemas.errors import KafkaUnavailable, MessageError, TopicsError, UsageError
from headrace.schemas.messages import DeadLetter, Header, Location
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

UNITS = 4
# Of the first dead letter, in ms; the next ones are a minute younger each. Retention would take what is a week old.
NOW = int(time.time() * 1000) - 3_600_000
MINUTE_MS = 60_000


class Cluster:
    """The topics of two contracts, and what a test puts there."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.one, self.two = (ContractNames(settings.prefix, "tagger", number) for number in (1, 2))
        topics = [
            NewTopic(topic, units, 1)
            for names, units in ((self.one, UNITS), (self.two, 2))
            for topic in (*names.request_topics, names.results, names.dead)
        ]
        admin = KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
        admin.create_topics(topics)
        admin.close()
        self.producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
        self._letters = 0

    def put(self, topic: str, value: bytes | None, *, partition: int = 0, **options: Any) -> Location:
        place = self.producer.send(topic, value, partition=partition, **options).get(timeout=30)
        return Location(topic=topic, partition=partition, offset=place.offset)

    def bury(self, request_id: str | None = "a", *, version: str | None = "1", **fields: Any) -> Location:
        """Write a dead letter as a worker does."""
        defaults: dict[str, Any] = {
            "id": request_id,
            "code": "engine_error",
            "message": "it broke",
            "source": Location(topic=self.one.requests("standard"), partition=3, offset=17),
            "key": b"\xffkey",
            "value": b'{"id": "%s", "prompt": "x"}' % (request_id or "").encode(),
            "headers": [Header(key="x", value=b"\x00\xff"), Header(key="x", value=b"")],
            "time": NOW + self._letters * MINUTE_MS,
        }
        letter = DeadLetter(**defaults | fields)
        headers = {"error-code": letter.code, "model-version": version, "request-id": request_id}
        named = [(name, value.encode()) for name, value in headers.items() if value is not None]
        self._letters += 1
        return self.put(
            self.one.dead,
            Codec().encode(letter),
            partition=hash(request_id) % 2,
            timestamp_ms=letter.time,
            headers=named,
        )

    def answer(self, request_id: str, status: str = "ok", topic: str | None = None) -> None:
        """Write a result as a worker does; nobody here reads more than its headers."""
        headers = [("status", status.encode()), ("request-id", request_id.encode())]
        self.put(topic or self.one.results, b"a result", headers=headers)

    def letters(self, wanted: DeadLetterFilter | None = None) -> list[ReadDeadLetter]:
        wanted = wanted or DeadLetterFilter()
        with ToTheEnd(self.settings, self.one.dead, since=wanted.since) as reader:
            found = [each for each in DeadLetters(reader, wanted, Codec()) if each is not None]
            assert reader.done == reader.total
        return sorted(found, key=lambda each: each.timestamp_ms)

    def replay(
        self, wanted: DeadLetterFilter | None = None, target: ContractNames | None = None, **options: Any
    ) -> Replay:
        return Replay(self.settings, self.one, target or self.one, wanted or DeadLetterFilter(), **options)

    def sent_by(self, replay: Replay) -> list[Record]:
        """Let it send, and read what came of it."""
        before = self.ends()
        replay.look()
        replay.send()
        tail = TailReader(self.settings, list(before), before)
        wanted, found = sum(self.ends().values()) - sum(before.values()), list[Record]()
        try:
            while len(found) < wanted:
                found += tail.poll(1.0)
        finally:
            tail.close()
        assert replay.tally.acknowledged == len(found)
        return found

    def ends(self) -> dict[TopicPartition, int]:
        """Where all request topics end."""
        topics = [*self.one.request_topics, *self.two.request_topics]
        partitions = [tp for found in partitions_of(self.settings, topics).values() for tp in found]
        tail = TailReader(self.settings, partitions, "end")
        try:
            return tail.end_offsets()
        finally:
            tail.close()


@pytest.fixture
def cluster(broker_bootstrap: str, unique_prefix: str) -> Iterator[Cluster]:
    made = Cluster(Settings(bootstrap_servers=broker_bootstrap, prefix=unique_prefix))
    yield made
    made.producer.close()


def ids(records: list[Record]) -> list[str]:
    return sorted(Codec().peek_id(DeadLetter, each.value) or "?" for each in records)


def added(record: Record) -> dict[str, bytes | None]:
    """The headers that a replay adds."""
    return {name: value for name, value in record.headers if name.startswith("headrace-")}


# --- reading ---


def test_dead_letters_are_filtered_by_id_reason_version_and_time(cluster: Cluster) -> None:
    cluster.bury("a")
    cluster.bury("b", code="undecodable", version="2")
    cluster.bury("c", version=None)
    cluster.bury(None, code="undecodable")

    def found(**given: Any) -> list[str | None]:
        letters = [each.letter for each in cluster.letters(DeadLetterFilter(**given))]
        return [each.id for each in letters if isinstance(each, DeadLetter)]

    def at(minute: int) -> datetime:
        return datetime.fromtimestamp((NOW + minute * MINUTE_MS) / 1000, UTC)

    assert found() == ["a", "b", "c", None]
    assert found(ids=frozenset("bc")) == ["b", "c"]
    assert found(codes=frozenset(["undecodable"])) == ["b", None]
    assert found(versions=frozenset("1")) == ["a", None]
    assert found(since=at(1), until=at(3)) == ["b", "c"]
    assert found(since=at(9)) == []


def test_a_record_that_is_no_dead_letter_is_named_and_the_rest_is_read(cluster: Cluster) -> None:
    cluster.put(cluster.one.dead, b"nonsense", timestamp_ms=NOW - 1)
    cluster.bury("a")
    nonsense, letter = cluster.letters()
    assert isinstance(nonsense.letter, MessageError)
    assert isinstance(letter.letter, DeadLetter)
    replay = cluster.replay()
    assert ids(cluster.sent_by(replay)) == ["a"]
    assert dict(replay.tally.refused) == {"cannot be read": 1}


def test_a_record_is_found_by_its_place_or_is_said_to_be_gone(cluster: Cluster) -> None:
    lies = cluster.put(cluster.one.dead, b"x", partition=1)
    record = record_at(cluster.settings, lies)
    assert record is not None
    assert record.value == b"x"
    for update in ({"offset": lies.offset + 1}, {"partition": 0}, {"partition": 77}):
        assert record_at(cluster.settings, lies.model_copy(update=update)) is None
    with pytest.raises(TopicsError):
        record_at(cluster.settings, lies.model_copy(update={"topic": "no.such.topic"}))


# --- replaying ---


def test_a_request_is_sent_again_byte_for_byte_to_its_own_unit_and_says_that_it_is_a_replay(
    cluster: Cluster,
) -> None:
    value = b'\n {"id":"a" , "prompt":"\xc3\xa4", "deadline": 1}'
    lies = cluster.bury("a", value=value)
    (record,) = cluster.sent_by(cluster.replay())
    assert (record.topic, record.partition) == (cluster.one.requests("standard"), 3)
    assert (record.key, record.value) == (b"\xffkey", value)
    assert list(record.headers) == [
        ("x", b"\x00\xff"),
        ("x", b""),
        ("headrace-replay", b"1"),
        ("headrace-replay-of", f"{lies.topic}-{lies.partition}@{lies.offset}".encode()),
    ]


def test_nothing_is_sent_before_it_is_asked_for_and_the_count_is_what_would_be(cluster: Cluster) -> None:
    cluster.bury("a")
    cluster.bury("b", code="undecodable")
    cluster.bury("c")
    before = cluster.ends()
    replay = cluster.replay()
    replay.look()
    replay.count()
    assert cluster.ends() == before
    assert dict(replay.tally.to_send) == {"engine_error": 2, "undecodable": 1}
    assert (replay.tally.found, replay.tally.acknowledged) == (3, 0)
    assert ids(cluster.sent_by(cluster.replay(limit=2))) != ids(cluster.sent_by(cluster.replay()))


def test_of_a_request_the_newest_dead_letter_alone_is_sent_with_its_count_and_first_origin(
    cluster: Cluster,
) -> None:
    first = cluster.bury("a", value=b'{"id": "a", "prompt": "first"}')
    origin = f"{first.topic}-{first.partition}@{first.offset}".encode()
    marks = [
        Header(key="headrace-replay", value=b"1"),
        Header(key="headrace-replay-of", value=origin),
        Header(key="headrace-replay-again", value=b"true"),
    ]
    cluster.bury("a", headers=[Header(key="x", value=b"1"), *marks])
    replay = cluster.replay()
    (record,) = cluster.sent_by(replay)
    assert list(record.headers) == [("x", b"1"), ("headrace-replay", b"2"), ("headrace-replay-of", origin)]
    assert (replay.tally.found, replay.tally.older) == (2, 1)


def test_what_cannot_be_decoded_is_known_by_its_first_dead_letter(cluster: Cluster) -> None:
    for value in (b"\xffone", b"\xfftwo"):
        cluster.bury(None, value=value, code="undecodable")
    sent = cluster.sent_by(cluster.replay())
    assert sorted(each.value or b"" for each in sent) == [b"\xffone", b"\xfftwo"]
    for each in sent:
        marks = [Header(key=name, value=value) for name, value in each.headers]
        cluster.bury(None, value=each.value, code="undecodable", headers=marks)
    again = cluster.sent_by(cluster.replay())
    assert sorted((each.value, added(each)["headrace-replay"]) for each in again) == [
        (b"\xffone", b"2"),
        (b"\xfftwo", b"2"),
    ]


def test_what_has_an_ok_is_left_out_unless_it_is_to_run_again(cluster: Cluster) -> None:
    for request_id in "abcd":
        cluster.bury(request_id)
    cluster.answer("a")
    cluster.answer("b", "failed")
    cluster.answer("c", "rejected")
    cluster.answer("d")
    cluster.answer("d", "failed")
    replay = cluster.replay()
    assert ids(cluster.sent_by(replay)) == ["b", "c"]
    assert replay.tally.answered == 2
    again = cluster.sent_by(cluster.replay(again=True))
    assert ids(again) == ["a", "b", "c", "d"]
    assert all(added(each)["headrace-replay-again"] == b"true" for each in again)


def test_what_was_answered_since_is_left_out_when_it_is_run_again(cluster: Cluster) -> None:
    for request_id in "abc":
        cluster.bury(request_id)
    assert len(cluster.sent_by(cluster.replay())) == 3
    cluster.answer("a")
    cluster.answer("c")
    assert ids(cluster.sent_by(cluster.replay())) == ["b"]
    cluster.answer("b")
    assert cluster.sent_by(cluster.replay()) == []


def test_an_ok_in_the_topic_that_a_request_names_counts_and_one_that_is_gone_does_not(
    cluster: Cluster,
) -> None:
    own = cluster.two.results
    for request_id, topic in (("a", own), ("b", own), ("c", "no.such.topic"), ("d", own)):
        code = "topic_not_allowed" if request_id == "d" else "engine_error"
        value = b'{"id": "%s", "prompt": "x", "result_topic": "%s"}' % (request_id.encode(), topic.encode())
        cluster.bury(request_id, value=value, code=code)
    cluster.answer("a", topic=own)
    replay = cluster.replay()
    assert ids(cluster.sent_by(replay)) == ["b", "c", "d"]
    assert replay.tally.answered == 1


def test_another_contract_and_another_lane_are_sent_to_and_its_answers_count(cluster: Cluster) -> None:
    cluster.bury("a")
    cluster.bury("b", key=None)
    cluster.bury("c")
    cluster.bury("d")
    cluster.answer("c", topic=cluster.two.results)
    cluster.answer("d", topic=cluster.one.results)
    records = cluster.sent_by(cluster.replay(target=cluster.two, lane="backfill"))
    assert ids(records) == ["a", "b"]
    assert {each.topic for each in records} == {cluster.two.requests("backfill")}
    by_key = {each.key: each.partition for each in records}
    assert by_key[None] == 3 % 2, "always the same unit"


def test_bytes_that_dead_had_no_room_for_are_taken_from_the_request_topic(cluster: Cluster) -> None:
    headers = [("x", b"1"), ("headrace-replay", b"4")]
    lies = cluster.put(
        cluster.one.requests("interactive"), b'{"id": "a"}', partition=2, key=b"k", headers=headers
    )
    bare: dict[str, Any] = {"value": None, "key": None, "headers": []}
    cluster.bury("a", source=lies, **bare)
    cluster.bury("b", source=lies.model_copy(update={"offset": 99}), **bare)
    replay = cluster.replay()
    (record,) = cluster.sent_by(replay)
    assert (record.topic, record.partition, record.key, record.value) == (
        lies.topic,
        2,
        b"k",
        b'{"id": "a"}',
    )
    assert [name for name, _ in record.headers] == ["x", "headrace-replay", "headrace-replay-of"]
    assert added(record)["headrace-replay"] == b"5"
    assert dict(replay.tally.refused) == {"its bytes are gone from the request topic": 1}


def test_what_cannot_be_sent_is_named_and_the_others_are_sent(cluster: Cluster) -> None:
    cluster.bury("a", headers=[Header(key="odd", value=None)])
    cluster.bury("b", source=Location(topic="another.topic", partition=0, offset=0))
    cluster.bury("c")
    replay = cluster.replay()
    assert ids(cluster.sent_by(replay)) == ["c"]
    assert dict(replay.tally.refused) == {
        "a header without a value cannot be sent": 1,
        "it lay in no request topic of this contract": 1,
    }
    assert any("odd" in each for each in replay.tally.examples)


def test_what_comes_of_a_replay_while_it_sends_is_not_sent_too(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for request_id in "abcd":
        cluster.bury(request_id)
    send = module.Sending.send

    def bury_again(self: Any, lies: Location, record: Any) -> None:
        send(self, lies, record)
        cluster.bury("new")
        cluster.bury("a")

    monkeypatch.setattr(module.Sending, "send", bury_again)
    assert ids(cluster.sent_by(cluster.replay())) == ["a", "b", "c", "d"]


def test_too_many_result_topics_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOPICS", 1)
    for number in range(2):
        cluster.bury("a", value=b'{"id": "a", "prompt": "x", "result_topic": "t%d"}' % number)
    with pytest.raises(UsageError, match="result topics"):
        cluster.replay().look()


def test_a_contract_whose_topics_do_not_exist_is_named(cluster: Cluster) -> None:
    with pytest.raises(TopicsError, match=r"c9\.requests"):
        cluster.replay(target=ContractNames(cluster.settings.prefix, "tagger", 9))


def test_a_replay_that_is_stopped_says_how_much_was_sent_and_goes_on_when_run_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        cluster.bury(f"r{number:02}")
    send = module.Sending.send
    sent: list[str] = []

    def interrupted(self: Any, lies: Location, record: Any) -> None:
        if len(sent) == 7:
            raise KafkaUnavailable("gone")
        sent.append(Codec().peek_id(DeadLetter, record.value) or "?")
        send(self, lies, record)

    monkeypatch.setattr(module.Sending, "send", interrupted)
    replay = cluster.replay()
    replay.look()
    with pytest.raises(KafkaUnavailable):
        replay.send()
    assert replay.tally.acknowledged == 7
    monkeypatch.undo()
    for request_id in sent:
        cluster.answer(request_id)
    rest = ids(cluster.sent_by(cluster.replay()))
    assert sorted(rest + sent) == [f"r{number:02}" for number in range(20)]
