"""What must hold in a group of workers, at every commit and in the end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fake_kafka import FakeKafka
from fake_worker import METADATA_LIMIT, NAMES, SOURCES, Clock, FakeWorker, RegistryCodec, Replies
from hypothesis.stateful import invariant

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import TopicPartition
from headrace.consumers.starting import Acceptance
from headrace.producers.kafka import OutgoingRecord
from headrace.schemas.codec import Codec
from headrace.schemas.errors import StaleGeneration
from headrace.schemas.messages import Result
from headrace.workers.trials import is_suspect
from headrace.workers.work import Completion, Work

# Rounds. Two requests that kill engines, among as many as a history has, were singled out after 679 of them.
RESTS_WITHIN = 2_000


class SlowToHear(FakeWorker):
    """Its loop goes on with what was lost until it hears of it."""

    def __init__(self, kafka: FakeKafka, codec: RegistryCodec) -> None:
        super().__init__(kafka, codec)
        convict = self.pump._convicted

        def convict_one(work: Work, cause: str) -> Completion:
            completion = convict(work, cause)
            for tp, tenure in self.ledger._tenures.items():
                suspects = {at for at, each in tenure.offsets.suspects().items() if is_suspect(each)}
                assert not suspects, f"still suspect after a conviction: {tp} {suspects}"
            return completion

        self.pump._convicted = convict_one

    def drop(self, lost: frozenset[TopicPartition]) -> None:
        self.lost |= lost


class GroupLaws:
    """Mixed into the model, which has what it looks at."""

    patch: pytest.MonkeyPatch
    clock: Clock
    kafka: FakeKafka
    codec: RegistryCodec
    sent: dict[tuple[TopicPartition, int], tuple[str, str]]
    workers: list[FakeWorker]
    replies: list[Replies]
    seen_records: int
    answers: Counter[tuple[TopicPartition, int]]
    ok: set[tuple[TopicPartition, int]]
    finished: list[tuple[FakeWorker, Work]]
    know_of_death: list[FakeWorker]
    removed: set[tuple[TopicPartition, int]]
    commit: Any
    send_one: Any
    dies: Any
    finish_some: Any
    give_back: Any
    give_what_is_free: Any
    group_takes: Any

    # --- what must hold ---

    def with_a_batch(self) -> list[FakeWorker]:
        return [worker for worker in self.workers if worker.batch is not None]

    def check_commits(self) -> None:
        new = self.kafka.published[self.seen_records :]
        self.seen_records = len(self.kafka.published)
        for record in new:
            if record.topic == NAMES.results:
                result = Codec().decode(Result, record.value).message
                provenance = result.provenance
                source = TopicPartition(provenance.source_topic, provenance.source_partition)
                self.answers[source, provenance.source_offset] += 1
                if result.status == "ok":
                    self.ok.add((source, provenance.source_offset))
        assert [place for place, count in self.answers.items() if count > 1] == [], "published twice"
        done = {place for place in self.sent if self.is_committed(place)}
        done -= self.removed - self.answers.keys()
        assert self.answers.keys() <= done, "published, and its offset not committed"
        for tp, offset in done - self.answers.keys():
            assert self.was_asked_elsewhere(tp, offset), "committed, and nothing published"

    def observed_turn(self, worker: FakeWorker) -> None:
        """A turn, and what it may begin and let go."""
        epochs = {tp: worker.ledger.epoch(tp) for tp in SOURCES}
        in_loop, released = list(worker.works), set(worker.member.released)
        worker.pump.turn()
        for unit in worker.member.released - released:
            for tp in SOURCES:
                if tp.partition == unit and epochs[tp] and self.kafka.owners[tp] is worker.member:
                    self.was_let_go_in_order(worker, tp, epochs[tp], in_loop)
        for work in worker.works:
            if not any(work is each for each in in_loop):
                self.may_begin(worker, work)
                if work.alone:
                    self.has_the_engine_to_itself(worker, work)
        if worker.dead:
            self.know_of_death.append(worker)

    def was_let_go_in_order(
        self, worker: FakeWorker, tp: TopicPartition, epoch: int | None, in_loop: list[Work]
    ) -> None:
        """Nothing of it runs, all that was finished is published, and its next owner finds no death."""
        running = [work.offset for work in in_loop if (work.source, work.epoch) == (tp, epoch)]
        assert worker.dead or not running, "let go, and it still ran"
        point = self.kafka.committed[tp]
        assert self.progress(tp).started == point.offset, (
            "let go, and it looks as if something were in flight"
        )
        self.finished = [each for each in self.finished if each[0] in self.workers]
        for by, work in self.finished:
            if by is worker and (work.source, work.epoch) == (tp, epoch):
                assert self.is_committed((tp, work.offset)), "let go, and a finished result thrown away"

    def may_begin(self, worker: FakeWorker, work: Work) -> None:
        """A successor would see that it may have been in flight, and on trial; and nothing keeps it back."""
        assert worker not in self.know_of_death, "begun after the engine has died"
        assert work.source.partition not in worker.pump._moves._drains.units, "begun although it drains"
        if self.kafka.owners[work.source] is not worker.member:
            return  # it does not know yet; what it does is not published
        assert worker.ledger.epoch(work.source) == work.epoch, "begun for a tenure that is over"
        assert work.source in self.kafka.committed, "begun, and nothing is committed"
        progress = self.progress(work.source)
        assert work.offset < progress.started, "begun, and no mark above it is committed"
        suspicion = progress.suspects.get(work.offset)  # those for which there is no room are not there
        if suspicion is not None and is_suspect(suspicion):
            assert suspicion.on_trial, "a suspect is begun, and no trial of it is committed"
            assert progress.mode == ("alone" if work.alone else "trial")

    def has_the_engine_to_itself(self, worker: FakeWorker, alone: Work) -> None:
        """What is in the engine beside it might be the killer, and would be held against it."""
        for work in worker.works:
            ours = worker.ledger.epoch(work.source) == work.epoch
            assert work is alone or not ours, "begun alone, and another is in flight"

    def progress(self, tp: TopicPartition) -> Progress:
        point = self.kafka.committed[tp]
        return offset_encoding.decode(point.metadata, point.offset, METADATA_LIMIT)

    def is_committed(self, place: tuple[TopicPartition, int]) -> bool:
        point = self.kafka.committed.get(place[0])
        if point is None or place[1] < point.offset:
            return point is not None
        progress = offset_encoding.decode(point.metadata, point.offset, METADATA_LIMIT)
        return any(place[1] in run for run in progress.done)

    def was_asked_elsewhere(self, tp: TopicPartition, offset: int) -> bool:
        """By another request of its unit, in any lane."""
        request_id, kind = self.sent[tp, offset]
        return kind != "bad" and any(
            other == request_id and place != (tp, offset) and what != "bad"
            for place, (other, what) in self.sent.items()
            if place[0].partition == tp.partition
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
            self.replays_run_unless_there_is_an_ok()
        finally:
            self.patch.undo()

    def run_until_quiet(self) -> None:
        self.codec.down = False
        for worker in self.workers:
            worker.member.to_drain.clear()
        self.give_what_is_free(self.workers[0])
        for worker in self.workers:
            if worker.batch is not None and worker.batch not in self.kafka.open_transactions:
                worker.transactions.fail_next = lambda batch: StaleGeneration("for no reason that is known")
        quiet = 0
        for _ in range(RESTS_WITHIN):
            self.clock.now += 1.1
            before = dict(self.kafka.committed), self.seen_records
            for worker in list(self.workers):
                self.observed_turn(worker)
                self.give_back(worker)
                for place in range(len(worker.works), 0, -1):
                    self.finish_some(worker, [place - 1])
                if worker.batch is not None:
                    self.commit(worker, "well")
                if worker in self.know_of_death and self.has_said_all(worker):
                    self.dies(self.workers.index(worker), commits=True)
                self.group_takes(worker, back=False)
                self.accept_losses()
                self.give_what_is_free(self.workers[0])
            self.check_commits()
            quiet = quiet + 1 if before == (self.kafka.committed, self.seen_records) else 0
            if quiet > 12:
                return
        raise AssertionError("it does not come to rest")

    def has_said_all(self, worker: FakeWorker) -> bool:
        ledger = worker.ledger
        return ledger.pending == 0 and not ledger.in_transaction and ledger.due_in(self.clock.now) is None

    def accept_losses(self) -> None:
        """What an operator does."""
        for worker in self.workers:
            for tp in worker.openings.parked:
                committed = self.kafka.committed.get(tp)
                self.kafka.accepted[tp] = Acceptance(committed, self.kafka.beginnings[tp], "a@b", 0)
                self.kafka.control_revision += 1

    def everything_is_answered(self) -> None:
        self.each_id_is_answered_once()
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

    def each_id_is_answered_once(self) -> None:
        """However often it was sent, and in whatever lanes of its unit; by a replay once more, but once with `ok`."""
        for asked, where in self.places_by_id().items():
            answers = sum(self.answers[place] for place in where)
            replays = sum(self.sent[place][1] == "replay" for place in where)
            assert len(self.ok.intersection(where)) <= 1, f"twice ok: {asked}"
            assert answers <= 1 + replays, f"answered twice: {asked}"
            assert answers >= 1 or self.removed.intersection(where), f"not answered: {asked}"

    def places_by_id(self) -> dict[tuple[int, str], list[tuple[TopicPartition, int]]]:
        """Where the requests of each id of a unit lie, but for those that cannot be served."""
        places: dict[tuple[int, str], list[tuple[TopicPartition, int]]] = {}
        for (tp, offset), (request_id, kind) in self.sent.items():
            if kind != "bad":
                places.setdefault((tp.partition, request_id), []).append((tp, offset))
        return places

    def replays_run_unless_there_is_an_ok(self) -> None:
        """Each id is replayed: those without an `ok` get one, and no other is answered again."""
        places = self.places_by_id()
        without = {asked for asked, where in places.items() if not self.ok.intersection(where)}
        answers = sum(self.answers.values())
        for unit, request_id in places:
            self.send_one(next(tp for tp in SOURCES if tp.partition == unit), "replay", request_id)
        self.run_until_quiet()
        assert sum(self.answers.values()) == answers + len(without), "a replay that ran, or did not"
        for asked, where in self.places_by_id().items():
            assert len(self.ok.intersection(where)) == 1, f"replayed, and not ok: {asked}"


def is_poison(work: Work) -> bool:
    assert work.request is not None
    return "poison" in work.request.attributes


def is_last_resort(record: OutgoingRecord) -> bool:
    """Whether the broker has refused this request before: its last resort it takes."""
    if record.topic == NAMES.dead:
        return True
    status = dict(record.headers)["status"]
    return status != b"ok"
