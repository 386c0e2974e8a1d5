"""Deliberate bugs in what a worker commits, reads and answers: the group model must find every one.

Each is a function of pytest's monkeypatch that changes one thing for the duration of a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_worker import METADATA_LIMIT, NAMES, FakeWorker

from headrace.consumers import offset_encoding
from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import AnsweredId, CommitPoint, TopicPartition
from headrace.consumers.starting import Park, Start, where_to_start
from headrace.schemas.headers import REQUEST_ID
from headrace.workers import intake as intake_module
from headrace.workers import openings as openings_module
from headrace.workers.answers import Answers
from headrace.workers.asked import AskedIds
from headrace.workers.batch import Batch
from headrace.workers.ledger import Ledger
from headrace.workers.openings import Openings
from headrace.workers.partitions import Partitions
from headrace.workers.pump import Pump
from headrace.workers.work import Completion, Work

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}


def bug(apply: Bug) -> Bug:
    BUGS[apply.__name__] = apply
    return apply


# --- the ledger ---


@bug
def an_offset_is_done_when_its_completion_arrives(patch: pytest.MonkeyPatch) -> None:
    complete = Ledger.complete
    done = PartitionOffsets.done

    def at_once(self: Ledger, completion: Completion, now: float) -> bool:
        taken = complete(self, completion, now)
        if taken:
            done(self._tenures[completion.source].offsets, completion.offset, completion.epoch)
        return taken

    patch.setattr(Ledger, "complete", at_once)
    patch.setattr(PartitionOffsets, "done", lambda self, offset, epoch: True)


@bug
def a_commit_point_is_taken_before_its_offsets_are_done(patch: pytest.MonkeyPatch) -> None:
    done, commit_point = PartitionOffsets.done, PartitionOffsets.commit_point
    late: list[tuple[PartitionOffsets, int, int]] = []

    def later(self: PartitionOffsets, offset: int, epoch: int) -> bool:
        late.append((self, offset, epoch))
        return True

    def too_early(self: PartitionOffsets) -> CommitPoint:
        point = commit_point(self)
        for each in [each for each in late if each[0] is self]:
            late.remove(each)
            done(*each)
        return point

    patch.setattr(PartitionOffsets, "done", later)
    patch.setattr(PartitionOffsets, "commit_point", too_early)


@bug
def a_completion_of_another_epoch_counts(patch: pytest.MonkeyPatch) -> None:
    complete = Ledger.complete

    def any_epoch(self: Ledger, completion: Completion, now: float) -> bool:
        epoch = self.epoch(completion.source)
        return complete(self, replace(completion, epoch=epoch) if epoch else completion, now)

    patch.setattr(Ledger, "complete", any_epoch)


@bug
def the_done_set_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    commit_point = PartitionOffsets.commit_point

    def without(self: PartitionOffsets) -> CommitPoint:
        offset, metadata = commit_point(self)
        progress = offset_encoding.decode(metadata, offset, METADATA_LIMIT)
        return CommitPoint(offset, offset_encoding.encode(offset, progress._replace(done=()), METADATA_LIMIT))

    patch.setattr(PartitionOffsets, "commit_point", without)


@bug
def a_batch_that_was_not_committed_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    not_committed = Ledger.not_committed

    def forget(self: Ledger, now: float) -> list[Completion]:
        dropped = not_committed(self, now)
        self._again = []
        self._recount()
        return dropped

    patch.setattr(Ledger, "not_committed", forget)


@bug
def a_batch_that_was_not_committed_keeps_what_has_moved(patch: pytest.MonkeyPatch) -> None:
    def keep_all(self: Ledger, now: float) -> list[Completion]:
        batch = self._end_transaction()
        self._again = list(batch.completions)
        self._changed.update(source for source in batch.points if source in self._tenures)
        self._wanted = True
        self._recount()
        self._pending_since = now
        return []

    patch.setattr(Ledger, "not_committed", keep_all)


@bug
def a_batch_that_was_not_committed_is_split(patch: pytest.MonkeyPatch) -> None:
    not_committed, done = Ledger.not_committed, PartitionOffsets.done

    def as_if_new(self: Ledger, now: float) -> list[Completion]:
        dropped = not_committed(self, now)
        self._pending, self._again = self._again + self._pending, []
        return dropped

    patch.setattr(Ledger, "not_committed", as_if_new)
    patch.setattr(PartitionOffsets, "done", lambda self, offset, epoch: done(self, offset, epoch) or True)


@bug
def what_is_pending_for_a_lost_partition_stays(patch: pytest.MonkeyPatch) -> None:
    revoked = Ledger.revoked

    def stays(self: Ledger, source: TopicPartition) -> None:
        again, pending = self._again, self._pending
        revoked(self, source)
        self._again, self._pending = again, pending

    patch.setattr(Ledger, "revoked", stays)


@bug
def what_a_full_batch_left_over_is_not_marked_as_changed(patch: pytest.MonkeyPatch) -> None:
    complete, take = Ledger.complete, Ledger.take

    class Closed(set[TopicPartition]):
        def add(self, element: TopicPartition) -> None:
            """Not while the batch is made up: too late for the bug."""

    def marked_as_they_come(self: Ledger, completion: Completion, now: float) -> bool:
        taken = complete(self, completion, now)
        if taken:
            self._changed.add(completion.source)
        return taken

    def closed(self: Ledger) -> Batch | None:
        self._changed = Closed(self._changed)
        try:
            return take(self)
        finally:
            self._changed = set(self._changed)

    patch.setattr(Ledger, "complete", marked_as_they_come)
    patch.setattr(Ledger, "take", closed)


@bug
def a_mark_is_not_awaited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionOffsets, "may_start", lambda self, offset: True)


@bug
def who_was_in_the_engine_when_it_died_is_not_told(patch: pytest.MonkeyPatch) -> None:
    died = Ledger.engine_died
    patch.setattr(Ledger, "engine_died", lambda self, in_flight: died(self, ()))


# --- sent twice ---


@bug
def any_message_with_its_id_answers_a_request(patch: pytest.MonkeyPatch) -> None:
    answered = AskedIds.answered

    def by_anyone(
        self: AskedIds, request_id: str, source: TopicPartition, offset: int, *rest: Any, **more: Any
    ) -> Any:
        running = self._running.get(request_id)
        if running is not None and running.source is not None:
            source, offset = running.source, running.offset
        return answered(self, request_id, source, offset, *rest, **more)

    patch.setattr(AskedIds, "answered", by_anyone)


@bug
def the_window_is_not_rebuilt(patch: pytest.MonkeyPatch) -> None:
    open_window = Ledger.open_window
    patch.setattr(Ledger, "open_window", lambda self, unit, ids, topic: open_window(self, unit, [], topic))


@bug
def rejected_results_in_the_rebuilt_window_count_as_answers(patch: pytest.MonkeyPatch) -> None:
    # Of the fake's reader of results; that of Kafka has a test of its own.
    def all_of_them(self: FakeWorker, unit: int) -> None:
        results = [
            AnsweredId(dict(record.headers)[REQUEST_ID].decode(), offset, ok=False)
            for offset, record in enumerate(self.member.kafka.published)
            if record.topic == NAMES.results and record.partition == unit
        ]
        self.pump.window_read(unit, results)

    patch.setattr(FakeWorker, "ask", all_of_them)


@bug
def a_replay_is_a_request_like_any_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intake_module, "replay_of", lambda headers: "no")


@bug
def a_replay_runs_whatever_is_known(patch: pytest.MonkeyPatch) -> None:
    replay_of = intake_module.replay_of
    patch.setattr(intake_module, "replay_of", lambda headers: "no" if replay_of(headers) == "no" else "again")


@bug
def what_failed_in_the_rebuilt_window_counts_as_ok(patch: pytest.MonkeyPatch) -> None:
    # Of the fake's reader of results; that of Kafka has a test of its own.
    open_window = Ledger.open_window
    patch.setattr(
        Ledger,
        "open_window",
        lambda self, unit, ids, topic: open_window(
            self, unit, [each._replace(ok=True) for each in ids], topic
        ),
    )


# --- partitions ---


@bug
def offsets_are_asked_for_while_a_transaction_is_under_way(patch: pytest.MonkeyPatch) -> None:
    ask = Openings._ask_offsets

    def at_once(self: Openings) -> None:
        batch, self._ledger._in_transaction = self._ledger._in_transaction, None
        ask(self)
        self._ledger._in_transaction = batch

    patch.setattr(Openings, "_ask_offsets", at_once)


@bug
def a_parked_partition_is_served_from_the_logs_beginning(patch: pytest.MonkeyPatch) -> None:
    def never_parked(*args: Any, beginning: int, **options: Any) -> Start | Park:
        decision = where_to_start(*args, beginning=beginning, **options)
        return Start(beginning, None) if isinstance(decision, Park) else decision

    patch.setattr(openings_module, "where_to_start", never_parked)


@bug
def what_is_lost_and_comes_back_goes_on_as_if_nothing_were(patch: pytest.MonkeyPatch) -> None:
    apply = Partitions.apply_moves

    def ignore(self: Partitions, poll: Any) -> None:
        both = poll.revoked & poll.assigned & set(self._ledger.partitions)
        for source in both:
            self._source.start_at(source, self._ledger._tenures[source].offsets.position)
        apply(self, replace(poll, revoked=poll.revoked - both, assigned=poll.assigned - both))

    patch.setattr(Partitions, "apply_moves", ignore)


@bug
def what_is_lost_is_still_counted(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Partitions, source: TopicPartition) -> None:
        self._ledger.revoked(source)
        self._held.pop(source, None)
        self._paused.discard(source)
        self._retry_at.pop(source, None)
        self._stalled.pop(source, None)

    patch.setattr(Partitions, "_forget", forget)


@bug
def a_record_that_waits_for_the_registry_is_not_read_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partitions, "read_again", lambda self, source, offset: None)


# --- the pump ---


@bug
def a_generation_that_was_refused_is_never_tried_again(patch: pytest.MonkeyPatch) -> None:
    def for_ever(self: Pump, now: float) -> bool:
        group = self._source.group_metadata()
        return group.generation > (self._refused.generation if self._refused else 0)

    patch.setattr(Pump, "_may_commit", for_ever)


@bug
def a_duplicate_is_never_done(patch: pytest.MonkeyPatch) -> None:
    duplicate = Answers.duplicate
    patch.setattr(Answers, "duplicate", lambda self, work: replace(duplicate(self, work), epoch=-1))


@bug
def a_bad_message_is_skipped(patch: pytest.MonkeyPatch) -> None:
    rejection = Pump._rejection

    def silent(self: Pump, work: Work) -> Completion | None:
        completion = rejection(self, work)
        return replace(completion, records=(), result=None) if completion else None

    patch.setattr(Pump, "_rejection", silent)


@bug
def a_completion_is_taken_twice(patch: pytest.MonkeyPatch) -> None:
    take = Pump._take_completion

    def twice(self: Pump, completion: Completion) -> None:
        take(self, completion)
        self._ledger._pending += self._ledger._pending[-1:]

    patch.setattr(Pump, "_take_completion", twice)
