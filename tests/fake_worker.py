"""One worker's consumer thread and commit thread over a Kafka in memory, a turn at a time; its loop is played."""

from __future__ import annotations

import functools
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fake_kafka import FakeControl, FakeKafka, FakeMember, FakeTransactions
from packages import a_package

from headrace.consumers.records import AnsweredId, TopicPartition
from headrace.producers.kafka import CommitBatch
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import HeadraceError, RegistryFailed, ResultTooLarge, TopicMissing
from headrace.schemas.headers import REQUEST_ID, STATUS
from headrace.schemas.messages import Location, Output, Result
from headrace.schemas.package import Package
from headrace.topics.names import ContractNames
from headrace.workers import partitions as partitions_module
from headrace.workers.answers import Answers, Served
from headrace.workers.batch import Batch
from headrace.workers.ledger import Ledger
from headrace.workers.openings import Openings
from headrace.workers.pump import Pump
from headrace.workers.replying import ReplySender
from headrace.workers.shadow import Shadow
from headrace.workers.work import ReplyAddress, Work

NAMES = ContractNames("headrace", "tagger", 1)
SOURCES = [
    TopicPartition(NAMES.requests(lane), number) for lane in ("interactive", "standard") for number in (0, 1)
]
METADATA_LIMIT = 128
TENANT = "tenant.results"  # allowed as a result topic, and does not exist


@functools.cache
def package() -> Package:
    with tempfile.TemporaryDirectory() as directory:
        return a_package(Path(directory))


class Clock:
    """Stands for `time` in the modules under test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class RegistryCodec(Codec):
    """Some messages cannot be read while the registry is down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False

    def decode(self, kind: Any, data: bytes | None) -> Any:
        if self.down and b"registry" in (data or b""):
            raise RegistryFailed("no answer")
        return super().decode(kind, data)


class Replies(ReplySender):
    """Keeps what callers are told."""

    def __init__(self) -> None:
        super().__init__(None, Codec(), model="tagger")  # pyright: ignore[reportArgumentType]
        self.told: list[
            tuple[ReplyAddress, str, str, Location | None]
        ] = []  # address, kind or status, id, place

    def final(
        self, address: ReplyAddress, result: Result, encoding: Encoding, seq: int, location: Location | None
    ) -> None:
        self.told.append((address, result.status, result.id, location))

    def duplicate(
        self, address: ReplyAddress, request_id: str, encoding: Encoding, location: Location | None
    ) -> None:
        self.told.append((address, "duplicate", request_id, location))


class FakeWorker:
    """One life of a worker's process."""

    def __init__(self, kafka: FakeKafka, codec: RegistryCodec, *, shadow: Shadow | None = None) -> None:
        self.member = FakeMember(kafka)
        self.transactions = FakeTransactions(self.member)
        self.replies = Replies()
        self.works: list[Work] = []
        self.lost: set[TopicPartition] = set()
        self.batch: CommitBatch | None = None
        self.dead = False  # its engine
        self.held: list[frozenset[int]] = []
        self.aborted: list[frozenset[int]] = []
        self.control = FakeControl(kafka)
        self.ended: list[str] = []  # slots whose open transactions were ended
        self.windows: list[int] = []  # units whose results are to be read
        self.ledger = Ledger(commit_interval_s=0.1, metadata_limit=METADATA_LIMIT)
        self.answers = Answers(
            package=package(),
            names=NAMES,
            slot="slot",
            codec=codec,
            check_size=lambda record: None,
            allowed_result_topics=[TENANT],
        )
        self.pump = Pump(
            source=self.member,
            transactions=self.transactions,
            ledger=self.ledger,
            codec=codec,
            names=NAMES,
            answers=self.answers,
            replies=self.replies,
            openings=Openings(
                source=self.member,
                ledger=self.ledger,
                names=NAMES,
                control=self.control,
                windows=self,
                end_transaction_of=self._end_transaction_of,
                metadata_limit=METADATA_LIMIT,
                in_shadow=shadow is not None,
            ),
            loop=self,
            max_outstanding=12,
            shadow=shadow,
        )
        hand = self.pump.commits.hand

        def keep(batch: Batch, commit_batch: CommitBatch) -> None:
            self.batch = commit_batch
            hand(batch, commit_batch)

        self.pump.commits.hand = keep

    # --- the loop, which does nothing by itself ---

    def deliver(self, works: list[Work]) -> None:
        self.works += works

    def drop(self, lost: frozenset[TopicPartition]) -> None:
        self.lost |= lost
        self.works = [work for work in self.works if work.source not in lost]

    def hold(self, units: frozenset[int]) -> None:
        self.held.append(units)

    def abort(self, units: frozenset[int]) -> None:
        self.aborted.append(units)

    def give_back(self, units: frozenset[int], works: list[Work]) -> None:
        """What `hold` and `abort` ask for."""
        for work in works:
            self.works.remove(work)
        self.pump.handed_back(units, works)

    # --- windows: read at once ---

    def ask(self, unit: int) -> None:
        self.windows.append(unit)
        results = [
            AnsweredId(headers[REQUEST_ID].decode(), offset, headers[STATUS] == b"ok")
            for offset, record in enumerate(self.member.kafka.published)
            for headers in [dict(record.headers)]
            if record.topic == NAMES.results and record.partition == unit and headers[STATUS] != b"rejected"
        ]
        self.pump.window_read(unit, results)

    def forget(self, unit: int) -> None:
        """Nothing is under way."""

    def take(self, unit: int, ids: list[AnsweredId]) -> bool:
        """Each was asked for."""
        return True

    def _end_transaction_of(self, slot: str) -> Future[None]:
        self.ended.append(slot)
        ended: Future[None] = Future()
        ended.set_result(None)
        return ended

    @property
    def openings(self) -> Openings:
        return self.pump._openings

    @property
    def partitions(self) -> partitions_module.Partitions:
        return self.pump._partitions

    def finish(self, place: int) -> None:
        work = self.works.pop(place)
        served = Served("ok", outputs=[Output(text="fine", finish_reason="stop")])
        self.pump.complete(self.answers.completion(work, served))

    def commit(self) -> None:
        self.batch = None
        self.pump.commits.commit_next()


def refusal(error: ResultTooLarge | TopicMissing, index: int) -> HeadraceError:
    error.index = index
    return error
