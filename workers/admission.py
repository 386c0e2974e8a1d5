"""Which request goes to the engine next. Pure: no clock, no I/O.

A fixed number may be in flight; the lanes are served in their order, each lane first come, first served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.schemas.messages import LANES, Lane
from headrace.workers.work import Work


class Admission:
    """Holds what waits and counts what runs."""

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._waiting: dict[Lane, deque[Work]] = {lane: deque() for lane in LANES}
        self._in_flight = 0

    def offer(self, work: Work) -> None:
        """Queue one request behind those of its lane."""
        self._waiting[work.lane].append(work)

    def admit(self) -> Work | None:
        """The next request to run, or None: nothing waits, or no place is free. It counts as in flight from now."""
        if self._in_flight >= self._max_in_flight:
            return None
        for lane in LANES:
            if self._waiting[lane]:
                self._in_flight += 1
                return self._waiting[lane].popleft()
        return None

    def finished(self) -> None:
        """One request that was admitted no longer runs."""
        assert self._in_flight > 0, "finished() without admit()"
        self._in_flight -= 1

    def forget(self, dropped: Callable[[Work], bool]) -> int:
        """Drop what waits and is no longer ours to serve; the number dropped."""
        count = 0
        for lane, queue in self._waiting.items():
            kept = deque(work for work in queue if not dropped(work))
            count += len(queue) - len(kept)
            self._waiting[lane] = kept
        return count

    @property
    def in_flight(self) -> int:
        """Admitted and not finished."""
        return self._in_flight

    def waiting(self, lane: Lane) -> int:
        """Requests of a lane that wait."""
        return len(self._waiting[lane])
