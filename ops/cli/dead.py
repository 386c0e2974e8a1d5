"""`headrace dead`: look at what was not served as asked, and send it again."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import click

from headrace.ops.cli import options
from headrace.ops.cli.result_rows import shortened
from headrace.ops.cli.results import Since
from headrace.schemas.errors import HeadraceError, UsageError
from headrace.schemas.messages import LANES, DeadLetter, Lane, Location

if TYPE_CHECKING:
    from datetime import datetime

    from headrace.consumers.dead_letters import DeadLetterFilter, DeadLetters, ReadDeadLetter
    from headrace.ops.cli.reading_line import ReadingLine
    from headrace.ops.dead_letters import Tally
    from headrace.schemas.codec import Codec
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

LIST_EXAMPLES = """\b
Examples:
  headrace dead list movie-tagger --since 2h
  headrace dead list movie-tagger --counts
  headrace dead list movie-tagger --code invalid_output --json | jq .id
"""
SHOW_EXAMPLES = """\b
Examples:
  headrace dead show movie-tagger film-17
  headrace dead show movie-tagger 3:1042 --raw request.bin
"""
REPLAY_EXAMPLES = """\b
Examples:
  headrace dead replay movie-tagger --code invalid_output --model-version 3
  headrace dead replay movie-tagger --since 2h --lane backfill --yes
  headrace dead replay movie-tagger --id film-17 --to-contract 2 --yes
"""

PLACE = re.compile(r"(\d{1,9}):(\d{1,18})")
Command = Callable[..., Any]


def filtered(command: Command) -> Command:
    """The options that say which dead letters are meant."""
    for option in reversed(
        (
            click.option("--id", "ids", multiple=True, help="Only this request; may be given several times."),
            click.option(
                "--code", "codes", multiple=True, help="Only this reason; may be given several times."
            ),
            click.option(
                "--model-version", "versions", multiple=True, help="Only what this version could not serve."
            ),
            click.option("--since", type=Since(), help="From then on: 90s, 10m, 2h, 7d ago, or a time."),
            click.option("--until", type=Since(), help="Only what was written before then."),
        )
    ):
        command = option(command)
    return command


def of_a_model(command: Command) -> Command:
    """The argument and options that say whose dead letters are meant."""
    contract = click.option(
        "--contract", type=click.IntRange(min=1), default=1, show_default=True, help="Its contract."
    )
    return click.argument("model")(contract(options.bootstrap_servers(options.prefix(command))))


@dataclass(frozen=True, slots=True)
class Place:
    """Where the settings lead to."""

    settings: Settings
    names: ContractNames


def place_of(model: str, contract: int, bootstrap_servers: str | None, prefix: str | None) -> Place:
    """Raises SettingsError."""
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

    settings = Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)
    return Place(settings, ContractNames(settings.prefix, model, contract))


def wanted_of(
    ids: tuple[str, ...],
    codes: tuple[str, ...],
    versions: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
) -> DeadLetterFilter:
    """Raises UsageError for a range of time that holds nothing."""
    from headrace.consumers.dead_letters import DeadLetterFilter

    if since is not None and until is not None and since >= until:
        raise UsageError("--since is not before --until: nothing lies between them")
    return DeadLetterFilter(frozenset(ids), frozenset(codes), frozenset(versions), since, until)


@click.group()
def dead() -> None:
    """Look at requests that were not served as asked, and send them again.

    Each has a dead letter with the reason and the request as it was, byte for byte.
    """


# --- list ---


@dead.command("list", epilog=LIST_EXAMPLES)
@of_a_model
@filtered
@click.option("--counts", is_flag=True, help="How many of each reason, instead of each of them.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of a table.")
def list_(
    model: str,
    contract: int,
    ids: tuple[str, ...],
    codes: tuple[str, ...],
    versions: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    counts: bool,
    limit: int | None,
    as_json: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> int:
    """List the dead letters of MODEL, each partition's in order.

    "dead at" is what `dead show` takes; "lay in" is where the request was read from: lane, partition and offset. One
    that cannot be decoded is named on standard error, and the rest is read.

    Exit codes: 0, also where nothing was found; 1 the topic does not exist; 2 a wrong option; 3 no Kafka.
    """
    from headrace.consumers.dead_letters import DeadLetters, ToTheEnd
    from headrace.ops.cli.dead_rows import DeadCounts, DeadRows
    from headrace.ops.cli.reading_line import ReadingLine
    from headrace.schemas.codec import Codec

    at = place_of(model, contract, bootstrap_servers, prefix)
    wanted = wanted_of(ids, codes, versions, since, until)
    tally, rows, line = DeadCounts(), DeadRows.on_stdout(as_json=as_json), ReadingLine()
    codec = Codec.with_registry_at(at.settings.schema_registry_url)
    found = 0
    try:
        with ToTheEnd(at.settings, at.names.dead, since=since) as reader:
            for each, letter in readable(DeadLetters(reader, wanted, codec), line):
                if counts:
                    tally.add(letter)
                else:
                    line.clear()
                    rows.add(each, letter)
                found += 1
                if found == limit:
                    break
    except KeyboardInterrupt:
        return 130
    finally:
        line.clear()
    if counts and found:
        tally.show(rows.console, as_json=as_json)
    if not found:
        click.echo(f"nothing found in {at.names.dead}", err=True)
    return 0


def readable(letters: DeadLetters, line: ReadingLine) -> Iterator[tuple[ReadDeadLetter, DeadLetter]]:
    """(where and when, dead letter) of all that can be decoded; the others are named on standard error."""
    from headrace.ops.cli.dead_rows import place

    for each in letters:
        if each is None:
            line("reading dead letters", letters.reader.done, letters.reader.total)
        elif isinstance(each.letter, DeadLetter):
            yield each, each.letter
        else:
            line.clear()
            click.echo(f"cannot be read: {place(each.location)}: {each.letter}", err=True)


# --- show ---


@dead.command(epilog=SHOW_EXAMPLES)
@of_a_model
@click.argument("which")
@click.option(
    "--raw",
    type=click.File("wb", lazy=True),
    help="Write the request's value there, byte for byte (`-`: standard output).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object; bytes in base64.")
def show(
    model: str,
    contract: int,
    which: str,
    raw: IO[bytes] | None,
    as_json: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> int:
    """Show one dead letter of MODEL with all that it has. WHICH is a request's id, or `partition:offset` in `dead`.

    Of an id with several dead letters the newest is shown, and the others are named on standard error.

    Exit codes: 0; 1 there is none, or the topic does not exist; 2 a wrong option; 3 no Kafka.
    """
    from headrace.ops.cli import dead_rows
    from headrace.schemas.codec import Codec

    at = place_of(model, contract, bootstrap_servers, prefix)
    codec = Codec.with_registry_at(at.settings.schema_registry_url)
    each, letter, others = find(at, which, codec)
    letter, note = with_bytes(at, letter)
    if raw is not None:
        if letter.value is None:
            raise HeadraceError(note or "the request had no value: there are no bytes to write")
        raw.write(letter.value)
    text = (
        dead_rows.as_json(each, letter, codec)
        if as_json
        else dead_rows.described(each, letter, codec, note=note)
    )
    click.echo(text, err=raw is not None and raw.name == "-")
    if others:
        click.echo(f"{which} has other dead letters: {', '.join(others)}", err=True)
    return 0


def find(at: Place, which: str, codec: Codec) -> tuple[ReadDeadLetter, DeadLetter, list[str]]:
    """The dead letter that is meant, and the places of older ones of its id. Raises HeadraceError where none is."""
    given = PLACE.fullmatch(which)
    if given:
        lies = Location(topic=at.names.dead, partition=int(given[1]), offset=int(given[2]))
        found = lying_at(at, lies, codec)
        older: deque[str] = deque()
    else:
        found, older = newest_of(at, which, codec)
    if found is None:
        raise HeadraceError(f"{at.names.dead} has nothing of {which}: `headrace dead list` tells what it has")
    if not isinstance(found.letter, DeadLetter):
        raise HeadraceError(f"{which} cannot be read: {found.letter}")
    return found, found.letter, list(older)


def lying_at(at: Place, lies: Location, codec: Codec) -> ReadDeadLetter | None:
    """The record of `dead` at a place."""
    from headrace.consumers.dead_letters import decoded, record_at

    record = record_at(at.settings, lies)
    return None if record is None else decoded(record, codec)


def newest_of(at: Place, request_id: str, codec: Codec) -> tuple[ReadDeadLetter | None, deque[str]]:
    """The newest dead letter of an id, and where the last of those before it lie."""
    from headrace.consumers.dead_letters import DeadLetterFilter, DeadLetters, ToTheEnd
    from headrace.ops.cli.dead_rows import place
    from headrace.ops.cli.reading_line import ReadingLine

    newest: ReadDeadLetter | None = None
    older: deque[str] = deque(maxlen=20)
    line = ReadingLine()
    wanted = DeadLetterFilter(ids=frozenset([request_id]))
    with ToTheEnd(at.settings, at.names.dead) as reader:
        for each, _ in readable(DeadLetters(reader, wanted, codec), line):
            if newest is not None:
                older.append(place(newest.location))
            newest = each
    line.clear()
    return newest, older


def with_bytes(at: Place, letter: DeadLetter) -> tuple[DeadLetter, str | None]:
    """With the request's own bytes where the dead letter had no room for them; and a word on where they are from."""
    from headrace.ops.dead_letters import original_of

    if letter.value is not None:
        return letter, None
    original = original_of(at.settings, letter)
    if original is None:
        return letter, "the request's bytes are not kept here, and are gone from its topic"
    return original, "the request is shown as it lies in its topic"


# --- replay ---


@dead.command(epilog=REPLAY_EXAMPLES)
@of_a_model
@filtered
@click.option(
    "--to-contract", type=click.IntRange(min=1), help="Send to this contract. Default: the same one."
)
@click.option("--lane", type=click.Choice(LANES), help="Send to this lane. Default: each to its own.")
@click.option("--again", is_flag=True, help="Also what has an `ok` result by now: it gets a second one.")
@click.option("--limit", type=click.IntRange(min=1), help="Send so many at most.")
@click.option("--yes", is_flag=True, help="Send. Without it nothing is sent, and you see what would be.")
def replay(
    model: str,
    contract: int,
    ids: tuple[str, ...],
    codes: tuple[str, ...],
    versions: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    to_contract: int | None,
    lane: Lane | None,
    again: bool,
    limit: int | None,
    yes: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> int:
    """Send the requests of dead letters again, byte for byte; without --yes, only say what would be sent.

    Of each request the newest dead letter counts. What has an `ok` result by now is left out. The request keeps its
    id, key and headers, and has the header `headrace-replay` beside them; its deadline does not count any more.
    Interrupted, run it again: what was answered with `ok` meanwhile is left out.

    Exit codes: 0; 1 something could not be sent, or a topic does not exist; 2 a wrong option; 3 no Kafka; 130
    interrupted.
    """
    from headrace.ops.cli.reading_line import ReadingLine
    from headrace.ops.dead_letters import Replay
    from headrace.topics.names import ContractNames

    at = place_of(model, contract, bootstrap_servers, prefix)
    wanted = wanted_of(ids, codes, versions, since, until)
    target = ContractNames(at.names.prefix, model, to_contract or contract)
    line = ReadingLine()
    sending = Replay(
        at.settings, at.names, target, wanted, lane=lane, again=again, limit=limit, progress=line
    )
    try:
        sending.look()
        if yes:
            sending.send()
        else:
            sending.count()
    except KeyboardInterrupt:
        line.clear()
        click.echo(f"interrupted: {sending.tally.acknowledged:,} sent", err=True)
        return 130
    except HeadraceError:
        line.clear()
        if yes:
            click.echo(f"stopped: {sending.tally.acknowledged:,} sent", err=True)
        raise
    line.clear()
    report(sending.tally, target, lane, sent=yes)
    return 1 if sending.tally.refused else 0


def report(tally: Tally, target: ContractNames, lane: Lane | None, *, sent: bool) -> None:
    """Say what was found, and what was or would be sent."""
    click.echo(f"{tally.found:,} dead letters match")
    if tally.older:
        click.echo(f"{tally.older:,} of them left out: the same request has a newer one")
    if tally.answered:
        click.echo(f"{tally.answered:,} requests left out: they have an `ok` result (--again sends them too)")
    for reason, count in tally.refused.most_common():
        click.echo(f"{count:,} cannot be sent: {reason}")
    for example in tally.examples:
        click.echo(f"  {example}", err=True)
    total = sum(tally.to_send.values())
    where = f"{target.base}, {'each to its own lane' if lane is None else f'lane {lane}'}"
    click.echo(f"{tally.acknowledged if sent else total:,} {'sent' if sent else 'to be sent'} to {where}")
    for code, count in tally.to_send.most_common():
        click.echo(f"  {count:,} {shortened(code, 60)}")
    if total and not sent:
        click.echo("nothing was sent: add --yes to send it")
