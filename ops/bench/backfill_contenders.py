"""What `headrace bench backfill` measures of everybody alike: the port, the figures, and how they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

from headrace.ops.bench.backfill_rows import BadRow, FilmRow, film_rows
from headrace.ops.bench.ground import Say

STEADY_FROM, STEADY_TO = 0.2, 0.9  # shares of the rows between which the rate is taken

Progress = Sequence[tuple[float, int]]  # seconds since the command, rows that were done by then


@dataclass(frozen=True, slots=True)
class Answer:
    """A row of a finished file."""

    id: str
    text: str | None  # None: the contender says that this row failed
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run, from command to finished file."""

    contender: str
    rows: int
    ok: int  # whose text the output schema admits
    seconds: float  # until the file was finished
    exit_seconds: float  # until the prompt of the shell was back
    first_row_seconds: float | None  # until a row was done: what starting costs. As fine as progress is told
    prompt_tokens: int
    completion_tokens: int
    steady_tokens_per_s: float | None  # None where progress is told too rarely for these rows
    steady_by: str  # how that was seen
    peak_rss: int  # bytes; of all its processes, pages that they share counted in each
    peak_pss: int  # bytes; pages that they share counted once
    in_order: bool  # whether the file has the rows in the order of the input
    peak_rss_beside: int = 0  # bytes; of a worker that was up before and is not among its processes


@dataclass(frozen=True, slots=True)
class KilledFigures:
    """A run that was ended with SIGKILL at about half of its rows, and run again with the same command."""

    contender: str
    rows: int
    done_at_kill: int  # that it said were done; more may have been
    kept: int  # rows that the output had after the kill
    asked_again: int  # rows that the second run generated
    lost: int  # rows that the output does not have in the end
    doubled: int  # rows that it has more than once in the end
    seconds_until_kill: float
    seconds_again: float

    @property
    def regenerated(self) -> int:
        """Rows that were done and were generated a second time."""
        return max(0, self.done_at_kill + self.asked_again - self.rows)


@dataclass(frozen=True, slots=True)
class BadRowFigures:
    """A run with one bad row amid good ones."""

    contender: str
    rows: int  # the bad one included
    bad: BadRow
    exit_code: int
    ok: int  # rows with an answer in the output
    said_of_it: str | None  # what the output says of the bad row; None: nothing
    last_words: str  # the end of what was printed, where the job failed; else empty
    seconds: float

    @property
    def ends_the_job(self) -> bool:
        """Whether good rows were left without an answer."""
        return self.ok < self.rows - 1


class BackfillContender(Protocol):
    """One way from rows to a finished file. `place` is an empty folder for its files, which stay there."""

    @property
    def name(self) -> str:
        """As the table has it."""
        ...

    def run(self, rows: Sequence[FilmRow], place: Path) -> RunFigures:
        """From command to finished file. Raises BenchFailed."""
        ...

    def killed_halfway(self, rows: Sequence[FilmRow], place: Path) -> KilledFigures:
        """End it with SIGKILL at about half of the rows, and run it again. Raises BenchFailed."""
        ...

    def with_bad_row(self, rows: Sequence[FilmRow], bad: BadRow, place: Path) -> BadRowFigures:
        """Run with a bad row in the middle. Raises BenchFailed."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """All of one contender. What was not measured is empty."""

    name: str
    runs: Sequence[RunFigures]
    killed: KilledFigures | None = None
    bad: Sequence[BadRowFigures] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured of each contender."""

    rows: int = 5_000
    times: int = 3
    killed_rows: int = 3_000  # none: not killed. A few minutes' worth, for some tell their progress rarely
    bad_rows: int = 200  # none: without bad rows


def measure(contender: BackfillContender, plan: Plan, place: Path, say: Say) -> Measured:
    """All of it, one after the other, each in a new folder of `place`. Raises BenchFailed."""
    runs: list[RunFigures] = []
    for number in range(plan.times):
        found = contender.run(film_rows(plan.rows), _folder(place, f"run-{number}"))
        runs.append(found)
        say(f"{contender.name}: {found.ok:,} of {found.rows:,} rows in {found.seconds:.1f} s")
    killed: KilledFigures | None = None
    if plan.killed_rows:
        killed = contender.killed_halfway(film_rows(plan.killed_rows), _folder(place, "killed"))
        say(f"{contender.name}, killed with {killed.done_at_kill:,} rows done: {killed.regenerated:,} again")
    bad: list[BadRowFigures] = []
    for kind in get_args(BadRow) if plan.bad_rows else ():
        told = contender.with_bad_row(film_rows(plan.bad_rows), kind, _folder(place, kind.replace(" ", "-")))
        bad.append(told)
        say(f"{contender.name}, a row that is {kind}: {told.ok:,} of {told.rows - 1:,} good rows answered")
    return Measured(contender.name, runs, killed, bad)


def _folder(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir(parents=True)
    return folder


def steady_rows_per_s(progress: Progress, rows: int) -> float | None:
    """The rate between 20 % and 90 % of the rows; None where nothing was told in between, or not beyond."""
    first, last = rows * STEADY_FROM, rows * STEADY_TO
    if not any(first <= done <= last for _, done in progress):
        return None
    began, ended = _reached(progress, first), _reached(progress, last)
    return None if began is None or ended is None or ended <= began else (last - first) / (ended - began)


def _reached(progress: Progress, wanted: float) -> float | None:
    """When so many rows were done, on a straight line between what was told before and after."""
    before: tuple[float, int] | None = None
    for at, done in progress:
        if done >= wanted:
            if before is None or done == before[1]:
                return at
            return before[0] + (at - before[0]) * (wanted - before[1]) / (done - before[1])
        before = (at, done)
    return None


def lost_and_doubled(rows: Sequence[FilmRow], answers: Sequence[Answer]) -> tuple[int, int]:
    """How many rows have no line in the output, and how many have more than one."""
    counts = Counter(answer.id for answer in answers)
    return sum(counts[row.id] == 0 for row in rows), sum(counts[row.id] > 1 for row in rows)


def is_in_order(rows: Sequence[FilmRow], answers: Sequence[Answer]) -> bool:
    """Whether the output has these rows, in this order."""
    return [answer.id for answer in answers] == [row.id for row in rows]
