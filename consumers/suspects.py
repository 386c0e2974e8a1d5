"""The suspects of one partition during one tenure of it, and their trial. Pure; `PartitionOffsets` owns it."""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from headrace.consumers.offset_encoding import Progress, undone
from headrace.consumers.suspect_encoding import MOST_SUSPECTS
from headrace.consumers.suspicion import (
    HELD_BACK_FROM,
    UNSUSPECTED,
    Mode,
    Suspicion,
    is_counted,
    one_more_death,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping


class _Trial(NamedTuple):
    """What the next commit says about trials."""

    mode: Mode
    on_trial: frozenset[int]


class Suspects:
    """Which offsets are suspected, beginning with what `committed` says and the death that it betrays.

    The predecessor left without a word if its mark is above the frontier: what is not done below the mark,
    and below the log's end, may have been in flight. Its trial ended with it.
    """

    def __init__(self, frontier: int, committed: Progress, end: int) -> None:
        counted = _found_dead(frontier, committed, end)
        suspects = {**committed.suspects, **counted}
        self.vanished = len(counted)
        self.mode: Mode = "open"
        self._suspicions = {offset: suspects[offset]._replace(on_trial=False) for offset in sorted(suspects)}
        self._unseen = deque(self._suspicions)  # those not below the position, ascending
        self._committed = committed
        # Still held back in what is committed: their deaths would not be counted.
        self._exonerated: set[int] = set()
        self._to_commit: _Trial | None = None  # None: not known before the next commit point

    @property
    def all(self) -> Mapping[int, Suspicion]:
        """Each suspect with its suspicion: a view."""
        return MappingProxyType(self._suspicions)

    def of(self, offset: int) -> Suspicion:
        """What is held against an offset."""
        return self._suspicions.get(offset, UNSUSPECTED)

    def done(self, offset: int) -> None:
        """Its suspicion ends."""
        self._suspicions.pop(offset, None)

    def passed(self, position: int, outstanding: Container[int]) -> None:
        """All below the position is polled: a suspect there that is not outstanding has no record."""
        while self._unseen and self._unseen[0] < position:
            offset = self._unseen.popleft()
            if offset not in outstanding:
                del self._suspicions[offset]

    def died(self, in_flight: Collection[int]) -> None:
        """A death of known cause, with these in flight."""
        for offset in in_flight:
            before = self.of(offset)
            if is_counted(before, self.mode):
                self._suspicions[offset] = one_more_death(before, alone=False)

    def exonerate(self) -> None:
        """One was convicted, which explains the deaths: the others are left with one, which suspects nobody."""
        for offset, suspicion in self._suspicions.items():
            if suspicion.deaths >= HELD_BACK_FROM:
                self._exonerated.add(offset)
            self._suspicions[offset] = Suspicion(min(suspicion.deaths, 1))
        self._to_commit = None

    # --- trials ---

    def set_mode(self, mode: Mode) -> None:
        """Take another mode, to be committed."""
        if mode != self.mode:
            self.mode = mode
            self._to_commit = None

    def put_on_trial(self, offsets: Collection[int]) -> None:
        """Exactly these of the suspects are on trial, to be committed."""
        chosen = frozenset(offsets)
        for offset, suspicion in self._suspicions.items():
            if suspicion.on_trial != (offset in chosen):
                self._suspicions[offset] = suspicion._replace(on_trial=offset in chosen)
                self._to_commit = None

    def to_be_committed(self, progress: Progress) -> None:
        """The next commit says this, which may be less than there is: for want of room, or in an old format."""
        on_trial = (offset for offset, suspicion in progress.suspects.items() if suspicion.on_trial)
        self._to_commit = _Trial(progress.mode, frozenset(on_trial))

    def committed(self, progress: Progress) -> None:
        """A commit said this."""
        self._committed = progress
        self._exonerated = {
            offset
            for offset in self._exonerated
            if progress.suspects.get(offset, UNSUSPECTED).deaths >= HELD_BACK_FROM
        }

    def want_commit(self) -> bool:
        """Whether the trial is not the committed one: what is on trial must wait for it."""
        trial = self._to_commit
        if trial is None or trial.mode != self._committed.mode:
            return True
        return not all(self._is_tried(offset) for offset in trial.on_trial)

    def may_start(self, offset: int) -> bool:
        """Whether its death would be counted as the trial wants it, as far as the commit can say so."""
        if not self.of(offset).on_trial:
            # Whoever is committed as alone must be: else its death would count for more than it tells.
            return self._committed.mode != "alone" and offset not in self._exonerated
        trial = self._to_commit
        if trial is None or trial.mode != self._committed.mode:
            return False
        if offset in trial.on_trial:
            return self._is_tried(offset)
        # There is no room for it, or no format: it must not be committed as held back either.
        return offset not in self._committed.suspects

    def _is_tried(self, offset: int) -> bool:
        return self._committed.suspects.get(offset, UNSUSPECTED).on_trial


def _found_dead(frontier: int, committed: Progress, end: int) -> dict[int, Suspicion]:
    """The suspicion, with one death more, of whatever the predecessor's silent death is held against."""
    may_have_started = chain.from_iterable(undone(frontier, committed.done, min(committed.started, end)))
    return {
        offset: one_more_death(before, alone=committed.mode == "alone")
        # Not more than can have been outstanding: a forged mark must not fill the memory.
        for offset in islice(may_have_started, MOST_SUSPECTS)
        if is_counted(before := committed.suspects.get(offset, UNSUSPECTED), committed.mode)
    }
