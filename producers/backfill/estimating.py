"""What a job will come to, from a sample of its requests and the answers to a few of them. Pure.

Means have an interval that holds the true one 19 times in 20, as far as a sample can tell: what one row in a million
costs it does not see.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from headrace.producers.backfill.breaker import FIRST_ROWS, MaxFailures

# Student's t at 97.5 %, for 1 to 30 degrees of freedom.
_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z: Final = 1.96
CHARACTERS_PER_TOKEN: Final = (2.5, 5.5)  # of most languages and tokenizers: where nothing better is known

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and how far the true one may lie from it; None: too few were seen to tell."""

    value: float
    half_width: float | None = None

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return max(0.0, self.value - (self.half_width or 0.0))

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.value + (self.half_width or 0.0)

    def times(self, count: int) -> Mean:
        """The sum over so many."""
        return Mean(self.value * count, None if self.half_width is None else self.half_width * count)

    def plus(self, other: Mean) -> Mean:
        """The mean of the sum of two measures of the same things."""
        if self.half_width is None or other.half_width is None:
            return Mean(self.value + other.value)
        return Mean(self.value + other.value, math.hypot(self.half_width, other.half_width))


def mean_of(values: Sequence[float], population: int) -> Mean:
    """The mean over `population` things, of which `values` are a sample drawn by chance."""
    count = len(values)
    if count == 0:
        return Mean(0.0)
    value = math.fsum(values) / count
    if count >= population:
        return Mean(value, 0.0)
    if count < 2:
        return Mean(value)
    return Mean(value, _t(count - 1) * math.sqrt(_variance_of_mean(values, population)))


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of what a sample is of; 0 of fewer than two."""
    return math.sqrt(_variance(values)) if len(values) > 1 else 0.0


def mean_by_size(seen: Sequence[tuple[float, float]], sizes: Sequence[float], population: int) -> Mean:
    """The mean cost over `population` things, of which the sizes of a sample are known and the cost of a few.

    `seen` has (size, cost) of these few; costs are taken to grow with sizes along a line.
    """
    count = len(seen)
    costs = [cost for _, cost in seen]
    if count < 3 or count >= population:
        return mean_of(costs, population)
    mean_size = math.fsum(size for size, _ in seen) / count
    mean_cost = math.fsum(costs) / count
    squares = math.fsum((size - mean_size) ** 2 for size, _ in seen)
    if squares <= 1e-9 * count * max(1.0, mean_size**2):  # all of one size: they tell of no other
        return mean_of(costs, population)
    slope = math.fsum((size - mean_size) * (cost - mean_cost) for size, cost in seen) / squares
    left = math.fsum((cost - mean_cost - slope * (size - mean_size)) ** 2 for size, cost in seen)
    distance = math.fsum(sizes) / len(sizes) - mean_size
    of_line = left / (count - 2) * (1 / count + distance**2 / squares)
    of_sizes = slope**2 * _variance_of_mean(sizes, population)
    return Mean(
        max(0.0, mean_cost + slope * distance), _t(count - 2) * math.sqrt(max(0.0, of_line) + of_sizes)
    )


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _variance_of_mean(values: Sequence[float], population: int) -> float:
    if len(values) < 2:
        return 0.0
    return _variance(values) / len(values) * max(0.0, 1 - len(values) / population)


def _t(degrees: int) -> float:
    return _T[degrees - 1] if degrees <= len(_T) else _Z + 2.37 / degrees


# --- samples ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SmallestKeys(Generic[Item]):
    """The items with the smallest keys, each key once. Keys are digests, so they are a sample drawn by chance, the
    same whenever it is drawn; equal requests are in it once, however many ask the same."""

    count: int
    _items: dict[str, Item] = field(default_factory=dict[str, Item])
    _largest: list[_Reversed] = field(default_factory=list["_Reversed"])

    def wants(self, key: str) -> bool:
        """Whether the item with this key belongs to them as things stand."""
        if self.count == 0 or key in self._items:
            return False
        return len(self._items) < self.count or key < self._largest[0].key

    def add(self, key: str, item: Item) -> None:
        """Add one that is wanted."""
        if len(self._items) >= self.count:
            del self._items[heapq.heappop(self._largest).key]
        self._items[key] = item
        heapq.heappush(self._largest, _Reversed(key))

    def items(self) -> list[Item]:
        """In the order of their keys."""
        return [self._items[key] for key in sorted(self._items)]


@dataclass(frozen=True, slots=True)
class _Reversed:
    """A key in a heap whose first is the largest."""

    key: str

    def __lt__(self, other: _Reversed) -> bool:
        return self.key > other.key


# --- what is said -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the job would take, as a guess between two.

    `by_capacity`: requests a second if the engines took all they can at a time, each as quick as the ones that were
    asked; None: there are no engines. `measured`: what came of asking just a few.
    """

    by_capacity: float | None
    measured: float

    def seconds(self, requests: int) -> tuple[float, float]:
        """The shorter and the longer of both guesses."""
        rates = [rate for rate in (self.by_capacity, self.measured) if rate]
        if not requests or not rates:
            return (0.0, 0.0)
        return requests / max(rates), requests / min(rates)


def pace_of(service_s: Sequence[float], elapsed_s: float, capacity: int) -> Pace:
    """From the seconds that each answer took once it was begun, and all of them together."""
    mean_s = math.fsum(service_s) / len(service_s)
    by_capacity = capacity / max(mean_s, 1e-3) if capacity else None
    return Pace(by_capacity, len(service_s) / max(elapsed_s, 1e-3))


def rows_within(budget: int, requests: int, per_request: Mean) -> int:
    """How many requests a budget of tokens is enough for."""
    return requests if per_request.value <= 0 else min(requests, int(budget / per_request.value))


def will_fail_too_many(
    limit: MaxFailures, rows: int, rejects: int, requests: int, failed: int, asked: int
) -> str | None:
    """Why `max_failures` stops the job most likely, as `failed` of `asked` rows that were tried would have it.

    None where chance may have brought so many: it takes more than the limit at the lower end of what they tell.
    """
    if not failed or not asked or not rows:
        return None
    share = _lowest_share(failed, asked)
    expected = rejects + share * requests
    most = limit.rows if limit.rows is not None else (limit.share or 0.0) * max(rows, FIRST_ROWS)
    if expected <= most:
        return None
    return (
        f"{failed} of the {asked} rows that were tried have failed: at that, at least {expected:,.0f} of {rows:,} rows "
        f"will, and max_failures is {limit}"
    )


def _lowest_share(failed: int, asked: int) -> float:
    """Wilson's lower bound, at 97.5 %."""
    share, z2 = failed / asked, _Z**2
    middle = share + z2 / (2 * asked)
    spread = _Z * math.sqrt(share * (1 - share) / asked + z2 / (4 * asked**2))
    return max(0.0, (middle - spread) / (1 + z2 / asked))
