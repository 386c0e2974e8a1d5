"""The dedupe window: what is remembered, for how long, and at what cost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.workers.recent_ids import RecentIds


def test_an_id_that_was_never_added_is_not_found() -> None:
    assert RecentIds(10).find("a") is None


def test_at_least_the_window_is_remembered_and_the_oldest_are_forgotten() -> None:
    recent = RecentIds(100)
    for number in range(1_000):
        recent.add(f"id-{number}", number)
    assert [recent.find(f"id-{number}") for number in range(900, 1_000)] == list(range(900, 1_000))
    assert recent.find("id-0") is None
    assert sum(recent.find(f"id-{number}") is not None for number in range(1_000)) <= 150


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**60)), max_size=300), st.integers(2, 30))
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_id_of_the_last_additions_is_found_with_its_latest_number(
    adds: list[tuple[int, int]], window: int
) -> None:
    recent = RecentIds(window)
    latest: dict[str, int] = {}
    for place, (number, value) in enumerate(adds):
        recent.add(f"id-{number}", value)
        latest[f"id-{number}"] = value
        for within, _ in adds[max(0, place + 1 - window) : place + 1]:
            assert recent.find(f"id-{within}") == latest[f"id-{within}"]
        for known, expected in latest.items():
            assert recent.find(known) in (None, expected)
