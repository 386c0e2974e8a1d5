"""Two workers of one group over a Kafka in memory, and everything that may happen to them in any order.

The workers' consumer threads and commit threads are the real ones, a turn at a time; their loops are played here:
work is finished in any order, also after its partition has gone. What must hold is checked at every commit, and at the
end all is let run until it is quiet: then each request has its one answer.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from fake_kafka import FakeKafka, Message
from fake_worker import (
    METADATA_LIMIT,
    NAMES,
    SOURCES,
    TENANT,
    Clock,
    FakeWorker,
    RegistryCodec,
    Replies,
    refusal,
)
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.consumers import offset_encoding
from headrace.consumers.records import TopicPartition
from headrace.producers.kafka import OutgoingRecord
from headrace.schemas.codec import Codec
from headrace.schemas.errors import ResultTooLarge, StaleGeneration, TopicMissing
from headrace.schemas.messages import Result
from headrace.workers import ledger as ledger_module
from headrace.workers import partitions as partitions_module
from headrace.workers import pump as pump_module

KINDS = st.lists(
    st.sampled_from(["good", "good", "good", "bad", "marker", "registry", "tenant", "again", "bad again"]),
    min_size=1,
    max_size=6,
)
HOW = st.sampled_from(["well", "well", "well", "well", "stale", "refused 0", "refused 1"])  # a commit ends


@dataclass
class Shift:
    """A stretch of a worker's life."""

    which: int
    hears: bool  # its loop, of what was lost
    takes: bool  # what nobody has
    places: list[int]  # of the work that finishes
    seconds: float
    how: str | None  # its commit ends


SHIFTS = st.builds(
    Shift,
    which=st.integers(0, 1),
    hears=st.booleans(),
    takes=st.booleans(),
    places=st.lists(st.integers(0, 9), max_size=6),
    seconds=st.sampled_from([0.06, 0.2, 1.2]),
    how=st.none() | HOW,
)


class Group(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.clock = Clock()
        for module in (pump_module, partitions_module):
            self.patch.setattr(module, "time", self.clock)
            self.patch.setattr(module, "MAX_POLL_RECORDS", 4)
        self.patch.setattr(ledger_module, "MAX_BATCH_RECORDS", 3)
        self.patch.setattr(ledger_module, "MAX_BATCH_BYTES", 1500)
        self.kafka = FakeKafka(SOURCES)
        self.codec = RegistryCodec()
        self.sent: dict[tuple[TopicPartition, int], tuple[str, str]] = {}  # place: id, kind
        self.ids = 0
        self.workers = [FakeWorker(self.kafka, self.codec) for _ in range(2)]
        self.replies: list[Replies] = [worker.replies for worker in self.workers]
        self.seen_records = 0
        self.answers: Counter[tuple[TopicPartition, int]] = Counter()
        self.removed: set[tuple[TopicPartition, int]] = set()  # by retention, before they were answered

    @initialize(owner=st.integers(0, 1))
    def begin(self, owner: int) -> None:
        for tp in SOURCES:
            self.kafka.assign(tp, self.workers[owner].member)
            for kind in ("good", "marker", "good", "good"):
                self.send(tp, kind)
        self.turns(owner, 0.0)
        self.turns(owner, 0.2)

    # --- callers ---

    def are_sent(self, tp: TopicPartition, kinds: list[str]) -> None:
        for kind in kinds:
            self.send(tp, kind)

    def send(self, tp: TopicPartition, kind: str) -> None:
        if kind == "marker":
            self.kafka.append(tp, Message(None))
            return
        earlier = [each for (where, _), (each, what) in self.sent.items() if where == tp and what != "bad"]
        self.ids += 1
        request_id = f"r{self.ids}"
        if kind.endswith("again"):
            if not earlier:
                return
            request_id = earlier[-1]
        value: dict[str, Any] = {"id": request_id, "prompt": "x"}
        if kind.startswith("bad"):
            value["bogus"] = 1
        elif kind == "registry":
            value["attributes"] = {"registry": "1"}
        elif kind == "tenant":
            value["result_topic"] = TENANT
        caller = f"{request_id}/{kind}/{self.ids}"
        headers = (
            ("reply-topic", b"headrace.replies"),
            ("reply-partition", b"0"),
            ("correlation-id", caller.encode()),
        )
        offset = self.kafka.append(tp, Message(json.dumps(value).encode(), headers))
        self.sent[tp, offset] = request_id, "bad" if kind.startswith("bad") else kind

    # --- workers ---

    def give_what_is_free(self, worker: FakeWorker) -> None:
        for tp, owner in self.kafka.owners.items():
            if owner is None:
                self.kafka.assign(tp, worker.member)

    def turn(self, worker: FakeWorker, seconds: float) -> None:
        self.clock.now += seconds
        worker.pump.turn()
        self.check_commits()

    def finish_some(self, worker: FakeWorker, places: list[int]) -> None:
        for place in places:
            if worker.works:
                worker.finish(place % len(worker.works))

    @rule(shift=SHIFTS)
    def works(self, shift: Shift) -> None:
        """Poll, finish some of what is running in any order, and commit it: most of what a worker does."""
        worker = self.workers[shift.which]
        if shift.hears:  # the loop hears what is lost; until then it goes on with it
            current = {tp: worker.ledger.epoch(tp) for tp in SOURCES}
            worker.works[:] = [work for work in worker.works if current[work.source] == work.epoch]
        if shift.takes:
            self.give_what_is_free(worker)
        self.turn(worker, 0.0)
        self.turn(worker, 0.6)
        self.finish_some(worker, shift.places)
        self.turn(worker, 0.0)
        self.turn(worker, shift.seconds)
        if shift.how is not None and worker.batch is not None:
            self.commit(worker, shift.how)

    @rule(tp=st.sampled_from(SOURCES), kinds=KINDS, shifts=st.lists(SHIFTS, min_size=1, max_size=4))
    def are_sent_and_worked_on(self, tp: TopicPartition, kinds: list[str], shifts: list[Shift]) -> None:
        self.are_sent(tp, kinds)
        for shift in shifts:
            self.works(shift)

    @rule(which=st.integers(0, 1), seconds=st.sampled_from([0.0, 0.06, 0.2, 1.2]))
    def turns(self, which: int, seconds: float) -> None:
        self.turn(self.workers[which], seconds)

    def with_a_batch(self) -> list[FakeWorker]:
        return [worker for worker in self.workers if worker.batch is not None]

    @precondition(lambda self: self.with_a_batch())
    @rule(data=st.data())
    def the_group_takes_its_offsets(self, data: st.DataObject) -> None:
        """The first half of a commit: from now on it can end well, whatever becomes of the group."""
        worker = data.draw(st.sampled_from(self.with_a_batch()))
        assert worker.batch is not None
        if worker.batch not in self.kafka.open_transactions:
            self.kafka.accept_offsets(worker.batch, worker.member)

    @precondition(lambda self: self.with_a_batch())
    @rule(data=st.data(), how=HOW)
    def a_commit_ends(self, data: st.DataObject, how: str) -> None:
        self.commit(data.draw(st.sampled_from(self.with_a_batch())), how)

    def commit(self, worker: FakeWorker, how: str) -> None:
        assert worker.batch is not None
        if how == "stale":
            worker.transactions.fail_next = lambda batch: StaleGeneration("for no reason that is known")
        elif how.startswith("refused") and worker.batch.records:
            place = int(how[-1]) % len(worker.batch.records)
            if not is_last_resort(worker.batch.records[place]):
                worker.transactions.fail_next = lambda batch: refusal(ResultTooLarge("too large"), place)
        for number, record in enumerate(worker.batch.records):
            if record.topic == TENANT:
                worker.transactions.fail_next = lambda batch, number=number: refusal(
                    TopicMissing("no"), number
                )
        worker.commit()
        self.check_commits()

    # --- what befalls them ---

    @rule(tp=st.sampled_from(SOURCES))
    def is_revoked(self, tp: TopicPartition) -> None:
        owner = self.kafka.owners[tp]
        if owner is not None and tp in owner.positions:
            self.kafka.revoke(tp)

    @rule(tp=st.sampled_from(SOURCES), which=st.integers(0, 1))
    def is_assigned(self, tp: TopicPartition, which: int) -> None:
        if self.kafka.owners[tp] is None:
            self.kafka.assign(tp, self.workers[which].member)

    @rule(which=st.integers(0, 1), back=st.booleans())
    def is_expelled(self, which: int, back: bool) -> None:
        member = self.workers[which].member
        had = [tp for tp, owner in self.kafka.owners.items() if owner is member]
        self.kafka.expel(member)
        for tp in had if back else []:
            self.kafka.assign(tp, member)

    @rule(which=st.integers(0, 1))
    def goes_to_the_other_and_back(self, which: int) -> None:
        """All of it between two polls of the first."""
        member, other = self.workers[which].member, self.workers[1 - which]
        had = [tp for tp, owner in self.kafka.owners.items() if owner is member]
        self.kafka.expel(member)
        for tp in had:
            self.kafka.assign(tp, other.member)
        self.works(Shift(1 - which, hears=True, takes=False, places=[0] * 9, seconds=0.2, how="well"))
        for tp in had:
            if tp in other.member.positions:
                self.kafka.revoke(tp)
        self.turn(other, 0.0)
        for tp in had:
            if self.kafka.owners[tp] is None:
                self.kafka.assign(tp, member)

    @precondition(lambda self: self.with_a_batch())
    @rule(data=st.data())
    def joins_again_in_mid_commit_under_the_same_generation(self, data: st.DataObject) -> None:
        """As a static member may: the group has not noticed that it was gone, the member has."""
        worker = data.draw(st.sampled_from(self.with_a_batch()))
        if not worker.member.to_lose:
            worker.member.to_lose |= set(worker.member.positions)
            worker.member.to_gain |= set(worker.member.positions)
        for _ in range(3):
            self.turn(worker, 0.6)
        self.commit(worker, "well")

    @rule(which=st.integers(0, 1), commits=st.booleans())
    def dies(self, which: int, commits: bool) -> None:
        worker = self.workers[which]
        if worker.batch is not None and worker.batch in self.kafka.open_transactions:
            possible = all(record.topic != TENANT for record in worker.batch.records)
            self.kafka.end_transaction(worker.batch, commit=commits and possible)
        worker.member.gone = True
        self.kafka.expel(worker.member)
        self.workers[which] = FakeWorker(self.kafka, self.codec)
        self.replies.append(self.workers[which].replies)
        self.check_commits()

    @precondition(lambda self: self.with_a_batch())
    @rule(data=st.data(), accepted=st.booleans(), other=st.booleans(), heard=st.integers(0, 2))
    def the_group_moves_on_in_mid_commit(
        self, data: st.DataObject, accepted: bool, other: bool, heard: int
    ) -> None:
        worker = data.draw(st.sampled_from(self.with_a_batch()))
        assert worker.batch is not None
        if accepted and worker.batch not in self.kafka.open_transactions:
            self.kafka.accept_offsets(worker.batch, worker.member)
        next_owner = self.workers[self.workers.index(worker) ^ other]
        had = [tp for tp, owner in self.kafka.owners.items() if owner is worker.member]
        self.kafka.expel(worker.member)
        for tp in had:
            self.kafka.assign(tp, next_owner.member)
        for _ in range(heard):
            self.turn(next_owner, 0.6)

    @rule(tp=st.sampled_from(SOURCES), data=st.data())
    def retention_removes(self, tp: TopicPartition, data: st.DataObject) -> None:
        beginning, end = self.kafka.beginnings[tp], len(self.kafka.logs[tp])
        if beginning < end:
            self.kafka.beginnings[tp] = data.draw(st.integers(beginning + 1, end))
        for offset in range(beginning, self.kafka.beginnings[tp]):
            if not self.is_committed((tp, offset)):
                self.removed.add((tp, offset))

    @rule(down=st.booleans())
    def the_registry_comes_and_goes(self, down: bool) -> None:
        self.codec.down = down

    # --- what must hold ---

    def check_commits(self) -> None:
        new = self.kafka.published[self.seen_records :]
        self.seen_records = len(self.kafka.published)
        for record in new:
            if record.topic == NAMES.results:
                provenance = Codec().decode(Result, record.value).message.provenance
                source = TopicPartition(provenance.source_topic, provenance.source_partition)
                self.answers[source, provenance.source_offset] += 1
        assert [place for place, count in self.answers.items() if count > 1] == [], "published twice"
        done = {place for place in self.sent if self.is_committed(place)}
        done -= self.removed - self.answers.keys()
        assert self.answers.keys() <= done, "published, and its offset not committed"
        for tp, offset in done - self.answers.keys():
            assert self.was_asked_before(tp, offset), "committed, and nothing published"

    def is_committed(self, place: tuple[TopicPartition, int]) -> bool:
        point = self.kafka.committed.get(place[0])
        if point is None or place[1] < point.offset:
            return point is not None
        progress = offset_encoding.decode(point.metadata, point.offset, METADATA_LIMIT)
        return any(place[1] in run for run in progress.done)

    def was_asked_before(self, tp: TopicPartition, offset: int) -> bool:
        request_id, kind = self.sent[tp, offset]
        return kind != "bad" and any(
            self.sent.get((tp, earlier), ("", ""))[0] == request_id for earlier in range(offset)
        )

    @invariant()
    def nobody_is_told_of_anothers_answer(self) -> None:
        for replies in self.replies:
            for address, status, request_id, _ in replies.told:
                asked, kind, _ = address.correlation_id.split("/")
                assert request_id == asked
                assert (status == "rejected") == kind.startswith("bad"), (address, status)
            replies.told.clear()

    @invariant()
    def what_is_held_is_counted(self) -> None:
        for worker in self.workers:
            held = worker.partitions._held.values()
            assert all(each.records >= 0 and each.size >= 0 for each in held)
            assert sum(worker.partitions._lane_records.values()) == sum(each.records for each in held)
            current = [work for work in worker.works if worker.ledger.epoch(work.source) == work.epoch]
            assert sum(each.records for each in held) >= len(current)

    def teardown(self) -> None:
        try:
            self.run_until_quiet()
            self.everything_is_answered()
        finally:
            self.patch.undo()

    def run_until_quiet(self) -> None:
        self.codec.down = False
        self.give_what_is_free(self.workers[0])
        for worker in self.workers:
            if worker.batch is not None and worker.batch not in self.kafka.open_transactions:
                worker.transactions.fail_next = lambda batch: StaleGeneration("for no reason that is known")
        quiet = 0
        for _ in range(400):
            self.clock.now += 1.1
            before = dict(self.kafka.committed), self.seen_records
            for worker in self.workers:
                worker.pump.turn()
                while worker.works:
                    worker.finish(-1)
                if worker.batch is not None:
                    self.commit(worker, "well")
                self.give_what_is_free(self.workers[0])
            self.check_commits()
            quiet = quiet + 1 if before == (self.kafka.committed, self.seen_records) else 0
            if quiet > 12:
                return
        raise AssertionError("it does not come to rest")

    def everything_is_answered(self) -> None:
        for place in self.sent.keys() - self.removed:
            assert self.is_committed(place), f"lost: {place} {self.sent[place]}"
        for tp, log in self.kafka.logs.items():
            point = self.kafka.committed.get(tp)
            assert point is not None
            assert point.offset == len(log), "a lag is left"
        for worker in self.workers:
            assert worker.ledger.pending == worker.ledger.pending_bytes == 0
            assert not any(worker.partitions._lane_bytes.values())
        self.nobody_is_told_of_anothers_answer()


def is_last_resort(record: OutgoingRecord) -> bool:
    """Whether the broker has refused this request before: its last resort it takes."""
    if record.topic == NAMES.dead:
        return True
    status = dict(record.headers)["status"]
    return status != b"ok"
