"""Where what running jobs say goes: live lines on a terminal, else a line now and then; on standard error."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.ops.cli import backfill_view as view
from headrace.ops.cli.backfill_view import JobLine

if TYPE_CHECKING:
    from headrace.producers.backfill.progress import JobView

PLAIN_EVERY_S: Final = 10.0
PLAIN_FIRST_S: Final = 2.0  # of reading the input: what takes less says nothing
LIVE_HZ: Final = 4
BAR: Final = 30  # characters


class Display:
    """Shows jobs, which speak from threads of their own. Use it as a context manager."""

    def __init__(self, jobs: Sequence[JobLine], *, quiet: bool, console: Console | None = None) -> None:
        self.jobs = jobs
        self.console = console or Console(file=sys.stderr, soft_wrap=True, highlight=False, markup=False)
        self._quiet = quiet
        self._is_live = self.console.is_terminal and not quiet
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._phases = dict.fromkeys(range(len(jobs)), "starting")
        self._next_s = {index: time.monotonic() + PLAIN_FIRST_S for index in range(len(jobs))}
        self._log = _LogLines(self)

    def __enter__(self) -> Display:
        logging.getLogger().addHandler(self._log)
        if self._is_live:
            self._live = Live(
                console=self.console,
                get_renderable=self._rendered,
                refresh_per_second=LIVE_HZ,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        logging.getLogger().removeHandler(self._log)

    # --- what jobs say ---

    def say(self, index: int, sentence: str) -> None:
        """A sentence of a job."""
        if not self._quiet:
            self.print(f"{self.jobs[index].shown_name}: {sentence}")

    def print(self, text: str) -> None:
        """A line that stays."""
        self.console.print(Text(text), soft_wrap=True)

    def look(self, index: int, seen: JobView) -> None:
        """A job at this moment."""
        self.jobs[index].view = seen
        self._changed(index)

    def reading(self, index: int, read: int, of: int | None) -> None:
        """Bytes of a job's input."""
        self.jobs[index].read = (read, of)
        self._changed(index, at_once=False)

    def joining(self, index: int, rows: int) -> None:
        """Rows of a job's output that were put together."""
        self.jobs[index].joined = rows
        self._changed(index, at_once=False)

    def ended(self, index: int, how: str) -> None:
        """A job's thread has come to its end."""
        self.jobs[index].ended = how

    def _changed(self, index: int, *, at_once: bool = True) -> None:
        """In a log: a line where there is something new, and every ten seconds."""
        if self._quiet or self._is_live:
            return
        job, now = self.jobs[index], time.monotonic()
        with self._lock:
            is_new = at_once and job.phase != self._phases[index]
            if not is_new and now < self._next_s[index]:
                return
            self._phases[index] = job.phase
            self._next_s[index] = now + PLAIN_EVERY_S
        self.print(view.line_of(job))

    # --- live ---

    def _rendered(self) -> RenderableType:
        running = [job for job in self.jobs if job.ended is None]
        return Group(*(_lines_of(job, is_alone=len(self.jobs) == 1) for job in running))


def _lines_of(job: JobLine, *, is_alone: bool) -> RenderableType:
    """A job's bar and what matters most; of one alone, all else below it."""
    first, *others = view.said(job) if is_alone else [view.in_short(job)]
    table = Table.grid(padding=(0, 1))
    for ratio in (None, None, 1):
        table.add_column(no_wrap=True, ratio=ratio, overflow="ellipsis")
    table.expand = True
    bar = ProgressBar(total=1.0, completed=job.part, width=BAR)
    table.add_row(Text(job.shown_name, style="bold"), bar, Text(first))
    below = [
        Text(f"  {each}", style=_style_of(job, each), no_wrap=True, overflow="ellipsis") for each in others
    ]
    return Group(table, *below)


def _style_of(job: JobLine, sentence: str) -> str:
    if job.view is None:
        return ""
    if sentence == view.trouble_of(job.view, job.model) or (
        job.view.failed and sentence == view.failures_of(job.view)
    ):
        return "yellow"
    return "dim"


class _LogLines(logging.Handler):
    """Warnings of the libraries and of the job, above the live lines."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.print(f"{record.levelname.lower()}: {record.getMessage()}")
