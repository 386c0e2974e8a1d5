"""`headrace bench backfill`."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from headrace.ops.cli.bench_output import as_json as as_json_option
from headrace.ops.cli.bench_output import say

if TYPE_CHECKING:
    from headrace.ops.bench.backfill_comparison import Comparison
    from headrace.ops.bench.backfill_scale import KilledFigures, ScaleFigures

KILLED, PEER_KILLED = 60_000, 3_000  # rows of the job that is killed
# Those of `backfill_comparison`, which is imported only when it runs.
ONLY = (
    *("run-batch", "ray", "ray-checkpoints", "headrace-cold", "headrace-up"),
    *("run-batch-one-thread", "headrace-up-one-thread"),
)


@click.command(
    epilog="""\b
    Examples:
      headrace bench backfill
      headrace bench backfill --rows 1000000
      headrace bench backfill --rows 100000 --killed-rows 0 --json
      headrace bench backfill --peers
      headrace bench backfill --peers --peer-rows 500 --times 1 --only run-batch --only headrace-up"""
)
@click.option("--rows", type=click.IntRange(10_000), default=200_000, show_default=True, help="Of the table.")
@click.option(
    "--killed-rows",
    type=click.IntRange(0),
    help="Of a second job, killed at half and run again; 0: none. Default: 60000; with --peers 3000.",
)
@click.option(
    "--peers",
    is_flag=True,
    help="Instead: beside vLLM's run-batch and Ray Data LLM, with a tiny model, which takes an hour.",
)
@click.option(
    "--peer-rows",
    type=click.IntRange(10),
    default=5_000,
    show_default=True,
    help="With --peers: of each run.",
)
@click.option(
    "--times", type=click.IntRange(1), default=3, show_default=True, help="With --peers: runs of each."
)
@click.option(
    "--bad-rows",
    type=click.IntRange(0),
    default=200,
    show_default=True,
    help="With --peers: rows of which one is bad; 0: none.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(ONLY),
    help="With --peers: this one; may be given again. Default: all.",
)
@click.option(
    "--write",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="With --peers: the page to write.",
)
@as_json_option
@click.pass_context
def backfill(
    context: click.Context,
    rows: int,
    killed_rows: int | None,
    peers: bool,
    peer_rows: int,
    times: int,
    bad_rows: int,
    only: tuple[str, ...],
    write: Path | None,
    as_json: bool,
) -> None:
    """Very many rows through a worker whose engine takes no time: rows a second, CPU of a row, memory.

    From command to finished Parquet file, on a real Kafka and the machine's own cores.

    With --peers: the same rows through vLLM, by Headrace and by others; a peer that cannot be had is left out.
    """
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    given = {
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if peers:
        _refuse(given & {"rows"}, "goes without --peers: see --peer-rows")
        _compare(
            peer_rows,
            times,
            PEER_KILLED if killed_rows is None else killed_rows,
            bad_rows,
            only,
            write,
            as_json,
        )
    else:
        _refuse(given & {"peer_rows", "times", "bad_rows", "only", "write"}, "goes with --peers")
        _scale(rows, KILLED if killed_rows is None else killed_rows, as_json)


def _refuse(options: set[str], why: str) -> None:
    if options:
        raise click.UsageError(f"--{min(options).replace('_', '-')} {why}")


def _scale(rows: int, killed_rows: int, as_json: bool) -> None:
    from headrace.ops.bench.backfill_scale import measure

    figures, killed = measure(rows, killed_rows, say)
    if as_json:
        found: dict[str, Any] = {"scale": asdict(figures) | {"rows_per_s": figures.rows_per_s}}
        if killed is not None:
            found["killed"] = asdict(killed) | {"regenerated": killed.regenerated}
        click.echo(json.dumps(found))
        return
    for line in _lines(figures, killed):
        click.echo(line)


def _compare(
    rows: int,
    times: int,
    killed_rows: int,
    bad_rows: int,
    only: tuple[str, ...],
    write: Path | None,
    as_json: bool,
) -> None:
    from headrace.ops.bench import backfill_comparison as comparison
    from headrace.ops.bench.backfill_contenders import Plan

    def keep(found: Comparison) -> None:
        found.place.mkdir(parents=True, exist_ok=True)
        (found.place / "figures.json").write_text(json.dumps(_figures(found)), encoding="utf-8")
        if write is not None:
            write.write_text(comparison.page(found), encoding="utf-8")

    found = comparison.compare(Plan(rows, times, killed_rows, bad_rows), only, say, keep)
    if write is not None:
        say(f"written: {write}")
    if as_json:
        click.echo(json.dumps(_figures(found)))
        return
    click.echo(comparison.table(found))
    click.echo("")
    click.echo(comparison.start_table(found))
    click.echo("")
    click.echo(comparison.meaning(found))


def _figures(found: Comparison) -> dict[str, Any]:
    measured = {name: asdict(each) for name, each in found.measured.items()}
    return {"measured": measured, "left_out": found.left_out}


def _lines(figures: ScaleFigures, killed: KilledFigures | None) -> list[str]:
    memory = (figures.rss_at_tenth, figures.rss_at_half, figures.rss_at_nine_tenths, figures.rss_most)
    tenth, half, nine, most = (f"{each / 1e6:.0f}" for each in memory)
    lines = [
        f"{figures.rows:,} rows in {figures.seconds:.1f} s, start-up included: {figures.rows_per_s:,.0f} rows/s",
        f"CPU of a row: {figures.cpu_us_backfill:.0f} us in the backfill, {figures.cpu_us_worker:.0f} us in the worker",
        f"memory of the backfill: {tenth} MB at a tenth of the time, {half} at half, {nine} at nine tenths; "
        f"at most {most}",
    ]
    if killed is not None:
        lines.append(
            f"killed with {killed.settled_at_kill:,} of {killed.rows:,} rows in parts and "
            f"{killed.outstanding_at_kill:,} outstanding: {killed.regenerated:,} generated again, "
            f"{killed.written:,} rows in the output"
        )
    return lines
