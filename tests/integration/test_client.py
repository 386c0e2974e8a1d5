"""The client on a broker: the port's promises, and those that only a real log can break."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conformance.client_parts import ENOUGH, Fate, until
from conformance.client_port import ClientPort
from conformance.kafka_responder import Responder, create_topics
from kafka import KafkaAdminClient, KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import NewTopic

from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import TopicPartition
from headrace.consumers.results import ResultFilter, ResultReader, read_result
from headrace.consumers.tail_reader import TailReader
from headrace.producers.client import Client
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.producers.kafka_transport import MANY_PARTS
from headrace.producers.testing import Answer, Fault, ScriptedWorker
from headrace.schemas.codec import Codec
from headrace.schemas.errors import KafkaFailed, Rejected, TopicMissing, TopicsError, Undecodable
from headrace.schemas.messages import Location, Request, Result, Status
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, replies_topic

MODEL = "storyteller"


class KafkaFate:
    """A responder on topics of its own."""

    def __init__(self, settings: Settings, responder: Responder) -> None:
        self.settings = settings
        self._responder = responder

    def client(self, **options: Any) -> Client:
        return Client.connect(MODEL, settings=self.settings, **options)

    def answer_with(self, answer: Answer) -> None:
        self._responder.worker.answer = answer

    def fail_next(self, status: Status = "failed", message: str = "", *, times: int = 1) -> None:
        self._order(Fault("status", status, message), times)

    def lose_next_reply(self, *, times: int = 1) -> None:
        self._order(Fault("lost_reply"), times)

    def restart_next_stream(self, *, times: int = 1) -> None:
        self._order(Fault("restart"), times)

    def ignore_next(self, *, times: int = 1) -> None:
        self._order(Fault("silence"), times)

    def _order(self, fault: Fault, times: int) -> None:
        faults: deque[Fault] = self._responder.worker.faults
        faults.extend([fault] * times)

    @property
    def generated(self) -> list[Request]:
        return self._responder.generated

    @property
    def cancelled(self) -> list[str | None]:
        return self._responder.cancelled


@pytest.fixture
def settings(broker_bootstrap: str, unique_prefix: str) -> Settings:
    return Settings(bootstrap_servers=broker_bootstrap, prefix=unique_prefix)


@pytest.fixture
def names(settings: Settings) -> ContractNames:
    made = ContractNames(settings.prefix, MODEL, 1)
    create_topics(settings, made)
    return made


@pytest.fixture
def responder(settings: Settings, names: ContractNames) -> Iterator[Responder]:
    running = Responder(settings, names)
    yield running
    running.stop()


@pytest.fixture
def kafka_fate(settings: Settings, responder: Responder) -> KafkaFate:
    return KafkaFate(settings, responder)


class TestKafkaClient(ClientPort):
    @pytest.fixture
    def fate(self, kafka_fate: KafkaFate) -> Fate:
        return kafka_fate


def test_replies_to_one_client_never_reach_another_on_the_same_partition(
    kafka_fate: KafkaFate, names: ContractNames
) -> None:
    """Twelve clients on four partitions, each asking for what the others ask for."""
    kafka_fate.answer_with(lambda request: request.attributes["client"])

    async def work() -> None:
        clients = [kafka_fate.client() for _ in range(12)]
        for client in clients:
            await client.open()
        answers = await asyncio.gather(
            *(
                client.ask("x", into=str, attributes={"client": str(n)}, timeout=ENOUGH)
                for n, client in enumerate(clients)
                for _ in range(5)
            )
        )
        assert answers == [str(n) for n in range(12) for _ in range(5)]
        for client in clients:
            await client.close()

    asyncio.run(work())


def test_a_thousand_requests_in_flight_are_all_answered(kafka_fate: KafkaFate) -> None:
    kafka_fate.answer_with(lambda request: request.prompt or "")

    async def work() -> None:
        async with kafka_fate.client() as client:
            asked = [client.ask(f"n{n}", into=str, timeout=ENOUGH) for n in range(1000)]
            assert await asyncio.gather(*asked) == [f"n{n}" for n in range(1000)]

    asyncio.run(work())


def test_a_key_stays_in_its_partition(kafka_fate: KafkaFate) -> None:
    async def work() -> None:
        async with kafka_fate.client() as client:
            locations = [(await client.publish(f"n{n}", key="one key"))[1] for n in range(6)]
            assert len({location.partition for location in locations}) == 1

    asyncio.run(work())


@pytest.mark.parametrize("in_one_message", [False, True])
def test_a_request_of_very_many_parts_is_encoded_beside_the_event_loop(
    kafka_fate: KafkaFate, monkeypatch: pytest.MonkeyPatch, in_one_message: bool
) -> None:
    encode = Codec.encode
    encoded_by: dict[str, int | None] = {}

    def noted(codec: Codec, message: Any, *more: Any, **options: Any) -> bytes:
        if isinstance(message, Request):
            encoded_by[message.id] = threading.current_thread().ident
        return encode(codec, message, *more, **options)

    monkeypatch.setattr(Codec, "encode", noted)
    part: Any = {"type": "text", "text": "a"}
    many: list[Any] = (
        [{"role": "user", "content": [part] * (MANY_PARTS + 1)}]
        if in_one_message
        else [{"role": "user", "content": "a"}] * (MANY_PARTS + 1)
    )

    async def work() -> None:
        async with kafka_fate.client() as client:
            await asyncio.gather(client.ask(many, id="many"), client.ask("x", id="one"))

    asyncio.run(work())
    assert encoded_by["one"] == threading.main_thread().ident
    assert encoded_by["many"] != threading.main_thread().ident


def test_a_topic_of_cancels_that_is_missing_never_keeps_the_event_loop(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ContractNames(settings.prefix, MODEL, 1)
    admin = KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    wanted = [*names.request_topics, replies_topic(settings.prefix)]
    admin.create_topics([NewTopic(topic, 1, 1) for topic in wanted])
    admin.close()
    send = PlainProducer.send
    sent_by: list[int] = []

    def noted(producer: PlainProducer, record: OutgoingRecord) -> Any:
        if record.topic == names.cancels:
            sent_by.append(threading.get_ident())
        return send(producer, record)

    monkeypatch.setattr(PlainProducer, "send", noted)

    async def work() -> None:
        async with Client.connect(MODEL, settings=settings) as client:
            for n in range(2):
                with pytest.raises(TopicMissing):
                    await client.cancel(f"n{n}")

    asyncio.run(work())
    assert len(sent_by) == 2
    assert threading.get_ident() not in sent_by


def test_topics_that_do_not_exist_are_named(settings: Settings) -> None:
    async def work() -> None:
        with pytest.raises(TopicsError, match=r"nobody\.c1\.requests\.interactive.*headrace topics apply"):
            await Client.connect("nobody", settings=settings).open()

    asyncio.run(work())


def test_results_are_read_with_their_filters_and_from_a_time(
    kafka_fate: KafkaFate, settings: Settings, names: ContractNames
) -> None:
    kafka_fate.answer_with("fine")
    moments: list[datetime] = []

    async def ask() -> None:
        async with kafka_fate.client() as client:
            kafka_fate.fail_next("rejected")
            with pytest.raises(Rejected):
                await client.ask("x", id="bad")
            moments.append(datetime.now(tz=UTC))
            await until(lambda: datetime.now(tz=UTC) - moments[0] > timedelta(milliseconds=5))
            for n in range(5):
                await client.ask("x", id=f"id-{n}")

    asyncio.run(ask())

    def read(**options: Any) -> list[str]:
        with ResultReader(settings, names, **options) as reader:
            found = [each.result for each in reader if each is not None]
        return sorted(result.id for result in found if isinstance(result, Result))

    asked = [f"id-{n}" for n in range(5)]
    assert read() == ["bad", *asked]
    assert read(wanted=ResultFilter(ids=frozenset({"id-3"}))) == ["id-3"]
    assert read(wanted=ResultFilter(statuses=frozenset({"rejected"}))) == ["bad"]
    assert read(start="end") == []
    assert read(start=moments[0]) == asked


def test_results_from_a_time_to_come_are_none(
    kafka_bootstrap: str, kafka_fate: KafkaFate, settings: Settings, names: ContractNames
) -> None:
    """Real Kafka alone: the embedded broker answers with the log's beginning."""

    async def ask() -> None:
        async with kafka_fate.client() as client:
            await client.ask("x")

    asyncio.run(ask())
    with ResultReader(settings, names, start=datetime.now(tz=UTC) + timedelta(hours=1)) as reader:
        assert [each for each in reader if each is not None] == []


def test_a_result_that_cannot_be_decoded_is_reported_and_the_rest_is_read(
    kafka_fate: KafkaFate, settings: Settings, names: ContractNames
) -> None:
    async def ask() -> None:
        async with kafka_fate.client() as client:
            await client.ask("x", id="good")

    producer = PlainProducer(settings)
    producer.send(OutgoingRecord(names.results, b"k", b"\x07garbage", (), 0)).result(ENOUGH)
    producer.close()
    asyncio.run(ask())
    with ResultReader(settings, names) as reader:
        found = [each for each in reader if each is not None]
    kinds = {type(each.result) for each in found}
    assert kinds == {Undecodable, Result}
    (bad,) = [each for each in found if isinstance(each.result, Undecodable)]
    assert (bad.location.topic, bad.location.partition, bad.location.offset) == (names.results, 0, 0)


def test_results_of_an_aborted_transaction_are_never_read(
    kafka_bootstrap: str, settings: Settings, names: ContractNames
) -> None:
    """The log ends in an aborted record and a marker: no record to read, and no offset that a reader waits for."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, transactional_id=settings.prefix)
    producer.init_transactions()
    worker = ScriptedWorker("", names)
    source = Location(topic=names.requests("standard"), partition=0, offset=0)
    for request_id, commit in (("kept", True), ("aborted", False)):
        result = asyncio.run(worker.result(Request(id=request_id, prompt="x"), source))
        producer.begin_transaction()
        producer.send(names.results, key=b"k", value=Codec().encode(result)).get(timeout=ENOUGH)
        producer.commit_transaction() if commit else producer.abort_transaction()
    producer.close()
    with ResultReader(settings, names) as reader:
        found = [each.result for each in reader if each is not None]
    assert [each.id for each in found if isinstance(each, Result)] == ["kept"]
    # These records have no headers, so that only their values say what they are.
    with ResultReader(settings, names, wanted=ResultFilter(ids=frozenset({"another"}))) as reader:
        assert [each for each in reader if each is not None] == []


def test_a_location_that_holds_nothing_any_more_is_said(
    kafka_bootstrap: str, settings: Settings, names: ContractNames, kafka_fate: KafkaFate
) -> None:
    async def work() -> None:
        async with kafka_fate.client() as client:
            await client.ask("x", id="old")

    asyncio.run(work())
    (tp,) = [tp for tp, end in _ends(settings, names).items() if end > 0]
    admin = KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    admin.delete_records({KafkaTopicPartition(*tp): 1})
    admin.close()
    with pytest.raises(KafkaFailed, match="holds no result any more"):
        read_result(settings, Location(topic=tp.topic, partition=tp.partition, offset=0), Codec(), 2.0)


def _ends(settings: Settings, names: ContractNames) -> dict[TopicPartition, int]:
    tail = TailReader(settings, partitions_of(settings, [names.results])[names.results], "end")
    try:
        return tail.end_offsets()
    finally:
        tail.close()
