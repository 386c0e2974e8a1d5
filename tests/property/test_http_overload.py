"""Whatever the queue does: overload is seen and a lull is not taken for it, and who is let in is answered in time."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.producers.http.overload import RateMeter, excess_wait

# --- how fast the queue moves -----------------------------------------------------------------------------------------

SECONDS = st.floats(0.01, 50)
INTERVALS = st.lists(st.tuples(SECONDS, st.integers(0, 1000)), min_size=1, max_size=30)
few = settings(max_examples=EXAMPLES, deadline=None)


class Samples:
    """A meter, and the time and count that it was given last; requests wait from the beginning on."""

    def __init__(self, half_life_s: float = 30.0) -> None:
        self.meter = RateMeter(half_life_s=half_life_s, least_s=0, least_completions=0, window_s=math.inf)
        self.now = 1000.0
        self.done = 0
        self.meter.sample(self.now, 0)
        self.go_on(0.1, 1)  # from now on they are at work

    def go_on(self, seconds: float, completions: int, *, waited: bool = True) -> None:
        since, self.now = self.now, self.now + seconds
        self.done += completions
        if waited:
            self.meter.waited(since, self.now)
        self.meter.sample(self.now, self.done)

    def rate(self) -> float:
        assert self.meter.rate is not None
        return self.meter.rate


@few
@given(INTERVALS, st.floats(0.1, 1000))
def test_the_rate_lies_between_the_least_and_the_most_that_was_measured(
    intervals: list[tuple[float, int]], half_life_s: float
) -> None:
    samples = Samples(half_life_s)
    for seconds, completions in intervals:
        samples.go_on(seconds, completions)
    rates = [10.0, *(completions / seconds for seconds, completions in intervals)]
    assert min(rates) * (1 - 1e-6) - 1e-6 <= samples.rate() <= max(rates) * (1 + 1e-6) + 1e-6


@few
@given(st.lists(st.integers(1, 500), min_size=1, max_size=30), st.integers(1, 1000))
def test_a_steady_rate_is_found_exactly_however_it_is_sampled(tenths: list[int], per_tenth: int) -> None:
    meter = RateMeter(least_s=0, least_completions=0, window_s=math.inf)
    meter.waited(0, sum(tenths) / 10)
    meter.sample(0, 0)
    for number in range(1, len(tenths) + 1):
        so_far = sum(tenths[:number])
        meter.sample(so_far / 10, so_far * per_tenth)
    assert meter.rate == pytest.approx(per_tenth * 10)


@few
@given(INTERVALS, st.integers(2, 10), st.integers(0, 100))
def test_it_does_not_matter_whether_an_interval_is_cut_in_equal_parts(
    before: list[tuple[float, int]], parts: int, completions: int
) -> None:
    whole, cut = Samples(), Samples()
    for seconds, done in before:
        whole.go_on(seconds, done)
        cut.go_on(seconds, done)
    whole.go_on(parts, completions * parts)
    for _ in range(parts):
        cut.go_on(1, completions)
    assert cut.rate() == pytest.approx(whole.rate(), rel=1e-6, abs=1e-6)


@few
@given(INTERVALS, INTERVALS)
def test_what_is_done_at_leisure_changes_nothing(
    before: list[tuple[float, int]], leisure: list[tuple[float, int]]
) -> None:
    samples = Samples()
    for seconds, done in before:
        samples.go_on(seconds, done)
    rate = samples.rate()
    for seconds, done in leisure:
        samples.go_on(seconds, done, waited=False)
    assert samples.rate() == rate


@few
@given(INTERVALS, st.integers(1, 8), st.integers(0, 1000))
def test_what_was_before_counts_half_after_each_half_life(
    before: list[tuple[float, int]], half_lives: int, rate: int
) -> None:
    samples = Samples(half_life_s=10)
    for seconds, done in before:
        samples.go_on(seconds, done)
    old = samples.rate()
    for _ in range(10 * half_lives):
        samples.go_on(1, rate)
    assert abs(samples.rate() - rate) <= abs(old - rate) * 0.5**half_lives + 1e-6 * max(old, rate, 1)


@few
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30))
def test_time_is_covered_by_waits_as_if_each_second_were_looked_at(waits: list[tuple[int, int]]) -> None:
    meter = RateMeter(least_s=0, least_completions=0, window_s=math.inf)
    for since, length in waits:
        meter.waited(since, since + length)
    for second in range(82):
        meter.sample(second, 10 * second + second % 3)
    in_one = {
        second for second in range(81) if any(since <= second < since + length for since, length in waits)
    }
    measured = {int(each.begin) for each in meter._measured()}
    assert measured == in_one
    assert all(before[1] < after[0] for before, after in itertools.pairwise(meter._waits))


@few
@given(
    st.integers(0, 10_000), st.floats(0, 1000), st.floats(0.1, 600), st.integers(0, 1000), st.floats(0, 100)
)
def test_more_ahead_or_less_time_never_lets_one_in(
    ahead: int, rate: float, deadline_s: float, more: int, less: float
) -> None:
    excess = excess_wait(ahead, rate, deadline_s)
    worse = excess_wait(ahead + more, rate, max(0.0, deadline_s - less))
    assert excess is None or (worse is not None and worse >= excess)
    assert excess is None or excess > 0


@few
@given(st.integers(1, 10_000), st.floats(0.01, 1000), st.floats(0.1, 600))
def test_who_comes_again_when_told_is_let_in(ahead: int, rate: float, deadline_s: float) -> None:
    excess = excess_wait(ahead, rate, deadline_s)
    if excess is not None:
        assert excess_wait(ahead - math.ceil(excess * rate), rate, deadline_s) is None


# --- a queue with workers ---------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What became of those that came."""

    refused: int = 0
    late: int = 0
    in_time: int = 0


class Queue:
    """Workers that take `places` requests at a time, each for about `service_s`; and who asks to come in."""

    def __init__(self, dice: random.Random, places: int, service_s: float, deadline_s: float) -> None:
        self.dice = dice
        self.places = places
        self.service_s = service_s
        self.deadline_s = deadline_s
        self.meter = RateMeter()
        self.now = 0.0
        self.done = 0
        self.waiting: deque[float] = deque()  # when they came
        self.running: list[tuple[float, float, float]] = []  # (end, came, began)
        self.next_sample = 0.0

    @property
    def capacity(self) -> float:
        return self.places / self.service_s

    def run(self, seconds: float, rate: float) -> Outcome:
        """Let them come at random, so many a second."""
        outcome = Outcome()
        end = self.now + seconds
        arrival = self.now + self.dice.expovariate(rate)
        while self.now < end:
            first_end = self.running[0][0] if self.running else math.inf
            self.now = min(arrival, self.next_sample, first_end, end)
            if self.now >= arrival:
                self.come(outcome)
                arrival = self.now + self.dice.expovariate(rate)
            self.work(outcome)
            if self.now >= self.next_sample:
                self.meter.sample(self.now, self.done)
                self.next_sample = self.now + 1
        return outcome

    def come(self, outcome: Outcome) -> None:
        ahead = len(self.waiting) + len(self.running)
        if excess_wait(ahead, self.meter.rate, self.deadline_s) is not None:
            outcome.refused += 1
        else:
            self.waiting.append(self.now)

    def work(self, outcome: Outcome) -> None:
        while self.running and self.running[0][0] <= self.now:
            end, came, began = heapq.heappop(self.running)
            self.done += 1
            self.meter.waited(came, began)
            if end - came > self.deadline_s:
                outcome.late += 1
            else:
                outcome.in_time += 1
        while self.waiting and len(self.running) < self.places:
            takes = self.service_s * self.dice.uniform(0.5, 1.5)
            heapq.heappush(self.running, (self.now + takes, self.waiting.popleft(), self.now))


WORKERS = [(1, 1.0), (4, 2.0), (32, 5.0), (64, 2.0), (16, 20.0)]
workers = pytest.mark.parametrize(("places", "service_s"), WORKERS)


@workers
@pytest.mark.parametrize("load", [1.3, 3.0])
@pytest.mark.parametrize("seed", range(2))
def test_overloaded_workers_stay_busy_and_who_is_let_in_is_answered_in_time(
    places: int, service_s: float, load: float, seed: int
) -> None:
    queue = Queue(random.Random(seed), places, service_s, deadline_s=max(30.0, 4 * service_s))
    queue.run(20 * service_s + 2 * queue.deadline_s, queue.capacity * load)
    seconds = 300 + 10 * queue.deadline_s
    outcome = queue.run(seconds, queue.capacity * load)
    done = outcome.in_time + outcome.late
    assert done >= 0.95 * queue.capacity * seconds
    assert outcome.refused > 0
    assert outcome.late <= 0.02 * done


@workers
@pytest.mark.parametrize("seed", range(2))
def test_neither_leisure_nor_a_burst_that_the_workers_can_take_is_overload(
    places: int, service_s: float, seed: int
) -> None:
    queue = Queue(random.Random(seed), places, service_s, deadline_s=max(30.0, 8 * service_s))
    leisure = queue.run(600, queue.capacity * 0.2)
    burst = Outcome()
    for _ in range(math.floor(queue.capacity * queue.deadline_s * 0.5)):
        queue.come(burst)
    assert (leisure.refused, leisure.late, burst.refused) == (0, 0, 0)
    after = queue.run(queue.deadline_s, queue.capacity * 0.1)
    assert (after.refused, after.late) == (0, 0)


def test_workers_that_do_nothing_any_more_are_noticed_and_so_is_their_return() -> None:
    queue = Queue(random.Random(1), 32, 2.0, deadline_s=60)
    queue.run(300, queue.capacity * 1.3)
    queue.service_s = 1e9  # from now on whatever they take does not end
    stalled = [queue.run(30, 20) for _ in range(10)]
    assert stalled[-1].refused > 0
    assert len(queue.waiting) < 32 / 2 * 60 * 2
    queue.service_s, queue.running = 2.0, []
    queue.run(300, queue.capacity * 1.3)
    outcome = queue.run(300, queue.capacity * 1.3)
    assert outcome.in_time >= 0.9 * 300 * queue.capacity
