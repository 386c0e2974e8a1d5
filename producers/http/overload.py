"""Whether the queue is too deep to let one more in. Pure: the clock is given.

The wait is estimated as requests ahead over requests done a second. That rate must be what the workers can do: what
they do while they could do more says nothing about it, and dividing by it would refuse a burst that they would take in
their stride. So only time in which some request waited for a worker is measured; each result says when that was
(`timings`). Where nothing was measured for ten minutes, or ever, nobody is refused.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import dataclass

from headrace.producers.http.limits import retry_after
from headrace.producers.http.wanted import ApiError

HALF_LIFE_S = 60.0  # of what was measured, in measured time
LEAST_MEASURED_S = 5.0  # and
LEAST_COMPLETIONS = 20  # before the rate is believed
WINDOW_S = 600.0  # what is older is forgotten: workers come and go
# Of a deadline: how long the wait may seem. The estimate is a mean, and some generate for longer than others. Where the
# queue is kept just full, all of the deadline would let half of those in too late, by little; so hardly one is.
USABLE_SHARE = 0.8
SHORTEST_INTERVAL_S = 0.001  # shorter ones are put together


@dataclass(frozen=True, slots=True)
class _Interval:
    """Between two samples; seconds."""

    begin: float
    end: float
    completions: int

    @property
    def length(self) -> float:
        return self.end - self.begin


class RateMeter:
    """Completions a second while requests wait for a worker, the newest counting most.

    A mean of the rates of all measured intervals, weighted by their length and by 2 ** (-age / half-life), where age is
    the measured time since. A sample is O(samples in the window), everything else O(log n).
    """

    def __init__(
        self,
        *,
        half_life_s: float = HALF_LIFE_S,
        least_s: float = LEAST_MEASURED_S,
        least_completions: int = LEAST_COMPLETIONS,
        window_s: float = WINDOW_S,
    ) -> None:
        self._half_life_s = half_life_s
        self._least_s = least_s
        self._least_completions = least_completions
        self._window_s = window_s
        self._last: tuple[float, int] | None = None  # (when, completions until then)
        self._intervals: deque[_Interval] = deque()
        self._waits: list[tuple[float, float]] = []  # when somebody waited: (from, until), in order and apart
        self._rate: float | None = None

    @property
    def rate(self) -> float | None:
        """Completions a second, as of the last sample; None: not known."""
        return self._rate

    def waited(self, since: float, until: float) -> None:
        """A request waited for a worker all that time. Those of any order, and overlapping, may be told."""
        if until <= since:
            return
        first = bisect.bisect_left(self._waits, since, key=lambda wait: wait[1])
        after = bisect.bisect_right(self._waits, until, key=lambda wait: wait[0])
        touched = self._waits[first:after]
        if touched:
            since, until = min(since, touched[0][0]), max(until, touched[-1][1])
        self._waits[first:after] = [(since, until)]

    def sample(self, now: float, completions: int) -> None:
        """`completions` is a running count of all that is done, whoever asked for it: say the sum of a lane's offsets.

        To be called about once a second. A count that is less than before begins anew.
        """
        if self._last is None or completions < self._last[1]:
            self._last = now, completions
        elif now - self._last[0] >= SHORTEST_INTERVAL_S:
            self._intervals.append(_Interval(self._last[0], now, completions - self._last[1]))
            self._last = now, completions
        while self._intervals and self._intervals[0].end <= now - self._window_s:
            self._intervals.popleft()
        while self._waits and self._waits[0][1] <= now - self._window_s:
            del self._waits[0]
        self._rate = self._mean(self._measured())

    def _measured(self) -> list[_Interval]:
        """The intervals during which somebody waited from begin to end.

        Without those that open such a stretch and in which nothing is done: workers that were idle have just begun, and
        what they can do shows when they end.
        """
        measured: list[_Interval] = []
        waits = iter(self._waits)
        wait = next(waits, None)
        begun = False  # something was done in this wait
        for interval in self._intervals:
            while wait is not None and wait[1] < interval.end:
                wait, begun = next(waits, None), False
            if wait is None:
                break
            if wait[0] <= interval.begin:
                begun = begun or interval.completions > 0
                if begun:
                    measured.append(interval)
        return measured

    def _mean(self, measured: list[_Interval]) -> float | None:
        total = weight = age = 0.0
        for interval in reversed(measured):
            end = age + interval.length
            share = 0.5 ** (age / self._half_life_s) - 0.5 ** (end / self._half_life_s)
            total += share * interval.completions / interval.length
            weight += share
            age = end
        completions = sum(each.completions for each in measured)
        if weight <= 0 or age < self._least_s or completions < self._least_completions:
            return None
        return total / weight


def excess_wait(ahead: int, rate: float | None, deadline_s: float) -> float | None:
    """By how many seconds the wait is too long for a deadline so many seconds from now; None: let the call in.

    `ahead`: requests in the queue that are not done, those in the engine too; `rate`: of `RateMeter`. A wait that is
    too long by x seconds is not any more when the workers have gone on for x seconds, so the result is when to try
    again; infinite where nothing is done at all.
    """
    if ahead <= 0 or rate is None:
        return None
    wait = ahead / rate if rate > 0 else math.inf
    most = deadline_s * USABLE_SHARE
    return wait - most if wait > most else None


def overloaded(excess_s: float, deadline_s: float) -> ApiError:
    """What a call is told whose wait is too long by so much."""
    wait = (
        f"of about {deadline_s * USABLE_SHARE + excess_s:.0f} s" if math.isfinite(excess_s) else "without end"
    )
    after = retry_after(excess_s)
    return ApiError(
        429,
        f"The queue is too deep: with a wait {wait} this request would hardly be answered within its timeout of "
        f"{deadline_s:g} s. Please try again in {after}s, or with a longer timeout.",
        reason="engine_overloaded",
        headers={"Retry-After": after},
    )
