"""Deliberate bugs in what is known of the ids of a unit: the model must find every one.

Each is a function of pytest's monkeypatch that changes one thing for the duration of a test.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

from headrace.consumers.records import AnsweredId, TopicPartition
from headrace.schemas.messages import Location, Status
from headrace.workers import asked as asked_module
from headrace.workers.asked import Asked, AskedIds
from headrace.workers.recent_ids import RecentIds
from headrace.workers.work import ReplyAddress

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}

ask = AskedIds.ask
answered = AskedIds.answered
forget = AskedIds.forget
remember = AskedIds.remember


def bug(apply: Bug) -> Bug:
    BUGS[apply.__name__] = apply
    return apply


# --- what runs ---


@bug
def each_lane_has_ids_of_its_own(patch: pytest.MonkeyPatch) -> None:
    def by_lane(self: AskedIds, request_id: str, source: TopicPartition, *rest: Any) -> Asked | None:
        running = self._running.get(request_id)
        if running is not None and running.source != source:
            return None
        return ask(self, request_id, source, *rest)

    patch.setattr(AskedIds, "ask", by_lane)


@bug
def a_record_that_is_read_again_is_its_own_duplicate(patch: pytest.MonkeyPatch) -> None:
    def always(
        self: AskedIds, request_id: str, source: TopicPartition, offset: int, *rest: Any
    ) -> Asked | None:
        return self._running.get(request_id) or ask(self, request_id, source, offset, *rest)

    patch.setattr(AskedIds, "ask", always)


@bug
def any_record_at_that_offset_is_the_same(patch: pytest.MonkeyPatch) -> None:
    def same_offset(
        self: AskedIds, request_id: str, source: TopicPartition, offset: int, *rest: Any
    ) -> Asked | None:
        running = self._running.get(request_id)
        if running is not None and running.offset == offset:
            return None
        return ask(self, request_id, source, offset, *rest)

    patch.setattr(AskedIds, "ask", same_offset)


@bug
def the_last_with_an_id_is_the_one_that_runs(patch: pytest.MonkeyPatch) -> None:
    def moved(
        self: AskedIds, request_id: str, source: TopicPartition, offset: int, *rest: Any
    ) -> Asked | None:
        found = ask(self, request_id, source, offset, *rest)
        if found is not None and not found.answered:
            found.source, found.offset = source, offset
        return found

    patch.setattr(AskedIds, "ask", moved)


# --- who waits ---


@bug
def who_asks_again_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AskedIds, "ask", lambda self, *of: ask(self, *of[:3], None, *of[4:]))


@bug
def only_the_last_who_asks_again_is_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AskedIds, "answered", lambda self, *of: answered(self, *of)[-1:])


@bug
def who_waits_is_told_by_any_answer_to_the_id(patch: pytest.MonkeyPatch) -> None:
    def any_answer(
        self: AskedIds, request_id: str, source: TopicPartition, offset: int, *rest: Any
    ) -> tuple[ReplyAddress, ...]:
        running = self._running.get(request_id)
        if running is not None and running.source is not None:
            source, offset = running.source, running.offset
        return answered(self, request_id, source, offset, *rest)

    patch.setattr(AskedIds, "answered", any_answer)


# --- what was answered ---


@bug
def what_is_answered_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: AskedIds, request_id: str, *rest: Any) -> tuple[ReplyAddress, ...]:
        running = self._running.pop(request_id, None)
        return running.waiting if running else ()

    patch.setattr(AskedIds, "answered", forgetful)


@bug
def what_is_answered_still_runs(patch: pytest.MonkeyPatch) -> None:
    def still_runs(self: AskedIds, request_id: str, *rest: Any) -> tuple[ReplyAddress, ...]:
        running = self._running.get(request_id)
        waiting = answered(self, request_id, *rest)
        if running is not None:
            self._running[request_id] = running
        return waiting

    patch.setattr(AskedIds, "answered", still_runs)


@bug
def what_was_refused_does_not_count_as_answered(patch: pytest.MonkeyPatch) -> None:
    def only_if_it_ran(self: AskedIds, request_id: str, *rest: Any) -> tuple[ReplyAddress, ...]:
        return answered(self, request_id, *rest) if request_id in self._running else ()

    patch.setattr(AskedIds, "answered", only_if_it_ran)


@bug
def a_result_lies_one_offset_on(patch: pytest.MonkeyPatch) -> None:
    number_of = AskedIds._number_of
    patch.setattr(AskedIds, "_number_of", lambda self, place, offset: number_of(self, place, offset + 1))


@bug
def all_results_lie_in_the_first_place(patch: pytest.MonkeyPatch) -> None:
    number_of = AskedIds._number_of
    patch.setattr(
        AskedIds,
        "_number_of",
        lambda self, place, offset: number_of(self, place, offset) & ((1 << asked_module._OFFSET_BITS) - 1),
    )


# --- replays ---


@bug
def a_replay_is_answered_by_any_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AskedIds, "ask", lambda self, *of: ask(self, *of[:4]))


@bug
def a_replay_runs_whatever_is_known(patch: pytest.MonkeyPatch) -> None:
    def again(self: AskedIds, *of: Any) -> Asked | None:
        return ask(self, *("again" if each == "unless_ok" else each for each in of))

    patch.setattr(AskedIds, "ask", again)


@bug
def a_replay_runs_beside_what_runs(patch: pytest.MonkeyPatch) -> None:
    def beside(self: AskedIds, request_id: str, *of: Any) -> Asked | None:
        return None if of[3:] == ("again",) else ask(self, request_id, *of)

    patch.setattr(AskedIds, "ask", beside)


@bug
def again_is_a_replay_like_any_other(patch: pytest.MonkeyPatch) -> None:
    def once(self: AskedIds, *of: Any) -> Asked | None:
        return ask(self, *("unless_ok" if each == "again" else each for each in of))

    patch.setattr(AskedIds, "ask", once)


@bug
def every_result_counts_as_ok(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AskedIds, "answered", lambda self, *of: answered(self, *of[:4], "ok"))


@bug
def no_result_counts_as_ok(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AskedIds, "answered", lambda self, *of: answered(self, *of[:4], "failed"))


@bug
def what_follows_an_ok_takes_its_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AskedIds, "_entry", lambda self, request_id, number, *, ok: number << 1 | ok)


@bug
def only_what_is_ok_is_remembered(patch: pytest.MonkeyPatch) -> None:
    def if_ok(
        self: AskedIds, request_id: str, source: Any, offset: int, location: Location | None, status: Status
    ) -> tuple[ReplyAddress, ...]:
        return answered(self, request_id, source, offset, location, status if status == "ok" else "rejected")

    patch.setattr(AskedIds, "answered", if_ok)


@bug
def every_result_in_the_rebuilt_window_counts_as_ok(patch: pytest.MonkeyPatch) -> None:
    def all_ok(self: AskedIds, ids: Iterable[AnsweredId], *at: Any) -> None:
        remember(self, [each._replace(ok=True) for each in ids], *at)

    patch.setattr(AskedIds, "remember", all_ok)


@bug
def no_result_in_the_rebuilt_window_counts_as_ok(patch: pytest.MonkeyPatch) -> None:
    def none_ok(self: AskedIds, ids: Iterable[AnsweredId], *at: Any) -> None:
        remember(self, [each._replace(ok=False) for each in ids], *at)

    patch.setattr(AskedIds, "remember", none_ok)


# --- a new tenure, a new worker ---


@bug
def what_ran_from_a_partition_that_went_still_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AskedIds, "forget", lambda self, source, in_transaction=(): None)


@bug
def all_that_runs_is_forgotten_with_one_lane(patch: pytest.MonkeyPatch) -> None:
    def forget_all(self: AskedIds, source: TopicPartition, in_transaction: Collection[int] = ()) -> None:
        forget(self, source, in_transaction)
        for request_id in [each for each, asked in self._running.items() if asked.source != source]:
            del self._running[request_id]

    patch.setattr(AskedIds, "forget", forget_all)


@bug
def what_is_in_a_transaction_is_forgotten_with_its_partition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AskedIds, "forget", lambda self, source, in_transaction=(): forget(self, source))


@bug
def the_window_is_not_rebuilt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AskedIds, "remember", lambda self, ids, topic, partition: None)


@bug
def the_window_is_rebuilt_backwards(patch: pytest.MonkeyPatch) -> None:
    def backwards(self: AskedIds, ids: Iterable[AnsweredId], topic: str, partition: int) -> None:
        remember(self, list(ids)[::-1], topic, partition)

    patch.setattr(AskedIds, "remember", backwards)


# --- the table ---


@bug
def two_tables_are_kept_instead_of_three(patch: pytest.MonkeyPatch) -> None:
    turn = RecentIds._turn

    def drop_two(self: RecentIds) -> None:
        turn(self)
        self._keys[-1] = self._empty()

    patch.setattr(RecentIds, "_turn", drop_two)


@bug
def an_older_table_is_asked_first(patch: pytest.MonkeyPatch) -> None:
    find = RecentIds.find

    def oldest_first(self: RecentIds, request_id: str) -> int | None:
        self._keys.reverse()
        self._values.reverse()
        try:
            return find(self, request_id)
        finally:
            self._keys.reverse()
            self._values.reverse()

    patch.setattr(RecentIds, "find", oldest_first)


@bug
def a_window_of_none_remembers(patch: pytest.MonkeyPatch) -> None:
    init = RecentIds.__init__

    def at_least_one(self: RecentIds, window: int) -> None:
        init(self, window)
        self._keeps_none = False

    patch.setattr(RecentIds, "__init__", at_least_one)
