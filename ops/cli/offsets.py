"""`headrace offsets`: where a model's group stands in its partitions, and accepting what was lost of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.consumers.starting import Park, Start
from headrace.ops.cli import options
from headrace.ops.offsets import (
    Consequence,
    OffsetsReport,
    PartitionOffsetsReport,
    Place,
    accept,
    choose_parked,
    consequence,
    named_partition,
    place_to_resume,
    read_offsets,
)
from headrace.schemas.errors import UsageError
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Command = TypeVar("Command", bound=Callable[..., Any])

PARKED = 1  # exit code of `list`
WIDTH_OF_A_PIPE = 200  # characters
COLOURS = {"ok": "green", "no offset yet": "dim", "accepted": "yellow", "parked": "red"}
CAUSES = {
    "offsets_gone": "its committed offsets are gone",
    "retention": "removed before it was served",
    "log_cut_back": "committed beyond the log's end",
    "unreadable": "its committed metadata cannot be read",
}
SECOND_MS, DAY_MS = 1000, 86_400_000


@click.group(epilog="Example: headrace offsets list --package movie-tagger")
def offsets() -> None:
    """Where a model's group stands; accept what was lost.

    A partition is parked when going on could skip a request or answer it twice: its offsets expired, retention was
    faster than the workers, its log was cut back, or its metadata cannot be read. Nothing of it is served until you
    accept that. docs/offsets.md is the runbook.
    """


class At(click.ParamType[Place]):
    """beginning, end, or an offset."""

    name = "at"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        if value in ("beginning", "end"):
            return value
        if not (value.isascii() and value.isdigit()):
            self.fail(f"{value!r} is neither beginning, end nor an offset", param, ctx)
        return int(value)


def _of_a_contract(command: Command) -> Command:
    """The options that `list` and `accept` share."""
    shared = [
        click.option(
            "--package",
            type=click.Path(exists=True, path_type=Path),
            help="A model package: its model and contract.",
        ),
        click.option("--model", help="The model's name, where there is no --package."),
        click.option(
            "--contract",
            type=click.IntRange(min=1),
            help="The contract's number, with --model.  [default: 1]",
        ),
        options.bootstrap_servers,
        options.prefix,
    ]
    for option in reversed(shared):
        command = option(command)
    return command


@offsets.command(
    "list",
    epilog="""\b
    Examples:
      headrace offsets list --package movie-tagger
      headrace offsets list --model movie-tagger --json | jq '.partitions[] | select(.state == "parked")'""",
)
@_of_a_contract
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_offsets(
    package: Path | None,
    model: str | None,
    contract: int | None,
    bootstrap_servers: str | None,
    prefix: str | None,
    as_json: bool,
) -> int:
    """Show where the group stands in each partition of each lane, while workers run or none does.

    LOG is what the log holds, FRONTIER the committed offset, below which all is answered; DONE is answered above it,
    IN DOUBT may have been handed to an engine; LAG counts from the frontier to the end of the log. HEADROOM is how
    far retention is from what is unread, as a part of the log: near 0% it is about to remove unread requests.

    Exit codes: 0; 1 when a partition is parked, or it failed; 2 a wrong option; 3 no Kafka.
    """
    settings = Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)
    report = read_offsets(settings, _names(settings, package, model, contract))
    if as_json:
        click.echo(json.dumps(_as_json(report)))
    else:
        console = _console()
        console.print(_table(report.partitions))
        for line in _summary(report):
            console.print(line, soft_wrap=True)
        for each in report.parked:
            assert isinstance(each.decision, Park), "what is parked"
            console.print(f"{each.name} is parked: {each.decision.why}", style="red", soft_wrap=True)
    return PARKED if report.parked else 0


@offsets.command(
    "accept",
    epilog="""\b
    Examples:
      headrace offsets accept --model movie-tagger standard-3
      headrace offsets accept --package movie-tagger --all --at end --yes""",
)
@click.argument("partitions", nargs=-1, metavar="[TOPIC-PARTITION]...")
@_of_a_contract
@click.option("--all", "everything", is_flag=True, help="Every partition that is parked.")
@click.option(
    "--at",
    type=At(),
    metavar="beginning|end|OFFSET",
    help="Where to go on.  [default: where nothing is skipped that the log still holds]",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_loss(
    partitions: tuple[str, ...],
    package: Path | None,
    model: str | None,
    contract: int | None,
    bootstrap_servers: str | None,
    prefix: str | None,
    everything: bool,
    at: Place | None,
    yes: bool,
) -> None:
    """Accept what was lost of parked partitions, so that workers go on with them.

    A partition is named LANE-NUMBER, as standard-3, or by its topic's whole name. It is shown what is lost and what
    each place to go on means; nothing is written before you say yes. The acceptance holds for exactly the committed
    state that was shown. A running worker takes it up within a second, a stopped group at its next start.

    Exit codes: 0; 1 it failed; 2 a wrong option, or a partition that is not parked; 3 no Kafka; 130 not confirmed.
    """
    if everything == bool(partitions):
        raise UsageError("which partitions? Name those that are parked, or give --all")
    settings = Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)
    names = _names(settings, package, model, contract)
    wanted = None if everything else [named_partition(each, names) for each in partitions]
    chosen = choose_parked(read_offsets(settings, names).partitions, wanted)
    if not chosen:
        click.echo("nothing is parked")
        return
    resume = [(each, place_to_resume(each, at)) for each in chosen]
    console = _console()
    console.print(_consequences(resume))
    for line in _meaning(settings.dedupe_window):
        console.print(line, soft_wrap=True)
    if not yes:
        click.confirm(f"Go on with {_count(len(resume), 'partition')} at the places marked?", abort=True)
    accept(settings, names, resume)
    accepted = _count(len(resume), "partition")
    click.echo(f"accepted for {accepted}: running workers go on within a second, others when they start")


def _names(
    settings: Settings, package: Path | None, model: str | None, contract: int | None
) -> ContractNames:
    if package is not None:
        if model is not None or contract is not None:
            raise UsageError("give --package, or --model and --contract, not both")
        from headrace.schemas.package import load_package

        loaded = load_package(package)
        return ContractNames(settings.prefix, loaded.model, loaded.contract)
    if model is None:
        raise UsageError("whose offsets? Give --package DIR, or --model NAME")
    return ContractNames(settings.prefix, model, contract or 1)


# --- printing ------------------------------------------------------------------------------------------------


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=WIDTH_OF_A_PIPE, highlight=False)


def _table(reports: Iterable[PartitionOffsetsReport]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("partition", box=None, pad_edge=False, header_style="bold")
    for name in ("log", "frontier", "done", "in doubt", "lag", "headroom"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state")
    for each in reports:
        table.add_row(
            each.name,
            f"{each.beginning}-{each.end}",
            "-" if each.committed is None else str(each.frontier),
            _number(each.done),
            _number(each.in_doubt),
            str(each.lag),
            f"{each.headroom:.0%}",
            Text(_state(each), style=COLOURS[each.state]),
        )
    return table


def _state(report: PartitionOffsetsReport) -> str:
    if report.state == "accepted":
        assert isinstance(report.decision, Start), "a worker goes on with it"
        return f"accepted: goes on at {report.decision.offset}"
    if not isinstance(report.decision, Park):
        return report.state
    lost = f", {report.decision.unanswered} lost at most" if report.decision.unanswered else ""
    return f"parked: {CAUSES[report.decision.cause]}{lost}"


def _summary(report: OffsetsReport) -> Iterable[str]:
    yield (
        f"{_count(len(report.partitions), 'partition')}, {len(report.parked)} parked; "
        f"lag {sum(each.lag for each in report.partitions)}, "
        f"done above the frontiers {sum(each.done or 0 for each in report.partitions)}, "
        f"in doubt {sum(each.in_doubt or 0 for each in report.partitions)}, "
        f"least headroom {min((each.headroom for each in report.partitions), default=1.0):.0%}"
    )
    for topic, configs in report.retention.items():
        lane = topic.rpartition(".")[2]
        yield f"retention of {lane}: {_size(configs['retention.bytes'])}, {_age(configs['retention.ms'])}"


def _consequences(resume: Sequence[tuple[PartitionOffsetsReport, int]]) -> Table:
    """For each partition the places where it can go on; the chosen one is marked."""
    from rich.table import Table

    table = Table("partition", "parked because", box=None, pad_edge=False, header_style="bold")
    for name in ("lost", "go on at", "answered again", "skipped"):
        table.add_column(name, justify="right", no_wrap=True)
    for each, chosen in resume:
        park = each.without_acceptance
        assert isinstance(park, Park), "what is parked"
        first = (each.name, CAUSES[park.cause], _lost(park))
        for place in sorted({each.beginning, park.resume_at, chosen, each.end}):
            what = consequence(each, place)
            table.add_row(
                *first,
                _place(each, what, chosen),
                _most(what.again),
                _most(what.skipped),
                style=_style(what, chosen),
            )
            first = ("", "", "")
    return table


def _place(report: PartitionOffsetsReport, what: Consequence, chosen: int) -> str:
    names = {report.end: "end", report.beginning: "beginning"}
    named = f" ({names[what.resume_at]})" if what.resume_at in names else ""
    return f"{'> ' if what.resume_at == chosen else ''}{what.resume_at}{named}"


def _style(what: Consequence, chosen: int) -> str:
    return "bold" if what.resume_at == chosen else "dim"


def _lost(park: Park) -> str:
    if park.lost is not None:
        return f"{park.lost.start} to {park.lost.stop - 1}, {_most(park.unanswered)}"
    return "none" if park.cause == "unreadable" else "not known"


def _meaning(dedupe_window: int) -> Iterable[str]:
    yield "lost: not in the log any more, and never answered."
    yield (
        "answered again: a second result for the same id, for requests that were answered before; "
        f"not where the id is among the last {dedupe_window} of its partition's results."
    )
    yield "skipped: still in the log, and never answered. Only a new request brings them back."


def _most(number: int) -> str:
    return f"at most {number}" if number else "none"


def _number(number: int | None) -> str:
    return "?" if number is None else str(number)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _size(configured: str | None) -> str:
    if configured is None:
        return "size not told by the broker"
    return "no limit of size" if int(configured) < 0 else f"{int(configured) / 2**20:,.1f} MiB a partition"


def _age(configured: str | None) -> str:
    if configured is None:
        return "age not told by the broker"
    age_ms = int(configured)
    if age_ms < 0:
        return "no limit of age"
    return f"{age_ms / DAY_MS:,.1f} days" if age_ms >= DAY_MS else f"{age_ms / SECOND_MS:,.0f} s"


def _as_json(report: OffsetsReport) -> dict[str, Any]:
    return {
        "parked": len(report.parked),
        "lag": sum(each.lag for each in report.partitions),
        "partitions": [_row(each) for each in report.partitions],
        "retention": {topic: dict(configs) for topic, configs in report.retention.items()},
    }


def _row(report: PartitionOffsetsReport) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic": report.tp.topic,
        "partition": report.tp.partition,
        "lane": report.lane,
        "beginning": report.beginning,
        "end": report.end,
        "frontier": None if report.committed is None else report.committed.offset,
        "done_above": report.done,
        "in_doubt": report.in_doubt,
        "lag": report.lag,
        "headroom": report.headroom,
        "state": report.state,
    }
    match report.decision:
        case Park(why, lost, cause, unanswered, _):
            between = None if lost is None else {"from": lost.start, "to": lost.stop - 1}
            row |= {"cause": cause, "why": why, "lost": between, "lost_at_most": unanswered}
        case Start(offset, _):
            row |= {"starts_at": offset}
    return row
