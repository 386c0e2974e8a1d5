"""What `make chaos` shows: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from headrace.ops.faults.fleet import Fleet
    from headrace.ops.faults.timeline import Event
    from headrace.ops.faults.verdict import Verdict

PLAIN_EVERY_S = 3.0  # between two lines of counts where nobody sees a table change
WIDTH_OF_A_PIPE = 160  # characters, where there is no terminal
EVENTS_SHOWN = 7
COLOURS = {"ready": "green", "starting": "yellow", "leaving": "yellow", "frozen": "red", "ended": "red"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How it stands."""

    phase: str
    seconds: float
    sent: int
    results: int
    fleet: Fleet


class ChaosView:
    """Shows a run on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._events: deque[Event] = deque(maxlen=EVENTS_SHOWN)
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
            self.line(event.line())

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

    def show(self, now: Snapshot) -> None:
        """How it stands now."""
        if self._live is not None:
            self._live.update(Group(_table(now), Text(_counts(now)), *_lines(self._events)), refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PLAIN_EVERY_S
            self.line(f"{now.seconds:7.1f} s  {_counts(now)}; {_states(now)}")

    def finish(
        self,
        verdict: Verdict,
        regenerated: int,
        seconds: float,
        exit_codes: dict[str, int],
        details: list[str],
    ) -> None:
        """The counts at the end, and what is at fault."""
        counts = [("sent", verdict.asked), ("results", verdict.answered), *verdict.findings()]
        counts.append(("regenerated", regenerated))
        self.line("")
        self.line(", ".join(f"{count} {name}" for name, count in counts) + f" in {seconds:.1f} s")
        unclean = {slot: code for slot, code in exit_codes.items() if code != 0}
        if unclean:
            self.line(Text(f"workers that did not end with 0: {unclean}", style="red"))
        for each in details:
            self.line(each)


def _counts(now: Snapshot) -> str:
    return (
        f"{now.sent} sent, {now.results} results, {now.sent - now.results} unanswered, "
        f"{now.fleet.unread} unread ({now.phase})"
    )


def _states(now: Snapshot) -> str:
    return ", ".join(f"{slot} {member.state}" for slot, member in list(now.fleet.members.items()))


def _table(now: Snapshot) -> Table:
    table = Table(title=f"{now.seconds:.0f} s, {now.phase}", title_justify="left")
    for name in ("worker", "state", "life", "partitions", "in flight", "answered"):
        table.add_column(name, justify="left" if name in ("worker", "state") else "right", min_width=9)
    for slot, member in list(now.fleet.members.items()):
        table.add_row(
            slot,
            Text(member.state, style=COLOURS[member.state]),
            str(member.life),
            str(member.page.partitions),
            str(member.page.in_flight),
            str(member.answered_before + member.page.answered),
        )
    return table


def _lines(events: deque[Event]) -> list[Text]:
    return [Text(event.line(), style="dim", no_wrap=True, overflow="ellipsis") for event in list(events)]


def view_for(stream: TextIO) -> ChaosView:
    """A view on a stream: live where it is a terminal."""
    console = Console(file=stream)
    return ChaosView(console if console.is_terminal else Console(file=stream, width=WIDTH_OF_A_PIPE))
