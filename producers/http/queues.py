"""The queues before the workers, as far as callers have to wait in them: how deep, and how fast they move."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headrace.consumers.backlog import Backlog
from headrace.consumers.contracts import ContractId
from headrace.producers.http.overload import RateMeter, excess_wait, overloaded
from headrace.schemas.messages import Lane, Result


class _Queue:
    def __init__(self) -> None:
        self.ahead = 0
        self.meter = RateMeter()


class Queues:
    """Belongs to one thread. Of a lane that nothing is known of, nobody is kept out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock  # seconds
        self._queues: dict[tuple[ContractId, Lane], _Queue] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def _made(self, contract: ContractId, lane: Lane) -> _Queue:
        """The queue, to be told something of it. Only of what was read or answered: whoever calls may name contracts
        that nobody serves, any number of them."""
        return self._queues.setdefault((contract, lane), _Queue())

    def look(self, contract: ContractId, backlogs: Mapping[Lane, Backlog]) -> None:
        """Take in what was read of a contract's lanes just now."""
        for lane, backlog in backlogs.items():
            queue = self._made(contract, lane)
            queue.ahead = backlog.ahead
            queue.meter.sample(self._clock(), backlog.completions)

    def answered(self, contract: ContractId, lane: Lane, since_s: float | None, result: Result) -> None:
        """Take in when a request that was answered just now had waited for a worker.

        `since_s`: when the call began, where its id may be that of an earlier one. A result that took longer than the
        call was made for another, and waited at some other time.
        """
        appended = self._clock() - result.timings.total_ms / 1000
        if since_s is None or appended >= since_s:
            waited_until = appended + result.timings.queued_ms / 1000
            self._made(contract, lane).meter.waited(appended, waited_until)

    def check(self, contract: ContractId, lane: Lane, timeout_s: float) -> None:
        """Raises ApiError (429) where a call would hardly be answered in time."""
        queue = self._queues.get((contract, lane))
        if queue is None:
            return
        excess_s = excess_wait(queue.ahead, queue.meter.rate, timeout_s)
        if excess_s is not None:
            raise overloaded(excess_s, timeout_s)
