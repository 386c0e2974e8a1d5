"""Who answers clients on a broker where no worker runs: a thread with a script."""

from __future__ import annotations

import asyncio
import threading

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import Record, RecordLocation
from headrace.consumers.tail_reader import TailReader
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.producers.testing import ScriptedWorker
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.headers import (
    CORRELATION_ID,
    MODEL_VERSION,
    REPLY_PARTITION,
    REPLY_TOPIC,
    REQUEST_ID,
    STATUS,
)
from headrace.schemas.messages import Cancel, Location, Message, Reply, Request
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, replies_topic


def create_topics(settings: Settings, names: ContractNames) -> None:
    wanted = [NewTopic(topic, 2, 1) for topic in (*names.request_topics, names.results, names.cancels)]
    wanted.append(NewTopic(replies_topic(settings.prefix), 4, 1))
    admin = KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    admin.create_topics(wanted)
    admin.close()


class Responder:
    """Stands where a worker would: reads the request topics, publishes results, and replies after them."""

    def __init__(self, settings: Settings, names: ContractNames) -> None:
        self.worker = ScriptedWorker("", names)
        self.generated: list[Request] = []
        self.cancelled: list[str | None] = []
        self._names = names
        self._codec = Codec()
        self._taken: dict[str, Location | None] = {}
        self._addresses: dict[str, list[dict[str, bytes]]] = {}
        self._stop = threading.Event()
        topics = [*names.request_topics, names.cancels]
        partitions = [tp for found in partitions_of(settings, topics).values() for tp in found]
        self._tail = TailReader(settings, partitions, "beginning")
        self._producer = PlainProducer(settings)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._tail.close()
        self._producer.close()

    async def _run(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        while not self._stop.is_set():
            for record in await asyncio.to_thread(self._tail.poll, 0.05):
                task = asyncio.ensure_future(self._take(record))
                tasks.add(task)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _take(self, record: Record) -> None:
        if record.topic == self._names.cancels:
            self.cancelled.append(self._codec.decode(Cancel, record.value).message.id)
            return
        request, encoding = (decoded := self._codec.decode(Request, record.value)).message, decoded.encoding
        headers = {name: value or b"" for name, value in record.headers}
        address = [headers] if CORRELATION_ID in headers else []
        if request.id in self._taken:
            result_location = self._taken[request.id]
            if result_location is None:
                self._addresses[request.id] += address
            for each in address if result_location is not None else []:
                await self._reply(each, self.worker.duplicate(request, result_location), encoding)
            return
        self._taken[request.id], self._addresses[request.id] = None, address
        self.generated.append(request)
        await self._answer(request, encoding, record)

    async def _answer(self, request: Request, encoding: Encoding, record: Record) -> None:
        fault = self.worker.fault_for(request)
        if fault is not None and fault.kind == "silence":
            return
        source = Location(topic=record.topic, partition=record.partition, offset=record.offset)
        result = await self.worker.result(request, source, fault)
        deltas = self.worker.deltas(request, result, fault)
        headers = {STATUS: result.status, MODEL_VERSION: "1", REQUEST_ID: request.id}
        lies = await self._send(
            self._names.results,
            record.key,
            result,
            encoding,
            tuple((k, v.encode()) for k, v in headers.items()),
        )
        self._taken[request.id] = Location(topic=lies.topic, partition=lies.partition, offset=lies.offset)
        for address in self._addresses.pop(request.id):
            for delta in deltas:
                await self._reply(address, delta, encoding)
            if fault is None or fault.kind != "lost_reply":
                await self._reply(address, self.worker.final(result, len(deltas)), encoding)

    async def _reply(self, address: dict[str, bytes], reply: Reply, encoding: Encoding) -> None:
        topic, partition = address[REPLY_TOPIC].decode(), int(address[REPLY_PARTITION])
        await self._send(topic, address[CORRELATION_ID], reply, encoding, (), partition)

    async def _send(
        self,
        topic: str,
        key: bytes | None,
        message: Message,
        encoding: Encoding,
        headers: tuple[tuple[str, bytes], ...],
        partition: int | None = None,
    ) -> RecordLocation:
        value = self._codec.encode(message, encoding, topic=topic)
        record = OutgoingRecord(topic, key, value, headers, partition)
        return await asyncio.wrap_future(self._producer.send(record))
