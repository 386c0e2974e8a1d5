"""A client's transport through Kafka: one producer, and one thread that reads the replies."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import RecordLocation
from headrace.consumers.replies import Delivery, ReplyReader, new_instance_id, reply_partition
from headrace.consumers.result_schemas import frozen_result_schemas
from headrace.consumers.results import read_result
from headrace.consumers.tail_reader import TailReader
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.codec import Codec
from headrace.schemas.errors import HeadraceError, NoReply
from headrace.schemas.headers import CORRELATION_ID, REPLY_PARTITION, REPLY_TOPIC
from headrace.schemas.messages import Cancel, Lane, Location, Message, Reply, Request, Result
from headrace.schemas.registry import SchemaRegistry
from headrace.topics.names import ContractNames, replies_topic

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

Headers = tuple[tuple[str, bytes], ...]

MANY_PARTS = 1_000  # of a request's messages; to encode these takes a millisecond, and there may be 90,000


class KafkaTransport:
    """Sends to the request topics of one contract; its replies come to a partition that it shares with other
    instances and from which it takes its own alone."""

    def __init__(self, settings: Settings, model: str, contract: int) -> None:
        """Raises SettingsError for a model or contract that cannot be, and for the registry's URL."""
        self._settings = settings
        self._names = ContractNames(settings.prefix, model, contract)
        self._instance = new_instance_id()
        url = settings.schema_registry_url
        self._registry = None if url is None else SchemaRegistry(url)
        self._codec = Codec(self._registry, result_schemas=frozen_result_schemas(settings))
        self._producer: PlainProducer | None = None
        self._reader: ReplyReader | None = None
        self._reply_headers: Headers = ()
        # Records of one key leave in the order in which they were asked for, though the first waits in a thread. A lock
        # for each topic: one that is missing holds up no other.
        self._in_order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Of topics that were waited for in vain: when that ended (the loop's time), and why.
        self._missed: dict[str, tuple[float, BaseException]] = {}
        # An `open` that is given up goes on in its thread, beside the `close` that follows.
        self._lock = threading.Lock()
        self._closed = False

    async def open(
        self, deliver: Callable[[list[Delivery]], None], died: Callable[[HeadraceError], None]
    ) -> None:
        await asyncio.to_thread(self._open, deliver, died)

    def _open(self, deliver: Callable[[list[Delivery]], None], died: Callable[[HeadraceError], None]) -> None:
        replies = replies_topic(self._settings.prefix)
        found = partitions_of(self._settings, [*self._names.request_topics, replies])
        ours = found[replies][reply_partition(self._instance, len(found[replies]))]
        self._reply_headers = (
            (REPLY_TOPIC, replies.encode()),
            (REPLY_PARTITION, str(ours.partition).encode()),
        )
        # It stands at the partition's end before anything can be sent.
        tail = TailReader(self._settings, [ours], "end", "read_uncommitted")
        reader = ReplyReader(tail, self._instance, self._decode_reply, deliver, died)
        reader.start()
        with self._lock:
            self._reader = reader
        self._check_still_wanted()
        producer = PlainProducer(self._settings)
        with self._lock:
            self._producer = producer
        self._check_still_wanted()

    def _check_still_wanted(self) -> None:
        """Raises NoReply where `close` came before what was just made, and lets go of that: nobody else would."""
        with self._lock:
            if not self._closed:
                return
        self._close()
        raise NoReply("the client was closed while it was being opened")

    def _decode_reply(self, value: bytes) -> Reply:
        return self._codec.decode(Reply, value).message

    def correlation_id(self, number: int) -> str:
        return f"{self._instance}:{number}"

    async def send(self, request: Request, lane: Lane, correlation_id: str | None) -> Location:
        headers: Headers = ()
        if correlation_id is not None:
            headers = ((CORRELATION_ID, correlation_id.encode()), *self._reply_headers)
        key = request.key or request.id
        return await self._send(self._names.requests(lane), key, request, headers)

    async def send_cancel(self, cancel: Cancel) -> None:
        await self._send(self._names.cancels, cancel.id or cancel.job or "", cancel, ())

    async def _send(self, topic: str, key: str, message: Message, headers: Headers) -> Location:
        asked_at = asyncio.get_running_loop().time()
        async with self._in_order[topic]:
            producer = self._producer
            if producer is None:
                raise NoReply("the client is not open")
            value = await self._encode(topic, message)
            record = OutgoingRecord(topic, key.encode(), value, headers)
            if producer.knows(topic):
                sent = producer.send(record)
            else:
                sent = await self._send_waiting(producer, record, asked_at)
        # Shielded: what was handed to the producer is sent, whether or not somebody still waits to hear of it.
        location = await asyncio.shield(asyncio.wrap_future(sent))
        return Location(topic=location.topic, partition=location.partition, offset=location.offset)

    async def _send_waiting(
        self, producer: PlainProducer, record: OutgoingRecord, asked_at: float
    ) -> Future[RecordLocation]:
        """Send a record that has to wait for its topic's metadata: the first one, and all while the topic is missing.

        All that were asked for during a wait in vain fail as that one did: one by one they would pile up.
        """
        ended_at, error = self._missed.get(record.topic, (asked_at, None))
        if error is not None and asked_at < ended_at:
            raise copy.copy(error)
        sent = await asyncio.to_thread(producer.send, record)
        if sent.done() and (error := sent.exception()) is not None and not producer.knows(record.topic):
            self._missed[record.topic] = (asyncio.get_running_loop().time(), copy.copy(error))
        return sent

    async def _encode(self, topic: str, message: Message) -> bytes:
        if self._registry is not None:  # it may be asked
            return await asyncio.to_thread(self._codec.encode, message, topic=topic)
        if _has_many_parts(message):  # the loop has others to serve meanwhile
            return await asyncio.to_thread(self._codec.encode, message)
        return self._codec.encode(message)

    async def result_at(self, location: Location) -> Result:
        return await asyncio.to_thread(read_result, self._settings, location, self._codec)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            reader, self._reader = self._reader, None
            producer, self._producer = self._producer, None
        with contextlib.ExitStack() as stack:
            if self._registry is not None:
                stack.callback(self._registry.close)
            if producer is not None:
                stack.callback(producer.close)
            if reader is not None:
                stack.callback(reader.close)


def _has_many_parts(message: Message) -> bool:
    messages = message.messages if isinstance(message, Request) else None
    if messages is None:
        return False
    if len(messages) > MANY_PARTS:
        return True
    parts = sum(len(each.content) for each in messages if isinstance(each.content, list))
    return len(messages) + parts > MANY_PARTS
