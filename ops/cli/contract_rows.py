"""Contracts on a terminal: the list, and what opening and retiring one has done."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from headrace.consumers.contracts import output_digest
from headrace.ops.contract_listing import caller_of, per_minute, shown_age, workers_of
from headrace.ops.retirement import Forget, Note, RemoveGroup, RemoveTopics, Step, TakeBack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.consumers.contract_traffic import ContractTraffic
    from headrace.consumers.contracts import ContractRecords
    from headrace.ops.contract_listing import ListedContract, Listing
    from headrace.ops.contracts import Opened
    from headrace.ops.retirement import Hindrance

SHOWN_DIGEST = 19  # characters of a digest in a table: sha256: and twelve more
TRAFFIC = ("PER MIN", "NOT DONE", "WORKERS", "LAST REQUEST", "FROM")


def print_listing(listing: Listing, window_s: float | None) -> None:
    """A table of the contracts; warnings go to standard error. `window_s` None: without their traffic."""
    columns = ("CONTRACT", "ALIASES", *(TRAFFIC if window_s is not None else ()))
    columns += ("FROZEN", "BY", "DIGEST", "OUTPUT")
    now_ms = int(time.time() * 1000)
    if listing.contracts:
        rows = [columns, *(_row(each, window_s, now_ms) for each in listing.contracts)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        click.echo("no contract is frozen; `headrace contracts open DIR` does that, and makes its topics")
    _warn(listing)


def print_listing_json(listing: Listing, window_s: float | None) -> None:
    """One JSON object."""
    told = {
        "contracts": [each.as_json(window_s or 0) for each in listing.contracts],
        "aliases": {
            name: {"model": each.model, "number": each.number, "at": each.at_ms, "by": each.by}
            for name, each in sorted(listing.records.aliases.items())
        },
        "unreadable": listing.records.unreadable,
        "no_traffic": listing.no_traffic,
    }
    click.echo(json.dumps(told, ensure_ascii=False))


def _row(each: ListedContract, window_s: float | None, now_ms: int) -> tuple[str, ...]:
    frozen = each.frozen
    output = None if frozen is None else output_digest(frozen.contract)
    traffic = () if window_s is None else _traffic_cells(each.traffic, window_s, now_ms)
    return (
        f"{each.of[0]}/{each.of[1]}",
        ",".join(each.aliases) or "-",
        *traffic,
        "not frozen" if frozen is None else when(frozen.at_ms),
        "-" if frozen is None else frozen.by,
        "-" if frozen is None else frozen.contract.digest[:SHOWN_DIGEST],
        "-" if output is None else output[:SHOWN_DIGEST],
    )


def _traffic_cells(traffic: ContractTraffic | None, window_s: float, now_ms: int) -> tuple[str, ...]:
    if traffic is None:
        return ("?",) * len(TRAFFIC)
    if not traffic.ends:
        return ("-", "-", workers_of(traffic), "no topics", "-")
    last = traffic.last
    return (
        per_minute(traffic.recent, window_s),
        f"{traffic.waiting:,}",
        workers_of(traffic),
        "none held" if last is None else shown_age(last.at_ms, now_ms),
        "-" if last is None else caller_of(last),
    )


def _warn(listing: Listing) -> None:
    if listing.no_traffic is not None:
        click.echo(f"warning: the traffic could not be read: {listing.no_traffic}", err=True)
    for each in listing.contracts:
        name = f"{each.of[0]}/{each.of[1]}"
        if each.retiring is not None:
            click.echo(
                f"warning: {name} is being retired since {when(each.retiring.at_ms)} by {each.retiring.by}, and half "
                f"of it may be gone: `headrace contracts retire {name} --yes` finishes that",
                err=True,
            )
        if each.traffic is not None and each.traffic.ends and each.traffic.missing:
            click.echo(f"warning: {name} lacks {', '.join(each.traffic.missing)}", err=True)
    for name, alias in sorted(listing.records.aliases.items()):
        if (alias.model, alias.number) not in listing.records.contracts:
            click.echo(
                f"warning: alias {name} means {alias.model}/{alias.number}, which is not frozen", err=True
            )
    warn_unreadable(listing.records)


def warn_unreadable(records: ContractRecords) -> None:
    """Name the records that cannot be read."""
    for key, why in sorted(records.unreadable.items()):
        click.echo(f"warning: the record {key} cannot be read: {why}", err=True)


def print_opened(opened: Opened, directory: str, alias: str | None) -> None:
    """What was made, what was there, and what to do next."""
    from headrace.ops.cli.topics import WORDS
    from headrace.topics.changes import Same

    model, number = opened.frozen.id
    name = f"{model}/{number}"
    changed = [each for each in opened.changes if not isinstance(each, Same)]
    for each in changed:
        click.echo(f"{WORDS[type(each)][1]:<8}{each.topic}: {each}")
    if same := len(opened.changes) - len(changed):
        click.echo(f"{same} topics are there already")
    digest = opened.frozen.contract.digest
    if opened.was_written:
        click.echo(f"froze   {name} as {digest}")
    else:
        click.echo(f"{name} is frozen already as {digest}, since {when(opened.frozen.at_ms)}")
    if alias is not None:
        click.echo(_told_alias(opened, alias))
    click.echo(
        f"next: start a worker, `headrace worker run --package {directory}`; its group is made when it joins"
    )
    if alias is None:
        click.echo(
            f"then: move callers, `headrace contracts alias {model} {name}` for those that name no contract; "
            "`headrace contracts list` shows who still asks another"
        )


def _told_alias(opened: Opened, alias: str) -> str:
    model, number = opened.frozen.id
    if opened.alias_before == (model, number):
        return f"{alias} means {model}/{number} already"
    before = (
        "" if opened.alias_before is None else f", and meant {'{}/{}'.format(*opened.alias_before)} before"
    )
    return f"{alias} means {model}/{number} now{before}: who asks for it waits until a worker is there"


def print_hindrances(name: str, found: Sequence[Hindrance]) -> None:
    """Why a contract is not retired, and what to do, on standard error."""
    click.echo(f"error: {name} cannot be retired:", err=True)
    for each in found:
        click.echo(f"  {each.why}\n    {each.remedy}", err=True)


def print_done(step: Step) -> None:
    """A step of a removal that is done."""
    match step:
        case Note(retirement) if retirement.is_removing:
            click.echo("noted that it is being removed")
        case Note(retirement):
            click.echo(f"kept {', '.join(retirement.kept)}; --results-too removes them")
        case TakeBack(keys):
            click.echo(f"took back {len(keys)} control record{'' if len(keys) == 1 else 's'}")
        case RemoveTopics(topics):
            click.echo(f"removed {len(topics)} topics")
        case RemoveGroup(group):
            click.echo(f"removed group {group}")
        case Forget():
            click.echo("nothing of it is left")


def when(at_ms: int) -> str:
    """A time in ms since the epoch, in UTC."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
