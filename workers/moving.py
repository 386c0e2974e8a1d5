"""Units that leave this worker: drained first, then let go. Owned by the consumer thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Protocol

from headrace.consumers.records import TopicPartition
from headrace.schemas import metrics
from headrace.workers.dispatch import Dispatch
from headrace.workers.drains import Drains, Step
from headrace.workers.ledger import Ledger
from headrace.workers.openings import RequestSource
from headrace.workers.partitions import Partitions
from headrace.workers.work import Work

log = logging.getLogger(__name__)

# For the group to hear of the last units: whoever gets them from one that has gone must look for what it left open.
HEARD_WITHIN_S = 2.0


class Loop(Protocol):
    """What the consumer thread tells the loop. None of it waits; it is done in the order in which it was told."""

    def deliver(self, works: list[Work]) -> None:
        """Serve these."""
        ...

    def drop(self, lost: frozenset[TopicPartition]) -> None:
        """Give up what came of these partitions: it is another worker's now."""
        ...

    def hold(self, units: frozenset[int]) -> None:
        """Give back (`Pump.handed_back`) what has not begun of these units."""
        ...

    def abort(self, units: frozenset[int]) -> None:
        """End what runs of these units, and give it back."""
        ...


class Moves:
    """What is told to drain, and how far each is."""

    def __init__(
        self,
        *,
        model: str,
        source: RequestSource,
        ledger: Ledger,
        partitions: Partitions,
        dispatch: Dispatch,
        loop: Loop,
        budget_s: float,
    ) -> None:
        self._model = model
        self._source = source
        self._ledger = ledger
        self._partitions = partitions
        self._dispatch = dispatch
        self._loop = loop
        self._budget_s = budget_s
        self._drains = Drains(budget_s)
        self._leaving = False
        self._heard_by = 0.0

    @property
    def has_left(self) -> bool:
        """Told to leave, nothing is ours any more, and others have been given it."""
        if not self._leaving or self._partitions.owned:
            return False
        return time.monotonic() > self._heard_by or self._source.claims_are_known()

    @property
    def draining(self) -> bool:
        """Whether any unit drains."""
        return bool(self._drains.units)

    def leave(self) -> None:
        """Drain everything, for good."""
        self._leaving = True
        in_flight = sum(
            self._ledger.in_flight(unit) for unit in {s.partition for s in self._partitions.owned}
        )
        if in_flight:
            log.info("waiting for %d requests in flight, %.0f s at most", in_flight, self._budget_s)
        self._source.leave()

    def gone(self, units: Collection[int]) -> None:
        """These were let go or taken away: if one comes back and is to drain, that begins anew."""
        if self._drains.units.isdisjoint(units):
            return
        for unit in units:
            self._drains.gone(unit)
        self._tell_what_drains()

    def handed_back(self, units: frozenset[int], works: list[Work]) -> None:
        """The loop has given back what it had of these units."""
        self._dispatch.taken_back(works)
        for unit in units:
            self._drains.handed_back(unit)

    def follow(self) -> None:
        """Take each unit that drains as far as it can go now."""
        now = time.monotonic()
        owned = {source.partition for source in self._partitions.owned}
        wanted = frozenset(owned if self._leaving else self._source.draining() & owned)
        if not wanted and not self._drains.units:
            return
        change = self._drains.follow(wanted, now)
        if change.begun or change.cancelled:
            log.info("draining: units %s", sorted(wanted) or "none any more")
            self._partitions.hold_back(wanted)
            self._dispatch.drain(wanted)
            metrics.DRAINING.labels(self._model).set(
                sum(s.partition in wanted for s in self._partitions.owned)
            )
        if change.withdrawn:
            self._partitions.begin_anew(change.withdrawn)
        if change.begun:
            self._loop.hold(change.begun)
        drained = [unit for unit in self._drains.units if self._is_drained(unit, now)]
        let_go = self._drains.to_let_go(drained, now)
        if let_go:
            self._let_go(let_go)

    def _is_drained(self, unit: int, now: float) -> bool:
        sources = [source for source in self._ledger.partitions if source.partition == unit]
        in_flight = self._ledger.in_flight(unit)
        unpublished = any(self._ledger.is_unpublished(source) for source in sources)
        if unpublished and not in_flight:
            self._ledger.hurry()
        step = self._drains.step(
            unit,
            in_flight=in_flight,
            unpublished=unpublished,
            settled=all(self._ledger.is_settled(source) for source in sources),
            now=now,
        )
        if step is Step.ABORT:
            log.warning(
                "unit %d: %d requests did not finish within the budget; its next owner begins them anew",
                unit,
                in_flight,
            )
            self._loop.abort(frozenset({unit}))
        elif step is Step.WITHDRAW:
            for source in sources:
                self._ledger.withdraw(source)
        return step is Step.LET_GO

    def _let_go(self, units: frozenset[int]) -> None:
        log.info("letting go of units %s", sorted(units))
        for unit in units:
            outcome = "aborted" if self._drains.was_aborted(unit) else "drained"
            metrics.RELEASED.labels(self._model, outcome).inc()
            self._drains.gone(unit)
        self._partitions.let_go(
            frozenset(source for source in self._partitions.owned if source.partition in units)
        )
        self._tell_what_drains()
        self._source.release(units)
        self._heard_by = time.monotonic() + HEARD_WITHIN_S

    def _tell_what_drains(self) -> None:
        draining = self._drains.units
        self._partitions.hold_back(draining)
        self._dispatch.drain(draining)
        metrics.DRAINING.labels(self._model).set(
            sum(source.partition in draining for source in self._partitions.owned)
        )
