"""What tests of serving share: a producer that keeps what it is given, a polled request, and waiting on the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future

from headrace.consumers.records import Record, RecordLocation, TopicPartition
from headrace.producers.kafka import OutgoingRecord
from headrace.schemas.codec import Codec
from headrace.schemas.messages import Reply
from headrace.workers.intake import work_of
from headrace.workers.work import Work

REPLY_HEADERS = [("reply-topic", b"replies"), ("reply-partition", b"0"), ("correlation-id", b"c")]


class Sent:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []

    def send(self, record: OutgoingRecord) -> Future[RecordLocation]:
        self.records.append(record)
        done: Future[RecordLocation] = Future()
        done.set_result(RecordLocation(record.topic, record.partition or 0, len(self.records)))
        return done

    def flush(self, timeout_s: float) -> None:
        """Nothing waits here."""

    def deltas(self) -> list[Reply]:
        return [Codec().decode(Reply, record.value).message for record in self.records]


def a_work(value: str, *, stream: bool = False, offset: int = 0) -> Work:
    headers: list[tuple[str, bytes | None]] = [*REPLY_HEADERS] if stream else []
    record = Record("requests", 0, offset, int(time.time() * 1000), None, value.encode(), headers)
    return work_of(record, source=TopicPartition("requests", 0), epoch=1, lane="standard", codec=Codec())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what changes it has no event)
            await asyncio.sleep(0.001)
