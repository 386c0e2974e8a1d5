"""Deliberate bugs in admission: the model of histories, or the law that is named, must find every one.

Each is a function of pytest's monkeypatch that changes one thing for the duration of a test.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.workers import admission, room
from headrace.workers.admission import Admission
from headrace.workers.key_order import KeyLine, Waiting
from headrace.workers.lane_queue import LaneQueue
from headrace.workers.room import HeldUp, Need, Usage
from headrace.workers.work import Work

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, tuple[Bug, str]] = {}


def bug(found_by: str = "a history") -> Callable[[Bug], Bug]:
    def note(apply: Bug) -> Bug:
        BUGS[apply.__name__] = (apply, found_by)
        return apply

    return note


# --- room ---


@bug()
def nothing_is_kept_for_interactive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room, "RESERVE_FROM", 10**6)


@bug()
def backfill_may_fill_what_standard_may(patch: pytest.MonkeyPatch) -> None:
    limits = room._sequence_limits
    patch.setattr(room, "_sequence_limits", lambda given, share: limits(given, 1.0))


@bug()
def backfill_may_fill_all_tokens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room, "_token_limits", lambda tokens, share: (tokens,) * 3)


@bug()
def tokens_have_no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room, "_token_limits", lambda tokens, share: (1 << 60,) * 3)


@bug()
def a_request_is_one_sequence(patch: pytest.MonkeyPatch) -> None:
    estimated = Admission._estimated

    def one(self: Admission, work: Work) -> Waiting:
        return replace(estimated(self, work), sequences=1)

    patch.setattr(Admission, "_estimated", one)


@bug()
def a_request_larger_than_the_room_never_goes_in(patch: pytest.MonkeyPatch) -> None:
    short_of = Usage.short_of

    def strict(self: Usage, lane: int, need: Need) -> int | None:
        return 0 if need.tokens > self._token_limits[0] else short_of(self, lane, need)

    patch.setattr(Usage, "short_of", strict)


@bug("interactive_starts_at_once_in_its_reserve")
def one_that_lacks_room_lets_nobody_pass(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Usage, "may_pass", lambda self, lane, need, held_up: False)


@bug("nobody_starves_behind_small_requests")
def one_that_lacks_room_is_passed_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Usage, "may_pass", lambda self, lane, need, held_up: True)


@bug("nobody_starves_behind_small_requests")
def a_lane_loses_its_turn_when_others_fill_its_part(patch: pytest.MonkeyPatch) -> None:
    charge = Admission._charge_lane

    def all_of_them(self: Admission, lane: int, tokens: int, held_up: list[HeldUp]) -> None:
        charge(self, lane, tokens, held_up)
        for other in held_up:
            if lane < other.short_of:
                self._starts[other.lane] = max(self._starts[other.lane], self._start)

    patch.setattr(Admission, "_charge_lane", all_of_them)


# --- counting ---


@bug()
def the_estimate_stays_when_the_prompt_is_measured(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "measured", lambda self, work, tokens: None)


@bug()
def what_is_finished_still_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Usage, "remove", lambda self, lane, need: None)


@bug()
def the_usual_length_is_that_of_all_sequences_together(patch: pytest.MonkeyPatch) -> None:
    finished = Admission.finished

    def whole(self: Admission, work: Work, tokens: int | None = None) -> None:
        running = self._running[admission._identity(work)]
        finished(self, work, None if tokens is None else tokens * running.waiting.sequences)

    patch.setattr(Admission, "finished", whole)


@bug()
def the_usual_length_may_be_above_max_tokens(patch: pytest.MonkeyPatch) -> None:
    expected = admission._UsualLength.expected

    def unbounded(self: Any, max_tokens: int | None) -> int:
        return expected(self, max_tokens if self._seen == 0 else None)

    patch.setattr(admission._UsualLength, "expected", unbounded)


# --- lanes ---


@bug("lanes_share_by_weight")
def lanes_are_served_strictly_in_their_order(patch: pytest.MonkeyPatch) -> None:
    in_turn = Admission._in_turn

    def strictly(self: Admission) -> list[Any]:
        return sorted(in_turn(self), key=lambda turn: turn[0])

    patch.setattr(Admission, "_in_turn", strictly)


@bug("lanes_share_by_weight")
def all_lanes_weigh_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "_WEIGHTS", (1, 1, 1))


@bug("a_lane_that_comes_and_goes_saves_nothing_up")
def an_idle_lane_saves_up(patch: pytest.MonkeyPatch) -> None:
    charge = Admission._charge_lane

    def without(self: Admission, lane: int, tokens: int, held_up: list[HeldUp]) -> None:
        charge(self, lane, tokens, held_up)
        self._start = 0.0

    patch.setattr(Admission, "_charge_lane", without)


@bug("backfill_that_its_share_holds_up_saves_nothing_up")
def backfill_saves_up_while_its_share_is_full(patch: pytest.MonkeyPatch) -> None:
    charge = Admission._charge_lane
    patch.setattr(
        Admission, "_charge_lane", lambda self, lane, tokens, held_up: charge(self, lane, tokens, [])
    )


# --- tenants ---


@bug("tenants_share_equally")
def a_lane_is_first_come_first_served(patch: pytest.MonkeyPatch) -> None:
    push = LaneQueue.push

    def as_one(self: LaneQueue, waiting: Waiting) -> None:
        waiting.tenant = None
        push(self, waiting)

    patch.setattr(LaneQueue, "push", as_one)


@bug("tenants_share_equally")
def tenants_share_requests_not_tokens(patch: pytest.MonkeyPatch) -> None:
    pop = LaneQueue.pop
    patch.setattr(LaneQueue, "pop", lambda self, tokens: pop(self, 1))


@bug("a_tenant_that_comes_and_goes_saves_nothing_up")
def an_idle_tenant_saves_up(patch: pytest.MonkeyPatch) -> None:
    push = LaneQueue.push

    def where_it_left(self: LaneQueue, waiting: Waiting) -> None:
        account = self._accounts.get(waiting.tenant)
        before = account.tokens if account else 0.0
        rested = account is None or account.turn is None
        push(self, waiting)
        if rested:
            account = self._accounts[waiting.tenant]
            account.tokens = before
            self._take_turn(account)

    patch.setattr(LaneQueue, "push", where_it_left)


@bug("an_old_tenant_is_not_kept_waiting_by_new_ones")
def the_level_is_the_least_of_those_that_wait(patch: pytest.MonkeyPatch) -> None:
    def charge(self: LaneQueue, account: Any, tokens: int) -> None:
        account.tokens += tokens
        if account.turn is not None:
            self._take_turn(account)

    patch.setattr(LaneQueue, "_charge", charge)


@bug("an_old_tenant_is_not_kept_waiting_by_new_ones")
def tenants_are_never_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaneQueue, "_forget_levelled", lambda self: None)


@bug("what_was_taken_beyond_the_estimate_is_charged")
def only_the_estimate_is_charged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "_charge_more", lambda self, waiting, tokens: None)


# --- keys ---


@bug()
def two_of_a_key_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Waiting, "ready", property(lambda self: not self.gone))


@bug()
def a_key_waits_in_the_order_of_arrival(patch: pytest.MonkeyPatch) -> None:
    def add(self: KeyLine, waiting: Waiting) -> None:
        entry = (waiting.arrival, waiting.arrival, waiting)
        heapq.heappush(self._waiting.setdefault(waiting.work.source, []), entry)

    patch.setattr(KeyLine, "add", add)


@bug()
def a_key_that_is_free_again_lets_nobody_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "_move_up", lambda self, line: None)


@bug()
def what_leaves_does_not_let_the_next_of_its_key_move_up(patch: pytest.MonkeyPatch) -> None:
    def leave(self: Admission, waiting: Waiting) -> None:
        self._out_of_waiting(waiting)

    patch.setattr(Admission, "_leave", leave)


# --- leaving, and being alone ---


@bug()
def what_was_taken_back_is_admitted(patch: pytest.MonkeyPatch) -> None:
    out = Admission._out_of_waiting

    def stays(self: Admission, waiting: Waiting) -> None:
        out(self, waiting)
        waiting.gone = False

    patch.setattr(Admission, "_out_of_waiting", stays)


@bug()
def a_deadline_is_seen_a_millisecond_late(patch: pytest.MonkeyPatch) -> None:
    expired = Admission.expired
    patch.setattr(Admission, "expired", lambda self, now: expired(self, now - 1))


@bug()
def what_is_taken_back_comes_in_the_order_of_arrival(patch: pytest.MonkeyPatch) -> None:
    take_back = Admission.take_back

    def by_arrival(self: Admission, which: Callable[[Work], bool]) -> list[Work]:
        order = [waiting.work for waiting in self._waiting.values()]
        return sorted(take_back(self, which), key=order.index)

    patch.setattr(Admission, "take_back", by_arrival)


@bug()
def others_go_in_while_one_waits_to_run_alone(patch: pytest.MonkeyPatch) -> None:
    next_alone = Admission._next_alone
    patch.setattr(Admission, "_next_alone", lambda self: None if self._running else next_alone(self))


@bug()
def others_join_one_that_runs_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Admission, "_alone_runs", property(lambda self: False, lambda self, value: None), raising=False
    )
