"""What a terminal says of a job that runs: sentences for a log, and the figures of a live line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.producers.backfill.progress import JobView

REASONS_SHOWN = 4


@dataclass(slots=True)
class JobLine:
    """One job as it stands now; `name` until it has an id."""

    name: str
    model: str
    view: JobView | None = None
    read: tuple[int, int | None] | None = None  # bytes of the input, of how many
    joined: int | None = None  # rows of the output
    ended: str | None = None

    @property
    def shown_name(self) -> str:
        """The job's id, once it has one."""
        return self.name if self.view is None else self.view.job

    @property
    def phase(self) -> str:
        """What it is doing: when this changes, a log has a line of it at once."""
        if self.ended is not None:
            return self.ended
        if self.joined is not None:
            return "putting together"
        if self.view is None:
            return "starting" if self.read is None else "reading the input"
        return f"{self.view.state} {self.view.note}".strip() + (" unserved" if is_unserved(self.view) else "")

    @property
    def part(self) -> float:
        """How much of it is done, from 0 to 1."""
        if self.view is None:
            read, of = self.read or (0, None)
            return 0.0 if not of else min(1.0, read / of)
        return 1.0 if not self.view.rows else self.view.settled / self.view.rows


def is_unserved(view: JobView) -> bool:
    """Whether rows wait and nobody answers them."""
    return view.is_lane_known and view.members == 0 and view.outstanding > 0


def line_of(job: JobLine) -> str:
    """All of it in a sentence, for a log."""
    return f"{job.shown_name}: {'; '.join(said(job))}"


def said(job: JobLine) -> list[str]:
    """What there is to say, the most important first."""
    view = job.view
    if job.ended is not None:
        return [job.ended]
    if job.joined is not None and view is not None:
        return [f"puts the output together: {job.joined:,} of {view.rows:,} rows"]
    if view is None:
        return ["starts" if job.read is None else reading(*job.read)]
    parts = [rows_of(view)]
    if (trouble := trouble_of(view, job.model)) is not None:
        parts.append(trouble)
    parts += [speed_of(view), tokens_of(view)]
    if view.failed:
        parts.append(failures_of(view))
    if (fleet := fleet_of(view)) is not None:
        parts.append(fleet)
    return [each for each in parts if each]


def in_short(job: JobLine) -> str:
    """The same in half a line, for one of several."""
    view = job.view
    if view is None or job.ended is not None or job.joined is not None:
        return said(job)[0]
    parts = [rows_of(view)]
    if view.failed:
        parts.append(f"{view.failed:,} failed")
    if (trouble := trouble_of(view, job.model)) is not None:
        parts.append(trouble)
    elif view.eta_s is not None and view.settled < view.rows:
        parts.append(f"{rate(view.row_rate)}/s, {duration(view.eta_s)} left")
    return "; ".join(parts)


def reading(read: int, of: int | None) -> str:
    """How far the input has been read."""
    return f"reads the input: {size(read)}" + ("" if of is None else f" of {size(of)}")


def rows_of(view: JobView) -> str:
    """How many rows are through."""
    if not view.rows:
        return "no rows"
    return f"{view.settled:,} of {view.rows:,} rows ({percent(view.settled / view.rows)})"


def trouble_of(view: JobView, model: str) -> str | None:
    """Why it does not go on, or not as fast as it could."""
    match view.state:
        case "paused":
            return f"paused {view.note}: `headrace backfill resume {view.job}` lets it go on"
        case "catching up":
            return "takes what was answered before"
        case "stopping" | "cancelling":
            return "stops"
        case _:
            pass
    if is_unserved(view):
        return f"no worker serves {model}: {view.outstanding:,} rows wait for one"
    return view.note or None


def speed_of(view: JobView) -> str:
    """Rate, and when it will be done."""
    if view.state not in ("running", "catching up") or view.settled == view.rows:
        return ""
    if view.eta_s is None:
        return f"no telling when it is done: {view.eta_basis}"
    return f"{rate(view.row_rate)} rows/s, done in {duration(view.eta_s)} at the rate {view.eta_basis}"


def tokens_of(view: JobView) -> str:
    """What it has cost so far."""
    if not view.prompt_tokens and not view.completion_tokens:
        return ""
    return (
        f"{view.prompt_tokens:,} tokens of prompts, {view.completion_tokens:,} generated "
        f"({rate(view.token_rate)} tok/s)"
    )


def failures_of(view: JobView) -> str:
    """How many rows have no output, and why."""
    reasons = reasons_of(view.reasons)
    return f"{view.failed:,} failed" + (f" ({reasons})" if reasons else "")


def reasons_of(reasons: Mapping[str, int]) -> str:
    """`too_long 12, no_title 3`: the most frequent first."""
    ordered = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
    shown = [f"{reason} {count:,}" for reason, count in ordered[:REASONS_SHOWN]]
    more = len(ordered) - REASONS_SHOWN
    return ", ".join(shown) + (f" and {more} more reasons" if more > 0 else "")


def fleet_of(view: JobView) -> str | None:
    """How much of the fleet works at it."""
    if not view.is_lane_known or not view.members:
        return None
    if view.settled == view.rows:
        return None
    workers = "1 worker" if view.members == 1 else f"{view.members:,} workers"
    # The embedded broker does not pass on what members say of themselves.
    takes = (
        f"take{'s' if view.members == 1 else ''} {view.capacity:,} at a time" if view.capacity else "at work"
    )
    share = (
        "" if view.fleet_share is None else f", {percent(view.fleet_share)} of their answers are this job's"
    )
    return f"{view.outstanding:,} rows in flight, {workers} {takes}{share}"


# --- figures ------------------------------------------------------------------------------------------------


def percent(part: float) -> str:
    """Never 100 % before all is done."""
    return f"{min(99, round(100 * part)) if part < 1 else 100} %"


def rate(value: float) -> str:
    """A number a second."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """`8 s`, `12 min 30 s`, `3 h 20 min`, `2 d 4 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    for unit, below, name, rest in (
        (60, 3600, "min", "s"),
        (3600, 86_400, "h", "min"),
        (86_400, None, "d", "h"),
    ):
        if below is None or whole < below:
            left = whole % unit // {"s": 1, "min": 60, "h": 3600}[rest]
            return f"{whole // unit:,} {name}" + (f" {left} {rest}" if left else "")
    raise AssertionError("a day is the last unit")


def size(count: int) -> str:
    """Bytes: `812 bytes`, `3.1 MB`."""
    if count < 1000:
        return f"{count} bytes"
    value, unit = count / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"
