"""What `make demo-rollout` shows: partitions that change their colour in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.ops.rollouts.view import table_of

if TYPE_CHECKING:
    from headrace.ops.faults.timeline import Event
    from headrace.ops.rollouts.view import VersionRow
    from headrace.ops.rollouts.watching import Answer

PLAIN_EVERY_S = 3.0  # between two lines of counts where nobody sees a table change
WIDTH_OF_A_PIPE = 160  # characters, where there is no terminal
CELL_S = 0.5  # of a partition's history
LEFT_OF_THE_STRIPS = 40  # characters
CELLS = (10, 80)  # of a partition's history, at least and at most
LINES_BESIDE = (
    6  # of the picture, beside partitions, versions, warnings and events; three more where there is room
)
ROOM = 20  # lines beside the partitions
EVENTS = (3, 9)  # shown, at least and at most
COLOURS = ("cyan", "green", "magenta", "yellow", "blue")
FAILED = "bold white on red"
SILENT = "grey35"


def colour_of(version: str) -> str:
    """The same for the same version."""
    number = int(version) if version.isdigit() else sum(map(ord, version))
    return COLOURS[(number - 1) % len(COLOURS)]


@dataclass(frozen=True, slots=True)
class Cell:
    """What one partition's results were within CELL_S: the version of the last, and whether one failed."""

    version: str
    failed: bool


class Strips:
    """Each partition's results of the last while, cut into cells of CELL_S. Pure."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], Cell] = {}  # by unit and number of the cell

    def take(self, answer: Answer) -> None:
        """Note a result."""
        at = (answer.unit, int(answer.at_ms / 1000 / CELL_S))
        failed = answer.status != "ok" or (at in self._cells and self._cells[at].failed)
        self._cells[at] = Cell(answer.version, failed)

    def row(self, unit: int, now_s: float, cells: int) -> list[Cell | None]:
        """The last so many cells of a unit, the newest one last; None: no result."""
        newest = int(now_s / CELL_S)
        return [self._cells.get((unit, newest - age)) for age in reversed(range(cells))]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has a unit."""

    version: str
    slot: str


@dataclass(frozen=True, slots=True)
class Picture:
    """How it stands."""

    head: str
    why: str
    units: int
    sent: int
    results: int
    owners: Mapping[int, Owner] = field(default_factory=dict[int, Owner])
    waiting: Mapping[int, int] = field(default_factory=dict[int, int])
    rows: Sequence[VersionRow] = ()
    warnings: Sequence[str] = ()
    strips: Strips = field(default_factory=Strips)
    now_s: float = 0.0  # since the epoch


class RolloutView:
    """Shows a demonstration on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._events: deque[Event] = deque(maxlen=EVENTS[1])
        self._live: Live | None = None
        self._next_line = 0.0

    def line(self, what: str | Text) -> None:
        """One line, as it is."""
        self.console.print(what, highlight=False, soft_wrap=True)

    def says(self, what: str) -> None:
        """What is being done before there is anything to see."""
        self.line(Text(what, style="dim"))

    def event(self, event: Event) -> None:
        """A line of the timeline."""
        self._events.append(event)
        if self._live is None:
            self.line(line_of(event))

    @contextmanager
    def live(self) -> Generator[None]:
        """While things happen."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=8, transient=False) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def show(self, now: Picture) -> None:
        """How it stands now."""
        if self._live is not None:
            self._live.update(self.picture(now), refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PLAIN_EVERY_S
            self.line(f"           {counts(now)}; {_shares(now)}")

    def picture(self, now: Picture) -> Group:
        """The whole of it, as wide and as high as the console."""
        width, height = self.console.size
        cells = max(CELLS[0], min(CELLS[1], width - LEFT_OF_THE_STRIPS))
        room = height - now.units
        gap = [Text("")] if room >= ROOM else []
        beside = LINES_BESIDE + 3 * len(gap) + len(now.rows) + len(now.warnings)
        shown = max(EVENTS[0], min(EVENTS[1], room - beside))
        parts: list[Any] = [
            _one_line(now.head, "bold"),
            _one_line(now.why, "dim"),
            *gap,
            _partitions(now, cells),
            *gap,
            table_of(now.rows, now.units, width),
            *(_one_line(f"! {each}", "yellow") for each in now.warnings),
            Text(counts(now)),
            *gap,
            *(_one_line(line_of(event), "dim") for event in list(self._events)[-shown:]),
        ]
        return Group(*parts)


def _one_line(what: str, style: str) -> Text:
    return Text(what, style=style, no_wrap=True, overflow="ellipsis")


def line_of(event: Event) -> str:
    """A line of the timeline, without the column of what was in flight."""
    return f"{event.seconds:7.1f} s  {event.what:<13} {event.target:<10} {event.text}"


def counts(now: Picture) -> str:
    """What was sent and what came back."""
    return f"{now.sent:,} sent, {now.results:,} results"


def _shares(now: Picture) -> str:
    return ", ".join(
        f"version {row.version}: {row.units} of {now.units} partitions"
        + (f", {row.failed:.0%} of {row.answers:,} failed" if row.failed else f", {row.answers:,} answers")
        for row in now.rows
    )


def _partitions(now: Picture, cells: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("PARTITION", justify="right")
    table.add_column("VERSION", min_width=7)
    table.add_column("WORKER", min_width=9, no_wrap=True)
    table.add_column("WAITING", justify="right")
    table.add_column(f"WHO ANSWERED, THE LAST {cells * CELL_S:.0f} S", no_wrap=True)
    for unit in range(now.units):
        owner = now.owners.get(unit)
        if owner is None:
            version, slot = Text("moves", style="yellow"), ""
        else:
            version, slot = Text(f"■ {owner.version}", style=f"bold {colour_of(owner.version)}"), owner.slot
        strip = Text()
        for cell in now.strips.row(unit, now.now_s, cells):
            strip.append(*_shown(cell))
        table.add_row(str(unit), version, slot, str(now.waiting.get(unit, 0)), strip)
    return table


def _shown(cell: Cell | None) -> tuple[str, str]:
    if cell is None:
        return "·", SILENT
    return ("x", FAILED) if cell.failed else ("█", colour_of(cell.version))


def view_for(stream: TextIO) -> RolloutView:
    """A view on a stream: live where it is a terminal."""
    console = Console(file=stream)
    return RolloutView(console if console.is_terminal else Console(file=stream, width=WIDTH_OF_A_PIPE))
