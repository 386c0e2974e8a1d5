"""Reading `dead`: all partitions of a contract, committed records only, in bounded memory. And what a replay asks
of `results` and of the request topics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.consumers.partitions import offsets_at, partitions_of
from headrace.consumers.records import Record, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.schemas.codec import Codec
from headrace.schemas.errors import KafkaFailed, MessageError
from headrace.schemas.headers import ERROR_CODE, MODEL_VERSION, REPLAY, REPLAY_OF, REQUEST_ID, STATUS
from headrace.schemas.messages import DeadLetter, Location

if TYPE_CHECKING:
    from datetime import datetime

    from headrace.schemas.settings import Settings

POLL_TIMEOUT_S = 0.2
POLL_RECORDS = 200
LOOK_UP_TIMEOUT_S = 10.0

Headers = Sequence[tuple[str, bytes | None]]


def header_text(headers: Headers, name: str) -> str | None:
    """The first header of a name, as text; None where there is none or it has no value."""
    found = next((value for key, value in headers if key == name), None)
    return None if found is None else found.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ReadDeadLetter:
    """One record of `dead`: the dead letter, or why it cannot be read."""

    location: Location
    timestamp_ms: int  # since the epoch; -1: unknown
    headers: Headers  # of this record, not of the request
    letter: DeadLetter | MessageError

    @property
    def model_version(self) -> str | None:
        """The version that could not serve it; None: an older worker wrote this, which did not say."""
        return header_text(self.headers, MODEL_VERSION)

    @property
    def replays(self) -> int:
        """How often the request had been replayed when it ended here."""
        count = header_text(self._request_headers, REPLAY)
        return int(count) if count and count.isascii() and count.isdigit() and len(count) < 10 else 0

    @property
    def origin(self) -> str:
        """Where the request's first dead letter lies, as `topic-partition@offset`: this one, unless it is a
        replay's."""
        lies = f"{self.location.topic}-{self.location.partition}@{self.location.offset}"
        return header_text(self._request_headers, REPLAY_OF) or lies

    @property
    def _request_headers(self) -> Headers:
        if not isinstance(self.letter, DeadLetter):
            return ()
        return [(each.key, each.value) for each in self.letter.headers]


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are wanted; empty: all. Times are those of the records in `dead`: from `since` on, and before
    `until`. What does not say its version is not wanted where a version is."""

    ids: frozenset[str] = frozenset()
    codes: frozenset[str] = frozenset()
    versions: frozenset[str] = frozenset()
    since: datetime | None = None
    until: datetime | None = None

    def may_want(self, record: Record) -> bool:
        """Whether this record can be wanted, by what can be seen without decoding it."""
        moment_s = record.timestamp_ms / 1000
        if record.timestamp_ms >= 0 and (
            (self.since is not None and moment_s < self.since.timestamp())
            or (self.until is not None and moment_s >= self.until.timestamp())
        ):
            return False
        for wanted, name in ((self.ids, REQUEST_ID), (self.codes, ERROR_CODE)):
            found = header_text(record.headers, name)
            if wanted and found is not None and found not in wanted:
                return False
        return not self.versions or header_text(record.headers, MODEL_VERSION) in self.versions

    def wants(self, letter: DeadLetter) -> bool:
        """Whether this dead letter is wanted, of which `may_want` has been asked."""
        return (not self.ids or letter.id in self.ids) and (not self.codes or letter.code in self.codes)


class ToTheEnd:
    """Reads partitions to where they ended when it was opened, or to where it is told, and counts."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        *,
        since: datetime | None = None,
        starts: Mapping[TopicPartition, int] | None = None,
        ends: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Connect and take position: `starts` (of these partitions alone), else from `since` on, else at the beginning.

        Raises KafkaUnavailable, KafkaFailed, BrokerNotFound; TopicsError where the topic does not exist.
        """
        partitions = partitions_of(settings, [topic])[topic]
        if starts is not None:
            partitions = [tp for tp in partitions if tp in starts]
        elif since is not None:
            starts = offsets_at(settings, partitions, since)
        self._tail = TailReader(settings, partitions, "beginning" if starts is None else starts)
        try:
            self.starts = self._tail.beginning_offsets() if starts is None else dict(starts)
            self.ends = self._tail.end_offsets() if ends is None else dict(ends)
        except BaseException:
            self._tail.close()
            raise
        self.total = sum(max(0, end - self.starts[tp]) for tp, end in self.ends.items())  # offsets

    @property
    def done(self) -> int:
        """Offsets of `total` that are behind it."""
        positions = ((self._tail.position(tp) or 0, tp, end) for tp, end in self.ends.items())
        return sum(max(0, min(at, end) - self.starts[tp]) for at, tp, end in positions)

    def __iter__(self) -> Iterator[list[Record]]:
        """Records as they come; an empty list whenever nothing came for a while. Raises KafkaFailed for what waiting
        cannot mend."""
        # A full poll may have left records behind that were fetched with it. They are read even beyond the end that was
        # asked for: Tansu, the embedded broker, names as the end the second record of the last batch.
        all_fetched = True
        while not (all_fetched and self._at_end()):
            records = self._tail.poll(POLL_TIMEOUT_S, POLL_RECORDS)
            all_fetched = len(records) < POLL_RECORDS
            yield records

    def _at_end(self) -> bool:
        return all((self._tail.position(tp) or 0) >= end for tp, end in self.ends.items())

    def close(self) -> None:
        """Close the connections."""
        self._tail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DeadLetters:
    """The dead letters that lie in a reader's way and are wanted, each partition's in order.

    One that cannot be decoded comes as its error, if nothing that can be seen of it rules it out.
    """

    def __init__(self, reader: ToTheEnd, wanted: DeadLetterFilter, codec: Codec) -> None:
        self.reader = reader
        self._wanted = wanted
        self._codec = codec

    def __iter__(self) -> Iterator[ReadDeadLetter | None]:
        """None after each fetch, so that whoever waits can look up. Raises KafkaFailed, RegistryFailed."""
        for records in self.reader:
            for record in records:
                if self._wanted.may_want(record) and (found := self._read(record)) is not None:
                    yield found
            yield None

    def _read(self, record: Record) -> ReadDeadLetter | None:
        found = decoded(record, self._codec)
        if isinstance(found.letter, DeadLetter) and not self._wanted.wants(found.letter):
            return None
        return found


def decoded(record: Record, codec: Codec) -> ReadDeadLetter:
    """A record of `dead`. Raises RegistryFailed."""
    try:
        letter: DeadLetter | MessageError = codec.decode(DeadLetter, record.value).message
    except MessageError as error:
        letter = error
    location = Location(topic=record.topic, partition=record.partition, offset=record.offset)
    return ReadDeadLetter(location, record.timestamp_ms, record.headers, letter)


def ok_ids(records: Sequence[Record]) -> Iterator[str]:
    """The ids of those of these results that are `ok`, by their headers."""
    for record in records:
        if header_text(record.headers, STATUS) == "ok":
            request_id = header_text(record.headers, REQUEST_ID)
            if request_id is not None:
                yield request_id


def record_at(settings: Settings, location: Location, timeout_s: float = LOOK_UP_TIMEOUT_S) -> Record | None:
    """The record that lies there; None where none does (any more).

    Raises KafkaFailed where it does not come in time, KafkaUnavailable, and TopicsError.
    """
    tp = TopicPartition(location.topic, location.partition)
    if tp not in partitions_of(settings, [location.topic])[location.topic]:
        return None
    tail = TailReader(settings, [tp], {tp: location.offset}, timeout_s=timeout_s)
    try:
        if not tail.beginning_offsets()[tp] <= location.offset < tail.end_offsets()[tp]:
            return None
        deadline = time.monotonic() + timeout_s
        while (remaining := deadline - time.monotonic()) > 0:
            for record in tail.poll(min(POLL_TIMEOUT_S, remaining), 1):
                return record if record.offset == location.offset else None
            if (tail.position(tp) or 0) > location.offset:
                return None  # a transaction marker, or what retention took meanwhile
    finally:
        tail.close()
    where = f"{location.topic}-{location.partition} at offset {location.offset}"
    raise KafkaFailed(f"{where} could not be read within {timeout_s:g} s")
