"""The comparison as Markdown, from what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from headrace.ops.bench.backfill_contenders import BadRowFigures, KilledFigures, Measured, RunFigures

COLUMNS = (
    "",
    "seconds to the finished file",
    "steady tokens/s",
    "peak memory, MB",
    "killed at half, run again",
    "a line that is no JSON",
    "a prompt that is too long",
)


def comparison_table(contenders: Sequence[Measured]) -> str:
    """A row for each contender, in their order."""
    lines = [markdown_line(COLUMNS), markdown_line(["---"] * len(COLUMNS))]
    for measured in contenders:
        bad = {figures.bad: _bad(figures) for figures in measured.bad}
        lines.append(
            markdown_line(
                [
                    measured.name,
                    _seconds(measured.runs),
                    _rate(measured.runs),
                    _memory(measured.runs),
                    "not measured" if measured.killed is None else _killed(measured.killed),
                    bad.get("not JSON", "not measured"),
                    bad.get("too long", "not measured"),
                ]
            )
        )
    return "\n".join(lines)


def markdown_line(cells: Sequence[str]) -> str:
    """A row of a table."""
    return "| " + " | ".join(cells) + " |"


def _spread(values: Sequence[float], digits: int) -> str:
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def _seconds(runs: Sequence[RunFigures]) -> str:
    if not runs:
        return "not measured"
    short = sum(run.rows - run.ok for run in runs)
    said = _spread([run.seconds for run in runs], 1)
    return f"{said}; {short} rows without an answer" if short else said


def _rate(runs: Sequence[RunFigures]) -> str:
    rates = [run.steady_tokens_per_s for run in runs if run.steady_tokens_per_s is not None]
    return _spread(rates, 0) if rates else "not seen"


def _memory(runs: Sequence[RunFigures]) -> str:
    if not runs:
        return "not measured"
    rss, pss = max(run.peak_rss for run in runs), max(run.peak_pss for run in runs)
    said = f"{rss / 1e6:,.0f} (shared pages once: {pss / 1e6:,.0f})"
    beside = max(run.peak_rss_beside for run in runs)
    return f"{said}; the worker beside it: {beside / 1e6:,.0f}" if beside else said


def _killed(killed: KilledFigures) -> str:
    parts = [
        f"{killed.done_at_kill:,} of {killed.rows:,} done, {killed.kept:,} kept",
        f"{killed.regenerated:,} generated again",
        *([f"**{killed.lost:,} lost**"] if killed.lost else []),
        *([f"**{killed.doubled:,} twice in the output**"] if killed.doubled else []),
    ]
    return "; ".join(parts)


def _bad(figures: BadRowFigures) -> str:
    good = figures.rows - 1
    if figures.ends_the_job:
        return (
            f"**ends the job** (exit code {figures.exit_code}): {figures.ok:,} of {good:,} good rows answered"
        )
    told = "it has a line with an error" if figures.said_of_it else "**it is missing, without a word**"
    return f"the others are answered; {told}"
