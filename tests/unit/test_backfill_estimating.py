"""Figures from samples: they hold what is true as often as they say, and say when they cannot tell."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest

from headrace.producers.backfill.breaker import MaxFailures
from headrace.producers.backfill.estimating import (
    Mean,
    SmallestKeys,
    deviation,
    mean_by_size,
    mean_of,
    pace_of,
    rows_within,
    will_fail_too_many,
)

TRIALS = 400
DRAWS: dict[str, Callable[[random.Random], float]] = {
    "even": lambda chance: chance.uniform(10, 90),
    "normal": lambda chance: chance.gauss(40, 8),
    "lengths of answers": lambda chance: min(160, chance.lognormvariate(3.5, 0.4)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_interval_of_twenty_answers_has_the_true_mean_19_times_in_20(name: str) -> None:
    chance = random.Random(f"estimating {name}")
    everything = [DRAWS[name](chance) for _ in range(20_000)]
    true = statistics.fmean(everything)
    hits = 0
    for _ in range(TRIALS):
        mean = mean_of(chance.sample(everything, 20), len(everything))
        hits += mean.low <= true <= mean.high
    # Of a lopsided distribution it is a little less: 20 are few.
    assert 0.90 <= hits / TRIALS <= 0.99


def test_the_total_is_within_its_interval_as_often() -> None:
    chance = random.Random("total")
    requests = 5_000
    prompts = [chance.gauss(200, 30) for _ in range(requests)]
    answers = [chance.gauss(40, 10) for _ in range(requests)]
    true = sum(prompts) + sum(answers)
    hits = 0
    for _ in range(TRIALS):
        few = chance.sample(range(requests), 20)
        mean = mean_of([prompts[at] for at in few], requests).plus(
            mean_of([answers[at] for at in few], requests)
        )
        total = mean.times(requests)
        hits += total.low <= true <= total.high
    assert 0.90 <= hits / TRIALS <= 0.99


def test_sizes_of_a_sample_make_the_costs_of_a_few_tell_more() -> None:
    """Prompts of very different lengths: their tokens are known far better by their characters than by twenty."""
    chance = random.Random("sizes")
    sizes = [chance.lognormvariate(6, 1) for _ in range(20_000)]
    costs = [120 + size / 4 + chance.gauss(0, 5) for size in sizes]
    true = statistics.fmean(costs)
    hits = 0
    widths: list[float] = []
    plain_widths: list[float] = []
    for _ in range(TRIALS // 2):
        sample = chance.sample(range(len(sizes)), 1_000)
        seen = [(sizes[at], costs[at]) for at in sample[:20]]
        mean = mean_by_size(seen, [sizes[at] for at in sample], len(sizes))
        hits += mean.low <= true <= mean.high
        widths.append(mean.high - mean.low)
        plain = mean_of([cost for _, cost in seen], len(sizes))
        plain_widths.append(plain.high - plain.low)
    assert 0.90 <= hits / (TRIALS // 2) <= 1
    assert statistics.median(widths) < statistics.median(plain_widths) / 3


def test_a_size_that_is_the_cost_but_for_a_constant_leaves_nothing_to_guess() -> None:
    seen = [(float(size), size + 31.0) for size in (10, 20, 35)]
    mean = mean_by_size(seen, [10.0, 20.0, 35.0, 55.0], 4)
    assert (mean.value, mean.half_width) == (pytest.approx(61), pytest.approx(0))


def test_prompts_of_one_size_tell_of_no_line() -> None:
    seen = [(12.0, 50.0), (12.0, 52.0), (12.0, 54.0)]
    assert mean_by_size(seen, [12.0] * 100, 1_000) == mean_of([50.0, 52.0, 54.0], 1_000)


def test_all_there_is_leaves_nothing_to_guess_and_one_of_many_tells_nothing() -> None:
    assert mean_of([1.0, 3.0], 2) == Mean(2.0, 0.0)
    assert mean_of([7.0], 100) == Mean(7.0, None)
    assert mean_of([7.0], 100).plus(Mean(1.0, 0.5)) == Mean(8.0, None)
    assert mean_of([], 0) == Mean(0.0)
    assert deviation([4.0]) == 0
    assert Mean(2.0, 5.0).low == 0  # there are no tokens below none


# --- samples ------------------------------------------------------------------------------------------------


def test_the_smallest_keys_are_kept_each_once_whatever_the_order() -> None:
    keys = [f"{number:032x}" for number in random.Random(4).sample(range(10**9), 3_000)]
    found: list[list[str]] = []
    for order in (keys, [*reversed(keys)], keys + keys):
        kept: SmallestKeys[str] = SmallestKeys(50)
        for key in order:
            if kept.wants(key):
                kept.add(key, key)
        found.append(kept.items())
    assert found == [sorted(keys)[:50]] * 3


def test_a_sample_of_none_wants_none() -> None:
    assert not SmallestKeys[str](0).wants("00")


# --- what is said -------------------------------------------------------------------------------------------


def test_the_time_is_between_full_engines_and_what_a_few_came_to() -> None:
    pace = pace_of([0.5, 1.5], 2.0, capacity=16)
    assert (pace.by_capacity, pace.measured) == (16.0, 1.0)
    assert pace.seconds(32) == (2.0, 32.0)
    assert pace.seconds(0) == (0.0, 0.0)
    assert pace_of([0.5], 0.5, capacity=0).seconds(10) == (5.0, 5.0)  # its group is just being joined


def test_a_budget_is_counted_in_requests() -> None:
    assert rows_within(1_000, 500, Mean(10.0, 1.0)) == 100
    assert rows_within(1_000, 50, Mean(10.0, 1.0)) == 50
    assert rows_within(1_000, 50, Mean(0.0)) == 50


@pytest.mark.parametrize(
    ("limit", "failed", "stops"),
    [("5%", 0, False), ("5%", 1, False), ("5%", 8, True), ("50%", 8, False), (10, 8, True), (400, 8, False)],
)
def test_rows_that_were_tried_and_failed_are_a_reason_only_where_chance_is_none(
    limit: str | int, failed: int, stops: bool
) -> None:
    why = will_fail_too_many(
        MaxFailures.parse(limit), rows=1_000, rejects=0, requests=1_000, failed=failed, asked=20
    )
    assert (why is not None) == stops
    assert why is None or "8 of the 20 rows that were tried have failed" in why


def test_rejects_count_with_the_rows_that_fail() -> None:
    limit = MaxFailures.parse("25%")
    assert will_fail_too_many(limit, rows=1000, rejects=100, requests=900, failed=8, asked=20) is not None
    assert will_fail_too_many(limit, rows=1000, rejects=0, requests=900, failed=8, asked=20) is None
