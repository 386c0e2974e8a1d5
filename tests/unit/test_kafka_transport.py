"""A client's transport through Kafka without a broker: who waits for what, and who lets go of what was made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import pytest
from conformance.client_parts import ENOUGH, until
from waiting import wait_until

from headrace.consumers.records import Record, RecordLocation, TopicPartition
from headrace.producers import kafka_transport
from headrace.producers.client import Client
from headrace.producers.kafka_transport import KafkaTransport
from headrace.producers.outgoing import OutgoingRecord
from headrace.schemas.errors import KafkaUnavailable, NoReply, TopicMissing
from headrace.schemas.messages import Cancel, Request
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

SETTINGS = Settings(bootstrap_servers="127.0.0.1:1")
NAMES = ContractNames(SETTINGS.prefix, "tagger", 1)


class FakeTail:
    """A partition to which nothing comes."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self._woken = threading.Event()

    def poll(self, timeout_s: float) -> list[Record]:
        self._woken.wait(timeout_s)
        return []

    def wake_up(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self.closed.set()


class FakeProducer:
    """Has the metadata of the topics it knows; a send to another waits until the test says what comes of it."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.closed = threading.Event()
        self.asking: list[str] = []  # topics that a send waits for
        self.may_end = threading.Event()
        self.sent: list[tuple[str, int | None]] = []  # the record's key, and the thread that brought it

    def knows(self, topic: str) -> bool:
        return topic in self.known

    def send(self, record: OutgoingRecord) -> Future[RecordLocation]:
        answer: Future[RecordLocation] = Future()
        if record.topic not in self.known:
            self.asking.append(record.topic)
            self.may_end.wait(ENOUGH)
        self.sent.append(((record.key or b"").decode(), threading.get_ident()))
        if record.topic in self.known:
            answer.set_result(RecordLocation(record.topic, 0, len(self.sent)))
        else:
            answer.set_exception(TopicMissing(f"topic {record.topic} does not exist"))
        return answer

    def close(self) -> None:
        self.closed.set()


class Broker:
    """What a transport makes when it is opened: a tail and a producer, each once the test lets it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.tail = FakeTail()
        self.producer = FakeProducer()
        self.before_tail: Callable[[], None] = lambda: None
        self.before_producer: Callable[[], None] = lambda: None
        patch.setattr(kafka_transport, "partitions_of", self._partitions_of)
        patch.setattr(kafka_transport, "TailReader", self._make_tail)
        patch.setattr(kafka_transport, "PlainProducer", self._make_producer)

    def _partitions_of(self, settings: Settings, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
        return {topic: [TopicPartition(topic, 0)] for topic in topics}

    def _make_tail(self, *of: Any) -> FakeTail:
        self.before_tail()
        return self.tail

    def _make_producer(self, settings: Settings) -> FakeProducer:
        self.before_producer()
        return self.producer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


async def opened() -> KafkaTransport:
    transport = KafkaTransport(SETTINGS, "tagger", 1)
    await transport.open(lambda _: None, lambda _: None)
    return transport


def cancel(id_: str) -> Cancel:
    return Cancel(id=id_, reason="", time=0)


# --- who waits for a topic's metadata ---------------------------------------------------------------------


def test_no_send_to_a_topic_without_metadata_is_on_the_event_loop(broker: Broker) -> None:
    broker.producer.may_end.set()

    async def work() -> int:
        transport = await opened()
        for n in range(3):
            with pytest.raises(TopicMissing):
                await transport.send_cancel(cancel(f"missing-{n}"))
        broker.producer.known.add(NAMES.cancels)
        await transport.send_cancel(cancel("there"))
        broker.producer.known.clear()  # as when the topic is deleted
        with pytest.raises(TopicMissing):
            await transport.send_cancel(cancel("gone"))
        await transport.close()
        return threading.get_ident()

    loop_thread = asyncio.run(work())
    on_loop = {key for key, thread in broker.producer.sent if thread == loop_thread}
    assert on_loop == {"there"}
    assert len(broker.producer.sent) == 5


def test_a_topic_that_is_waited_for_holds_up_no_other(broker: Broker) -> None:
    broker.producer.known.add(NAMES.requests("standard"))

    async def work() -> None:
        transport = await opened()
        waiting = asyncio.ensure_future(transport.send_cancel(cancel("waits")))
        await until(lambda: broker.producer.asking == [NAMES.cancels])
        async with asyncio.timeout(ENOUGH / 3):
            await transport.send(Request(id="r", prompt="x"), "standard", None)
        assert not waiting.done()
        broker.producer.may_end.set()
        with pytest.raises(TopicMissing):
            await waiting
        await transport.close()

    asyncio.run(work())


def test_what_was_asked_while_a_topic_was_found_missing_does_not_wait_for_it_one_by_one(
    broker: Broker,
) -> None:
    async def work() -> None:
        transport = await opened()
        sends = [asyncio.ensure_future(transport.send_cancel(cancel(f"n{n}"))) for n in range(20)]
        await until(lambda: broker.producer.asking == [NAMES.cancels])
        broker.producer.may_end.set()
        errors = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(error) for error in errors} == {TopicMissing}
        assert len({id(error) for error in errors}) == 20  # each caller's own, since tracebacks grow
        assert len(broker.producer.asking) == 1
        with pytest.raises(TopicMissing):
            await transport.send_cancel(cancel("later"))
        assert len(broker.producer.asking) == 2
        broker.producer.known.add(NAMES.cancels)
        await transport.send_cancel(cancel("there"))
        await transport.close()

    asyncio.run(work())
    assert [key for key, _ in broker.producer.sent] == ["n0", "later", "there"]


def test_records_for_one_topic_stay_in_order_though_the_first_waits(broker: Broker) -> None:
    topic = NAMES.requests("standard")

    async def work() -> None:
        transport = await opened()
        requests = [Request(id=f"r-{n}", prompt="x") for n in range(20)]
        sends = [asyncio.ensure_future(transport.send(each, "standard", None)) for each in requests]
        await until(lambda: broker.producer.asking == [topic])
        broker.producer.known.add(topic)
        broker.producer.may_end.set()
        await asyncio.gather(*sends)
        await transport.close()

    asyncio.run(work())
    assert [key for key, _ in broker.producer.sent] == [f"r-{n}" for n in range(20)]


# --- who lets go of what an abandoned `open` makes --------------------------------------------------------


@pytest.mark.parametrize("before", ["before_tail", "before_producer"])
def test_what_is_made_after_an_open_was_given_up_is_closed(broker: Broker, before: str) -> None:
    threads = set(threading.enumerate())
    begun, go_on = threading.Event(), threading.Event()

    def held() -> None:
        begun.set()
        go_on.wait(ENOUGH)

    setattr(broker, before, held)

    async def work() -> None:
        client = Client(KafkaTransport(SETTINGS, "tagger", 1))
        opening = asyncio.ensure_future(client.open())
        await until(begun.is_set)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        go_on.set()  # the client has been closed by now

    asyncio.run(work())  # waits for the thread
    wait_until(broker.tail.closed.is_set, 10, "the reader's end")
    assert broker.producer.closed.is_set() == (before == "before_producer")
    assert not set(threading.enumerate()) - threads


def test_a_transport_that_was_closed_while_it_opened_says_so(broker: Broker) -> None:
    async def work() -> None:
        transport = KafkaTransport(SETTINGS, "tagger", 1)
        broker.before_tail = transport._close
        with pytest.raises(NoReply, match="closed while it was being opened"):
            await transport.open(lambda _: None, lambda _: None)

    asyncio.run(work())


def test_an_open_that_fails_lets_go_of_what_it_has_made(broker: Broker) -> None:
    def fail() -> None:
        raise KafkaUnavailable("no broker")

    broker.before_producer = fail

    async def work() -> None:
        with pytest.raises(KafkaUnavailable):
            await Client(KafkaTransport(SETTINGS, "tagger", 1)).open()

    asyncio.run(work())
    assert broker.tail.closed.is_set()
