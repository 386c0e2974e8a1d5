"""What `make demo-backfill` shows: the lines of the job's process, the counts, and some rows of the output."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.ops.backfill_demo_count import first_faults
from headrace.ops.demo_view import WIDTH_OF_A_PIPE, View
from headrace.producers.backfill.job_files import JobFiles

if TYPE_CHECKING:
    from headrace.ops.backfill_demo_count import Count
    from headrace.producers.backfill.job import JobSpec
    from headrace.producers.backfill.state import JobState
    from headrace.topics.names import ContractNames

ROWS_SHOWN = 6  # of those that are ok; behind them one that is not
ORDER = ("row", "film", "pitch", "mood", "tags", "audience", "appeal", "status")
WIDTHS = {"row": 4, "film": 26, "mood": 9, "tags": 20, "audience": 9, "appeal": 6, "status": 8}  # characters
NUMBERS = ("row", "appeal")
# Columns that are left out, by the least width of a console that has room for the others.
LEFT_OUT = ((130, ()), (105, ("audience", "appeal")), (0, ("audience", "appeal", "tags")))


class BackfillView(View):
    """Shows the demonstration on a console."""

    def said(self, line: str) -> None:
        """A line of the job's process."""
        self.line(Text(f"  {line}", style="dim"))

    @contextmanager
    def answers(self, rows: int) -> Generator[Callable[[int], None]]:
        """While rows are answered; what it gives is to be told how many have been. It moves in a terminal only."""
        if not self.console.is_terminal:
            yield lambda _: None
            return
        with self.console.status("") as status:
            yield lambda answered: status.update(f"{answered:,} of {rows:,} rows answered")

    def killed(self, answered: int, state: JobState) -> None:
        """The process was killed on the way."""
        parts, written = -(-state.rows // state.rows_per_part), len(state.parts)
        self.line(
            Text(
                f"kill -9, with {answered:,} of {state.rows:,} rows answered. What stays: {written} of {parts} parts "
                "of the output, and every answer in Kafka. The same command again:",
                style="bold yellow",
            )
        )

    def finish_backfill(self, count: Count, spec: JobSpec, names: ContractNames, *, stays: bool) -> None:
        """Some rows, the counts, where everything lies, and the verdict."""
        files = JobFiles(spec.output_path)
        self.line("")
        self.console.print(_table(count, self.console.width))
        for each in count.lines():
            self.line(each)
        self.line(f"output:  {spec.output_path}")
        if count.rejects:
            self.line(f"rejects: {files.rejects_shown}")
        self.line(
            f"results: topic {names.results}{'' if stays else ' (this broker ends now, and its data with it)'}"
        )
        for each in first_faults(count.faults):
            self.line(Text(each, style="red"))
        self.line("PASS" if count.passed else "FAIL")


def _table(count: Count, width: int) -> Table:
    table = Table(title=f"some of {count.rows:,} rows", title_justify="left")
    widths = _widths(width)
    for name, column_width in widths.items():
        table.add_column(
            name, width=column_width, no_wrap=True, justify="right" if name in NUMBERS else "left"
        )
    well = [number for number, row in enumerate(count.table) if row["headrace_status"] == "ok"]
    others = [number for number, row in enumerate(count.table) if row["headrace_status"] != "ok"]
    for number in [*well[: ROWS_SHOWN // 2], *well[-ROWS_SHOWN // 2 :], *others[:1]]:
        cells = _cells(number, count.table[number])
        table.add_row(*(cells[name] for name in widths))
    return table


def _widths(width: int) -> dict[str, int]:
    """Characters of each column that a console has room for; the pitch has what is left."""
    left_out = next(names for least, names in LEFT_OUT if width >= least)
    fixed = {name: each for name, each in WIDTHS.items() if name not in left_out}
    pitch = width - sum(fixed.values()) - 3 * (len(fixed) + 1) - 1
    return {name: fixed.get(name, max(pitch, 1)) for name in ORDER if name == "pitch" or name in fixed}


def _cells(number: int, row: dict[str, Any]) -> dict[str, str]:
    pitch = row["pitch"] if row["headrace_status"] == "ok" else row["headrace_error"]
    return {
        "row": str(number),
        "film": _title(row["Title"]),
        "pitch": str(pitch),
        "mood": row["mood"] or "",
        "tags": ", ".join(row["tags"] or ()),
        "audience": row["audience"] or "",
        "appeal": "" if row["appeal"] is None else str(row["appeal"]),
        "status": row["headrace_status"],
    }


def _title(kept: Any) -> str:
    """A title as people write it: the column is JSON text, for some titles are numbers."""
    if kept is None:
        return "null"
    try:
        return str(json.loads(kept))
    except ValueError:
        return str(kept)


def view_for(stream: TextIO) -> BackfillView:
    """A view on a stream."""
    console = Console(file=stream)
    return BackfillView(console if console.is_terminal else Console(file=stream, width=WIDTH_OF_A_PIPE))
