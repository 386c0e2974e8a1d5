"""From recorded results and log lines to what a move of units cost. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headrace.ops.bench.ground import BenchFailed
from headrace.ops.bench.recording import Answered

Kind = Literal["join", "leave", "kill"]
LEAST_WINDOW_S = 1.0  # a rate over less says little

_LINE = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) \w+ headrace\.workers\.moving: "
    r"(draining|letting go of)(?:: units| units) \[([\d, ]+)\]",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A line in a worker's log about units that leave it."""

    at: float  # seconds since the epoch
    slot: str
    what: Literal["draining", "letting go of"]
    units: frozenset[int]


@dataclass(frozen=True, slots=True)
class HandOver:
    """One unit's way from one worker to another."""

    unit: int
    old: str
    new: str
    released_at: float  # let go by the old one; what does not let go any more: its last result
    answered_at: float  # the new one's first result

    @property
    def took_s(self) -> float:
        """From release to the first result at the new owner."""
        return self.answered_at - self.released_at


@dataclass(frozen=True, slots=True)
class Counted:
    """Generations begun and results, both of the whole fleet and of this move alone, when all was answered.

    `in_flight`: of the worker that was killed, begun and not committed just before.
    """

    begun: int
    results: int
    in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class MoveFigures:
    """What one change of the fleet cost."""

    kind: Kind
    moved: int  # units
    stayed: int
    regenerated: int  # generations begun beyond one for each result
    in_flight: int | None
    throughput_ratio: float | None  # of the units that stay, during the move over before; None: none stays
    longest_silence_s: float | None  # of one such unit during the move
    longest_silence_before_s: float | None
    window_s: float  # how long the move took
    hand_over_s: float | None  # slowest unit: from release to the new owner's first result; not of a kill
    hand_over_median_s: float | None
    answered_again_s: float | None  # slowest unit: from the kill to the next result


def marks_in(log: str, slot: str) -> list[Mark]:
    """What a worker's log says of units that drain or are let go."""
    found: list[Mark] = []
    for moment, what, units in _LINE.findall(log):
        at = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S,%f").timestamp()
        found.append(Mark(at, slot, "draining" if what == "draining" else "letting go of", _numbers(units)))
    return found


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(each) for each in text.split(","))


def owners(answered: Iterable[Answered]) -> dict[int, str]:
    """Who made each unit's last result."""
    return {each.unit: each.slot for each in sorted(answered, key=lambda each: each.at)}


def hand_overs(answered: Sequence[Answered], marks: Collection[Mark], acted_at: float) -> list[HandOver]:
    """The units that have another owner at the end than they had when the fleet was changed, in order."""
    before = owners(each for each in answered if each.at <= acted_at)
    after = owners(answered)
    found: list[HandOver] = []
    for unit in sorted(before):
        old, new = before[unit], after[unit]
        if old == new:
            continue
        first = min(
            each.at for each in answered if each.unit == unit and each.slot == new and each.at > acted_at
        )
        lines = [
            mark.at
            for mark in marks
            if mark.what == "letting go of" and mark.slot == old and unit in mark.units and acted_at < mark.at
        ]
        last = max(each.at for each in answered if each.unit == unit and each.slot == old)
        found.append(HandOver(unit, old, new, min(lines, default=last), first))
    return found


def throughput(answered: Iterable[Answered], units: Collection[int], begins: float, ends: float) -> float:
    """Results of these units a second."""
    return sum(each.unit in units and begins < each.at <= ends for each in answered) / (ends - begins)


def longest_silence(
    answered: Iterable[Answered], units: Collection[int], begins: float, ends: float
) -> float:
    """The longest time in which one of these units had no result, the window's edges counting as results."""
    heard: dict[int, list[float]] = {unit: [begins] for unit in units}
    for each in sorted(answered, key=lambda each: each.at):
        if each.unit in heard and begins < each.at <= ends:
            heard[each.unit].append(each.at)
    gaps = (
        later - earlier
        for times in heard.values()
        for earlier, later in zip(times, [*times[1:], ends], strict=True)
    )
    return max(gaps, default=0.0)


def sum_up(
    kind: Kind,
    answered: Sequence[Answered],
    marks: Collection[Mark],
    counted: Counted,
    *,
    steady_from: float,
    acted_at: float,
) -> MoveFigures:
    """What one change of the fleet cost. `answered` begins with the steady traffic before it, at `steady_from`.

    The move lasts from the change (of a join: from when the first unit was told to drain, since starting a process is
    no part of it) until every unit that moved was answered by its new owner. Raises BenchFailed where none has moved.
    """
    moves = hand_overs(answered, marks, acted_at)
    if not moves:
        raise BenchFailed(f"no unit has moved at the {kind}")
    begins = acted_at
    if kind == "join":
        begins = min((each.at for each in marks if each.at > acted_at), default=acted_at)
    ends = max(*(each.answered_at for each in moves), begins + LEAST_WINDOW_S)
    moved = {each.unit for each in moves}
    stay = {each.unit for each in answered} - moved
    ratio = silence = silence_before = None
    if stay:
        before = throughput(answered, stay, steady_from, acted_at)
        ratio = throughput(answered, stay, begins, ends) / before if before else None
        silence = longest_silence(answered, stay, begins, ends)
        silence_before = longest_silence(answered, stay, steady_from, acted_at)
    took = sorted(each.took_s for each in moves)
    clean = kind != "kill"
    return MoveFigures(
        kind=kind,
        moved=len(moved),
        stayed=len(stay),
        regenerated=counted.begun - counted.results,
        in_flight=counted.in_flight,
        throughput_ratio=ratio,
        longest_silence_s=silence,
        longest_silence_before_s=silence_before,
        window_s=ends - begins,
        hand_over_s=took[-1] if clean else None,
        hand_over_median_s=took[len(took) // 2] if clean else None,
        answered_again_s=None if clean else max(each.answered_at for each in moves) - acted_at,
    )


def goals(figures: MoveFigures, session_timeout_s: float) -> Mapping[str, bool]:
    """What Headrace means to keep to, and whether this run did."""
    found: dict[str, bool] = {}
    if figures.kind == "kill":
        found["regenerated at most what was in flight"] = figures.regenerated <= (figures.in_flight or 0)
        found["answered again within the session timeout + 2 s"] = (
            figures.answered_again_s or 0.0
        ) <= session_timeout_s + 2.0
    else:
        found["nothing regenerated"] = figures.regenerated == 0
        found["release to first result within 1.5 s"] = (figures.hand_over_s or 0.0) <= 1.5
    if figures.throughput_ratio is not None:
        found["the others' throughput at least 0.9 of before"] = figures.throughput_ratio >= 0.9
    return found
