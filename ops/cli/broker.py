"""`headrace broker`: start a Kafka broker for development, install one, or say which would be used."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from headrace.ops import broker_install
from headrace.ops.broker import BrokerNeeds, RunningBroker, find_or_start, look_around
from headrace.ops.broker_choice import choose
from headrace.ops.pins import pins
from headrace.schemas.errors import UsageError
from headrace.schemas.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

CHECK_EVERY_S = 1.0  # how soon a broker that died by itself is noticed


@click.group(epilog="Example: headrace broker start --port 9092")
def broker() -> None:
    """Start or install a Kafka broker for development.

    \b
    Looked for in this order:
      HEADRACE_BOOTSTRAP_SERVERS  a running cluster
      KAFKA_HOME                  an unpacked Apache Kafka, with Java 17 or later
      headrace broker install     the same, fetched into the cache
      Docker                      Apache Kafka's image
      the embedded broker         in memory, one worker, no guarantees when something is killed
    """


@broker.command(
    epilog="""\b
    Examples:
      headrace broker start
      headrace broker start --brokers 3 --port 9092 --data ./kafka-data"""
)
@click.option("--brokers", type=click.IntRange(1, 9), default=1, show_default=True, help="How many.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Of the first; the others take the ports after it. Default: free ones.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the data lies and stays. Default: a temporary directory, removed at the end.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when it is ready.")
def start(brokers: int, port: int | None, data: Path | None, as_json: bool) -> None:
    """Run a broker in the foreground until Ctrl-C or SIGTERM.

    Prints its address in one line when it answers. Nothing of it but --data is left afterwards, however this
    command ends.
    """
    settings = Settings.from_environment()
    if settings.bootstrap_servers:
        raise UsageError(
            f"HEADRACE_BOOTSTRAP_SERVERS={settings.bootstrap_servers} names a running broker, "
            "and one started here would not be used: unset it"
        )
    with _ended_by_a_signal():
        running = find_or_start(
            settings,
            BrokerNeeds(),
            brokers=brokers,
            port=port,
            data_dir=data.absolute() if data else None,
            on_progress=lambda line: click.echo(line, err=True),
        )
        with running:
            click.echo(json.dumps(_described(running)) if as_json else _announced(running))
            while True:
                running.check()
                time.sleep(CHECK_EVERY_S)


@broker.command(
    epilog="""\b
    Examples:
      headrace broker install
      headrace broker install --url https://mirror.example.org/kafka"""
)
@click.option(
    "--version", default=lambda: pins().kafka_version, show_default="the pinned one", help="Of Apache Kafka."
)
@click.option(
    "--url",
    help="Has <version>/kafka_<scala>-<version>.tgz and its .sha512. Default: where Apache publishes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def install(version: str, url: str | None, as_json: bool) -> None:
    """Fetch an Apache Kafka release into the cache, its SHA-512 verified.

    For those who have Java and no Docker. Interrupted, it goes on where it stopped when it is run again.
    """
    settings = Settings.from_environment()
    with _download_bar() as bar:
        task = bar.add_task(f"Apache Kafka {version}", total=None)
        try:
            home = broker_install.install(
                settings.cache_dir,
                version=version,
                bases=[url] if url else None,
                on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        except OSError as error:
            raise UsageError(
                f"{error.filename or settings.cache_dir} cannot be written to ({error.strerror or error}): "
                "set HEADRACE_CACHE_DIR to a folder that can"
            ) from None
    if as_json:
        click.echo(json.dumps({"version": version, "home": str(home)}))
    else:
        click.echo(f"Apache Kafka {version} is in {home}; `headrace broker start` runs it")


@broker.command(epilog="Example: headrace broker which --real")
@click.option("--brokers", type=click.IntRange(1, 9), default=1, show_default=True, help="How many.")
@click.option(
    "--real", is_flag=True, help="For several workers and exactly-once: the embedded one will not do."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def which(brokers: int, real: bool, as_json: bool) -> None:
    """Say which broker would be used, and why. Starts nothing."""
    needs = BrokerNeeds(several_workers=real, exactly_once=real)
    choice = choose(look_around(Settings.from_environment()), needs, brokers=brokers)
    if as_json:
        reasons: dict[str, Any] = {"why": choice.why, "passed_over": choice.passed_over}
        click.echo(json.dumps({"kind": choice.kind, "place": choice.place, **reasons}))
        return
    click.echo(f"{choice.kind}: {choice.place} ({choice.why})")
    for line in choice.passed_over:
        click.echo(f"  not used: {line}")


def _described(running: RunningBroker) -> dict[str, Any]:
    return {
        "bootstrap_servers": running.bootstrap_servers,
        "kind": running.kind,
        "limits": running.limits,
    }


def _announced(running: RunningBroker) -> str:
    servers = running.bootstrap_servers
    lines = [
        f"broker at {servers}",
        f"  connect:  export HEADRACE_BOOTSTRAP_SERVERS={servers}    or    kcat -b {servers} -L",
        *(f"  note:     {limit}" for limit in running.limits),
        "  stop:     Ctrl-C",
    ]
    return "\n".join(lines)


@contextlib.contextmanager
def _ended_by_a_signal() -> Generator[None]:
    """Ctrl-C and SIGTERM end the block in good order, and the command with exit code 0."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _download_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
