"""Deliberate bugs in the worker's ledger, partitions and pump: the group model must find every one.

Each is a function of pytest's monkeypatch that changes one thing for the duration of a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.workers.answers import Answers
from headrace.workers.asked import Asked
from headrace.workers.ledger import Ledger
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
        return complete(self, replace(completion, epoch=self.epoch(completion.source)), now)

    patch.setattr(Ledger, "complete", any_epoch)


@bug
def the_done_set_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    commit_point = PartitionOffsets.commit_point
    patch.setattr(PartitionOffsets, "commit_point", lambda self: CommitPoint(commit_point(self).offset, ""))


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
        self._again = list(self._end_transaction().completions)
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
    patch.setattr(Ledger, "revoked", lambda self, source: self._tenures.pop(source, None))


@bug
def any_message_with_its_id_answers_a_request(patch: pytest.MonkeyPatch) -> None:
    class Equal(int):
        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    init = Asked.__init__
    patch.setattr(Asked, "__init__", lambda self, offset, *rest: init(self, Equal(offset), *rest))


# --- partitions ---


@bug
def a_partition_starts_while_a_transaction_is_under_way(patch: pytest.MonkeyPatch) -> None:
    start = Partitions.start_assigned

    def at_once(self: Partitions) -> None:
        batch, self._ledger._in_transaction = self._ledger._in_transaction, None
        start(self)
        self._ledger._in_transaction = batch

    patch.setattr(Partitions, "start_assigned", at_once)


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
        for places in (self._unstarted, self._parked, self._paused):
            places.discard(source)

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
