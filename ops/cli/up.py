"""`headrace up`: broker, topics and one worker in one command, for development."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.ops.cli.worker import log_to_stderr

if TYPE_CHECKING:
    from headrace.ops.broker import RunningBroker
    from headrace.ops.running import EngineKind
    from headrace.schemas.package import Package
    from headrace.topics.names import ContractNames

DEVELOPMENT_PARTITIONS = 4  # each topic's partitions cost a broker files; one worker needs few


@click.command(
    epilog="""\b
    Examples:
      headrace up --package examples/movie-tagger --engine simulated
      headrace up --package examples/movie-tagger --port 9092"""
)
@click.option(
    "--package",
    "package_dir",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of a model package (or its package.toml).",
)
@click.option(
    "--engine",
    type=click.Choice(["vllm", "simulated"]),
    default="vllm",
    show_default=True,
    help="What generates.",
)
@click.option(
    "--weights",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A local copy of the weights that the package names.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Of the broker. Default: a free one.")
@click.option("--slot", default="up", show_default=True, help="The worker's name.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Of Headrace's own log on standard error.",
)
def up(
    package_dir: Path, engine: EngineKind, weights: Path | None, port: int | None, slot: str, log_level: str
) -> None:
    """Find or start a broker, make the topics, and run one worker until Ctrl-C.

    Says how to send a request and read its result: from Python, with kcat, and with Kafka's own console tools.
    Nothing of a broker that was started here is left afterwards.
    """
    from headrace.ops.broker import find_or_start
    from headrace.ops.running import run_worker, with_weights
    from headrace.schemas.package import load_package
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames
    from headrace.topics.provision import LayoutOptions, bring_in_line

    settings = Settings.from_environment(slot=slot)
    package = with_weights(load_package(package_dir), weights)
    names = ContractNames(settings.prefix, package.model, package.contract)
    log_to_stderr(log_level)
    with find_or_start(settings, port=port, on_progress=lambda line: click.echo(line, err=True)) as broker:
        settings = Settings.from_environment(
            slot=slot, bootstrap_servers=broker.bootstrap_servers, metrics_port=settings.metrics_port
        )
        for limit in broker.limits:
            click.echo(f"note: {limit}", err=True)
        bring_in_line(settings, names, LayoutOptions(partitions=DEVELOPMENT_PARTITIONS))
        click.echo(f"loading {package.model} {package.version} ({engine})", err=True)
        run_worker(
            settings, package, engine, on_ready=lambda: click.echo(announcement(broker, names, package))
        )


def announcement(broker: RunningBroker, names: ContractNames, package: Package) -> str:
    """What to type next."""
    asked = (
        {"variables": dict.fromkeys(sorted(package.prompt.variables), "...")}
        if package.prompt
        else {"prompt": "..."}
    )
    request = json.dumps({"id": "my-1", **asked})
    address = broker.bootstrap_servers
    given = f"{names.model!r}, bootstrap_servers={address!r}"
    question = repr(asked["variables"]) if package.prompt else repr(asked["prompt"])
    return f"""\
ready: {names.model} {package.version} on {address} (Ctrl-C ends it)

Python   from headrace.producers.sync_client import SyncClient
         with SyncClient.connect({given}) as client: print(client.ask({question}))

kcat     echo '{request}' | kcat -P -b {address} -t {names.requests("standard")}
         kcat -C -b {address} -t {names.results} -X isolation.level=read_committed

Kafka    kafka-console-consumer.sh --bootstrap-server {address} --topic {names.results} \\
             --isolation-level read_committed --from-beginning
"""
