"""Units on their way to another worker, or out with this one: when to abort, and when to let go. Pure.

Told to drain a unit, a worker admits nothing more of it, goes on with all else, finishes what is in flight of it (past
the budget it aborts that), commits, and stops claiming it. The list of what is to be drained is the whole truth each
time: a unit that is not in it any more is served on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

COALESCE_S = 0.3  # units that are drained so close to each other are let go in one rebalance


class Step(Enum):
    """What is to be done with a unit that drains."""

    WAIT = auto()
    ABORT = auto()  # its budget is over: give up what is in flight
    WITHDRAW = auto()  # nothing is in flight: commit that
    LET_GO = auto()  # and that is committed


@dataclass(slots=True)
class _Drain:
    deadline: float
    handed_back: bool = False  # the loop has given back what it had not begun
    aborted: bool = False
    withdrawn: bool = False
    drained_at: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Units whose drain begins, units that are served on, and those of them that nothing may be started of any more
    in this tenure."""

    begun: frozenset[int]
    cancelled: frozenset[int]
    withdrawn: frozenset[int]


class Drains:
    """The units that drain. Times in seconds of one monotonic clock."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._drains: dict[int, _Drain] = {}

    @property
    def units(self) -> frozenset[int]:
        """What drains now."""
        return frozenset(self._drains)

    def follow(self, wanted: Collection[int], now: float) -> Change:
        """Take note of what is to be drained by now."""
        begun = frozenset(wanted) - self._drains.keys()
        cancelled = self._drains.keys() - frozenset(wanted)
        withdrawn = frozenset(unit for unit in cancelled if self._drains[unit].withdrawn)
        for unit in cancelled:
            del self._drains[unit]
        for unit in begun:
            self._drains[unit] = _Drain(now + self._budget_s)
        return Change(begun, frozenset(cancelled), withdrawn)

    def handed_back(self, unit: int) -> None:
        """The loop has given back all that it had not begun of this unit."""
        if unit in self._drains:
            self._drains[unit].handed_back = True

    def was_aborted(self, unit: int) -> bool:
        """Whether work in flight was given up for it."""
        return unit in self._drains and self._drains[unit].aborted

    def step(self, unit: int, *, in_flight: int, unpublished: bool, settled: bool, now: float) -> Step:
        """What to do next. `unpublished`: results of it wait for a commit; `settled`: all that is known of it is
        committed.
        """
        drain = self._drains[unit]
        if not drain.handed_back:
            return Step.WAIT
        if in_flight:
            if drain.aborted or now < drain.deadline:
                return Step.WAIT
            drain.aborted = True
            drain.handed_back = False  # until the loop has given back what it aborted
            return Step.ABORT
        if unpublished:
            return Step.WAIT
        if not drain.withdrawn:
            drain.withdrawn = True
            return Step.WITHDRAW
        if not settled:
            return Step.WAIT
        if drain.drained_at is None:
            drain.drained_at = now
        return Step.LET_GO

    def to_let_go(self, drained: Collection[int], now: float) -> frozenset[int]:
        """Which of the drained units to let go now: all, once the first has waited a moment or none is left."""
        if not drained:
            return frozenset()
        since = [self._drains[unit].drained_at for unit in drained]
        first = min(each for each in since if each is not None)
        if len(drained) < len(self._drains) and now < first + COALESCE_S:
            return frozenset()
        return frozenset(drained)

    def gone(self, unit: int) -> None:
        """A unit was let go, or taken away."""
        self._drains.pop(unit, None)
