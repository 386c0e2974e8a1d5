"""What there is to say of a job while it runs: counts that add up, rates, and when it will be done. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOW_S = 30.0  # of which rates are taken
BIN_S = 1.0


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one moment. Rates a second; `eta_s` is None while nothing is answered, `eta_basis` says what of.

    `fleet_share`: the part of all results of this contract, lately, that are this job's; None: there were none.
    """

    job: str
    rows: int
    settled: int
    statuses: Mapping[str, int]
    reasons: Mapping[str, int]  # codes of what is not `ok`, as far as this process has seen them
    outstanding: int
    asked: int  # requests that were sent by this process
    reused: int
    parts: int
    parts_written: int
    row_rate: float
    prompt_tokens: int
    completion_tokens: int
    token_rate: float  # generated
    eta_s: float | None
    eta_basis: str
    fleet_share: float | None
    members: int
    capacity: int
    ahead: int
    seconds: float  # of this process
    state: str = "running"  # catching up, running, paused, stopping, putting together
    note: str = ""
    shared: int = 0  # rows that took the answer of another row of this job; `reused`: of an earlier job
    settled_here: int = 0  # rows that this process has brought to their end
    is_lane_known: bool = True  # whether members, capacity and what is ahead have been looked at

    @property
    def failed(self) -> int:
        """Rows that ended otherwise than `ok`."""
        return sum(count for status, count in self.statuses.items() if status != "ok")


@dataclass(slots=True)
class _Bin:
    began_s: float
    rows: int = 0
    tokens: int = 0
    ours: int = 0
    others: int = 0


@dataclass(slots=True)
class Rates:
    """What came in lately, in bins of a second."""

    began_s: float
    _bins: deque[_Bin] = field(default_factory=deque[_Bin])

    def note(self, now_s: float, *, rows: int = 0, tokens: int = 0, ours: int = 0, others: int = 0) -> None:
        """Add to the present second."""
        if not self._bins or now_s - self._bins[-1].began_s >= BIN_S:
            self._bins.append(_Bin(now_s))
        last = self._bins[-1]
        last.rows += rows
        last.tokens += tokens
        last.ours += ours
        last.others += others
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        while self._bins and now_s - self._bins[0].began_s > WINDOW_S:
            self._bins.popleft()

    def _span(self, now_s: float) -> float:
        return max(BIN_S, min(WINDOW_S, now_s - self.began_s))

    def rows(self, now_s: float) -> float:
        """Rows a second that were answered."""
        self._forget(now_s)
        return sum(each.rows for each in self._bins) / self._span(now_s)

    def tokens(self, now_s: float) -> float:
        """Generated tokens a second."""
        self._forget(now_s)
        return sum(each.tokens for each in self._bins) / self._span(now_s)

    def share(self, now_s: float) -> float | None:
        """The part of all results that were this job's."""
        self._forget(now_s)
        ours = sum(each.ours for each in self._bins)
        everybody = ours + sum(each.others for each in self._bins)
        return ours / everybody if everybody else None


def time_left(rows_left: int, rate: float, seconds: float, answered: int) -> tuple[float | None, str]:
    """Seconds until the rows that are left are answered, and what that is reckoned of."""
    if rows_left == 0:
        return 0.0, "all rows are answered"
    if rate > 0:
        return rows_left / rate, f"of the last {min(WINDOW_S, max(1.0, seconds)):.0f} s"
    if answered:
        return None, f"no answer in the last {WINDOW_S:.0f} s"
    return None, "no answer yet"
