"""Over any history of a group: a unit never has two owners, soon has one, and stays there."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from property.assignor_laws import MEMBERS, Claims, claims, few_moves, no_oscillation, order_does_not_matter
from property.assignor_model import HISTORIES, Handover
from property.assignor_mutants import BUGS
from property_examples import EXAMPLES

MANY = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ORDERS = st.permutations(range(16))


def live(units: int, history: list[tuple[str, int, int]]) -> None:
    group = Handover(units)
    group.play(history)
    group.settle()


@given(units=st.integers(0, 9), history=HISTORIES)
@settings(MANY)
def test_whatever_happens_a_unit_has_one_owner_at_most_and_soon_exactly_one(
    units: int, history: list[tuple[str, int, int]]
) -> None:
    live(units, history)


@given(claims(planned=False))
@settings(MANY)
def test_no_more_units_move_than_equal_shares_ask_for(group: tuple[Claims, int]) -> None:
    few_moves(*group)


@given(claims(), ORDERS)
@settings(MANY)
def test_a_drain_that_has_begun_goes_on_and_nothing_moves_twice(
    group: tuple[Claims, int], order: list[int]
) -> None:
    no_oscillation(*group, order)


@given(claims(), st.permutations(MEMBERS))
@settings(MANY)
def test_the_order_in_which_the_broker_lists_the_members_does_not_matter(
    group: tuple[Claims, int], order: list[str]
) -> None:
    order_does_not_matter(*group, order)


# --- the properties bite: each deliberate bug breaks the one that it names ---

FEW = settings(
    max_examples=1000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
LAWS: dict[str, Callable[[], object]] = {
    "history": FEW(given(st.integers(0, 9), HISTORIES)(live)),
    "few_moves": FEW(given(claims(planned=False))(lambda group: few_moves(*group))),
    "no_oscillation": FEW(given(claims(), ORDERS)(lambda group, order: no_oscillation(*group, order))),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", BUGS)
def test_the_properties_find(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, apply = BUGS[name]
    apply(monkeypatch)
    with pytest.raises(AssertionError):
        LAWS[law]()
