"""The schedule is a pure function of its seed, and leaves nothing out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from nemesis.schedule import KINDS, Plan, first_slots, schedule
from property_examples import EXAMPLES


def plans() -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        seed=st.integers(0, 10**6),
        seconds=st.integers(30, 1800).map(float),
        workers=st.integers(2, 6),
        may_add_partitions=st.booleans(),
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(plans())
def test_the_same_plan_gives_the_same_faults(plan: Plan) -> None:
    assert schedule(plan) == schedule(plan)


def test_another_seed_gives_other_faults() -> None:
    assert schedule(Plan(1, 120, 4)) != schedule(Plan(2, 120, 4))


@settings(max_examples=EXAMPLES, deadline=None)
@given(plans())
def test_faults_hit_workers_that_there_are_and_never_leave_too_few(plan: Plan) -> None:
    slots = set(first_slots(plan.workers))
    for fault in schedule(plan):
        assert 0 < fault.at_s < plan.seconds
        if fault.kind == "add worker":
            assert fault.target not in slots, "a new worker has a slot of its own"
            slots.add(fault.target)
        elif fault.slot is not None:
            assert fault.slot in slots
        if fault.kind == "remove worker":
            slots.remove(fault.target)
        assert plan.workers - 1 <= len(slots) <= plan.workers + 1
        if fault.kind == "add partition":
            assert plan.may_add_partitions


def test_half_an_hour_has_ten_of_each_kind_and_two_hundred_in_all() -> None:
    counts = Counter(fault.kind for fault in schedule(Plan(3, 1800, 4)))
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 10
    assert sum(counts.values()) >= 200


@settings(max_examples=EXAMPLES, deadline=None)
@given(plans())
def test_what_is_to_outlast_a_timeout_does(plan: Plan) -> None:
    for fault in schedule(plan):
        if fault.kind == "freeze long":
            assert fault.hold_s > plan.session_s
        elif fault.kind == "freeze short":
            assert fault.hold_s < plan.session_s
        elif fault.kind in ("broker away", "cut one", "stall one", "cut all", "stall all"):
            assert fault.hold_s > plan.transaction_s
