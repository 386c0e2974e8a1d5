"""When a unit that drains is aborted, withdrawn and let go."""

from __future__ import annotations

from headrace.workers.drains import COALESCE_S, Drains, Step


def step(
    drains: Drains, *, in_flight: int = 0, unpublished: bool = False, settled: bool = True, now: float = 0
) -> Step:
    return drains.step(1, in_flight=in_flight, unpublished=unpublished, settled=settled, now=now)


def test_a_unit_is_let_go_once_its_last_result_and_that_nothing_is_in_flight_are_committed() -> None:
    drains = Drains(60)
    assert drains.follow({1}, 0).begun == {1}
    assert step(drains) is Step.WAIT, "the loop has not said yet what it has of it"
    drains.handed_back(1)
    assert step(drains, in_flight=2) is Step.WAIT
    assert step(drains, unpublished=True) is Step.WAIT
    assert step(drains) is Step.WITHDRAW
    assert step(drains, settled=False) is Step.WAIT
    assert step(drains) is Step.LET_GO


def test_past_its_budget_what_is_in_flight_is_aborted_once() -> None:
    drains = Drains(60)
    drains.follow({1}, 0)
    drains.handed_back(1)
    assert step(drains, in_flight=1, now=59) is Step.WAIT
    assert step(drains, in_flight=1, now=60) is Step.ABORT
    assert step(drains, in_flight=1, now=61) is Step.WAIT, "until the loop has given it back"
    drains.handed_back(1)
    assert step(drains, in_flight=1, now=62) is Step.WAIT
    assert step(drains, now=63) is Step.WITHDRAW
    assert drains.was_aborted(1)


def test_what_is_not_in_the_list_any_more_is_served_on() -> None:
    drains = Drains(60)
    drains.follow({1, 2, 3}, 0)
    drains.handed_back(1)
    assert step(drains) is Step.WITHDRAW
    change = drains.follow({2}, 1)
    assert (change.begun, change.cancelled, change.withdrawn) == (set(), {1, 3}, {1})
    assert drains.units == {2}


def test_units_that_drain_close_to_each_other_go_in_one_rebalance() -> None:
    drains = Drains(60)
    drains.follow({1, 2}, 0)
    drains.handed_back(1)
    step(drains)
    assert step(drains, now=5) is Step.LET_GO
    assert drains.to_let_go([1], 5) == set()
    assert drains.to_let_go([1], 5 + COALESCE_S) == {1}
    drains.gone(1)
    drains.handed_back(2)
    assert drains.step(2, in_flight=0, unpublished=False, settled=True, now=6) is Step.WITHDRAW
    assert drains.step(2, in_flight=0, unpublished=False, settled=True, now=6) is Step.LET_GO
    assert drains.to_let_go([2], 6) == {2}, "nothing is left to wait for"
