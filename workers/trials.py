"""Which requests killed the engine, found by trying them. Pure: no clock, no I/O, no threads.

A request is *suspect* once it was in flight at two deaths (the first suspects nobody: machines vanish). Suspects are
held back and tried: half of those that were in flight at the most deaths, together with everything that nobody
suspects; then, if all goes well, half of the rest. If the engine dies with them the half that was on trial has one
death more than the others, and the next life goes on with it: bisection, over lives. The last one is tried alone, with
nothing else in flight. One death of known cause then convicts it at once; a worker that vanishes without a word may
have had other reasons, so that it takes three. A conviction explains the deaths: the others are suspects no longer.

What is known of each outlives the worker in the metadata of the committed offset (`consumers/offsets.py`); who is on
trial is committed before the trial begins.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headrace.consumers.records import TopicPartition
from headrace.consumers.suspicion import HELD_BACK_FROM, Suspicion
from headrace.workers.work import Work

CONVICTED_AFTER = 3  # deaths of unknown cause while it was alone

Place = tuple[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried at a time."""

    works: tuple[Work, ...]
    alone: bool  # with nothing else in the engine


def is_suspect(suspicion: Suspicion) -> bool:
    """Whether a request must be held back for a trial."""
    return suspicion.deaths >= HELD_BACK_FROM


def is_convicted(suspicion: Suspicion) -> bool:
    """Whether it must not be tried any more."""
    return suspicion.alone >= CONVICTED_AFTER


class Trials:
    """The suspects among what a worker has polled, and the trial under way."""

    def __init__(self) -> None:
        self._held: dict[Place, tuple[Work, Suspicion]] = {}
        self._trial: Trial | None = None
        self._unfinished: set[Place] = set()  # of the trial

    @property
    def suspects(self) -> int:
        """How many are held back or on trial."""
        return len(self._held) + len(self._unfinished)

    @property
    def under_way(self) -> Trial | None:
        """What is being tried."""
        return self._trial

    def hold(self, work: Work, suspicion: Suspicion) -> None:
        """Keep a suspect until its trial."""
        self._held[work.source, work.offset] = (work, suspicion)

    def begin(self, *, but_of: Collection[TopicPartition] = ()) -> Trial | None:
        """Begin the next trial; None: one is under way, or nobody is held. Those `but_of` are passed over."""
        candidates = [each for each in self._held.values() if each[0].source not in but_of]
        if self._trial is not None or not candidates:
            return None
        worst = max((suspicion.alone, suspicion.deaths) for _, suspicion in candidates)
        group = sorted(
            (work for work, each in candidates if (each.alone, each.deaths) == worst),
            key=lambda work: (work.source, work.offset),
        )
        alone = worst[0] > 0 or len(group) == 1
        tried = tuple(group[:1] if alone else group[: (len(group) + 1) // 2])
        for work in tried:
            del self._held[work.source, work.offset]
        self._trial = Trial(tried, alone)
        self._unfinished = {(work.source, work.offset) for work in tried}
        return self._trial

    def release(self) -> list[Work]:
        """Nobody who is held is suspected any more: all of them, in the order of their offsets."""
        works = sorted((work for work, _ in self._held.values()), key=lambda work: (work.source, work.offset))
        self._held.clear()
        return works

    def call_off(self, suspicion_of: dict[Place, Suspicion]) -> None:
        """End a trial that has not begun in the engine: its suspects are held again, as they stand."""
        if self._trial is not None:
            for work in self._trial.works:
                place = (work.source, work.offset)
                if place in self._unfinished:
                    self._held[place] = (work, suspicion_of[place])
        self._end()

    def finished(self, source: TopicPartition, offset: int) -> bool:
        """A request was answered; True when it was the trial's last: the trial is over."""
        self._held.pop((source, offset), None)
        if (source, offset) not in self._unfinished:
            return False
        self._unfinished.discard((source, offset))
        return self._end_if_done()

    def forget(self, source: TopicPartition) -> bool:
        """A partition has gone; True when the trial has nobody left: it is over."""
        for place in [place for place in self._held if place[0] == source]:
            del self._held[place]
        gone = {place for place in self._unfinished if place[0] == source}
        self._unfinished -= gone
        return bool(gone) and self._end_if_done()

    def _end_if_done(self) -> bool:
        if self._unfinished:
            return False
        self._end()
        return True

    def _end(self) -> None:
        self._trial = None
        self._unfinished = set()
