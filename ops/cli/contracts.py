"""`headrace contracts`: the interfaces that versions of a model share, as the control topic holds them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.consumers.contracts import (
    ContractRecords,
    FrozenContract,
    contract_id,
    output_digest,
    read_contracts,
)
from headrace.ops import contracts as held
from headrace.ops.cli import options
from headrace.schemas.contract_check import ContractBreak
from headrace.schemas.errors import UsageError
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.settings import Settings

if TYPE_CHECKING:
    from headrace.ops.contracts import Comparison

SHOWN_DIGEST = 19  # characters of a digest in a table: sha256: and twelve more
SHOWN_EXAMPLE = 400  # characters


@click.group(epilog="Example: headrace contracts freeze movie-tagger")
def contracts() -> None:
    """Freeze the interface that versions share; name, list and show it.

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
        click.echo(f"{name} is frozen already as {frozen.contract.digest}, since {_when(frozen.at_ms)}")


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
    "list",
    epilog="""\b
    Examples:
      headrace contracts list
      headrace contracts list --json | jq '.contracts[] | select(.model == "movie-tagger")'""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options.bootstrap_servers
@options.prefix
def list_contracts(as_json: bool, bootstrap_servers: str | None, prefix: str | None) -> None:
    """List the frozen contracts with their aliases. Records that cannot be read are named, and hide no other."""
    records = read_contracts(_settings(bootstrap_servers, prefix))
    if as_json:
        click.echo(json.dumps(_listed(records), ensure_ascii=False))
        return
    frozen = [records.contracts[of] for of in sorted(records.contracts)]
    if frozen:
        rows = [
            ("CONTRACT", "DIGEST", "OUTPUT", "ALIASES", "FROZEN", "BY"),
            *(_row(each, records) for each in frozen),
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        click.echo("no contract is frozen; `headrace contracts freeze DIR` does that")
    for name, each in sorted(records.aliases.items()):
        if (each.model, each.number) not in records.contracts:
            click.echo(
                f"warning: alias {name} means {each.model}/{each.number}, which is not frozen", err=True
            )
    _warn_unreadable(records)


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
    click.echo(f"{contract}\nfrozen:    {_when(frozen.at_ms)} by {frozen.by}\naliases:   {names}")
    click.echo(
        f"digest:    {frozen.contract.digest}\noutput:    {output_digest(frozen.contract) or 'as each request asks'}"
    )
    for each in frozen.overrides:
        click.echo(f"override:  {each.version_digest} since {_when(each.at_ms)} by {each.by}")
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


def _row(frozen: FrozenContract, records: ContractRecords) -> tuple[str, ...]:
    output = output_digest(frozen.contract)
    return (
        f"{frozen.id[0]}/{frozen.id[1]}",
        frozen.contract.digest[:SHOWN_DIGEST],
        "-" if output is None else output[:SHOWN_DIGEST],
        ",".join(records.aliases_of(frozen.id)) or "-",
        _when(frozen.at_ms),
        frozen.by,
    )


def _listed(records: ContractRecords) -> JsonObject:
    return {
        "contracts": [
            {
                "model": frozen.id[0],
                "number": frozen.id[1],
                "digest": frozen.contract.digest,
                "output_digest": output_digest(frozen.contract),
                "aliases": records.aliases_of(frozen.id),
                "overrides": [each.version_digest for each in frozen.overrides],
                "typed_results": frozen.result_schema is not None,
                "at": frozen.at_ms,
                "by": frozen.by,
            }
            for _, frozen in sorted(records.contracts.items())
        ],
        "aliases": {
            name: {"model": each.model, "number": each.number, "at": each.at_ms, "by": each.by}
            for name, each in sorted(records.aliases.items())
        },
        "unreadable": records.unreadable,
    }


def _warn_unreadable(records: ContractRecords) -> None:
    for key, why in sorted(records.unreadable.items()):
        click.echo(f"warning: the record {key} cannot be read: {why}", err=True)


def _when(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
