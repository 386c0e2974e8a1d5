"""What a death may be held against, told from what was really in flight: no knowledge of how it is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.consumers.offset_encoding import Progress
from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.suspicion import Mode, Suspicion

INNOCENT = Suspicion()


@dataclass(frozen=True)
class Witness:
    """What there was when an owner went: the commit that it left, the log's end, and what it had in flight."""

    frontier: int
    said: Progress
    log_end: int
    in_flight: set[int]

    def check(self, successor: PartitionOffsets, *, left_cleanly: bool) -> None:
        """The successor suspects whom it must, and nobody else."""
        now = dict(successor.suspects())
        before = self.said.suspects
        assert list(now) == sorted(now)
        for offset in {*now, *before}:
            self._check_one(offset, before.get(offset, INNOCENT), now.get(offset, INNOCENT))
        counted = [each for each in now if now[each].deaths > before.get(each, INNOCENT).deaths]
        assert successor.vanished == len(counted)
        if left_cleanly:
            assert not counted, f"{counted} are suspected, and their owner left in order"
            return
        for offset in self.in_flight:
            assert offset in counted or self._is_sheltered(offset), (
                f"{offset} was in flight, and is not suspected"
            )

    def _check_one(self, offset: int, before: Suspicion, now: Suspicion) -> None:
        assert not now.on_trial, f"{offset} is on trial before there is one"
        died = now.deaths - before.deaths
        assert died in (0, 1), f"{offset}: {before} became {now}"
        assert now.alone - before.alone == (died if self.said.mode == "alone" else 0)
        if died:
            assert self.frontier <= offset < self.said.started, f"{offset} cannot have been started"
            assert offset < self.log_end, f"{offset} is beyond the log's end"
            assert not any(offset in run for run in self.said.done), f"{offset} was done"
            assert before.on_trial or self.said.mode == "open", f"{offset} was a bystander"
            assert before.on_trial or before.deaths < 2, f"{offset} was held back"

    def _is_sheltered(self, offset: int) -> bool:
        """By a trial that is committed, in which this one is not."""
        return self.said.mode != "open" and not self.said.suspects.get(offset, INNOCENT).on_trial


def expected_after_an_engines_death(
    known: Mapping[int, Suspicion], running: set[int], mode: Mode
) -> dict[int, Suspicion]:
    """The suspects after an engine died with these running (none of them was held back)."""
    expected = dict(known)
    for offset in running:
        deaths, alone, on_trial = known.get(offset, INNOCENT)
        if on_trial or mode == "open":
            expected[offset] = Suspicion(deaths + 1, alone, on_trial)
    return expected
