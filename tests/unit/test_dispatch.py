"""From a polled request to the loop: marks, trials, keys, drains, and what is given back."""

from __future__ import annotations

import pytest
from dispatch_desk import Desk
from fake_worker import SOURCES

from headrace.consumers.suspicion import Suspicion

A, B = SOURCES[2], SOURCES[3]  # of units 0 and 1


@pytest.fixture
def desk() -> Desk:
    return Desk()


# --- marks ---


def test_nothing_is_handed_over_before_a_mark_above_it_is_committed(desk: Desk) -> None:
    desk.assign(A)
    desk.offer(A, 0, 1)
    assert desk.begun() == []
    desk.take()
    assert desk.begun() == []
    desk.end_commit(well=False)
    assert desk.begun() == []
    desk.commit()
    assert desk.begun() == [0, 1]


def test_what_the_mark_does_not_cover_waits_for_the_next_one_and_goes_in_order(desk: Desk) -> None:
    desk.assign(A)
    desk.commit()
    desk.offer(A, *range(200))
    assert desk.begun() == list(range(128))
    desk.commit()
    assert desk.begun() == list(range(128, 200))


def test_what_waits_for_a_mark_goes_with_its_partition(desk: Desk) -> None:
    desk.assign(A)
    desk.offer(A, 0)
    desk.ledger.revoked(A)
    desk.dispatch.forget(A)
    desk.assign(A)
    desk.commit()
    assert desk.begun() == []
    desk.offer(A, 0)
    assert desk.begun() == [0]


def test_what_is_ready_when_its_partition_goes_is_not_delivered(desk: Desk) -> None:
    desk.assign(A)
    desk.assign(B)
    desk.offer(A, 0)
    desk.offer(B, 1)
    desk.commit()
    desk.ledger.revoked(A)
    desk.dispatch.forget(A)
    assert desk.begun() == [1]


def test_nothing_is_handed_over_after_the_engine_has_died(desk: Desk) -> None:
    desk.assign(A, {5: Suspicion(2)})
    desk.commit()
    desk.offer(A, 0)
    desk.offer(A, 5)
    desk.dispatch.begin_trial()
    desk.take()
    desk.dispatch.stop()
    desk.end_commit()
    desk.offer(A, 6)
    assert desk.begun() == []


# --- trials ---


def test_a_suspect_is_held_back_and_others_pass_it(desk: Desk) -> None:
    desk.assign(A, {0: Suspicion(2), 1: Suspicion(1)})
    desk.commit()
    desk.offer(A, 0, 1, 2)
    assert desk.begun() == [1, 2], "a first death suspects nobody"


def test_the_works_of_a_trial_are_handed_over_only_after_the_commit_that_says_so(desk: Desk) -> None:
    desk.assign(A, dict.fromkeys(range(4), Suspicion(2)))
    desk.commit()
    desk.offer(A, 0, 1, 2, 3)
    desk.dispatch.begin_trial()
    assert desk.begun() == []
    assert desk.ledger.due_in(0.0) == 0, "it is committed at once"
    desk.take()
    assert desk.begun() == []
    desk.end_commit()
    assert desk.begun() == [0, 1]
    assert desk.said(A) == ("trial", [0, 1])


def test_a_trial_that_was_set_up_while_a_commit_was_under_way_waits_for_the_next(desk: Desk) -> None:
    desk.assign(A, {0: Suspicion(2)})
    desk.commit()
    desk.offer(A, 1)
    desk.finish(A, 1)
    desk.take()
    desk.begun()
    desk.assign(B, {0: Suspicion(2)})
    desk.offer(B, 0)
    desk.dispatch.begin_trial()
    desk.end_commit()
    assert desk.begun() == []
    desk.commit()
    assert desk.begun() == [0]


def test_a_refused_commit_begins_no_trial_and_the_next_one_does(desk: Desk) -> None:
    desk.assign(A, {0: Suspicion(2)})
    desk.commit()
    desk.offer(A, 0)
    desk.dispatch.begin_trial()
    desk.take()
    desk.end_commit(well=False)
    assert desk.begun() == []
    desk.commit()
    assert desk.begun() == [0]
    assert desk.said(A) == ("alone", [0])


def test_the_last_suspect_is_alone_and_the_worker_says_so_in_every_partition_until_it_is_through(
    desk: Desk,
) -> None:
    desk.assign(A, {0: Suspicion(2)})
    desk.assign(B)
    desk.commit()
    desk.offer(A, 0)
    desk.dispatch.begin_trial()
    assert desk.dispatch.on_trial_alone() is None, "not before it has begun"
    desk.commit()
    desk.dispatch.deliver()
    assert [(work.offset, work.alone) for work in desk.delivered] == [(0, True)]
    alone = desk.dispatch.on_trial_alone()
    assert alone is not None
    assert alone.offset == 0
    assert (desk.said(A), desk.said(B)) == (("alone", [0]), ("alone", []))
    desk.finish(A, 0)
    assert desk.dispatch.on_trial_alone() is None
    desk.commit()
    assert (desk.said(A), desk.said(B)) == (("open", []), ("open", []))


def test_the_next_trial_begins_when_the_last_of_this_one_is_answered(desk: Desk) -> None:
    desk.assign(A, dict.fromkeys(range(3), Suspicion(2)))
    desk.commit()
    desk.offer(A, 0, 1, 2)
    desk.dispatch.begin_trial()
    desk.commit()
    assert desk.begun() == [0, 1]
    desk.finish(A, 1)
    desk.dispatch.begin_trial()
    assert desk.begun() == []
    desk.finish(A, 0)
    desk.dispatch.begin_trial()
    desk.commit()
    assert desk.begun() == [2]


def test_a_drain_calls_off_a_trial_that_has_not_begun_and_it_is_held_as_long_as_its_unit_drains(
    desk: Desk,
) -> None:
    desk.assign(A, {0: Suspicion(2)})
    desk.commit()
    desk.offer(A, 0)
    desk.dispatch.begin_trial()
    desk.take()
    desk.dispatch.drain(frozenset({0}))
    desk.end_commit()
    assert desk.begun() == []
    desk.commit()
    assert desk.said(A) == ("open", [])
    desk.dispatch.begin_trial()
    assert desk.ledger.take() is None, "those of a unit that drains are passed over"
    desk.dispatch.drain(frozenset())
    desk.dispatch.begin_trial()
    desk.commit()
    assert desk.begun() == [0]


def test_a_trial_that_has_begun_goes_on_although_another_unit_drains(desk: Desk) -> None:
    desk.assign(A, {0: Suspicion(2)})
    desk.assign(B)
    desk.commit()
    desk.offer(A, 0)
    desk.dispatch.begin_trial()
    desk.commit()
    assert desk.begun() == [0]
    desk.dispatch.drain(frozenset({1}))
    alone = desk.dispatch.on_trial_alone()
    assert alone is not None
    assert desk.ledger.suspicion(A, 0).on_trial


def test_a_trial_ends_when_its_partition_goes_and_the_next_one_may_begin(desk: Desk) -> None:
    desk.assign(A, {0: Suspicion(3)})
    desk.assign(B, {0: Suspicion(2)})
    desk.commit()
    desk.offer(A, 0)
    desk.offer(B, 0)
    desk.dispatch.begin_trial()
    desk.ledger.revoked(A)
    desk.dispatch.forget(A)
    desk.dispatch.begin_trial()
    desk.commit()
    desk.dispatch.deliver()
    assert [work.source for work in desk.delivered] == [B]


# --- the order of a key ---


def test_what_has_the_key_of_a_suspect_waits_behind_it_in_order_and_other_keys_pass() -> None:
    desk = Desk(order_by_key=True)
    desk.assign(A, {0: Suspicion(2)})
    desk.commit()
    desk.offer(A, 0, 1, key=b"k")
    desk.offer(A, 2, key=b"other")
    desk.offer(A, 3)
    desk.offer(A, 4, key=b"k")
    assert desk.begun() == [2, 3]
    desk.finish(A, 2)
    desk.finish(A, 3)
    desk.dispatch.begin_trial()
    desk.commit()
    assert desk.begun() == [0]
    desk.finish(A, 0)
    desk.commit()  # nothing is alone any more
    assert desk.begun() == [1, 4]
    desk.offer(A, 5, key=b"k")
    assert desk.begun() == [5]


def test_a_suspect_behind_a_suspect_of_its_key_is_tried_after_it_and_holds_back_the_rest() -> None:
    desk = Desk(order_by_key=True)
    desk.assign(A, {0: Suspicion(2), 1: Suspicion(2)})
    desk.commit()
    desk.offer(A, 0, 1, 2, key=b"k")
    for expected in (0, 1):
        desk.dispatch.begin_trial()
        desk.commit()
        assert desk.begun() == [expected]
        desk.finish(A, expected)
        desk.commit()
    assert desk.begun() == [2]


def test_the_same_key_in_another_unit_is_another_key() -> None:
    desk = Desk(order_by_key=True)
    desk.assign(A, {0: Suspicion(2)})
    desk.assign(B)
    desk.commit()
    desk.offer(A, 0, key=b"k")
    desk.offer(B, 7, key=b"k")
    assert desk.begun() == [7]


def test_a_suspect_that_goes_with_its_lane_holds_back_nothing_of_its_key_in_another_lane() -> None:
    desk = Desk(order_by_key=True)
    interactive = SOURCES[0]
    desk.assign(A, {0: Suspicion(2)})
    desk.assign(interactive)
    desk.commit()
    desk.offer(A, 0, 1, key=b"k")
    desk.offer(interactive, 5, key=b"k")
    assert desk.begun() == []
    desk.ledger.revoked(A)
    desk.dispatch.forget(A)
    assert desk.begun() == [5]


def test_a_unit_that_is_lost_with_both_lanes_takes_along_what_waits_in_one_behind_a_suspect_of_the_other() -> (
    None
):
    desk = Desk(order_by_key=True)
    lanes = [A, SOURCES[0]]
    desk.assign(A, {0: Suspicion(2)})
    desk.assign(SOURCES[0])
    desk.commit()
    desk.offer(A, 0, key=b"k")
    desk.offer(SOURCES[0], 5, key=b"k")
    for tp in lanes:
        desk.ledger.revoked(tp)
    for tp in lanes:
        desk.dispatch.forget(tp)
    assert desk.begun() == []


def test_without_an_order_of_keys_nothing_waits_behind_a_suspect(desk: Desk) -> None:
    desk.assign(A, {0: Suspicion(2)})
    desk.commit()
    desk.offer(A, 0, 1, key=b"k")
    assert desk.begun() == [1]


# --- drains ---


def test_of_a_unit_that_drains_nothing_is_begun_and_all_of_it_is_when_the_drain_is_cancelled(
    desk: Desk,
) -> None:
    desk.assign(A)
    desk.assign(B)
    desk.commit()
    desk.dispatch.drain(frozenset({0}))
    desk.offer(A, 0, 1)
    desk.offer(B, 7)
    assert desk.begun() == [7]
    desk.dispatch.drain(frozenset())
    assert desk.begun() == [0, 1]


def test_what_the_loop_gives_back_goes_before_what_was_polled_later(desk: Desk) -> None:
    desk.assign(A)
    desk.commit()
    desk.offer(A, 0, 1)
    desk.dispatch.deliver()
    given_back = list(desk.delivered)
    desk.begun()
    desk.dispatch.drain(frozenset({0}))
    desk.offer(A, 2)
    desk.dispatch.taken_back(given_back)
    assert desk.begun() == []
    assert desk.ledger.in_flight(0) == 0
    desk.dispatch.drain(frozenset())
    assert desk.begun() == [0, 1, 2]


def test_what_the_loop_gives_back_after_the_drain_was_cancelled_is_handed_over_again_at_once(
    desk: Desk,
) -> None:
    desk.assign(A)
    desk.commit()
    desk.offer(A, 0)
    desk.dispatch.deliver()
    given_back = list(desk.delivered)
    desk.begun()
    desk.dispatch.drain(frozenset({0}))
    desk.dispatch.drain(frozenset())
    desk.dispatch.taken_back(given_back)
    assert desk.begun() == [0]


def test_what_is_given_back_of_an_older_tenure_is_dropped(desk: Desk) -> None:
    desk.assign(A)
    desk.commit()
    desk.offer(A, 0)
    desk.dispatch.deliver()
    given_back = list(desk.delivered)
    desk.begun()
    desk.ledger.revoked(A)
    desk.dispatch.forget(A)
    desk.assign(A)
    desk.commit()
    desk.offer(A, 0)
    assert desk.begun() == [0]
    desk.dispatch.taken_back(given_back)
    assert desk.begun() == []
    assert desk.ledger.in_flight(0) == 1
