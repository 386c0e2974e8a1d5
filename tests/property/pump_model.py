"""Two workers of one group over a Kafka in memory, and everything that may happen to them in any order.

The workers' consumer threads and commit threads are the real ones, a turn at a time; their loops are played here:
work is finished in any order, also after its partition has gone. What must hold is checked at every commit, and at the
end all is let run until it is quiet: then each request has its one answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from fake_kafka import FakeKafka, Message
from fake_worker import (
    METADATA_LIMIT,
    SOURCES,
    TENANT,
    Clock,
    FakeWorker,
    RegistryCodec,
    Replies,
    refusal,
)
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from property.pump_laws import GroupLaws, SlowToHear, is_last_resort, is_poison

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.suspicion import Suspicion
from headrace.schemas.errors import ResultTooLarge, StaleGeneration, TopicMissing
from headrace.workers import batch as batch_module
from headrace.workers import moving as moving_module
from headrace.workers import openings as openings_module
from headrace.workers import partitions as partitions_module
from headrace.workers import pump as pump_module
from headrace.workers import refusals as refusals_module
from headrace.workers.work import Work

KINDS = st.lists(
    st.sampled_from(
        [
            *("good", "good", "good", "bad", "marker", "registry", "tenant", "again", "bad again", "poison"),
            "replay",
        ]
    ),
    min_size=1,
    max_size=6,
)
# Committed by earlier lives; 1 is a marker.
EARLIER_LIVES = st.just(dict[int, Suspicion]()) | st.dictionaries(
    st.sampled_from([0, 2, 3]),
    st.sampled_from([Suspicion(2), Suspicion(3), Suspicion(5, alone=3)]),
    min_size=1,
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


class Group(GroupLaws, RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.clock = Clock()
        for module in (pump_module, partitions_module, openings_module, moving_module, refusals_module):
            self.patch.setattr(module, "time", self.clock)
        for module in (pump_module, partitions_module):
            self.patch.setattr(module, "MAX_POLL_RECORDS", 4)
        self.patch.setattr(batch_module, "MAX_BATCH_RECORDS", 3)
        self.patch.setattr(batch_module, "MAX_BATCH_BYTES", 1500)
        self.kafka = FakeKafka(SOURCES)
        self.codec = RegistryCodec()
        self.sent: dict[tuple[TopicPartition, int], tuple[str, str]] = {}  # place: id, kind
        self.ids = 0
        self.workers: list[FakeWorker] = [SlowToHear(self.kafka, self.codec) for _ in range(2)]
        self.replies: list[Replies] = [worker.replies for worker in self.workers]
        self.seen_records = 0
        self.answers: Counter[tuple[TopicPartition, int]] = Counter()
        self.ok: set[tuple[TopicPartition, int]] = set()  # of `answers`
        self.finished: list[tuple[FakeWorker, Work]] = []
        self.know_of_death: list[FakeWorker] = []
        self.removed: set[tuple[TopicPartition, int]] = set()  # by retention, before they were answered

    @initialize(owner=st.integers(0, 1), suspects=EARLIER_LIVES, begun=st.booleans())
    def begin(self, owner: int, suspects: dict[int, Suspicion], begun: bool) -> None:
        if suspects:
            metadata = offset_encoding.encode(0, Progress(0, suspects=suspects), METADATA_LIMIT)
            self.kafka.committed[SOURCES[2]] = CommitPoint(0, metadata)
        for tp in SOURCES:
            self.kafka.assign(tp, self.workers[owner].member)
            for kind in ("good", "marker", "good", "good"):
                self.send(tp, kind)
        for _ in range(8 if begun else 2):
            self.turns(owner, 0.2)
            if begun and self.workers[owner].batch is not None:
                self.commit(self.workers[owner], "well")

    # --- callers ---

    def send(self, tp: TopicPartition, kind: str) -> None:
        if kind == "marker":
            self.kafka.append(tp, Message(None))
            return
        earlier = [
            each
            for (where, _), (each, what) in self.sent.items()
            if where.partition == tp.partition and what != "bad"
        ]
        self.ids += 1
        request_id = f"r{self.ids}"
        if kind.endswith("again") or kind == "replay":
            if not earlier:
                return
            request_id = earlier[-1]
        self.send_one(tp, kind, request_id)

    def send_one(self, tp: TopicPartition, kind: str, request_id: str) -> None:
        value: dict[str, Any] = {"id": request_id, "prompt": "x"}
        if kind.startswith("bad"):
            value["bogus"] = 1
        elif kind == "registry":
            value["attributes"] = {"registry": "1"}
        elif kind == "tenant":
            value["result_topic"] = TENANT
        elif kind == "poison":
            value["attributes"] = {"poison": "1"}
        caller = f"{request_id}/{kind}/{self.ids}"
        headers = (
            ("reply-topic", b"headrace.replies"),
            ("reply-partition", b"0"),
            ("correlation-id", caller.encode()),
        )
        if kind == "replay":
            headers += (("headrace-replay", b"1"),)
        offset = self.kafka.append(tp, Message(json.dumps(value).encode(), headers))
        self.sent[tp, offset] = request_id, "bad" if kind.startswith("bad") else kind

    # --- workers ---

    def give_what_is_free(self, worker: FakeWorker) -> None:
        for unit in (0, 1):
            self.give_unit(unit, worker)

    def give_unit(self, unit: int, worker: FakeWorker) -> None:
        """If it is free as a whole: a unit's lanes are never apart."""
        of_unit = [tp for tp in SOURCES if tp.partition == unit]
        if all(self.kafka.owners[tp] is None for tp in of_unit):
            for tp in of_unit:
                self.kafka.assign(tp, worker.member)

    def turn(self, worker: FakeWorker, seconds: float) -> None:
        self.clock.now += seconds
        self.observed_turn(worker)
        self.check_commits()

    def finish_some(self, worker: FakeWorker, places: list[int]) -> None:
        for place in places:
            if worker.works and not worker.dead:
                work = worker.works[place % len(worker.works)]
                alone = next((each for each in worker.works if each.alone), None)
                if alone is not None and all(each.alone for each in worker.works):
                    work = alone
                elif work.alone:
                    continue  # it waits until the engine has nothing else
                if is_poison(work) and worker.ledger.epoch(work.source) == work.epoch:
                    self.engine_dies(worker, [work] if work.alone else worker.works)
                else:
                    self.finished.append((worker, work))
                    worker.finish(worker.works.index(work))

    def engine_dies(self, worker: FakeWorker, inside: Sequence[Work]) -> None:
        """It dies with these in it; the worker commits what is finished and who it was, and goes."""
        places = frozenset(
            (work.source, work.offset) for work in inside if not work.alone or len(inside) == 1
        )
        worker.dead = True
        worker.pump.engine_died(places, "it was told to")

    @precondition(lambda self: any(worker.dead for worker in self.workers))
    @rule(data=st.data(), how=HOW, commits=st.booleans())
    def a_worker_whose_engine_died_goes(self, data: st.DataObject, how: str, commits: bool) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers if worker.dead]))
        for _ in range(2):
            self.turn(worker, 0.6)
            if worker.batch is not None and commits:
                self.commit(worker, how)
        self.dies(self.workers.index(worker), commits)

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
        for kind in kinds:
            self.send(tp, kind)
        for shift in shifts:
            self.works(shift)

    @rule(which=st.integers(0, 1), seconds=st.sampled_from([0.0, 0.06, 0.2, 1.2]))
    def turns(self, which: int, seconds: float) -> None:
        self.turn(self.workers[which], seconds)

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

    @rule(unit=st.integers(0, 1))
    def is_revoked(self, unit: int) -> None:
        for tp, owner in self.kafka.owners.items():
            if tp.partition == unit and owner is not None and tp in owner.positions:
                self.kafka.revoke(tp)

    @rule(unit=st.integers(0, 1))
    def is_to_drain(self, unit: int) -> None:
        for tp, owner in self.kafka.owners.items():
            if tp.partition == unit and owner is not None:
                owner.to_drain.add(unit)

    @rule(
        which=st.integers(0, 1),
        unit=st.integers(0, 1),
        begun=st.integers(0, 3),
        finishes=st.sampled_from([0, 6]),
        cancelled=st.integers(0, 8),
        back=st.booleans(),
    )
    def drains(self, which: int, unit: int, begun: int, finishes: int, cancelled: int, back: bool) -> None:
        """The loop gives back what it was asked for, and the group gives away what was let go, or gives it back."""
        worker = self.workers[which]
        worker.member.to_drain.add(unit)
        self.turn(worker, 0.0)
        self.give_back(worker, begun)
        for place in range(6):
            if place == cancelled:
                worker.member.to_drain.clear()
            self.finish_some(worker, [place] if place < finishes else [])
            self.turn(worker, 0.2)
            if worker.batch is not None:
                self.commit(worker, "well")
        self.group_takes(worker, back=back)

    def give_back(self, worker: FakeWorker, begun: int = 0) -> None:
        for asked, keep in ((worker.held, begun), (worker.aborted, 0)):
            for units in asked:
                of_units = [work for work in worker.works if work.source.partition in units]
                worker.give_back(units, [] if worker.dead else of_units[keep:])
            asked.clear()

    def group_takes(self, worker: FakeWorker, *, back: bool) -> None:
        member = worker.member
        for tp, owner in self.kafka.owners.items():
            if owner is member and tp.partition in member.released:
                self.kafka.revoke(tp)
                if back:
                    member.to_gain.add(tp)

    @rule(unit=st.integers(0, 1), which=st.integers(0, 1))
    def is_assigned(self, unit: int, which: int) -> None:
        self.give_unit(unit, self.workers[which])

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
        self.give_what_is_free(self.workers[which])

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
        self.workers[which] = SlowToHear(self.kafka, self.codec)
        self.workers[1 - which].member.predecessors = dict.fromkeys((0, 1), "slot")
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
