"""`headrace keys`: who may call the HTTP endpoint."""

from __future__ import annotations

import difflib
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.ops.cli.results import UNITS
from headrace.schemas.errors import UsageError

if TYPE_CHECKING:
    from headrace.producers.http.caller import Limits
    from headrace.producers.http.key_file import ApiKey
    from headrace.schemas.messages import JsonObject

CREATE_EXAMPLES = """\b
Examples:
  headrace keys create search-team --max-concurrent 20 --expires 90d
  headrace keys create nightly --tenant search-team --requests-per-minute 600
  headrace keys create edge-proxy --gateway > proxy.key
"""
LIST_EXAMPLES = """\b
Examples:
  headrace keys list
  headrace keys list --json | jq -r '.[] | select(.state == "active") | .id'
"""
REVOKE_EXAMPLES = """\b
Examples:
  headrace keys revoke 7kq2mzt4xw
  headrace keys revoke hr-7kq2mzt4xw --file /etc/headrace/api_keys.json
"""

Command = Callable[..., Any]
COLUMNS = ("ID", "NAME", "TENANT", "STATE", "CREATED", "EXPIRES", "LIMITS")


class Expiry(click.ParamType[int]):
    """A time to come, in ms since the epoch: how far away it is, or when."""

    name = "expiry"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        ahead = re.fullmatch(r"(\d{1,9})([smhd])", value)
        try:
            if ahead:
                moment = datetime.now(tz=UTC) + timedelta(**{UNITS[ahead[2]]: int(ahead[1])})
            else:
                moment = datetime.fromisoformat(value).astimezone(UTC)
            expires = int(moment.timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is neither like 12h or 90d nor like 2027-01-31", param, ctx)
        if expires <= _now_ms():
            self.fail(f"{value!r} has passed", param, ctx)
        return expires


def file_option(command: Command) -> Command:
    """Where the keys are kept."""
    return click.option(
        "--file",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Where the keys are kept. Default: HEADRACE_API_KEYS, else api_keys.json in the cache folder.",
    )(command)


@click.group()
def keys() -> None:
    """Make, list and revoke the keys with which the HTTP endpoint is called.

    A running `headrace serve` that has the same file notices each change within a second.
    """


@keys.command(epilog=CREATE_EXAMPLES)
@click.argument("name")
@click.option("--tenant", help="For whom its calls are; tenants share a lane equally. Default: NAME.")
@click.option(
    "--gateway",
    is_flag=True,
    help="The key of a trusted gateway: it has no tenant, each call names one (X-Headrace-Tenant).",
)
@click.option("--max-concurrent", type=click.IntRange(min=1), help="Requests at a time.")
@click.option("--requests-per-minute", type=click.IntRange(min=1), help="Of one instance of the endpoint.")
@click.option("--tokens-per-minute", type=click.IntRange(min=1), help="Of prompts and answers together.")
@click.option(
    "--expires", type=Expiry(), help="When it stops to open: in 12h, 90d, or at a time. Default: never."
)
@file_option
def create(
    name: str,
    tenant: str | None,
    gateway: bool,
    max_concurrent: int | None,
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    expires: int | None,
    file: Path | None,
) -> int:
    """Make a key that is called NAME, and print it on standard output. Only a hash of it is kept.

    Limits hold for what is sent with this key through one instance of the endpoint.

    Exit codes: 0; 2 a wrong option, or a file that cannot be changed.
    """
    from headrace.producers.http.caller import Limits, is_name
    from headrace.producers.http.keys import create_key

    if gateway and tenant is not None:
        raise UsageError("give --tenant or --gateway: a gateway's calls name their tenants themselves")
    for what, given in (("NAME", name), ("--tenant", tenant)):
        if given is not None and not is_name(given):
            raise UsageError(f"{what} must have 1 to 256 printable characters, and no blanks at its ends")
    limits = Limits(
        max_concurrent=max_concurrent,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
    )
    path = file_of(file)
    made, secret = create_key(
        path,
        name,
        tenant=None if gateway else tenant or name,
        now_ms=_now_ms(),
        expires_ms=expires,
        limits=limits,
    )
    click.echo(secret)
    until = "" if made.expires is None else f", until {_when(made.expires)}"
    click.echo(f"key {made.id} ({made.name}) for {_whose(made)}{until}, kept in {path}", err=True)
    click.echo("The key above is shown this once: it is not stored anywhere, only a hash of it.", err=True)
    return 0


@keys.command("list", epilog=LIST_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@file_option
def list_(as_json: bool, file: Path | None) -> int:
    """List the keys, the oldest first. Neither keys nor hashes are shown.

    Exit codes: 0, also where there are none; 2 a wrong option, or a file that cannot be read.
    """
    from headrace.producers.http.key_file import read_keys

    path, now = file_of(file), _now_ms()
    listed = sorted(read_keys(path).keys, key=lambda each: each.created)
    if as_json:
        click.echo(json.dumps([_as_json(each, now) for each in listed], ensure_ascii=False))
        return 0
    if not listed:
        click.echo(f"{path} has no keys; `headrace keys create NAME` makes one")
        return 0
    rows = [COLUMNS, *(_row(each, now) for each in listed)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


@keys.command(epilog=REVOKE_EXAMPLES)
@click.argument("key_id", metavar="ID")
@file_option
def revoke(key_id: str, file: Path | None) -> int:
    """Let the key of this ID open no longer: within a second, in every endpoint that has the file.

    What is running with it goes on. A key cannot be made to open again: make another.

    Exit codes: 0, also where it was revoked before; 1 there is no such key; 2 a file that cannot be changed.
    """
    from headrace.producers.http.key_file import read_keys
    from headrace.producers.http.keys import UnknownKey, key_id_of, revoke_key

    path = file_of(file)
    wanted = key_id_of(key_id)
    try:
        if wanted is None:
            raise UnknownKey("that is no key's id")
        revoked, opened = revoke_key(path, wanted, now_ms=_now_ms())
    except UnknownKey:
        raise UnknownKey(_unknown(key_id, wanted, path, read_keys(path).keys)) from None
    named = f"key {revoked.id} ({revoked.name}) of {_whose(revoked)}, made {_when(revoked.created)}"
    if opened:
        click.echo(f"revoked {named}: who calls with it is refused within a second")
    elif revoked.expires is not None and revoked.revoked is not None and revoked.expires <= revoked.revoked:
        click.echo(f"revoked {named}: it had expired on {_when(revoked.expires)}")
    else:
        click.echo(f"{named} has been revoked before, on {_when(revoked.revoked or 0)}")
    return 0


def file_of(given: Path | None) -> Path:
    """Where the keys are kept. Raises SettingsError."""
    from headrace.producers.http.key_file import FILE_NAME
    from headrace.schemas.settings import Settings

    if given is not None:
        return given
    settings = Settings.from_environment()
    return settings.api_keys or settings.cache_dir / FILE_NAME


def _unknown(given: str, wanted: str | None, path: Path, known: list[ApiKey]) -> str:
    """That there is no such key, and which was meant; a whole key that was typed is not repeated."""
    said = f"no API key has the id {wanted}" if wanted else "that is no API key's id"
    if not known:
        return f"{said}: {path} has none at all"
    called = [each.id for each in known if each.name == given]
    near = called or difflib.get_close_matches(wanted or given, [each.id for each in known], n=1)
    if not near:
        return f"{said} in {path}: `headrace keys list` shows them"
    meant = next(each for each in known if each.id == near[0])
    others = f", or one of {len(called) - 1} more of that name" if len(called) > 1 else ""
    return f"{said} in {path}; did you mean {meant.id} ({meant.name}){others}?"


def _row(each: ApiKey, now_ms: int) -> tuple[str, ...]:
    return (
        each.id,
        each.name,
        "(named by each call)" if each.tenant is None else each.tenant,
        each.state(now_ms),
        _when(each.created),
        "-" if each.expires is None else _when(each.expires),
        _limits(each.limits),
    )


def _limits(limits: Limits) -> str:
    said = (
        (limits.max_concurrent, "at a time"),
        (limits.requests_per_minute, "requests/min"),
        (limits.tokens_per_minute, "tokens/min"),
    )
    return ", ".join(f"{limit:,} {what}" for limit, what in said if limit is not None) or "-"


def _as_json(each: ApiKey, now_ms: int) -> JsonObject:
    shown = each.model_dump(mode="json", exclude={"salt", "hash"})
    return {**shown, "state": each.state(now_ms)}


def _whose(each: ApiKey) -> str:
    return "a gateway" if each.tenant is None else f"tenant {each.tenant}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _when(at_ms: int) -> str:
    from headrace.ops.cli.dead_rows import moment

    return f"{moment(at_ms)} UTC"
