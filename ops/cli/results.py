"""`headrace results`: read what a model has answered."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

import click

from headrace.ops.cli import options
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Result, Status

if TYPE_CHECKING:
    from headrace.consumers.results import ResultReader
    from headrace.ops.cli.result_rows import ResultRows
    from headrace.ops.redo import Redo

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
STATUSES: tuple[Status, ...] = get_args(Status)

EXAMPLES = """\b
Examples:
  headrace results --model movie-tagger --since 10m
  headrace results --model movie-tagger --status failed,rejected --json | jq .error
  headrace results --model movie-tagger --follow
  headrace results redo --model movie-tagger --model-version 4 --since 2h
"""

REDO_EXAMPLES = """\b
Examples:
  headrace results redo --model movie-tagger --model-version 4 --since 2h
  headrace results redo --model movie-tagger --model-version 4 --since 2h --status ok --limit 10 --yes
"""


class Since(click.ParamType[datetime]):
    """A time, or how long ago it was."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        ago = re.fullmatch(r"(\d{1,9})([smhd])", value)
        try:
            if ago:
                return datetime.now(tz=UTC) - timedelta(**{UNITS[ago[2]]: int(ago[1])})
            moment = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither like 90s, 10m, 2h, 7d nor like 2026-01-31T12:00", param, ctx)
        return moment if moment.tzinfo else moment.astimezone()


class Statuses(click.ParamType[frozenset[Status]]):
    """Statuses with commas between them."""

    name = "statuses"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[Status]:
        if not isinstance(value, str):
            return value
        asked = {name.strip() for name in value.split(",")}
        if unknown := sorted(asked - set(STATUSES)):
            self.fail(
                f"{', '.join(map(repr, unknown))}: a status is one of {', '.join(STATUSES)}", param, ctx
            )
        return frozenset(status for status in STATUSES if status in asked)


@click.group(epilog=EXAMPLES, invoke_without_command=True, subcommand_metavar="[redo]")
@click.option("--model", help="The model's name.  [required]")
@click.option("--contract", type=click.IntRange(min=1), default=1, show_default=True, help="Its contract.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "--id", "ids", multiple=True, help="Only the result of this request; may be given several times."
)
@click.option("--status", "statuses", type=Statuses(), help="Only these, with commas between them.")
@click.option("--since", type=Since(), help="From then on: 90s, 10m, 2h, 7d ago, or a time. Default: all.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of a table.")
@options.bootstrap_servers
@options.prefix
@click.pass_context
def results(
    ctx: click.Context,
    model: str | None,
    contract: int,
    follow: bool,
    ids: tuple[str, ...],
    statuses: frozenset[Status] | None,
    since: datetime | None,
    limit: int | None,
    as_json: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> int:
    """Read the results of a model: committed ones only, each partition's in order.

    Ends where the topic ends at the moment, unless told to follow. A result that cannot be decoded is named on
    standard error, and the rest is read.

    Exit codes: 0, also where nothing was found; 1 the topic does not exist; 2 a wrong option; 3 no Kafka.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    if model is None:
        raise click.MissingParameter(param=next(each for each in ctx.command.params if each.name == "model"))
    from headrace.consumers.result_schemas import frozen_result_schemas
    from headrace.consumers.results import ResultFilter, ResultReader
    from headrace.ops.cli.result_rows import ResultRows
    from headrace.schemas.codec import Codec
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

    settings = Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)
    names = ContractNames(settings.prefix, model, contract)
    wanted = ResultFilter(frozenset(ids), statuses or frozenset())
    found = 0
    codec = Codec.with_registry_at(
        settings.schema_registry_url, result_schemas=frozen_result_schemas(settings)
    )
    try:
        with ResultReader(
            settings, names, start=since or "beginning", wanted=wanted, codec=codec, follow=follow
        ) as reader:
            found = show(reader, ResultRows.on_stdout(as_json=as_json), limit)
    except KeyboardInterrupt:
        return 0
    if not found:
        click.echo(f"nothing found in {names.results}", err=True)
    return 0


def show(reader: ResultReader, rows: ResultRows, limit: int | None) -> int:
    """Print what the reader brings, `limit` results at most; how many there were."""
    found = 0
    for each in reader:
        if each is None:
            continue
        if isinstance(each.result, Result):
            rows.add(each.result)
            found += 1
            if found == limit:
                break
        else:
            where = f"{each.location.topic}-{each.location.partition} at offset {each.location.offset}"
            click.echo(f"cannot be read: {where}: {each.result}", err=True)
    return found


@results.command(epilog=REDO_EXAMPLES)
@click.option("--model", required=True, help="The model's name.")
@click.option("--contract", type=click.IntRange(min=1), default=1, show_default=True, help="Its contract.")
@click.option(
    "--model-version",
    "versions",
    multiple=True,
    required=True,
    help="Whose results; may be given several times.",
)
@click.option("--since", type=Since(), help="From then on: 90s, 10m, 2h, 7d ago, or a time. Default: all.")
@click.option("--until", type=Since(), help="Before then.")
@click.option(
    "--status",
    "statuses",
    type=Statuses(),
    help="Only these, with commas between them. Default: ok, failed, invalid_output, truncated.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Ask so many at most.")
@click.option("--yes", is_flag=True, help="Ask. Without it nothing is sent, and you see what would be.")
@options.bootstrap_servers
@options.prefix
def redo(
    model: str,
    contract: int,
    versions: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    statuses: frozenset[Status] | None,
    limit: int | None,
    yes: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> int:
    """Ask again what a version has answered; without --yes, only say what would be asked.

    The requests go to their lanes again byte for byte, with their ids and keys, and whoever serves now answers them:
    so the version must have no share any more. Each new result names the one that it supersedes in the header
    `headrace-supersedes`; what was superseded already is left out, so that an interrupted run can be run again.

    Exit codes: 0; 1 something could not be sent, or a topic does not exist; 2 a wrong option; 3 no Kafka; 130
    interrupted.
    """
    from headrace.ops.cli.reading_line import ReadingLine
    from headrace.ops.redo import ANSWERED, Answered, Redo
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

    settings = Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)
    names = ContractNames(settings.prefix, model, contract)
    line = ReadingLine()
    wanted = Answered(frozenset(versions), statuses or ANSWERED, since, until)
    asking = Redo(settings, names, wanted, limit=limit, progress=line)
    try:
        asking.look()
        if yes:
            asking.send()
        else:
            asking.count()
    except KeyboardInterrupt:
        line.clear()
        click.echo(f"interrupted: {asking.tally.acknowledged:,} asked again", err=True)
        return 130
    except HeadraceError:
        line.clear()
        if yes:
            click.echo(f"stopped: {asking.tally.acknowledged:,} asked again", err=True)
        raise
    line.clear()
    report(asking, versions, sent=yes)
    return 1 if asking.tally.refused else 0


def report(asking: Redo, versions: tuple[str, ...], *, sent: bool) -> None:
    """Say what was found, and what was or would be asked again."""
    tally = asking.tally
    by_status = ", ".join(f"{count:,} {status}" for status, count in asking.found.most_common())
    click.echo(
        f"{tally.found:,} results of version {', '.join(versions)}{f': {by_status}' if by_status else ''}"
    )
    if tally.answered:
        click.echo(f"{tally.answered:,} of them left out: they were superseded already")
    for reason, count in tally.refused.most_common():
        click.echo(f"{count:,} cannot be asked again: {reason}")
    for example in tally.examples:
        click.echo(f"  {example}", err=True)
    total = sum(tally.to_send.values())
    click.echo(f"{tally.acknowledged if sent else total:,} {'asked again' if sent else 'to be asked again'}")
    if total and not sent:
        click.echo("nothing was sent: add --yes to send it")
