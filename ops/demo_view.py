"""What the demo shows: live in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from headrace.ops.cli.result_rows import shortened

if TYPE_CHECKING:
    from headrace.ops.broker import RunningBroker
    from headrace.ops.demo_tally import Tally
    from headrace.schemas.messages import Result
    from headrace.topics.names import ContractNames

PLAIN_EVERY = 5  # answers between two lines where nobody sees a bar move
WIDTH_OF_A_PIPE = 160  # characters, where there is no terminal
ID_WIDTH = 22
WIDE = 100  # characters; a terminal below that has narrow columns
FILM_WIDTH, NARROW_FILM_WIDTH = 28, 22
LIST_WIDTH, NARROW_LIST_WIDTH = 24, 12
SHORT = 14  # a value of at most so many characters is shown whole
SHORTEST_TEXT = 16  # a longer one is left out where there is no room for so many of them


class Stage:
    """One step of the demo while it is under way."""

    def __init__(self, view: View, name: str) -> None:
        self._view = view
        self._name = name
        self._began = time.monotonic()
        self._status = view.console.status(f"{name} …") if view.console.is_terminal else None
        if self._status is not None:
            self._status.start()

    def says(self, line: str) -> None:
        """What it is doing just now."""
        if self._status is not None:
            self._status.update(f"{self._name}: {line}")
        else:
            self._view.line(f"{self._name}: {line}")

    def done(self, what: str) -> None:
        """It is through."""
        self.end()
        mark = Text("✓ ", style="green") if self._view.console.is_terminal else Text("ok ")
        seconds = Text(f"  {time.monotonic() - self._began:.1f} s", style="dim")
        self._view.line(mark + Text(f"{self._name:<9}") + Text(what) + seconds)

    def end(self) -> None:
        """Take its moving line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None


class Asking:
    """The answers as they come."""

    def __init__(self, view: View, total: int, bar: Progress | None) -> None:
        self._view = view
        self._total = total
        self._bar = bar
        self._task = bar.add_task("films", total=total, rate="") if bar else None

    def answered(self, result: Result, tally: Tally) -> None:
        """One more."""
        count = len(tally.answered)
        rate = f"{tally.tokens / tally.seconds:.0f} tok/s" if tally.seconds > 0 else ""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=count, rate=rate)
            self._bar.console.print(_line_of(result), highlight=False, no_wrap=True, overflow="ellipsis")
        elif count % PLAIN_EVERY == 0 or count == self._total:
            self._view.line(
                f"{count}/{self._total} answered, {rate}; last: {_line_of(result).plain.strip()[:110]}"
            )


class View:
    """Shows the demo on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, what: str | Text) -> None:
        """One line, as it is."""
        self.console.print(what, highlight=False, soft_wrap=True)

    def note(self, what: str) -> None:
        """Something worth knowing."""
        self.line(Text(f"  note: {what}", style="yellow"))

    @contextmanager
    def stage(self, name: str) -> Generator[Stage]:
        """A step; its moving line goes however the step ends."""
        stage = Stage(self, name)
        try:
            yield stage
        finally:
            stage.end()

    @contextmanager
    def asking(self, total: int) -> Generator[Asking]:
        """The time between the first request and the last answer."""
        if not self.console.is_terminal:
            yield Asking(self, total, None)
            return
        columns = (SpinnerColumn(), TextColumn("films"), BarColumn(), MofNCompleteColumn())
        with Progress(
            *columns, TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), console=self.console
        ) as bar:
            yield Asking(self, total, bar)

    def finish(
        self, tally: Tally, films: list[dict[str, Any]], names: ContractNames, broker: RunningBroker
    ) -> None:
        """The table of films and tags, the summary, and what to try next."""
        self.console.print()
        self.console.print(_table(tally, films, self.console))
        self.line(summary(tally))
        self.line(_where(names, broker))


def summary(tally: Tally) -> str:
    """Counts that add up to what was sent."""
    statuses = ", ".join(
        f"{count} {status}" for status, count in sorted(_count(tally).items(), key=lambda each: -each[1])
    )
    seconds = max(tally.seconds, 0.001)
    distinct = len({_values(result) for result in tally.answered.values() if result.status == "ok"})
    verdict = "PASS" if tally.passed else "FAIL"
    return (
        f"{tally.sent} sent, {len(tally.answered)} answered ({statuses}), "
        f"{tally.lost} lost, {tally.doubled} doubled, {len(tally.invalid)} invalid\n"
        f"{tally.retried} retried, {tally.dead} dead letters; {distinct} distinct tag sets\n"
        f"{tally.tokens} tokens in {tally.seconds:.1f} s: {tally.tokens / seconds:.0f} tok/s, "
        f"{tally.sent / seconds:.1f} films/s\n"
        f"{verdict}"
    )


def _count(tally: Tally) -> dict[str, int]:
    counts: dict[str, int] = {}
    for result in tally.answered.values():
        counts[result.status] = counts.get(result.status, 0) + 1
    return counts


def _where(names: ContractNames, broker: RunningBroker) -> str:
    stays = broker.kind == "given"
    where = f"results: topic {names.results}\n         on {broker.bootstrap_servers}" + (
        "" if stays else " (this broker ends now, and its data with it)"
    )
    return (
        f"{where}\n"
        "next: make up                    the same, staying up, and how to talk to it; from any OpenAI client:\n"
        '        client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none is asked for")\n'
        f'        client.chat.completions.create(model="{names.model}", messages=[...])\n'
        "      headrace init my-model     a package of your own\n"
        "      make test                  see it hold"
    )


def _table(tally: Tally, films: list[dict[str, Any]], console: Console) -> Table:
    columns = sorted(
        {name for result in tally.answered.values() for name in _value(result)}, key=_order(tally)
    )
    values = {name: [_value(each).get(name) for each in tally.answered.values()] for name in columns}
    widths = column_widths(values, console.width)
    left_out = [name for name in columns if name not in widths]
    table = Table(
        title="films and their tags" + (f" (no room for {', '.join(left_out)})" if left_out else ""),
        title_justify="left",
        row_styles=["", "dim"] if console.is_terminal else None,
    )
    table.add_column("film", no_wrap=True, width=_film_width(console.width))
    for name, width in widths.items():
        table.add_column(name, width=width, no_wrap=not _holds_lists(values[name]))
    for film in films:
        result = tally.answered.get(film["id"])
        title = str(film.get("title", film["id"]))
        if result is None or result.status != "ok":
            status = "no answer" if result is None else result.status
            table.add_row(title, *([status] + [""] * (len(widths) - 1))[: len(widths)])
        else:
            value = _value(result)
            table.add_row(title, *(_shown(value.get(name)) for name in widths))
    return table


def column_widths(values: dict[str, list[Any]], width: int) -> dict[str, int]:
    """How many characters each column has in a table of `width`: short values whole, lists in several lines, and
    what is left for texts, or no column where that is too little."""
    widths: dict[str, int | None] = {}
    for name, each in values.items():
        longest = max(len(name), *(len(_shown(value)) for value in each))
        if _holds_lists(each):
            widths[name] = min(longest, LIST_WIDTH if width >= WIDE else NARROW_LIST_WIDTH)
        else:
            widths[name] = longest if longest <= SHORT else None
    known = [found for found in widths.values() if found is not None]
    texts = len(widths) - len(known)
    borders = 3 * (1 + len(widths)) + 1
    left = (width - borders - _film_width(width) - sum(known)) // max(texts, 1)
    text = left if left >= SHORTEST_TEXT else None
    shown = {name: text if found is None else found for name, found in widths.items()}
    return {name: found for name, found in shown.items() if found is not None}


def _film_width(width: int) -> int:
    return FILM_WIDTH if width >= WIDE else NARROW_FILM_WIDTH


def _holds_lists(values: list[Any]) -> bool:
    return any(isinstance(value, list) for value in values)


def _order(tally: Tally) -> Any:
    """Columns in the order of the schema's properties, which is the order in which the model wrote them."""
    for result in tally.answered.values():
        if value := _value(result):
            return list(value).index
    return str


def _value(result: Result) -> dict[str, Any]:
    value = result.outputs[0].value if result.outputs and result.status == "ok" else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _values(result: Result) -> str:
    return repr(sorted(_value(result).items()))


def _shown(value: Any) -> str:
    return (
        ", ".join(str(each) for each in cast("list[Any]", value)) if isinstance(value, list) else str(value)
    )


def _line_of(result: Result) -> Text:
    if result.status != "ok":
        return Text(f"  {_id_of(result)} {result.status}", style="red")
    shown = "  ".join(_shown(each) for each in _value(result).values())
    return Text(f"  {_id_of(result)} {shown}", style="dim")


def _id_of(result: Result) -> str:
    return f"{shortened(result.id, ID_WIDTH):<{ID_WIDTH}}"


def view_for(stream: TextIO) -> View:
    """A view on a stream: live where it is a terminal."""
    console = Console(file=stream)
    return View(console if console.is_terminal else Console(file=stream, width=WIDTH_OF_A_PIPE))
