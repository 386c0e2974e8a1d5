"""What the results say about a version: counts, and whether they are enough to call a limit broken. Pure.

**The test.** A rate is looked at again with every result, for as long as a step lasts. A significance test that is
repeated so finds something sooner or later, however good the version. What is used may be looked at at any time: a
mixture of likelihood ratios against the limit p0,

    e(k of n) = 1 / (1 - p0) * integral over p from p0 to 1 of (p/p0)^k ((1-p)/(1-p0))^(n-k) dp,

which is a supermartingale where the true rate is p0 or lower, so that by Ville's inequality it ever reaches 1/alpha
with a probability of at most alpha (Robbins, "Statistical methods related to the law of the iterated logarithm", 1970).
It supposes that results fail independently of one another. They come in bursts (one caller with one bad schema), so
nothing is judged before LEAST results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

ALPHA = 0.001  # of ever breaking a limit without cause, in one step and for one limit
LEAST = 20  # results of a version before anything is said of it
BOUND_Z = 1.96  # of the others' rates and quantiles: their upper 97.5 % bound is what the new one is held to

# Latencies are kept in buckets, each two hundredths wider than the one before: a quantile is as exact.
_BUCKET_RATIO = 1.02
_LOG_RATIO = math.log(_BUCKET_RATIO)

# What the caller or the clock did is not the version's fault.
COUNTED = frozenset({"ok", "failed", "invalid_output", "truncated"})


@dataclass(slots=True)
class Tally:
    """Answers of one version, or of several together."""

    answers: int = 0  # that say something of the version
    failed: int = 0
    invalid: int = 0  # invalid_output, and truncated
    other: int = 0  # rejected, expired, cancelled
    tokens: int = 0  # generated
    last_ms: int = -1  # when the last one was appended, ms since the epoch
    buckets: dict[int, int] = field(default_factory=dict[int, int])  # of latencies: how many

    def add(self, status: str, *, generation_ms: float, tokens: int, at_ms: int) -> None:
        """Count a result. `generation_ms`: from its admission to its end."""
        self.last_ms = max(self.last_ms, at_ms)
        if status not in COUNTED:
            self.other += 1
            return
        self.answers += 1
        self.failed += status == "failed"
        self.invalid += status in ("invalid_output", "truncated")
        self.tokens += tokens
        if status == "ok":
            bucket = math.ceil(math.log(max(generation_ms, 1.0)) / _LOG_RATIO)
            self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    @property
    def timed(self) -> int:
        """How many have a latency: the ok ones."""
        return sum(self.buckets.values())

    def quantile_ms(self, part: float) -> float | None:
        """An upper edge of the latency that `part` of the ok answers do not exceed; None: there are none."""
        return self._at_rank(math.ceil(part * self.timed))

    def quantile_bound_ms(self, part: float) -> float | None:
        """The same quantile's upper bound, by order statistics; None: there are too few answers for one."""
        n = self.timed
        return self._at_rank(math.ceil(n * part + BOUND_Z * math.sqrt(n * part * (1 - part))) + 1)

    def slower_than(self, latency_ms: float) -> int:
        """How many of the ok answers took longer for certain: those in buckets wholly above it."""
        limit = math.ceil(math.log(max(latency_ms, 1.0)) / _LOG_RATIO)
        return sum(count for bucket, count in self.buckets.items() if bucket > limit)

    def _at_rank(self, rank: int) -> float | None:
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= max(1, rank):
                return math.exp(bucket * _LOG_RATIO)
        return None


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    found = Tally()
    for each in tallies:
        found.answers += each.answers
        found.failed += each.failed
        found.invalid += each.invalid
        found.other += each.other
        found.tokens += each.tokens
        found.last_ms = max(found.last_ms, each.last_ms)
        for bucket, count in each.buckets.items():
            found.buckets[bucket] = found.buckets.get(bucket, 0) + count
    return found


def log_evidence(k: int, n: int, p0: float) -> float:
    """The natural logarithm of a lower bound of e(k of n) above: that k of n are more than the rate p0 explains."""
    if k == 0 or p0 >= 1:
        return -math.inf
    if p0 <= 0:
        return math.inf
    if k < math.ceil((n + 1) * p0):
        return -math.inf  # below the rate itself; e is small, and need not be known
    # The integral is an incomplete beta function: B(k+1, n-k+1) * P(Binomial(n+1, p0) <= k). As k is no less than that
    # distribution's median, the probability is at least a half, and a half is what is counted.
    log_beta = math.lgamma(k + 1) + math.lgamma(n - k + 1) - math.lgamma(n + 2)
    return log_beta - math.log(2) - math.log1p(-p0) - k * math.log(p0) - (n - k) * math.log1p(-p0)


def exceeds(k: int, n: int, p0: float, alpha: float = ALPHA) -> bool:
    """Whether k of n are too many for a rate of `p0`, however often this is asked."""
    return n >= LEAST and log_evidence(k, n, p0) >= -math.log(alpha)


def upper_rate(k: int, n: int) -> float:
    """Wilson's upper 97.5 % bound of a rate of which k of n were seen; 0 where nothing was."""
    if n == 0:
        return 0.0
    z2 = BOUND_Z**2
    centre = (k + z2 / 2) / (n + z2)
    half = BOUND_Z / (n + z2) * math.sqrt(k * (n - k) / n + z2 / 4)
    return min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a version may cost; None: not looked at."""

    error_rate: float | None
    invalid_rate: float | None
    p95_ratio: float | None


def broken_limit(new: Tally, others: Tally, allowed: Allowed) -> str | None:
    """Which limit the new version breaks, in a sentence; None: nothing that is certain enough.

    A rate is held against the limit or, where that is higher, the others' own: what fails under every version is not
    the new one's fault.
    """
    for name, k, other_k, limit in (
        ("failed", new.failed, others.failed, allowed.error_rate),
        ("were invalid", new.invalid, others.invalid, allowed.invalid_rate),
    ):
        if limit is None:
            continue
        others_rate = upper_rate(other_k, others.answers) if other_k else 0.0
        if exceeds(k, new.answers, max(limit, others_rate)):
            return (
                f"{k} of {new.answers} answers {name} ({k / new.answers:.1%}), at most {limit:.1%} may; of the others' "
                f"{other_k} of {others.answers} did"
            )
    return None if allowed.p95_ratio is None else _slower(new, others, allowed.p95_ratio)


def _slower(new: Tally, others: Tally, ratio: float) -> str | None:
    """If the new p95 is at most `ratio` of the others', one in twenty of its answers exceeds that; no more may."""
    bound = others.quantile_bound_ms(0.95)
    if bound is None:
        return None
    slow = new.slower_than(ratio * bound)
    if not exceeds(slow, new.timed, 0.05):
        return None
    return (
        f"{slow} of {new.timed} answers took longer than {ratio * bound:,.0f} ms, which is {ratio:g} times the others' "
        "95th percentile; at most one in twenty may"
    )


def not_enough(new: Tally, others: Tally, allowed: Allowed) -> str | None:
    """Why the version cannot be called good yet; None: it can."""
    if new.answers < LEAST:
        return f"{new.answers} of at least {LEAST} answers are there"
    for name, k, other_k, limit in (
        ("failed", new.failed, others.failed, allowed.error_rate),
        ("were invalid", new.invalid, others.invalid, allowed.invalid_rate),
    ):
        others_rate = other_k / others.answers if others.answers else 0.0
        if limit is not None and k / new.answers > max(limit, others_rate):
            return f"{k} of {new.answers} answers {name} ({k / new.answers:.1%}), and at most {limit:.1%} may"
    if allowed.p95_ratio is not None:
        mine, theirs = new.quantile_ms(0.95), others.quantile_ms(0.95)
        if mine is not None and theirs is not None and mine > allowed.p95_ratio * theirs:
            return f"its 95th percentile is {mine / theirs:.2f} times the others', at most {allowed.p95_ratio:g} may be"
    return None
