"""The control topic: what all workers and operators of a prefix have to agree on beside the offsets.

Compacted, one partition, JSON, so that any console consumer shows it. A record's key is its kind and its name:

    partition/<group>/<topic>/<n>   {"known_since": ms}: the group has committed offsets for the partition
    accept/<group>/<topic>/<n>      {"committed": {"offset": N, "metadata": "..."} or null, "resume_at": N,
                                     "by": "user@host", "at": ms}: see `consumers/starting.py`
    contract/..., alias/...         see `consumers/contracts.py`
    retired/...                     see `consumers/retirements.py`
    serving/...                     see `consumers/catalogue.py`
    rollout/..., plan/..., ...      see `consumers/rollouts.py`
    backfill/..., backfill-order/...  see `consumers/backfill_jobs.py`

Kinds that this release does not know are passed over: a later one may have written them.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.rollouts import RolloutRecords
from headrace.consumers.starting import Acceptance
from headrace.consumers.tail_reader import TailReader
from headrace.schemas.errors import HeadraceError, KafkaUnavailable
from headrace.topics.names import control_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.consumers.records import Record
    from headrace.consumers.sharing import Plan
    from headrace.schemas.settings import Settings

logger = logging.getLogger(__name__)

POLL_S = 0.5
RETRY_S = 1.0  # before the topic is looked for again
READ_TIMEOUT_S = 30.0

T = TypeVar("T")

PARTITION = "partition"
ACCEPT = "accept"


# --- pure: what the records say -------------------------------------------------------------------------------


class _Written(BaseModel):
    """A record's value. Fields that a later release has added are passed over."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _KnownPartition(_Written):
    known_since: int


class _Point(_Written):
    offset: int = Field(ge=0)
    metadata: str


class _Accepted(_Written):
    committed: _Point | None
    resume_at: int = Field(ge=0)
    by: str
    at: int


def partition_key(group: str, tp: TopicPartition) -> bytes:
    """The key of the record that a group has committed offsets for a partition."""
    return _key(PARTITION, group, tp)


def partition_value(known_since_ms: int) -> bytes:
    """Its value; ms since the epoch."""
    return json.dumps({"known_since": known_since_ms}).encode()


def acceptance_key(group: str, tp: TopicPartition) -> bytes:
    """The key of an acceptance."""
    return _key(ACCEPT, group, tp)


def acceptance_value(acceptance: Acceptance) -> bytes:
    """Its value."""
    committed = acceptance.committed
    return json.dumps(
        {
            "committed": None if committed is None else committed._asdict(),
            "resume_at": acceptance.resume_at,
            "by": acceptance.by,
            "at": acceptance.at_ms,
        }
    ).encode()


def _key(kind: str, group: str, tp: TopicPartition) -> bytes:
    return f"{kind}/{group}/{tp.topic}/{tp.partition}".encode()


class ControlRecords:
    """What the records read so far say. The last one of a key counts."""

    def __init__(self) -> None:
        self.known: set[tuple[str, TopicPartition]] = set()
        self.acceptances: dict[tuple[str, TopicPartition], Acceptance] = {}
        self.rollouts = RolloutRecords()

    def take(self, key: bytes | None, value: bytes | None, offset: int = -1) -> str | None:
        """Note a record; what is wrong with it, where it cannot be read. Without a value it takes its key back."""
        kind, *name = (key or b"").decode("utf-8", "replace").split("/")
        if kind not in (PARTITION, ACCEPT):
            return self.rollouts.take(key, value, offset)
        if len(name) != 3 or not (name[2].isascii() and name[2].isdigit()):
            return f"its key is not {kind}/<group>/<topic>/<partition>"
        of = (name[0], TopicPartition(name[1], int(name[2])))
        return self._take_partition(of, value) if kind == PARTITION else self._take_acceptance(of, value)

    def _take_partition(self, of: tuple[str, TopicPartition], value: bytes | None) -> str | None:
        if value is None:
            self.known.discard(of)
            return None
        # The key alone says it: a partition that was taken for a new one would be answered from the beginning.
        self.known.add(of)
        try:
            _KnownPartition.model_validate_json(value)
        except ValidationError as error:
            return _explain(error)
        return None

    def _take_acceptance(self, of: tuple[str, TopicPartition], value: bytes | None) -> str | None:
        # Whatever this one says, the one before it is void.
        self.acceptances.pop(of, None)
        if value is None:
            return None
        try:
            read = _Accepted.model_validate_json(value)
        except ValidationError as error:
            return _explain(error)
        point = (
            None if read.committed is None else CommitPoint(read.committed.offset, read.committed.metadata)
        )
        self.acceptances[of] = Acceptance(point, read.resume_at, read.by, read.at)
        return None


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'its value'}: {first['msg']}"


# --- the edge ---------------------------------------------------------------------------------------------------


def open_control(settings: Settings) -> TailReader:
    """A reader at the beginning of the control topic.

    Raises TopicsError where the topic does not exist, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    topic = control_topic(settings.prefix)
    return TailReader(settings, partitions_of(settings, [topic])[topic], "beginning")


def read_control(settings: Settings, timeout_s: float = READ_TIMEOUT_S) -> ControlRecords:
    """All that the control topic says now.

    Raises TopicsError where the topic does not exist, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    records = ControlRecords()

    def take(record: Record) -> None:
        records.take(record.key, record.value, record.offset)

    read_into(settings, take, timeout_s)
    return records


def read_into(settings: Settings, take: Callable[[Record], None], timeout_s: float = READ_TIMEOUT_S) -> None:
    """Hand over each record that the control topic has now, in order. Raises as `read_control` does."""
    deadline = time.monotonic() + timeout_s
    tail = open_control(settings)
    try:
        ends = tail.end_offsets()
        while not _has_read(tail, ends):
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"{control_topic(settings.prefix)} could not be read within {timeout_s:g} s; try again"
                )
            for record in tail.poll(POLL_S):
                take(record)
    finally:
        tail.close()


def _has_read(tail: TailReader, ends: dict[TopicPartition, int]) -> bool:
    return all((tail.position(tp) or 0) >= end for tp, end in ends.items())


class Records(Protocol):
    """What a follower reads into."""

    def take(self, key: bytes | None, value: bytes | None, offset: int) -> str | None:
        """Note a record and its offset; what is wrong with it, where it cannot be read."""
        ...


R = TypeVar("R", bound=Records)


class ControlFollower(Generic[R]):
    """Follows the control topic. `run` is a thread's body; everything else may be called from any thread.

    `changed` is called in the reading thread: when it gets ready, and whenever something has changed after that.
    """

    def __init__(
        self, settings: Settings, new: Callable[[], R], changed: Callable[[], None] | None = None
    ) -> None:
        self._settings = settings
        self._new = new
        self._changed = changed or (lambda: None)
        self._records = new()
        self._lock = threading.Lock()  # over `_records`
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._tail: TailReader | None = None
        self._complained: set[tuple[str, int, int]] = set()  # places of records that could not be read

    @property
    def ready(self) -> bool:
        """Whether all has been read that was there when `run` began to read. Once true it stays so."""
        return self._ready.is_set()

    def asked(self, ask: Callable[[R], T]) -> T:
        """What the records say to a question, with none being taken meanwhile."""
        with self._lock:
            return ask(self._records)

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()
        if (tail := self._tail) is not None:
            tail.wake_up()

    def run(self) -> None:
        """Read until `stop()`. Outages are waited out, and so is a topic that is not there, which is said once."""
        said = ""
        while not self._stop.is_set():
            try:
                self._read()
            except HeadraceError as error:
                if (kind := type(error).__name__) != said:
                    logger.warning("the control topic cannot be read, trying on: %s", error)
                    said = kind
                self._stop.wait(RETRY_S)

    def _read(self) -> None:
        """Read from the beginning into records of their own: old ones must not hide newer ones meanwhile."""
        tail = self._tail = open_control(self._settings)
        try:
            ends = tail.end_offsets()
            fresh = self._new()
            while not self._stop.is_set() and not _has_read(tail, ends):
                self._take(tail.poll(POLL_S), fresh)
            if self._stop.is_set():
                return
            with self._lock:
                self._records = fresh
            self._ready.set()
            self._changed()
            while not self._stop.is_set():
                if records := tail.poll(POLL_S):
                    with self._lock:
                        self._take(records, fresh)
                    self._changed()
        finally:
            self._tail = None
            tail.close()

    def _take(self, records: Iterable[Record], into: R) -> None:
        for record in records:
            wrong = into.take(record.key, record.value, record.offset)
            if wrong is not None and record.location not in self._complained:
                self._complained.add(record.location)
                logger.warning("the record at %s-%d offset %d cannot be read: %s", *record.location, wrong)


class ControlReader(ControlFollower[ControlRecords]):
    """Follows what workers and operators have to agree on.

    Nothing is to be asked before `ready`: a partition that has not been read yet would pass for one that is not
    known.
    """

    def __init__(self, settings: Settings, changed: Callable[[], None] | None = None) -> None:
        super().__init__(settings, ControlRecords, changed)

    def is_known(self, group: str, tp: TopicPartition) -> bool:
        """Whether the group has committed offsets for the partition at some time."""
        assert self.ready, "what has not been read yet would pass for not known"
        with self._lock:
            return (group, tp) in self._records.known

    def plan(self, group: str) -> Plan | None:
        """Which versions are to serve how much of the group's units; None: nobody has planned anything."""
        with self._lock:
            return self._records.rollouts.plan(group)

    def accepted(self, group: str, tp: TopicPartition) -> Acceptance | None:
        """The acceptance for a partition that was given last and not spent yet."""
        with self._lock:
            return self._records.acceptances.get((group, tp))
