"""Reading everything back once all is quiet: the requests, the answers, and how far the group has come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.consumers.group import read_committed_offsets
from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import Record, RecordLocation, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.ops.faults.verdict import Answer, Asked
from headrace.schemas.codec import Codec
from headrace.schemas.errors import KafkaFailed
from headrace.schemas.messages import Request, Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

SILENCE_S = 60.0  # without a record, though the end is not reached: something is wrong
OFFSETS_WITHIN_S = 30.0


def read_asked(settings: Settings, names: ContractNames) -> list[Asked]:
    """Every record of the request topics. Raises KafkaFailed, MessageError."""
    codec = Codec()
    asked: list[Asked] = []
    for record in _all_records(settings, names.request_topics):
        request = codec.decode(Request, record.value).message
        asked.append(Asked(request.id, request.key, record.location))
    return asked


def read_answers(settings: Settings, names: ContractNames) -> list[Answer]:
    """Every committed record of `results`. Raises KafkaFailed, MessageError."""
    codec = Codec()
    return [
        _answer(codec.decode(Result, record.value).message, record)
        for record in _all_records(settings, [names.results])
    ]


def read_lag(settings: Settings, names: ContractNames) -> dict[TopicPartition, int]:
    """How many records of each request partition the group has not committed. Raises KafkaFailed."""
    partitions = _partitions(settings, names.request_topics)
    points = read_committed_offsets(settings, names.group, partitions, OFFSETS_WITHIN_S)
    reader = TailReader(settings, partitions, "beginning")
    try:
        beginnings, ends = reader.beginning_offsets(), reader.end_offsets()
    finally:
        reader.close()
    committed = {tp: beginnings[tp] if point is None else point.offset for tp, point in points.items()}
    return {tp: ends[tp] - committed[tp] for tp in partitions}


def _answer(result: Result, record: Record) -> Answer:
    made_by = result.provenance
    return Answer(
        id=result.id,
        status=result.status,
        code=result.error.code if result.error else None,
        text=result.outputs[0].text if result.outputs else None,
        at=record.location,
        source=RecordLocation(made_by.source_topic, made_by.source_partition, made_by.source_offset),
        slot=made_by.slot,
        attempt=made_by.attempt,
    )


def _partitions(settings: Settings, topics: Sequence[str]) -> list[TopicPartition]:
    return [tp for some in partitions_of(settings, topics).values() for tp in some]


def _all_records(settings: Settings, topics: Sequence[str]) -> Iterator[Record]:
    """What lies in the topics, committed, up to where they end now."""
    partitions = _partitions(settings, topics)
    reader = TailReader(settings, partitions, "beginning")
    try:
        ends = reader.end_offsets()
        heard = time.monotonic()
        while any((reader.position(tp) or 0) < end for tp, end in ends.items()):
            records = reader.poll(0.5, 2_000)
            if records:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S:
                raise KafkaFailed(f"{', '.join(topics)} could not be read to their ends")
            yield from records
    finally:
        reader.close()
