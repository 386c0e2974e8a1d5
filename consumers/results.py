"""Reading `results`: all partitions of a contract, committed records only, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from headrace.consumers.partitions import offsets_at, partitions_of
from headrace.consumers.records import Record, TopicPartition
from headrace.consumers.result_schemas import frozen_result_schemas
from headrace.consumers.tail_reader import TailReader
from headrace.schemas.codec import Codec
from headrace.schemas.errors import KafkaFailed, MessageError, ResultGone
from headrace.schemas.headers import REQUEST_ID, STATUS
from headrace.schemas.messages import Location, Result, Status

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

POLL_TIMEOUT_S = 0.2
POLL_RECORDS = 200
LOOK_UP_TIMEOUT_S = 10.0

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class ReadResult:
    """One record of `results`: the result, or why it cannot be read."""

    location: Location
    timestamp_ms: int  # since the epoch; -1: unknown
    headers: Headers
    result: Result | MessageError


@dataclass(frozen=True, slots=True)
class ResultFilter:
    """Which results are wanted; empty: all. Decided by the headers where they say it, so that the rest need
    not be decoded."""

    ids: frozenset[str] = frozenset()
    statuses: frozenset[Status] = frozenset()

    def may_want(self, headers: Headers) -> bool:
        """Whether a record with these headers can be wanted; a header that is missing rules nothing out."""
        found = {name: value.decode("utf-8", "replace") for name, value in headers if value is not None}
        return _allows(self.ids, found.get(REQUEST_ID)) and _allows(self.statuses, found.get(STATUS))

    def wants(self, result: Result) -> bool:
        """Whether this result is wanted."""
        return _allows(self.ids, result.id) and _allows(self.statuses, result.status)


def _allows(wanted: Collection[str], found: str | None) -> bool:
    return not wanted or found is None or found in wanted


class ResultReader:
    """Iterates over the results of a contract.

    `start`: "beginning", "end", or a time, from which records on are read. Ends where the topic ended when
    it was opened; with `follow`, never: then `None` comes whenever nothing came for a while, so that a loop
    can look up. A result that cannot be decoded comes as its error, since an id or a status may be hidden
    in it.
    """

    def __init__(
        self,
        settings: Settings,
        names: ContractNames,
        *,
        start: Literal["beginning", "end"] | datetime = "beginning",
        wanted: ResultFilter | None = None,
        codec: Codec | None = None,
        follow: bool = False,
    ) -> None:
        """Connect and take position. Raises KafkaUnavailable, KafkaFailed, BrokerNotFound; TopicsError
        where the topic does not exist."""
        self._wanted = wanted or ResultFilter()
        self._codec = codec or Codec.with_registry_at(
            settings.schema_registry_url, result_schemas=frozen_result_schemas(settings)
        )
        self._follow = follow
        partitions = partitions_of(settings, [names.results])[names.results]
        at = start if isinstance(start, str) else offsets_at(settings, partitions, start)
        self._tail = TailReader(settings, partitions, at)
        try:
            self._ends = self._tail.end_offsets()
        except BaseException:
            self._tail.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._tail.close()

    def __iter__(self) -> Iterator[ReadResult | None]:
        """Raises KafkaFailed for what waiting cannot mend."""
        # A full poll may have left records behind that were fetched with it. They are read even beyond the end
        # that was asked for: Tansu, the embedded broker, names as the end the second record of the last batch.
        all_fetched = True
        while self._follow or not (all_fetched and self._at_end()):
            records = self._tail.poll(POLL_TIMEOUT_S, POLL_RECORDS)
            all_fetched = len(records) < POLL_RECORDS
            for record in records:
                if (found := self._read(record)) is not None:
                    yield found
            if not records:
                yield None

    @property
    def is_behind(self) -> bool:
        """Whether there is something left to fetch of what was there when it was opened."""
        return not self._at_end()

    def _at_end(self) -> bool:
        return all((self._tail.position(tp) or 0) >= end for tp, end in self._ends.items())

    def _read(self, record: Record) -> ReadResult | None:
        if not self._wanted.may_want(record.headers):
            return None
        try:
            result: Result | MessageError = self._codec.decode(Result, record.value).message
        except MessageError as error:
            result = error
        if isinstance(result, Result) and not self._wanted.wants(result):
            return None
        return ReadResult(_location(record), record.timestamp_ms, record.headers, result)


def read_result(
    settings: Settings, location: Location, codec: Codec, timeout_s: float = LOOK_UP_TIMEOUT_S
) -> Result:
    """The committed result that lies at `location`.

    Raises ResultGone where none does (any more), KafkaFailed where it does not come in time, and MessageError.
    """
    tp = TopicPartition(location.topic, location.partition)
    deadline = time.monotonic() + timeout_s
    tail = TailReader(settings, [tp], {tp: location.offset}, timeout_s=timeout_s)
    try:
        while (remaining := deadline - time.monotonic()) > 0:
            for record in tail.poll(min(POLL_TIMEOUT_S, remaining), 1):
                if record.offset == location.offset:
                    return codec.decode(Result, record.value).message
                raise _gone(location)
            if tail.skipped:
                raise _gone(location)
    finally:
        tail.close()
    raise KafkaFailed(f"{_name(location)} could not be read within {timeout_s:g} s")


def _gone(location: Location) -> ResultGone:
    return ResultGone(f"{_name(location)} holds no result any more: ask again under another id")


def _location(record: Record) -> Location:
    return Location(topic=record.topic, partition=record.partition, offset=record.offset)


def _name(location: Location) -> str:
    return f"{location.topic}-{location.partition} at offset {location.offset}"
