"""How many rows are asked about: enough that no engine waits, never more than can be held, and room for others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.producers.backfill.pacing import LEAST_TARGET, MOST_TARGET, Lane, room, target

LANES = st.builds(Lane, st.integers(0, 10**6), st.integers(0, 5_000), st.floats(0, 10**5))


def test_a_fleet_that_is_not_known_yet_gets_a_first_handful() -> None:
    assert room(Lane(0, 0, 0.0), 0) == LEAST_TARGET


def test_a_fast_fleet_has_ten_seconds_of_work_before_it() -> None:
    assert room(Lane(0, 16, 900.0), 0) == 9_000


def test_a_lane_full_of_others_requests_still_leaves_a_share() -> None:
    lane = Lane(ahead=1_000_000, capacity=300, rate=50.0)
    assert room(lane, 0) == 300
    assert room(lane, 300) == 0


def test_what_is_answered_makes_room_for_as_much() -> None:
    lane = Lane(ahead=1_000, capacity=256, rate=0.0)
    assert room(lane, target(lane)) == 0
    assert room(lane, target(lane) - 10) == 10


@given(LANES, st.integers(0, 30_000))
def test_never_more_than_the_target_is_outstanding(lane: Lane, outstanding: int) -> None:
    assert LEAST_TARGET <= target(lane) <= MOST_TARGET
    assert 0 <= room(lane, outstanding) <= max(0, target(lane) - outstanding)


@given(LANES)
def test_with_nothing_outstanding_something_may_always_be_asked(lane: Lane) -> None:
    assert room(lane, 0) > 0
