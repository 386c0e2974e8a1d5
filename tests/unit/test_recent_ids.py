"""The dedupe window: what is remembered, for how long, and at what cost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.workers.recent_ids import RecentIds


def test_an_id_that_was_never_added_is_not_found() -> None:
    assert RecentIds(10).find("a") is None


def test_a_window_of_none_remembers_nothing_and_takes_no_memory() -> None:
    recent = RecentIds(0)
    recent.add("a", 1)
    recent.add_all([("a", 1), ("b", 2)])
    assert [recent.find("a"), recent.find("b")] == [None, None]
    assert recent._keys == []


def test_the_memory_is_taken_at_the_first_id_and_grows_no_more() -> None:
    recent = RecentIds(1_000)
    assert recent._keys == []
    sizes: set[int] = set()
    for number in range(5_000):
        recent.add(f"id-{number}", number)
        sizes.add(sum(table.itemsize * len(table) for table in recent._keys + recent._values))
    assert len(sizes) == 1
    assert sizes.pop() <= 1_000 * 16 * 4


def test_at_least_the_window_is_remembered_and_the_oldest_are_forgotten() -> None:
    recent = RecentIds(100)
    for number in range(1_000):
        recent.add(f"id-{number}", number)
    assert [recent.find(f"id-{number}") for number in range(900, 1_000)] == list(range(900, 1_000))
    assert recent.find("id-0") is None
    assert sum(recent.find(f"id-{number}") is not None for number in range(1_000)) <= 150


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**63 - 1)), max_size=300),
    st.integers(1, 30),
    st.integers(0, 300),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_id_of_the_last_additions_is_found_with_its_latest_number(
    adds: list[tuple[int, int]], window: int, at_once: int
) -> None:
    recent = RecentIds(window)
    latest: dict[str, int] = {}
    recent.add_all((f"id-{number}", value) for number, value in adds[:at_once])
    for place, (number, value) in enumerate(adds):
        latest[f"id-{number}"] = value
        if place < at_once - 1 and place < len(adds) - 1:
            continue  # in the middle of what was added at once
        if place >= at_once:
            recent.add(f"id-{number}", value)
        for within, _ in adds[max(0, place + 1 - window) : place + 1]:
            assert recent.find(f"id-{within}") == latest[f"id-{within}"]
        for known, expected in latest.items():
            assert recent.find(known) in (None, expected)
