"""How a rollout stands, side by side: a table for a terminal, an object for a script. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from headrace.consumers.group_members import GroupMembers
from headrace.consumers.rollouts import RolloutState, shown_shares
from headrace.ops.rollouts.evidence import Tally
from headrace.ops.rollouts.steps import units_of

COLUMNS = (
    *("VERSION", "WANTED", "REAL", "PARTITIONS", "WORKERS", "WAITING", "ANSWERS", "PER S"),
    *("FAILED", "INVALID", "P50 MS", "P95 MS"),
)
SPARED_WHERE_NARROW = ("PARTITIONS", "PER S", "INVALID", "P50 MS")
WIDE = 112  # columns of a terminal that have room for all


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version as it stands. Rates are parts of its answers; None: it has none."""

    version: str
    wanted: float | None  # part of the units, as planned; None: nothing is planned
    units: int
    partitions: str  # the units' numbers
    members: int
    waiting: int  # requests that are not done
    answers: int
    per_s: float
    failed: float | None
    invalid: float | None
    p50_ms: float | None
    p95_ms: float | None
    tokens: int

    def as_json(self) -> dict[str, Any]:
        """As `rollout status --json` prints it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def rows_of(
    shares: Mapping[str, int], group: GroupMembers, tallies: Mapping[str, Tally], seconds: float
) -> list[VersionRow]:
    """A row for each version that is planned, lives or has answered. `tallies` were counted over `seconds`."""
    owned, live, waiting = group.owned(), group.live(), group.waiting_for()
    weights = sum(shares.values())
    versions = sorted(
        {*owned, *live, *tallies, *(version for version, weight in shares.items() if weight)} - {""}
    )
    return [
        _row(
            version,
            shares.get(version, 0) / weights if weights else None,
            sorted(unit for member in group.members if member.version == version for unit in member.units),
            live.get(version, 0),
            waiting.get(version, 0),
            tallies.get(version, Tally()),
            seconds,
        )
        for version in versions
        if owned.get(version, 0) + live.get(version, 0) + shares.get(version, 0) or version in tallies
    ]


def _row(
    version: str,
    wanted: float | None,
    units: Sequence[int],
    members: int,
    waiting: int,
    tally: Tally,
    seconds: float,
) -> VersionRow:
    answers = tally.answers
    return VersionRow(
        version,
        wanted,
        len(units),
        ranges(units),
        members,
        waiting,
        answers,
        answers / seconds if seconds > 0 else 0.0,
        tally.failed / answers if answers else None,
        tally.invalid / answers if answers else None,
        tally.quantile_ms(0.5),
        tally.quantile_ms(0.95),
        tally.tokens,
    )


def ranges(numbers: Sequence[int]) -> str:
    """`0-3, 7`: sorted numbers, those in a row together."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def table_of(rows: Sequence[VersionRow], units: int, width: int | None = None) -> Table:
    """For a terminal. One with fewer than WIDE columns is spared those that matter least; None: all are shown."""
    spared = () if width is None or width >= WIDE else SPARED_WHERE_NARROW
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        if name not in spared:
            table.add_column(name, justify="left" if name in ("VERSION", "PARTITIONS") else "right")
    for row in rows:
        cells = zip(COLUMNS, _cells(row, units), strict=True)
        table.add_row(*(cell for name, cell in cells if name not in spared))
    return table


def _cells(row: VersionRow, units: int) -> Sequence[str | Text]:
    return (
        row.version,
        _percent(row.wanted, 0),
        f"{row.units} of {units} ({_percent(row.units / units if units else None, 0)})",
        row.partitions or "-",
        str(row.members) if row.members else Text("none", style="red"),
        f"{row.waiting:,}",
        f"{row.answers:,}",
        f"{row.per_s:,.1f}",
        _bad(row.failed),
        _bad(row.invalid),
        "-" if row.p50_ms is None else f"{row.p50_ms:,.0f}",
        "-" if row.p95_ms is None else f"{row.p95_ms:,.0f}",
    )


def _percent(part: float | None, digits: int = 1) -> str:
    return "-" if part is None else f"{part:.{digits}%}"


def _bad(rate: float | None) -> Text:
    return Text(_percent(rate), style="red" if rate else "")


def warnings_of(shares: Mapping[str, int], group: GroupMembers) -> list[str]:
    """What is not as it was planned, loudly."""
    live = group.live()
    named = {version: weight for version, weight in shares.items() if weight}
    said = [
        f"version {version} is planned and no worker of it lives: its share goes to the others"
        for version in sorted(named)
        if not live.get(version, 0) and any(live.get(other, 0) for other in named)
    ]
    if named and not any(live.get(version, 0) for version in named):
        said.append(f"no worker lives of what is planned ({shown_shares(shares)}): whoever lives serves all")
    idle = sorted(version for version in live if named and version and version not in named)
    said += [f"version {version} has workers and no share: they idle" for version in idle]
    if not live:
        said.append("no worker lives: nothing is answered")
    wanted = {
        version: units
        for version, units in units_of(named, group.units, group.owned()).items()
        if live.get(version, 0)
    }
    if (
        len(wanted) == len(named)
        and group.is_stable
        and any(group.owned().get(version, 0) != units for version, units in wanted.items())
    ):
        said.append("units are moving")
    return said


def head_of(id_: str, state: RolloutState) -> str:
    """A line on a rollout: what was asked for, and how far it is."""
    rollout = state.rollout
    if rollout is None:
        return f"rollout {id_}: its record is missing"
    return f"rollout {id_}: {rollout.model}/{rollout.contract} to version {rollout.to}, {stage_of(state)}"


def stage_of(state: RolloutState) -> str:
    """Where it is, in words."""
    rollout, progress = state.rollout, state.progress
    if state.rollback is not None:
        return f"rolled back by {state.rollback.by or 'somebody'}: {state.rollback.why}"
    if rollout is None:
        return "unknown"
    if progress is None:
        return "not begun: no controller has looked at it"
    steps = " ".join(
        f"[{percent}]" if index == progress.step else str(percent)
        for index, percent in enumerate(rollout.steps)
    )
    if progress.state == "finished":
        return f"finished {when(progress.since)}"
    paused = " (paused)" if state.wish == "pause" else ""
    return f"{progress.state}{paused}, steps {steps} %, since {when(progress.since)}"


def when(ms: int) -> str:
    """Local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))
