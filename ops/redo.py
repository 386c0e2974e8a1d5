"""Asking again what a bad version has answered.

In two passes: the first reads results and notes where the requests of that version's lie, the second reads the request
topics from the first such place to the last and sends those again, byte for byte. Their new results name the ones that
they supersede.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.consumers.control import read_control
from headrace.consumers.dead_letters import ToTheEnd, header_text
from headrace.consumers.records import Record, RecordLocation, TopicPartition
from headrace.consumers.result_schemas import frozen_result_schemas
from headrace.ops.dead_letters import OURS, Progress, Sending, Tally, no_progress
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas import headers as header
from headrace.schemas.codec import Codec
from headrace.schemas.errors import MessageError, TopicsError, UsageError
from headrace.schemas.messages import Location, Result, Status

if TYPE_CHECKING:
    from datetime import datetime

    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

MOST = 2_000_000  # results that are taken at a time: their places have half a GB then
# What a version has answered by itself; the others are the caller's doing, or the clock's.
ANSWERED: frozenset[Status] = frozenset({"ok", "failed", "invalid_output", "truncated"})


@dataclass(frozen=True, slots=True)
class Answered:
    """Which results are to be asked again: a version's, of these statuses, from `since` on and before `until`."""

    versions: frozenset[str]
    statuses: frozenset[Status] = ANSWERED
    since: datetime | None = None
    until: datetime | None = None

    def wants(self, record: Record) -> bool:
        """Decided by the headers, which every result has."""
        moment_s = record.timestamp_ms / 1000
        if record.timestamp_ms >= 0 and self.until is not None and moment_s >= self.until.timestamp():
            return False
        return (
            header_text(record.headers, header.MODEL_VERSION) in self.versions
            and header_text(record.headers, header.STATUS) in self.statuses
        )


@dataclass(slots=True)
class Requests:
    """Where the requests lie that are to be sent again, and where the result of each. Pure.

    By topic and partition: offset of the request to (partition, offset) of its result.
    """

    lies: dict[TopicPartition, dict[int, tuple[int, int]]] = field(
        default_factory=dict[TopicPartition, dict[int, tuple[int, int]]]
    )
    superseded: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])  # results

    def note(self, request: TopicPartition, offset: int, result: tuple[int, int]) -> None:
        """A result of the version; a later one of the same request takes its place."""
        self.lies.setdefault(request, {})[offset] = result

    def supersede(self, place: str) -> None:
        """A result says that it supersedes another: that one was asked again before."""
        partition, _, offset = place.rpartition("-")[2].partition("@")
        if partition.isdigit() and offset.isdigit():
            self.superseded.add((int(partition), int(offset)))

    def remaining(self, request: TopicPartition) -> dict[int, tuple[int, int]]:
        """Those of a partition whose result nothing has superseded."""
        found = self.lies.get(request, {})
        return {offset: result for offset, result in found.items() if result not in self.superseded}

    def __len__(self) -> int:
        return sum(map(len, self.lies.values()))


class Redo:
    """Sends the requests of a contract again that a version has answered."""

    def __init__(
        self,
        settings: Settings,
        names: ContractNames,
        wanted: Answered,
        *,
        limit: int | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self._settings = settings
        self._names = names
        self._wanted = wanted
        self._left = limit
        self._progress = progress
        self._requests = Requests()
        self.found: Counter[str] = Counter()  # results by status
        self.tally = Tally()

    def look(self) -> None:
        """Find out what there is to send.

        Raises UsageError where the version still has a share, and for too much at a time; TopicsError where the
        results' topic does not exist, KafkaUnavailable, KafkaFailed, BrokerNotFound.
        """
        self._refuse_a_version_that_serves()
        codec = Codec.with_registry_at(
            self._settings.schema_registry_url, result_schemas=frozen_result_schemas(self._settings)
        )
        with ToTheEnd(self._settings, self._names.results, since=self._wanted.since) as reader:
            for records in reader:
                for record in records:
                    self._note(record, codec)
                self._progress("looking for results", reader.done, reader.total)
        superseded = sum(
            result in self._requests.superseded
            for offsets in self._requests.lies.values()
            for result in offsets.values()
        )
        self.tally.found, self.tally.answered = len(self._requests), superseded

    def _refuse_a_version_that_serves(self) -> None:
        try:
            plan = read_control(self._settings).rollouts.plan(self._names.group)
        except TopicsError:
            return
        serving = sorted(
            version for version in self._wanted.versions if plan is not None and plan.shares.get(version)
        )
        if serving:
            raise UsageError(
                f"version {', '.join(serving)} still has a share of {self._names.base}: what is asked again might "
                f"go to it. Take it back first: headrace rollout rollback {self._names.model}"
            )

    def _note(self, record: Record, codec: Codec) -> None:
        supersedes = header_text(record.headers, header.SUPERSEDES)
        if supersedes is not None:
            self._requests.supersede(supersedes)
        if not self._wanted.wants(record):
            return
        try:
            result = codec.decode(Result, record.value).message
        except MessageError as error:
            self.tally.refuse(_location(record), "the result cannot be read", str(error))
            return
        self.found[result.status] += 1
        source = result.provenance
        if len(self._requests) >= MOST:
            raise UsageError(f"more than {MOST:,} results: take fewer at a time, with --since and --until")
        self._requests.note(
            TopicPartition(source.source_topic, source.source_partition),
            source.source_offset,
            (record.partition, record.offset),
        )

    def count(self) -> None:
        """Count what would be sent, and what is gone. After `look`."""
        for _ in self._outgoing("counting"):
            self.tally.to_send["request"] += 1

    def send(self) -> None:
        """Send it. After `look`. `tally.acknowledged` says how much of it Kafka has, also when this raises.

        Raises KafkaUnavailable, KafkaFailed.
        """
        producer = PlainProducer(self._settings)
        try:
            sending = Sending(producer, self.tally)
            try:
                for lies, record in self._outgoing("asking again"):
                    self.tally.to_send["request"] += 1
                    sending.send(lies, record)
            finally:
                sending.finish()
        finally:
            producer.close()

    def _outgoing(self, what: str) -> Iterator[tuple[Location, OutgoingRecord]]:
        topics = sorted({tp.topic for tp in self._requests.lies})
        for topic in topics:
            remaining = {
                tp: left
                for tp in self._requests.lies
                if tp.topic == topic and (left := self._requests.remaining(tp))
            }
            if remaining:
                yield from self._of_topic(what, topic, remaining)

    def _of_topic(
        self, what: str, topic: str, remaining: Mapping[TopicPartition, dict[int, tuple[int, int]]]
    ) -> Iterator[tuple[Location, OutgoingRecord]]:
        found: set[tuple[TopicPartition, int]] = set()
        starts = {tp: min(offsets) for tp, offsets in remaining.items()}
        ends = {tp: max(offsets) + 1 for tp, offsets in remaining.items()}
        with ToTheEnd(self._settings, topic, starts=starts, ends=ends) as reader:
            for records in reader:
                for record in records:
                    result = remaining.get(record.topic_partition, {}).get(record.offset)
                    if result is None:
                        continue
                    found.add((record.topic_partition, record.offset))
                    if self._left == 0:
                        return
                    outgoing = self._again(record, result)
                    if outgoing is not None:
                        self._left = None if self._left is None else self._left - 1
                        yield _location(record), outgoing
                self._progress(what, reader.done, reader.total)
        for tp, offsets in remaining.items():
            for offset in offsets:
                if (tp, offset) not in found:
                    lies = Location(topic=tp.topic, partition=tp.partition, offset=offset)
                    self.tally.refuse(lies, "the request is gone from its topic")

    def _again(self, record: Record, result: tuple[int, int]) -> OutgoingRecord | None:
        headers: list[tuple[str, bytes]] = []
        replays = 0
        for name, value in record.headers:
            if name == header.REPLAY and value is not None and value.isdigit():
                replays = int(value)
            if name in OURS:
                continue
            if value is None:  # kafka-python's producer cannot send it
                self.tally.refuse(_location(record), "a header without a value cannot be sent", name)
                return None
            headers.append((name, value))
        supersedes = f"{self._names.results}-{result[0]}@{result[1]}"
        headers += [
            (header.REPLAY, str(replays + 1).encode()),
            (header.REPLAY_AGAIN, b"true"),
            (header.SUPERSEDES, supersedes.encode()),
        ]
        return OutgoingRecord(record.topic, record.key, record.value, tuple(headers), record.partition)


def _location(record: Record | RecordLocation) -> Location:
    return Location(topic=record.topic, partition=record.partition, offset=record.offset)
