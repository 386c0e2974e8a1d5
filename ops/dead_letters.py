"""Sending the requests of dead letters again: which of them, and how.

In three passes, so that it takes the same little memory for a million dead letters as for ten: the first notes of each
id where its newest dead letter lies, the second strikes out what has an `ok` result, and the third sends what is left.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.consumers.dead_letters import (
    DeadLetterFilter,
    DeadLetters,
    ReadDeadLetter,
    ToTheEnd,
    ok_ids,
    record_at,
)
from headrace.consumers.partitions import partitions_of
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas import headers as header
from headrace.schemas.codec import Codec
from headrace.schemas.errors import (
    HeadraceError,
    MessageError,
    ResultTooLarge,
    TopicNotAllowed,
    TopicsError,
    UsageError,
)
from headrace.schemas.messages import LANES, DeadLetter, Header, Lane, Location, Request

if TYPE_CHECKING:
    from headrace.consumers.records import RecordLocation, TopicPartition
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

MOST = 4_000_000  # dead letters that one replay takes: their table has 130 MB then
MOST_TOPICS = 100  # that requests name for their results
OUTSTANDING = 256  # records sent, and not yet acknowledged; and their bytes:
OUTSTANDING_BYTES = 16 * 1024 * 1024

OURS = frozenset({header.REPLAY, header.REPLAY_OF, header.REPLAY_AGAIN, header.SUPERSEDES})

_FIRST_SLOTS = 1 << 10
_OFFSET_BITS = 44

Progress = Callable[[str, int, int], None]  # what is done, how much of it, and of how much


def no_progress(what: str, done: int, total: int) -> None:
    """For whoever does not watch."""


class Newest:
    """Of each request, where its newest dead letter lies, in 16 to 43 bytes. Pure.

    A request is known by the 64-bit hash of its id, which Python keys anew in each process: that any two of a million
    are taken for one has a chance of one in thirty million. An open-addressing table that doubles at three quarters.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._keys = _zeros(_FIRST_SLOTS)
        self._places = _zeros(_FIRST_SLOTS)  # 0: struck out
        self._count = 0

    def __len__(self) -> int:
        """How many requests there are, those struck out included."""
        return self._count

    def put(self, name: str, lies: Location) -> bool:
        """Note where a request's dead letter lies, and forget an earlier one. Whether the request is new.

        Raises UsageError when there are too many.
        """
        slot = self._slot(key := _key(name))
        is_new = self._keys[slot] == 0
        if is_new:
            if self._count >= self._most:
                raise UsageError(
                    f"more than {self._most:,} requests: take fewer at a time, with --since and --until"
                )
            self._count += 1
        self._keys[slot] = key
        self._places[slot] = _number(lies)
        if is_new and 4 * self._count > 3 * len(self._keys):
            self._double()
        return is_new

    def strike_out(self, name: str) -> bool:
        """Take a request out. Whether it was there until now."""
        slot = self._slot(_key(name))
        was_there = self._keys[slot] != 0 and self._places[slot] != 0
        self._places[slot] = 0
        return was_there

    def is_newest(self, name: str, lies: Location) -> bool:
        """Whether this is a request's newest dead letter, and not struck out."""
        return self._places[self._slot(_key(name))] == _number(lies)

    def _slot(self, key: int) -> int:
        """Where a key is, or may be put."""
        mask = len(self._keys) - 1
        slot = key & mask
        while self._keys[slot] not in (0, key):
            slot = (slot + 1) & mask
        return slot

    def _double(self) -> None:
        keys, places = self._keys, self._places
        self._keys, self._places = _zeros(2 * len(keys)), _zeros(2 * len(keys))
        for key, place in zip(keys, places, strict=True):
            if key:
                slot = self._slot(key)
                self._keys[slot], self._places[slot] = key, place


def _zeros(count: int) -> array[int]:
    return array("q", bytes(8 * count))


def _key(name: str) -> int:
    return hash(name) or 1  # 0 marks an empty slot


def _number(lies: Location) -> int:
    return lies.partition << _OFFSET_BITS | (lies.offset + 1)


@dataclass(slots=True)
class Tally:
    """What a replay found, and what it did or would do."""

    found: int = 0
    older: int = 0  # dead letters of requests that have a newer one
    answered: int = 0  # requests that have an `ok` result
    to_send: Counter[str] = field(
        default_factory=Counter[str]
    )  # requests by code; in a dry run what would be sent
    refused: Counter[str] = field(
        default_factory=Counter[str]
    )  # dead letters that cannot be sent, by the reason
    examples: list[str] = field(default_factory=list[str])  # what cannot be sent: a few of each reason
    acknowledged: int = 0

    def refuse(self, lies: Location, reason: str, detail: str = "") -> None:
        """Note what cannot be sent."""
        self.refused[reason] += 1
        if self.refused[reason] <= 3:
            self.examples.append(f"{lies.partition}:{lies.offset} {reason}{f': {detail}' if detail else ''}")


class Replay:
    """Sends the requests of a contract's dead letters again, to its own topics or to another contract's.

    One record for each request: that of its newest dead letter among those wanted. What has an `ok` result in either
    contract is left out, unless `again`.
    """

    def __init__(
        self,
        settings: Settings,
        source: ContractNames,
        target: ContractNames,
        wanted: DeadLetterFilter,
        *,
        lane: Lane | None = None,
        again: bool = False,
        limit: int | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """Raises TopicsError where a topic does not exist, KafkaUnavailable, KafkaFailed, BrokerNotFound."""
        self._settings = settings
        self._source = source
        self._target = target
        self._wanted = wanted
        self._lane: Lane | None = lane
        self._again = again
        self._limit = limit
        self._progress = progress
        self._codec = Codec.with_registry_at(settings.schema_registry_url)
        self._newest = Newest()
        self._result_topics: set[str] = set()  # that requests name
        self._ends: dict[TopicPartition, int] | None = None
        topics = {*source.request_topics, *target.request_topics}
        found = partitions_of(settings, sorted(topics))
        self._partitions = {topic: len(partitions) for topic, partitions in found.items()}
        self.tally = Tally()

    def look(self) -> None:
        """Find out what there is to send: the first two passes. Raises UsageError for too much, KafkaFailed."""
        for each in self._dead_letters("looking for dead letters"):
            self.tally.found += 1
            if not isinstance(each.letter, DeadLetter):
                self.tally.refuse(each.location, "cannot be read", str(each.letter))
                continue
            if not self._newest.put(self._name(each, each.letter), each.location):
                self.tally.older += 1
            if not self._again:
                self._note_result_topic(each.letter)
        if not self._again and len(self._newest):
            for topic in dict.fromkeys((self._source.results, self._target.results)):
                self._strike_out_answered(topic)
            for topic in sorted(self._result_topics):
                try:
                    self._strike_out_answered(topic)
                except TopicsError:  # it is gone, and its results with it
                    continue

    def count(self) -> None:
        """Count what would be sent. After `look`."""
        for each, letter in self._remaining("counting"):
            if self._outgoing(each, letter) is not None:
                self.tally.to_send[letter.code] += 1

    def send(self) -> None:
        """Send it. After `look`. `tally.acknowledged` says how much of it Kafka has, also when this raises.

        Raises KafkaUnavailable, KafkaFailed.
        """
        producer = PlainProducer(self._settings)
        try:
            sending = Sending(producer, self.tally)
            try:
                for each, letter in self._remaining("replaying"):
                    record = self._outgoing(each, letter)
                    if record is not None:
                        self.tally.to_send[letter.code] += 1
                        sending.send(each.location, record)
            finally:
                sending.finish()
        finally:
            producer.close()

    # --- the passes ---

    def _dead_letters(self, what: str) -> Iterator[ReadDeadLetter]:
        """Every wanted dead letter up to where the topic ended in the first pass: what comes of a replay is not in
        it."""
        with ToTheEnd(self._settings, self._source.dead, since=self._wanted.since, ends=self._ends) as reader:
            self._ends = reader.ends
            for each in DeadLetters(reader, self._wanted, self._codec):
                if each is None:
                    self._progress(what, reader.done, reader.total)
                else:
                    yield each

    def _remaining(self, what: str) -> Iterator[tuple[ReadDeadLetter, DeadLetter]]:
        left = self._limit
        for each in self._dead_letters(what):
            if isinstance(each.letter, DeadLetter) and self._newest.is_newest(
                self._name(each, each.letter), each.location
            ):
                yield each, each.letter
                if left is not None:
                    left -= 1
                    if left == 0:
                        return

    def _note_result_topic(self, letter: DeadLetter) -> None:
        """A request may have named a topic for its result; one that was not allowed had it in the contract's."""
        if letter.value is None or letter.id is None or letter.code == TopicNotAllowed.code:
            return
        try:
            topic = self._codec.decode(Request, letter.value).message.result_topic
        except MessageError:
            return
        if topic is not None and topic not in (self._source.results, self._target.results):
            self._result_topics.add(topic)
            if len(self._result_topics) > MOST_TOPICS:
                raise UsageError(
                    f"more than {MOST_TOPICS} result topics to look through: take fewer requests at a time"
                )

    def _strike_out_answered(self, topic: str) -> None:
        with ToTheEnd(self._settings, topic) as reader:
            for records in reader:
                for request_id in ok_ids(records):
                    self.tally.answered += self._newest.strike_out(request_id)
                self._progress(f"looking for `ok` in {topic}", reader.done, reader.total)

    def _name(self, each: ReadDeadLetter, letter: DeadLetter) -> str:
        """The request's id; where none can be read, its first dead letter stands for it, and no id is like that."""
        request_id = letter.id or self._codec.peek_id(Request, letter.value)
        return f"\0{each.origin}" if request_id is None else request_id

    # --- one record ---

    def _outgoing(self, each: ReadDeadLetter, letter: DeadLetter) -> OutgoingRecord | None:
        lane = lane_of(self._source, letter.source.topic)
        if lane is None:
            self.tally.refuse(each.location, "it lay in no request topic of this contract")
            return None
        if letter.value is None:
            original = original_of(self._settings, letter)
            if original is None:
                self.tally.refuse(each.location, "its bytes are gone from the request topic")
                return None
            letter, each = original, replace(each, letter=original)
        headers: list[tuple[str, bytes]] = []
        for one in letter.headers:
            if one.key in OURS:
                continue
            if one.value is None:  # kafka-python's producer cannot send it
                self.tally.refuse(each.location, "a header without a value cannot be sent", one.key)
                return None
            headers.append((one.key, one.value))
        headers += [(header.REPLAY, str(each.replays + 1).encode()), (header.REPLAY_OF, each.origin.encode())]
        if self._again:
            headers.append((header.REPLAY_AGAIN, b"true"))
        topic = self._target.requests(self._lane or lane)
        partition = partition_for(letter, topic, self._partitions)
        return OutgoingRecord(topic, letter.key, letter.value, tuple(headers), partition)


def original_of(settings: Settings, letter: DeadLetter) -> DeadLetter | None:
    """A dead letter that had no room for the request's bytes, with them as they lie in its topic; None: they are gone.

    Raises KafkaFailed, KafkaUnavailable.
    """
    try:
        record = record_at(settings, letter.source)
    except TopicsError:
        return None
    if record is None:
        return None
    headers = [Header(key=name, value=value) for name, value in record.headers]
    return letter.model_copy(update={"key": record.key, "value": record.value, "headers": headers})


def lane_of(names: ContractNames, topic: str) -> Lane | None:
    """The lane of a request topic of this contract; None: it is none."""
    return next((lane for lane in LANES if names.requests(lane) == topic), None)


def partition_for(letter: DeadLetter, topic: str, partitions: Mapping[str, int]) -> int | None:
    """The unit that a replay goes to: its own, so that the ids that it is compared with are those of its first time.

    In a contract with another number of units that of its key (None: the producer finds it), and without a key always
    the same one.
    """
    count = partitions[topic]
    if partitions[letter.source.topic] == count and letter.source.partition < count:
        return letter.source.partition
    return None if letter.key is not None else letter.source.partition % count


class Sending:
    """Sends, and waits for the oldest acknowledgement when too much is outstanding."""

    def __init__(self, producer: PlainProducer, tally: Tally) -> None:
        self._producer = producer
        self._tally = tally
        self._outstanding: deque[tuple[Location, int, Future[RecordLocation]]] = deque()
        self._bytes = 0

    def send(self, lies: Location, record: OutgoingRecord) -> None:
        """Raises KafkaFailed for an earlier record, where going on makes no sense."""
        size = len(record.value or b"") + len(record.key or b"")
        while self._outstanding and (
            len(self._outstanding) >= OUTSTANDING or self._bytes + size > OUTSTANDING_BYTES
        ):
            self._wait_for_oldest()
        self._outstanding.append((lies, size, self._producer.send(record)))
        self._bytes += size

    def finish(self) -> None:
        """Wait for all, so that it is known what was sent. Raises the first KafkaFailed."""
        failed: HeadraceError | None = None
        while self._outstanding:
            try:
                self._wait_for_oldest()
            except HeadraceError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _wait_for_oldest(self) -> None:
        lies, size, sent = self._outstanding.popleft()
        self._bytes -= size
        try:
            sent.result()
        except ResultTooLarge as error:
            self._tally.refuse(lies, "it is too large for the topic now", error.message)
        else:
            self._tally.acknowledged += 1
