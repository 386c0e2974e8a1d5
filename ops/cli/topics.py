"""`headrace topics`: create and alter the topics of a contract, or say how they differ from what they should be."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.schemas.errors import HeadraceError, UsageError
from headrace.schemas.settings import Settings
from headrace.topics.changes import AddPartitions, AlterConfig, Change, Create, Refuse, Same, differs
from headrace.topics.layout import DEFAULT_PARTITIONS
from headrace.topics.names import ContractNames, ShadowNames
from headrace.topics.provision import LayoutOptions, bring_in_line, compare

if TYPE_CHECKING:
    from rich.table import Table

Command = TypeVar("Command", bound=Callable[..., Any])

# change: (in JSON and in what `diff` prints, what `apply` prints, its colour)
WORDS: dict[type[Change], tuple[str, str, str]] = {
    Create: ("create", "created", "green"),
    AlterConfig: ("alter", "altered", "yellow"),
    AddPartitions: ("add", "added", "yellow"),
    Refuse: ("refuse", "refused", "red"),
    Same: ("same", "same", "dim"),
}

DIFFERENT = 1  # exit codes of `diff`, as the tool of that name has them
TROUBLE = 2


@click.group(epilog="Example: headrace topics apply --package movie-tagger")
def topics() -> None:
    """Create and compare the topics of a model's contract.

    Each contract has a request topic for each lane, results, dead letters and cancels; all contracts of a prefix
    share the topics of replies and of control records. Only the settings that Headrace needs are compared and
    altered; what else you set on a topic stays as it is, and so does a retention of requests, results or dead
    letters that is longer than the default.
    """


def _of_a_contract(command: Command) -> Command:
    """The options that `apply` and `diff` share."""
    options = [
        click.option(
            "--package",
            type=click.Path(exists=True, path_type=Path),
            help="A model package: its model and contract.",
        ),
        click.option("--model", help="The model's name, where there is no --package."),
        click.option("--contract", type=click.IntRange(1), help="The contract's number, with --model."),
        click.option(
            "--shadow",
            is_flag=True,
            help="Only the topics of the package's version as a shadow: its results and dead letters.",
        ),
        click.option(
            "--partitions",
            type=click.IntRange(1, 10_000),
            help="Of each request topic and of results: as many workers can share the load.  "
            f"[default: what they have, else {DEFAULT_PARTITIONS}]",
        ),
        click.option(
            "--replication",
            type=click.IntRange(1, 100),
            help="Replicas of each partition of a new topic.  [default: 3, or as many as there are brokers]",
        ),
        click.option(
            "--set",
            "configs",
            multiple=True,
            metavar="TOPIC.CONFIG=VALUE",
            help="Another value for a topic's config, as requests.retention.bytes=1000000; may be repeated. "
            "TOPIC is requests, results, dead, cancels, replies or control.",
        ),
        click.option(
            "--accept-reorder",
            is_flag=True,
            help="Add partitions while requests are unread; those of a key may then be answered out of order.",
        ),
        click.option(
            "--bootstrap-servers",
            help="host:port, several with commas.  [default: HEADRACE_BOOTSTRAP_SERVERS]",
        ),
        click.option(
            "--prefix", help="Begins every topic's name.  [default: HEADRACE_PREFIX, else headrace]"
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@topics.command(
    epilog="""\b
    Examples:
      headrace topics apply --package movie-tagger
      headrace topics apply --model movie-tagger --contract 1 --partitions 32 --json
      headrace topics apply --package movie-tagger-4 --shadow"""
)
@_of_a_contract
def apply(bootstrap_servers: str | None, prefix: str | None, as_json: bool, **given: Any) -> None:
    """Create what is missing, alter what differs, and say what was done.

    Never takes partitions away, and adds some only when no request of the contract is unread, since keys would
    move to other partitions. When any of it is refused, nothing is changed.
    """
    settings = Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)
    changes = bring_in_line(settings, _names(settings, **given), _options(**given))
    _print(changes, as_json, done=True)


@topics.command(
    epilog="""\b
    Examples:
      headrace topics diff --package movie-tagger
      headrace topics diff --model movie-tagger --contract 1 --json || headrace topics apply ..."""
)
@_of_a_contract
def diff(bootstrap_servers: str | None, prefix: str | None, as_json: bool, **given: Any) -> int:
    """Say what apply would do, and change nothing.

    Exits with 0 when there is nothing to do, with 1 when there is, and with 2 or more in case of trouble.
    """
    try:
        settings = Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)
        changes = compare(settings, _names(settings, **given), _options(**given))
    except HeadraceError as error:
        click.echo(f"error: {error}", err=True)
        return max(TROUBLE, error.exit_code)
    _print(changes, as_json, done=False)
    return DIFFERENT if differs(changes) else 0


def _names(
    settings: Settings,
    *,
    package: Path | None,
    model: str | None,
    contract: int | None,
    shadow: bool,
    partitions: int | None,
    **_: Any,
) -> ContractNames:
    if shadow and package is None:
        raise UsageError("--shadow needs --package DIR: the version whose results it is about")
    if shadow and partitions is not None:
        raise UsageError("--shadow goes without --partitions: there are as many as the contract has units")
    if package is not None:
        if model is not None or contract is not None:
            raise UsageError("give --package, or --model and --contract, not both")
        from headrace.schemas.package import load_package

        loaded = load_package(package)
        names = ContractNames(settings.prefix, loaded.model, loaded.contract)
        return ShadowNames.of(names, loaded.version) if shadow else names
    if model is None or contract is None:
        raise UsageError("whose topics? Give --package DIR, or --model NAME and --contract NUMBER")
    return ContractNames(settings.prefix, model, contract)


def _options(
    *,
    partitions: int | None,
    replication: int | None,
    configs: tuple[str, ...],
    accept_reorder: bool,
    **_: Any,
) -> LayoutOptions:
    return LayoutOptions(partitions, replication, dict(map(_config, configs)), accept_reorder)


def _config(given: str) -> tuple[tuple[str, str], str]:
    name, equals, value = given.partition("=")
    what, dot, config = name.partition(".")
    if not (equals and dot and what and config and value):
        raise UsageError(f"--set {given}: give TOPIC.CONFIG=VALUE, as requests.retention.bytes=1000000")
    return (what, config), value


# --- printing ------------------------------------------------------------------------------------------------


def _print(changes: list[Change], as_json: bool, *, done: bool) -> None:
    if as_json:
        click.echo(json.dumps({"differs": differs(changes), "changes": [_as_json(each) for each in changes]}))
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(_table(changes, done))
    else:
        for each in changes:
            click.echo(f"{_word(each, done):<8}{each.topic}: {each}")
    if not as_json:
        click.echo(_summary(changes, done))


def _word(change: Change, done: bool) -> str:
    return WORDS[type(change)][done]


def _summary(changes: Iterable[Change], done: bool) -> str:
    counts = {word[done]: sum(type(each) is kind for each in changes) for kind, word in WORDS.items()}
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count and word != "same")
    return said or "nothing to do"


def _table(changes: Iterable[Change], done: bool) -> Table:
    from rich.table import Table

    table = Table("topic", "change", "what", box=None, pad_edge=False)
    for each in changes:
        table.add_row(each.topic, _word(each, done), str(each), style=WORDS[type(each)][2])
    return table


def _as_json(change: Change) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": change.topic, "change": WORDS[type(change)][0]}
    match change:
        case Create(layout):
            return row | {
                "partitions": layout.partitions,
                "replication": layout.replication,
                "configs": dict(layout.configs),
            }
        case AlterConfig(_, configs):
            return row | {"configs": {name: {"from": old, "to": new} for name, (old, new) in configs.items()}}
        case AddPartitions(_, found, wanted):
            return row | {"from": found, "to": wanted}
        case Refuse(_, reason):
            return row | {"reason": reason}
        case Same(_, note):
            return row | ({"note": note} if note else {})
