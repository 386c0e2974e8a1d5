"""An estimate on a terminal, or as JSON; and how far it has come."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.ops.cli.backfill_view import duration, rate, reading, reasons_of, size
from headrace.ops.cli.result_rows import WIDTH_OF_A_PIPE, shortened

if TYPE_CHECKING:
    from headrace.producers.backfill.estimate import Estimate, Tried
    from headrace.producers.backfill.estimating import Mean
    from headrace.schemas.messages import JsonObject, JsonValue

EVERY_S: Final = 5.0  # between two lines of a log
LIVE_S: Final = 0.2
SHOWN_FIELDS: Final = 12  # of a row
SHOWN_VALUE: Final = 200  # characters of a row's value
SHOWN_LINES: Final = 24  # of an output
SHOWN_REASON: Final = 140


class Checking:
    """How far the rows have been looked at: a line that is overwritten on a terminal, else one now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._is_live = sys.stderr.isatty()
        self._began_s: float | None = None
        self._next_s = time.monotonic() + (LIVE_S if self._is_live else EVERY_S)
        self._is_open = False

    def __enter__(self) -> Checking:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def say(self, sentence: str) -> None:
        """A sentence that stays."""
        if not self._quiet:
            self._clear()
            click.echo(sentence, err=True)

    def reading(self, read: int, of: int | None) -> None:
        """Bytes of the input."""
        self._show(lambda: reading(read, of))

    def rows(self, seen: int, of: int) -> None:
        """Rows that were looked at."""
        now = time.monotonic()
        if self._began_s is None:
            self._began_s = now
        seconds = now - self._began_s
        at = f", {rate(seen / seconds)} rows/s" if seconds >= 1 else ""
        self._show(lambda: f"looks at the rows: {seen:,} of {of:,}{at}")

    def _show(self, sentence: Any) -> None:
        now = time.monotonic()
        if self._quiet or now < self._next_s:
            return
        self._next_s = now + (LIVE_S if self._is_live else EVERY_S)
        if self._is_live:
            self._clear()
            click.echo(sentence(), err=True, nl=False)
            self._is_open = True
        else:
            click.echo(sentence(), err=True)

    def _clear(self) -> None:
        if self._is_open:
            click.echo("\r\x1b[2K", err=True, nl=False)
            self._is_open = False


# --- as JSON ----------------------------------------------------------------------------------------------


def json_line(found: Estimate) -> str:
    """One line."""
    return json.dumps(as_json(found), ensure_ascii=False)


def as_json(found: Estimate) -> JsonObject:
    """All of it. Means are `{"value", "low", "high"}`; the last two are null where there is no telling."""
    examined, spec, pace = found.examined, found.job.spec, found.pace
    seconds = None if pace is None else pace.seconds(examined.requests)
    return {
        "name": spec.job_name,
        "model": found.job.view.contract.model,
        "contract": found.job.view.contract.number,
        "rows": examined.rows,
        "rejects": {
            "rows": examined.rejects,
            "unreadable": examined.unreadable,
            "codes": dict(examined.refused.most_common()),
            "examples": [
                {"row_index": each.row, "code": each.code, "reason": each.reason, "input": each.input}
                for examples in examined.examples.values()
                for each in examples
            ],
        },
        "identical": examined.identical,
        "dedupe": spec.dedupe,
        "reused": examined.known,
        "requests": examined.requests,
        "prompt_tokens": _mean(found.prompt_tokens),
        "prompt_tokens_basis": found.prompt_basis,
        "completion_tokens": _mean(found.completion_tokens),
        "completion_deviation": found.completion_deviation if found.completion_tokens else None,
        "tokens": _mean(found.tokens),
        "token_budget": spec.token_budget,
        "token_budget_is_enough": None
        if spec.token_budget is None or found.tokens is None
        else found.shortfall is None,
        "requests_within_budget": found.shortfall,
        "hours": None if seconds is None else {"low": seconds[0] / 3600, "high": seconds[1] / 3600},
        "rate_by_capacity": None if pace is None else pace.by_capacity,
        "rate_measured": None if pace is None else pace.measured,
        "workers": 0 if found.lane is None else len(found.lane.members),
        "capacity": 0 if found.lane is None else found.lane.capacity,
        "ahead": 0 if found.lane is None else found.lane.ahead,
        "kafka_bytes": {"requests": _mean(found.request_bytes), "results": _mean(found.result_bytes)},
        "stops": found.stops,
        "tried": {
            "job": found.trial_job or None,
            "rows": len(found.tried),
            "statuses": found.statuses,
            "problem": found.problem,
        },
        "examples": [
            {
                "row_index": each.chosen.row,
                "input": each.chosen.input,
                "status": each.outcome.status,
                "error": _error(each),
                "output": each.output,
            }
            for each in found.shown
        ],
        "can_run": found.cannot_run is None,
        "cannot_run": found.cannot_run,
    }


def _mean(mean: Mean | None) -> JsonValue:
    if mean is None:
        return None
    is_known = mean.half_width is not None
    return {
        "value": round(mean.value),
        "low": round(mean.low) if is_known else None,
        "high": round(mean.high) if is_known else None,
    }


def _error(tried: Tried) -> str | None:
    outcome = tried.outcome
    return None if outcome.status == "ok" else f"{outcome.code}: {outcome.error}"


# --- on a terminal ----------------------------------------------------------------------------------------


def show(found: Estimate) -> None:
    """Print it."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_A_PIPE
    spec = found.job.spec
    console.print(Text(f"{spec.job_name}: {spec.input_path} through {found.job.view.name}", style="bold"))
    console.print()
    console.print(_figures(found))
    if found.examined.rejects:
        console.print()
        console.print(_rejects(found))
    if found.tried:
        console.print()
        console.print(_outputs(found))
    console.print()
    if (why := found.cannot_run) is not None:
        console.print(Text(f"It cannot run as it stands: {why}", style="red"))
    elif found.problem is not None:
        console.print(Text(f"It can run, as far as its rows tell; {found.problem}", style="yellow"))
    else:
        console.print(Text("It can run", style="green"))


def _figures(found: Estimate) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(style="dim", overflow="fold")
    examined = found.examined
    table.add_row("rows", f"{examined.rows:,}", "")
    table.add_row("refused", f"{examined.rejects:,}", _of_refused(found))
    table.add_row("requests", f"{examined.requests:,}", _of_requests(found))
    table.add_row("tokens of prompts", *_tokens(found.prompt_tokens, found.prompt_basis))
    table.add_row("tokens generated", *_tokens(found.completion_tokens, _of_completions(found)))
    table.add_row("tokens", *_tokens(found.tokens, _of_budget(found)))
    table.add_row("time", *_time(found))
    table.add_row("in Kafka", *_bytes(found))
    return table


def _of_refused(found: Estimate) -> str:
    examined = found.examined
    limit = f"max_failures is {found.job.spec.breaker}"
    if not examined.rejects:
        return f"every row makes a request; {limit}"
    unreadable = f", {examined.unreadable:,} of them cannot be read" if examined.unreadable else ""
    return f"{reasons_of(examined.refused)}{unreadable}; {limit}"


def _of_requests(found: Estimate) -> str:
    examined, spec = found.examined, found.job.spec
    said: list[str] = []
    if examined.identical and spec.dedupe:
        said.append(f"{examined.identical:,} rows ask the same as another and share its answer")
    elif examined.identical:
        said.append(f"{examined.identical:,} rows ask the same as another: --dedupe would spare them")
    if spec.reuse is not None:
        said.append(f"{examined.known:,} rows have their answers from {spec.reuse}")
    return "; ".join(said)


def _tokens(mean: Mean | None, basis: str) -> tuple[str, str]:
    if mean is None:
        return "?", basis
    if mean.half_width is None:
        return f"{mean.value:,.0f}", f"no telling how far off; {basis}"
    if round(mean.low) == round(mean.high):
        return f"{mean.value:,.0f}", basis
    return f"{mean.value:,.0f}", f"{mean.low:,.0f} to {mean.high:,.0f}; {basis}"


def _of_completions(found: Estimate) -> str:
    if found.completion_tokens is None or not found.examined.requests:
        return "no request was answered" if found.trial_job else "nothing was asked"
    each = found.completion_tokens.value / found.examined.requests
    statuses = _counts(found.statuses)
    return (
        f"{each:,.1f} a request, with a standard deviation of {found.completion_deviation:,.1f}; "
        f"of {len(found.tried)} that were tried ({statuses})"
    )


def _of_budget(found: Estimate) -> str:
    budget = found.job.spec.token_budget
    if budget is None:
        return "the job has no token_budget"
    if found.tokens is None:
        return f"token_budget is {budget:,}"
    if found.shortfall is not None:
        return f"token_budget is {budget:,}: spent after some {found.shortfall:,} requests"
    if found.tokens.high > budget:
        return f"token_budget is {budget:,}: enough most likely, but not at the upper end"
    return f"token_budget is {budget:,}: enough"


def _time(found: Estimate) -> tuple[str, str]:
    pace, lane = found.pace, found.lane
    if pace is None or lane is None:
        return "?", "" if lane is None or not lane.members else _workers(found)
    low, high = pace.seconds(found.examined.requests)
    shown = duration(low) if duration(low) == duration(high) else f"{duration(low)} to {duration(high)}"
    ahead = f"; {lane.ahead:,} requests wait in the lane before it" if lane.ahead else ""
    by_capacity = (
        f"{_workers(found)}, each as quickly as those that were tried: {rate(pace.by_capacity)} requests/s; "
        if pace.by_capacity
        else ""
    )
    return shown, f"a guess: {by_capacity}as fast as those came: {rate(pace.measured)}{ahead}"


def _workers(found: Estimate) -> str:
    if found.lane is None:
        return ""
    count = len(found.lane.members)
    who = "1 worker takes" if count == 1 else f"{count:,} workers take"
    return f"{who} {found.lane.capacity:,} at a time"


def _bytes(found: Estimate) -> tuple[str, str]:
    requests, results = found.request_bytes, found.result_bytes
    if results is None:
        return size(round(requests.value)), "requests alone, before compression and replication"
    return (
        size(round(requests.value + results.value)),
        f"requests {size(round(requests.value))}, results {size(round(results.value))}, before compression and "
        "replication",
    )


def _rejects(found: Estimate) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("REFUSED", "ROW", "WHY"):
        table.add_column(name, no_wrap=name != "WHY", justify="right" if name == "ROW" else "left")
    for code, count in found.examined.refused.most_common():
        for place, each in enumerate(found.examined.examples[code]):
            first = Text(f"{code} {count:,}") if place == 0 else Text()
            table.add_row(first, f"{each.row:,}", shortened(each.reason, SHOWN_REASON))
    return table


def _outputs(found: Estimate) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 1, 0))
    table.add_column("ROW", justify="right", no_wrap=True)
    table.add_column("INPUT", ratio=1, overflow="fold")
    table.add_column("OUTPUT", ratio=1, overflow="fold")
    for each in found.shown:
        style = "" if each.outcome.status == "ok" else "yellow"
        table.add_row(f"{each.chosen.row:,}", Text(_row(each.chosen.input)), Text(_said(each), style=style))
    return table


def _row(row: JsonObject) -> str:
    """A row's values that are there, a line each."""
    there = {name: value for name, value in row.items() if value is not None}
    lines = [
        f"{shortened(name, 60)}: {shortened(_plain(value), SHOWN_VALUE)}"
        for name, value in list(there.items())[:SHOWN_FIELDS]
    ]
    return "\n".join(lines + ([f"and {len(there) - SHOWN_FIELDS} more"] if len(there) > SHOWN_FIELDS else []))


def _said(tried: Tried) -> str:
    output = tried.output
    said = [] if tried.outcome.status == "ok" else [f"{tried.outcome.status}: {_error(tried)}"]
    if output is not None:
        text = output if isinstance(output, str) else json.dumps(output, indent=1, ensure_ascii=False)
        lines = text.splitlines()[: SHOWN_LINES + 1]
        said += [
            shortened(line, SHOWN_VALUE) if line.strip() == line else _indented(line)
            for line in lines[:SHOWN_LINES]
        ]
        said += ["\N{HORIZONTAL ELLIPSIS}"] if len(lines) > SHOWN_LINES else []
    return "\n".join(said)


def _indented(line: str) -> str:
    text = line.lstrip()
    return line[: min(8, len(line) - len(text))] + shortened(text, SHOWN_VALUE)


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
