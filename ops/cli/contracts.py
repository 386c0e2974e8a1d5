"""`headrace contracts`: the interfaces that versions of a model share, as the control topic holds them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.consumers.contracts import (
    contract_id,
    output_digest,
    read_contracts,
)
from headrace.ops import contracts as held
from headrace.ops.cli import contract_rows, options
from headrace.schemas.contract_check import ContractBreak
from headrace.schemas.errors import UsageError
from headrace.schemas.messages import JsonValue
from headrace.schemas.settings import Settings

if TYPE_CHECKING:
    from headrace.ops.contracts import Comparison

SHOWN_EXAMPLE = 400  # characters


@click.group(
    epilog="""\b
    Examples:
      headrace contracts open movie-tagger-2
      headrace contracts list
      headrace contracts retire movie-tagger/1"""
)
def contracts() -> None:
    """Open, list and retire the interfaces that versions share; freeze, name and show one.

    A contract is what requests must hold and what outputs are held to. Once it is frozen, a worker starts only with
    a package that speaks it: all that the contract's senders may send is taken, and every output is one that its
    readers can take. That is computed, not declared; `headrace package check` says it beforehand.
    """


@contracts.command(
    epilog="""\b
    Examples:
      headrace contracts freeze movie-tagger
      headrace contracts freeze movie-tagger-2 --override sha256:5e0c...:sha256:91ab..."""
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--override",
    metavar="CONTRACT:VERSION",
    help="Declare the package to speak the contract where that could not be computed: the digest of the frozen "
    "contract and that of the package's own. Holds for these two alone.",
)
@click.option("--replace-unreadable", is_flag=True, help="Write over a record that cannot be read.")
@options.bootstrap_servers
@options.prefix
def freeze(
    directory: Path,
    override: str | None,
    replace_unreadable: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> None:
    """Freeze the contract of the package in DIRECTORY under its model and number.

    Freezing the same again changes nothing. A number that is frozen with another content is refused.
    """
    from headrace.schemas.package import load_package

    digests = None if override is None else held.override_digests(override)
    settings = _settings(bootstrap_servers, prefix)
    frozen, written = held.freeze(
        settings, load_package(directory), override=digests, replace_unreadable=replace_unreadable
    )
    name = f"{frozen.id[0]}/{frozen.id[1]}"
    if digests is not None:
        click.echo(f"{name} may be served by {digests[1]}")
    elif written:
        click.echo(f"froze {name} as {frozen.contract.digest}")
    else:
        click.echo(
            f"{name} is frozen already as {frozen.contract.digest}, since {contract_rows.when(frozen.at_ms)}"
        )


@contracts.command(
    epilog="""\b
    Examples:
      headrace contracts alias movie-tagger movie-tagger/2
      headrace contracts alias movie-tagger --remove"""
)
@click.argument("name")
@click.argument("contract", metavar="MODEL/NUMBER", required=False)
@click.option("--remove", is_flag=True, help="Take the alias back.")
@options.bootstrap_servers
@options.prefix
def alias(
    name: str, contract: str | None, remove: bool, bootstrap_servers: str | None, prefix: str | None
) -> None:
    """Let the bare model name NAME mean the contract MODEL/NUMBER, or nothing any more."""
    if remove == (contract is not None):
        raise UsageError(f"give MODEL/NUMBER, or --remove: what should {name} mean?")
    settings = _settings(bootstrap_servers, prefix)
    if contract is None:
        held.remove_alias(settings, name)
        click.echo(f"{name} means no contract any more")
    else:
        held.set_alias(settings, name, contract_id(contract))
        click.echo(f"{name} means {contract}")


@contracts.command(
    "open",
    epilog="""\b
    Examples:
      headrace contracts open movie-tagger-2
      headrace contracts open movie-tagger --alias movie-tagger --partitions 32""",
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--alias", metavar="NAME", help="Let this bare model name mean the contract, from now on.")
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    help="Of each request topic and of results: as many workers can share the load. Default: what they have, else 16.",
)
@click.option(
    "--replication",
    type=click.IntRange(1, 100),
    help="Replicas of each partition of a new topic. Default: 3, or as many as there are brokers.",
)
@options.bootstrap_servers
@options.prefix
def open_(
    directory: Path,
    alias: str | None,
    partitions: int | None,
    replication: int | None,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> None:
    """Make all that the contract of the package in DIRECTORY needs: its topics, the frozen record, and an alias.

    What is there already is left, so that it can be done again. Nothing is changed where it is refused.
    """
    from headrace.schemas.package import load_package
    from headrace.topics.provision import LayoutOptions

    settings = _settings(bootstrap_servers, prefix)
    package = load_package(directory)
    opened = held.open_contract(settings, package, LayoutOptions(partitions, replication), alias)
    contract_rows.print_opened(opened, str(directory), alias)


@contracts.command(
    "list",
    epilog="""\b
    Examples:
      headrace contracts list
      headrace contracts list --window 1h
      headrace contracts list --json | jq '.contracts[] | select(.traffic.requests == 0)'""",
)
@click.option(
    "--window",
    default="5m",
    show_default=True,
    callback=options.duration,
    help="Of the requests that are counted: 90s, 10m or 2h.",
)
@click.option("--quick", is_flag=True, help="Without traffic: reads the control topic alone.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options.bootstrap_servers
@options.prefix
def list_contracts(
    window: float, quick: bool, as_json: bool, bootstrap_servers: str | None, prefix: str | None
) -> None:
    """List the contracts that are frozen or served, each with its traffic: requests a minute, how many are not done,
    the workers by version, and when the last request came and from whom, as far as it says so.

    Records that cannot be read are named, and hide no other.
    """
    if not quick and window < 1:
        raise UsageError("--window: at least a second; --quick leaves the traffic out")
    from headrace.ops.contract_listing import list_all

    counted = None if quick else window
    listing = list_all(_settings(bootstrap_servers, prefix), counted)
    if as_json:
        contract_rows.print_listing_json(listing, counted)
    else:
        contract_rows.print_listing(listing, counted)


@contracts.command(
    epilog="""\b
    Examples:
      headrace contracts retire movie-tagger/1
      headrace contracts retire movie-tagger/1 --idle 1d --yes"""
)
@click.argument("contract", metavar="MODEL/NUMBER")
@click.option(
    "--idle",
    default="1h",
    show_default=True,
    callback=options.duration,
    help="For so long no request must have come: 90s, 10m, 2h.",
)
@click.option("--results-too", is_flag=True, help="Remove its results and dead letters as well.")
@click.option("--yes", is_flag=True, help="Remove it. Without this, only say what would be removed.")
@options.bootstrap_servers
@options.prefix
def retire(
    contract: str,
    idle: float,
    results_too: bool,
    yes: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> int:
    """Remove a contract that nobody asks any more: its topics, its group and its records in the control topic.

    Refused while there is traffic: a request within --idle, one that is not done, a live worker, an alias that means
    it, an open rollout. Results and dead letters are kept, since somebody may still want them. One that was interrupted
    can be run again.

    Exit codes: 0; 1 it was refused, or failed; 2 there is no such contract; 3 no Kafka.
    """
    of = contract_id(contract)
    from headrace.ops import retiring
    from headrace.ops.operator_name import operator_name
    from headrace.ops.retirement import hindrances, removal, told

    settings = _settings(bootstrap_servers, prefix)
    standing = retiring.look(settings, of, idle)
    if standing.is_retired and standing.topics and not results_too:
        kept = ", ".join(each.name for each in standing.topics)
        click.echo(f"{contract} was retired already; kept were {kept}: --results-too removes them")
        return 0
    found = hindrances(standing, results_too=results_too)
    if found:
        contract_rows.print_hindrances(contract, found)
        if yes and retiring.give_up(settings, standing):
            click.echo("its removal had begun, and nothing was removed yet: that was taken back", err=True)
        return 1
    if standing.is_half_removed:
        click.echo(f"the removal of {contract} was begun before; what is left:")
    steps = removal(standing, results_too=results_too, by=operator_name(), at_ms=int(time.time() * 1000))
    for line in told(standing, steps, results_too=results_too):
        click.echo(line)
    if not yes:
        click.echo("nothing was removed; --yes does that")
        return 0
    found = retiring.retire(settings, standing, steps, results_too=results_too, tell=contract_rows.print_done)
    if found:
        contract_rows.print_hindrances(contract, found)
        return 1
    click.echo(f"retired {contract}")
    return 0


@contracts.command(
    epilog="""\b
    Examples:
      headrace contracts show movie-tagger/1
      headrace contracts show movie-tagger/1 --json > movie-tagger-1.json
      headrace package check movie-tagger-2 --against movie-tagger-1.json"""
)
@click.argument("contract", metavar="MODEL/NUMBER")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the record as it is; `package check` compares with it."
)
@options.bootstrap_servers
@options.prefix
def show(contract: str, as_json: bool, bootstrap_servers: str | None, prefix: str | None) -> None:
    """Show one frozen contract whole."""
    contract_id(contract)
    records = read_contracts(_settings(bootstrap_servers, prefix))
    frozen = held.the_contract(records, contract)
    if as_json:
        click.echo(json.dumps(frozen.as_json(), indent=2, ensure_ascii=False))
        return
    names = ", ".join(records.aliases_of(frozen.id)) or "none"
    click.echo(
        f"{contract}\nfrozen:    {contract_rows.when(frozen.at_ms)} by {frozen.by}\naliases:   {names}"
    )
    click.echo(
        f"digest:    {frozen.contract.digest}\noutput:    {output_digest(frozen.contract) or 'as each request asks'}"
    )
    for each in frozen.overrides:
        click.echo(f"override:  {each.version_digest} since {contract_rows.when(each.at_ms)} by {each.by}")
    click.echo(f"results:   {'typed' if frozen.result_schema else 'values as JSON text'}")
    for title, schema in (
        ("variables", frozen.contract.variables),
        ("output schema", frozen.contract.output),
    ):
        click.echo(
            f"\n{title}:\n{'none' if schema is None else json.dumps(schema, indent=2, ensure_ascii=False)}"
        )


def _settings(bootstrap_servers: str | None, prefix: str | None) -> Settings:
    return Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)


# --- printing ------------------------------------------------------------------------------------------------------


def comparison_lines(comparison: Comparison) -> list[str]:
    """What came of comparing a package with a contract, for people."""
    check = comparison.check
    if not check.breaks:
        return [f"Contract: the same as {comparison.against} (may shift traffic)"]
    if check.is_overridden:
        first = f"Contract: counts as {comparison.against} by an operator's override (may shift traffic)"
        return [first, *(f"  {line}" for each in check.breaks for line in _break_lines(each))]
    certain = "not" if not check.can_be_overridden else "not known to be"
    lines = [f"Contract: {certain} the same as {comparison.against}"]
    lines += [f"  {line}" for each in check.breaks for line in _break_lines(each)]
    lines.append(
        f"  give it contract = {comparison.next_number}: another contract has topics and a group of its own"
    )
    if check.can_be_overridden:
        lines.append(
            "  or, if you know better: headrace contracts freeze DIR --override "
            f"{check.contract_digest}:{check.version_digest}"
        )
    return lines


def _break_lines(each: ContractBreak) -> list[str]:
    lines = [f"{each} (at {each.path})"]
    if each.has_example:
        lines.append(f"  for example {_shortened(each.example)}")
    elif not each.is_proved:
        lines.append("  no example was found")
    return lines


def _shortened(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_EXAMPLE else text[: SHOWN_EXAMPLE - 3] + "..."
