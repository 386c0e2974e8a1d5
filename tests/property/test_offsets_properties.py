"""Properties of a partition's offsets: each record gets one committed result, whatever happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from property import offset_death_mutants
from property.offset_laws import (
    a_mutated_string_is_refused_or_means_the_same,
    mutations,
    round_trip,
    states,
    the_most_suspected_are_kept,
    there_is_room_after_a_recovery,
    whatever_completes_fits,
)
from property.offset_model import CheckedTenures, Tenures
from property.offset_mutants import BUGS
from property_examples import EXAMPLES

from headrace.consumers.offset_encoding import Progress, decode, encode
from headrace.consumers.offsets import PartitionOffsets
from headrace.schemas.errors import OffsetsTooLong, UnreadableOffsets

# A busy machine is no failure: so nothing here depends on the clock.
MANY = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

LIMIT = 4096
LIMITS = st.sampled_from([64, 65, 80, 100, 200, 1000, 4096])
GAP = st.one_of(st.integers(0, 2), st.integers(120, 300), st.integers(2**40, 2**50))
GAPS = st.one_of(st.lists(GAP, max_size=40), st.integers(1, 40).map(lambda count: [0] * count))
ROUNDS = st.lists(
    st.tuples(GAPS, st.booleans(), st.lists(st.integers(0, 10**6), max_size=20)), min_size=1, max_size=8
)


@pytest.mark.parametrize("machine", [Tenures, CheckedTenures])
def test_each_record_has_one_committed_result_whatever_happens(machine: type[Tenures]) -> None:
    run_state_machine_as_test(machine, settings=MANY)


@given(states())
@settings(MANY)
def test_the_encoding_round_trips(state: tuple[int, Progress]) -> None:
    round_trip(*state)


@given(mutations())
@settings(MANY)
def test_a_changed_string_never_skips_a_record(mutation: tuple[int, Progress, str]) -> None:
    a_mutated_string_is_refused_or_means_the_same(*mutation)


@given(
    st.one_of(
        st.text(max_size=80),
        st.from_regex(
            r"\Ah[1-4];[0-9]{1,20};[rstbcd][A-Za-z0-9_-]{0,40}(;[A-Za-z0-9_-]{0,40})?;[0-9a-f]{8}\Z"
        ),
    )
)
@settings(MANY)
def test_any_other_string_is_refused_with_our_error(metadata: str) -> None:
    if metadata:
        with pytest.raises(UnreadableOffsets):
            decode(metadata, 17, LIMIT)


@given(states(), st.integers(1, 10**6))
@settings(MANY)
def test_a_string_moved_to_another_offset_is_refused(state: tuple[int, Progress], moved: int) -> None:
    frontier, progress = state
    with pytest.raises(UnreadableOffsets):
        decode(encode(frontier, progress, LIMIT), frontier + moved, LIMIT)


@given(states(), st.integers(0, 120))
@settings(MANY)
def test_where_room_is_short_the_least_suspected_are_left_out(
    state: tuple[int, Progress], spare: int
) -> None:
    the_most_suspected_are_kept(*state, spare)


@given(LIMITS, ROUNDS)
@settings(MANY)
def test_what_there_was_room_for_fits_whatever_completes(
    limit: int, rounds: list[tuple[list[int], bool, list[int]]]
) -> None:
    whatever_completes_fits(PartitionOffsets, limit, rounds)


# Few offsets at a time, or 40 that are far apart.
FAR_GAPS = st.one_of(
    st.lists(GAP, max_size=40), st.lists(st.integers(2**40, 2**50), min_size=20, max_size=40)
)


@given(states(), FAR_GAPS, st.lists(st.integers(0, 10**6), max_size=40))
@settings(MANY)
def test_a_successor_has_room_however_full_the_metadata_is(
    state: tuple[int, Progress], gaps: list[int], order: list[int]
) -> None:
    there_is_room_after_a_recovery(state[1], state[0], gaps, order)


# --- the properties bite: each deliberate bug breaks one of them ---

FEW = settings(
    max_examples=400,
    stateful_step_count=25,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


@FEW
@given(LIMITS, ROUNDS)
def _room(limit: int, rounds: list[tuple[list[int], bool, list[int]]]) -> None:
    whatever_completes_fits(PartitionOffsets, limit, rounds)


@FEW
@given(states(), FAR_GAPS, st.lists(st.integers(0, 10**6), max_size=40))
def _recovery_room(state: tuple[int, Progress], gaps: list[int], order: list[int]) -> None:
    there_is_room_after_a_recovery(state[1], state[0], gaps, order)


@FEW
@given(states())
def _round_trip(state: tuple[int, Progress]) -> None:
    round_trip(*state)


@FEW
@given(mutations())
def _mutation(mutation: tuple[int, Progress, str]) -> None:
    a_mutated_string_is_refused_or_means_the_same(*mutation)


@FEW
@given(states(), st.integers(0, 120))
def _suspects_room(state: tuple[int, Progress], spare: int) -> None:
    the_most_suspected_are_kept(*state, spare)


LAWS: dict[str, Callable[[], object]] = {
    "tenures": lambda: run_state_machine_as_test(Tenures, settings=FEW),
    "checked_tenures": lambda: run_state_machine_as_test(CheckedTenures, settings=FEW),
    "room": _room,
    "recovery_room": _recovery_room,
    "round_trip": _round_trip,
    "suspects_room": _suspects_room,
    "mutation": _mutation,
}


def test_all_bugs_are_tried() -> None:
    assert BUGS[offset_death_mutants.the_mark_creeps.__name__]
    assert len(BUGS) >= 28 + 32


@pytest.mark.soak
@pytest.mark.parametrize("name", BUGS)
def test_the_properties_find(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, apply = BUGS[name]
    apply(monkeypatch)
    # A bug shows as an assertion, as an error of ours, or as a ValueError of the encoding, for a state that cannot
    # be; anything else would be a mistake in the bug.
    with pytest.raises((AssertionError, OffsetsTooLong, UnreadableOffsets, ValueError)):
        LAWS[law]()
