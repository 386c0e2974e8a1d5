"""When results are enough to call a version bad, or good."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ops.rollouts.evidence import (
    ALPHA,
    LEAST,
    Allowed,
    Tally,
    broken_limit,
    exceeds,
    log_evidence,
    not_enough,
    total,
    upper_rate,
)

ONE_PERCENT = Allowed(0.01, 0.01, None)
RATES = st.floats(0.0005, 0.5)


def tally(ok: int = 0, failed: int = 0, invalid: int = 0, latency_ms: float = 100.0) -> Tally:
    found = Tally()
    for status, count in (("ok", ok), ("failed", failed), ("invalid_output", invalid)):
        for _ in range(count):
            found.add(status, generation_ms=latency_ms, tokens=10, at_ms=1)
    return found


@given(RATES, st.integers(1, 80))
def test_at_the_limit_itself_the_evidence_is_expected_to_be_one_at_most(p0: float, n: int) -> None:
    """What makes it safe to look after every result: in expectation over k it never exceeds 1."""
    expected = 0.0
    for k in range(n + 1):
        chance = math.comb(n, k) * p0**k * (1 - p0) ** (n - k)
        expected += chance * math.exp(log_evidence(k, n, p0)) if chance else 0.0
    assert expected <= 1 + 1e-9


@given(RATES, st.integers(1, 60), st.integers(0, 59))
def test_one_more_failure_is_more_evidence(p0: float, n: int, k: int) -> None:
    k = min(k, n - 1)
    assert log_evidence(k + 1, n, p0) >= log_evidence(k, n, p0)


def test_a_good_version_that_is_looked_at_after_every_result_is_hardly_ever_called_bad() -> None:
    chance = random.Random(7)
    alarms = 0
    for _ in range(400):
        failed = 0
        for n in range(1, 1500):
            failed += chance.random() < 0.01
            if exceeds(failed, n, 0.01):
                alarms += 1
                break
    assert alarms <= 400 * ALPHA + 3, "the limit's own rate was called too high too often"


def test_a_version_that_fails_every_request_is_found_out_within_thirty_answers() -> None:
    found = next(n for n in range(1, 100) if broken_limit(tally(failed=n), tally(ok=200), ONE_PERCENT))
    assert LEAST <= found <= 30


def test_three_failures_are_nothing_to_go_by() -> None:
    assert broken_limit(tally(failed=3), tally(ok=1000), ONE_PERCENT) is None
    assert broken_limit(tally(failed=LEAST - 1), tally(ok=1000), ONE_PERCENT) is None


def test_what_fails_under_every_version_is_not_the_new_ones_fault() -> None:
    bad_input = tally(ok=700, failed=300)
    assert broken_limit(tally(ok=68, failed=32), bad_input, ONE_PERCENT) is None
    said = broken_limit(tally(ok=68, failed=32), tally(ok=1000), ONE_PERCENT)
    assert said == "32 of 100 answers failed (32.0%), at most 1.0% may; of the others' 0 of 1000 did"


def test_invalid_output_has_a_limit_of_its_own() -> None:
    assert "were invalid" in (broken_limit(tally(ok=50, invalid=50), tally(ok=1000), ONE_PERCENT) or "")
    assert broken_limit(tally(ok=50, invalid=50), tally(ok=1000), Allowed(0.01, None, None)) is None


def test_what_the_caller_did_is_not_counted() -> None:
    found = tally(ok=1)
    for status in ("rejected", "expired", "cancelled"):
        found.add(status, generation_ms=0, tokens=0, at_ms=1)
    assert (found.answers, found.other) == (1, 3)


def test_a_limit_of_nothing_at_all_still_waits_for_enough_answers() -> None:
    none = Allowed(0.0, 0.0, None)
    assert broken_limit(tally(ok=10, failed=1), tally(), none) is None
    assert broken_limit(tally(ok=LEAST, failed=1), tally(), none) is not None


@pytest.mark.parametrize(("slowdown", "is_broken"), [(1.0, False), (1.2, False), (2.0, True)])
def test_a_slower_version_is_told_by_how_many_answers_exceed_the_others_95th_percentile(
    slowdown: float, is_broken: bool
) -> None:
    chance = random.Random(3)

    def latencies(factor: float, count: int) -> Tally:
        found = Tally()
        for _ in range(count):
            found.add("ok", generation_ms=factor * chance.lognormvariate(5, 0.3), tokens=1, at_ms=1)
        return found

    said = broken_limit(latencies(slowdown, 300), latencies(1.0, 1000), Allowed(None, None, 1.3))
    assert (said is not None) == is_broken, said


def test_few_answers_of_the_others_say_nothing_about_latency() -> None:
    assert broken_limit(tally(ok=100, latency_ms=9000), tally(ok=20), Allowed(None, None, 1.3)) is None


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=300), st.floats(0.01, 0.99))
def test_a_quantile_is_two_hundredths_too_high_at_most(latencies: list[float], part: float) -> None:
    found = Tally()
    for each in latencies:
        found.add("ok", generation_ms=each, tokens=1, at_ms=1)
    exact = sorted(latencies)[max(1, math.ceil(part * len(latencies))) - 1]
    told = found.quantile_ms(part)
    assert told is not None
    assert exact * (1 - 1e-9) <= told <= exact * 1.02 * (1 + 1e-9)
    bound = found.quantile_bound_ms(part)
    assert bound is None or bound >= told


def test_tallies_add_up() -> None:
    both = total([tally(ok=2, failed=1), tally(ok=1, invalid=4, latency_ms=500)])
    assert (both.answers, both.failed, both.invalid, both.timed) == (8, 1, 4, 3)


def test_a_bound_of_a_rate_is_above_it_and_nothing_where_nothing_was_seen() -> None:
    assert upper_rate(0, 0) == 0
    assert 0.1 < upper_rate(10, 100) < 0.2
    assert upper_rate(10, 10) == 1


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (tally(ok=LEAST - 1), "19 of at least 20 answers"),
        (tally(ok=LEAST - 1, failed=1), "1 of 20 answers failed"),
        (tally(ok=LEAST * 10), None),
    ],
)
def test_a_version_is_called_good_once_enough_answers_are_within_the_limits(
    new: Tally, why: str | None
) -> None:
    said = not_enough(new, tally(ok=100), ONE_PERCENT)
    assert (said is None) if why is None else (said is not None and why in said)
