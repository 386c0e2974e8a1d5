"""Jobs on a terminal: the list, and one with all that is known of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from headrace.ops.cli.backfill_view import duration, percent, reasons_of
from headrace.ops.cli.result_rows import shortened
from headrace.producers.backfill.locations import without_secrets

if TYPE_CHECKING:
    from headrace.ops.cli.backfill_jobs import FoundJob

COLUMNS = ("JOB", "MODEL", "STAGE", "ROWS", "THROUGH", "FAILED", "LAST WORD", "OUTPUT")
NUMBERS = ("ROWS", "THROUGH", "FAILED")
SHOWN_OUTPUT = 60  # characters


def print_list(jobs: Sequence[FoundJob], hidden: int, now_ms: int) -> None:
    """A table, the newest word first; `hidden` are done or cancelled and were left out."""
    if jobs:
        rows = [COLUMNS, *(_row(each, now_ms) for each in jobs)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [
                cell.rjust(width) if name in NUMBERS else cell.ljust(width)
                for name, cell, width in zip(COLUMNS, row, widths, strict=True)
            ]
            click.echo("  ".join(cells).rstrip())
    else:
        click.echo("no job is under way" if hidden else "there are no jobs", err=True)
    if hidden:
        click.echo(f"{hidden:,} that are done or cancelled are left out (--all has them)", err=True)


def print_json(jobs: Sequence[FoundJob], now_ms: int) -> None:
    """One JSON object a line."""
    for each in jobs:
        click.echo(json.dumps(each.as_json(now_ms), ensure_ascii=False))


def _row(job: FoundJob, now_ms: int) -> tuple[str, ...]:
    rows, settled, failed = job.counts
    running = job.known.running
    said = "" if running is None else f"{duration(max(0, now_ms - running.at) / 1000)} ago"
    output = job.output
    if len(output) > SHOWN_OUTPUT:
        output = "\N{HORIZONTAL ELLIPSIS}" + output[1 - SHOWN_OUTPUT :]
    return (
        job.id.job,
        f"{job.id.model}@{job.id.number}",
        job.stage(now_ms),
        f"{rows:,}" if rows else "",
        percent(settled / rows) if rows else "",
        f"{failed:,}" if failed else "",
        said,
        output,
    )


def print_status(job: FoundJob, now_ms: int) -> None:
    """All that is known of one."""
    lines = list(status_lines(job, now_ms))
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        click.echo(f"{name.ljust(width)}  {text}".rstrip())


def status_lines(job: FoundJob, now_ms: int) -> Iterator[tuple[str, str]]:
    """(what, what there is to say of it)."""
    running, order, state = job.known.running, job.known.order, job.state
    yield "job", f"{job.id.job}, {job.id.model}@{job.id.number}: {job.stage(now_ms)}"
    if job.is_attended(now_ms):
        assert running is not None
        yield "run by", f"{running.host}, heard {duration(max(0, now_ms - running.at) / 1000)} ago"
    elif running is not None and not job.is_done:
        ago = duration(max(0, now_ms - running.at) / 1000)
        yield "run by", f"nobody now; {running.host} said {running.status!r} {ago} ago"
    if order is not None and not job.is_done:
        ago = duration(max(0, now_ms - order.at) / 1000)
        yield (
            "order",
            f"{order.order}, by {order.by}, {ago} ago: `headrace backfill resume {job.id.job}` takes it back",
        )
    rows, settled, failed = job.counts
    if rows:
        yield "rows", f"{settled:,} of {rows:,} are through ({percent(settled / rows)}), {failed:,} failed"
    if state is not None:
        yield (
            "written",
            f"{state.written_rows:,} rows in parts that are complete: {_statuses(state.statuses)}",
        )
        if state.codes:
            yield "reasons", reasons_of(state.codes)
        prompt, completion = state.tokens
        yield "tokens", f"{prompt:,} of prompts, {completion:,} generated, for these rows"
        yield "worked at", f"{duration(state.busy_ms / 1000)}, written {_ago(now_ms, state.updated_ms)}"
        if state.round:
            yield "round", f"{state.round + 1}" + (f", for the {state.redo}" if state.redo else "")
        if state.reason and not job.is_done:
            yield "stopped", shortened(state.reason, 300)
        yield "input", without_secrets(state.input)
    elif not job.is_done:
        yield "state", "cannot be read from here: it lies beside the output"
    yield "output", job.output


def _ago(now_ms: int, at_ms: int) -> str:
    return f"{duration(max(0, now_ms - at_ms) / 1000)} ago"


def _statuses(statuses: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in sorted(statuses.items())) or "none"
