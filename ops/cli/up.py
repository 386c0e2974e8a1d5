"""`headrace up`: broker, topics and one worker in one command, for development."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.ops.cli import options
from headrace.ops.cli.worker import log_to_stderr

if TYPE_CHECKING:
    from headrace.ops.running import EngineKind
    from headrace.schemas.package import Package
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

HTTP_PORT = 8000
ENDPOINT_READY_WITHIN_S = 60.0
DEVELOPMENT_PARTITIONS = 4  # each topic's partitions cost a broker files; one worker needs few


@click.command(
    epilog="""\b
    Examples:
      headrace up --package examples/movie-tagger --engine simulated
      headrace up --package examples/movie-tagger --port 9092 --http-port 8080"""
)
@options.package
@options.engine
@options.weights
@click.option("--port", type=click.IntRange(1, 65535), help="Of the broker. Default: a free one.")
@click.option(
    "--bootstrap-servers",
    help="Kafka brokers to use. Default: HEADRACE_BOOTSTRAP_SERVERS, else one found here.",
)
@options.prefix
@click.option("--slot", help="The worker's name. Default: HEADRACE_SLOT, else up.")
@options.metrics_port
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    help="Of the OpenAI-compatible endpoint; 0: any free one. Default: 8000, or a free one where that is taken.",
)
@click.option("--no-http", is_flag=True, help="Without the endpoint.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Of Headrace's own log on standard error.",
)
def up(
    package_dir: Path,
    engine: EngineKind,
    weights: Path | None,
    port: int | None,
    bootstrap_servers: str | None,
    prefix: str | None,
    slot: str | None,
    metrics_port: int | None,
    http_port: int | None,
    no_http: bool,
    log_level: str,
) -> None:
    """Find or start a broker, make the topics, and run one worker and the HTTP endpoint until Ctrl-C.

    Says how to send a request and read its result: on the command line, from Python, with kcat, and with Kafka's
    own console tools. Nothing of a broker that was started here is left afterwards. A package that names the
    demo's model, and no revision of it, is served from the demo's own copy, for which no hub is asked.

    Exit codes: 0 told to stop; otherwise as `headrace worker run` has them.
    """
    from headrace.ops.broker import find_or_start
    from headrace.ops.running import run_worker, with_weights
    from headrace.schemas.errors import UsageError
    from headrace.schemas.package import load_package
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames
    from headrace.topics.provision import LayoutOptions, bring_in_line

    settings = Settings.from_environment(
        bootstrap_servers=bootstrap_servers, prefix=prefix, slot=slot, metrics_port=metrics_port
    )
    if port is not None and settings.bootstrap_servers is not None:
        raise UsageError(
            f"--port is of a broker started here, and {settings.bootstrap_servers} is to be used: leave one out"
        )
    package = load_package(package_dir)
    if weights is None and engine == "vllm":
        weights = demo_weights(package, settings.cache_dir / "models")
    package = with_weights(package, weights)
    names = ContractNames(settings.prefix, package.model, package.contract)
    log_to_stderr(log_level)
    with find_or_start(settings, port=port, on_progress=lambda line: click.echo(line, err=True)) as broker:
        settings = settings.model_copy(
            update={"bootstrap_servers": broker.bootstrap_servers, "slot": settings.slot or "up"}
        )
        for limit in broker.limits:
            click.echo(f"note: {limit}", err=True)
        bring_in_line(settings, names, LayoutOptions(partitions=DEVELOPMENT_PARTITIONS))
        click.echo(f"loading {package.model} {package.version} ({engine})", err=True)
        with contextlib.ExitStack() as stack:
            address = None if no_http else stack.enter_context(_endpoint(settings, http_port))
            run_worker(
                settings,
                package,
                engine,
                on_ready=lambda: click.echo(announcement(broker.bootstrap_servers, names, package, address)),
            )


@contextlib.contextmanager
def _endpoint(settings: Settings, port: int | None) -> Generator[str]:
    """The endpoint on this machine alone, with no key asked for; its address. Raises EndpointFailed."""
    from headrace.ops.http_process import EndpointProcess

    if port is None:
        port = HTTP_PORT if _is_free(HTTP_PORT) else 0
    with EndpointProcess(settings, log=settings.cache_dir / "logs" / "up-http.log", port=port) as endpoint:
        yield endpoint.wait_ready(ENDPOINT_READY_WITHIN_S)


def _is_free(port: int) -> bool:
    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def demo_weights(package: Package, cache_dir: Path) -> Path | None:
    """The demo's copy where a package names the demo's model and no revision of it; None: ask the hub."""
    from headrace.ops.demo_model import HUB_ID, prepare_demo_model
    from headrace.schemas.errors import EngineUnavailable

    if package.weights != HUB_ID or package.revision is not None:
        return None
    try:
        found = prepare_demo_model(cache_dir, lambda line: click.echo(line, err=True))
    except EngineUnavailable:  # the copy's package is not installed
        return None
    click.echo(f"weights: the demo's copy of {HUB_ID}, {found}", err=True)
    return found


def announcement(address: str, names: ContractNames, package: Package, endpoint: str | None = None) -> str:
    """What to type next: flush left and whole, so that it can be pasted as it stands."""
    from headrace.ops.cli.package import accepted_example
    from headrace.schemas.settings import Settings

    contract = f" --contract {names.contract}" if names.contract != 1 else ""
    connect = f"{names.model!r}, {names.contract}" if contract else f"{names.model!r}"
    connect += f", bootstrap_servers={address!r}"
    exports = f"export HEADRACE_BOOTSTRAP_SERVERS={address}"
    if names.prefix != Settings.model_fields["prefix"].default:
        exports += f" HEADRACE_PREFIX={names.prefix}"
    variables = (accepted_example(package) or {}).get("variables")
    if variables is None:
        given, request, option = "Hello!", {"prompt": "Hello!"}, "--prompt Hello!"
    else:
        given, request = variables, {"variables": variables}
        option = f"--variables {shlex.quote(json.dumps(variables, ensure_ascii=False))}"
    line = shlex.quote(json.dumps({"id": "example-1", **request}, ensure_ascii=False))
    openai = "" if endpoint is None else _openai_sample(endpoint, names)
    return f"""\
ready: {names.model} {package.version} on {address} (Ctrl-C ends it)

# command line
{exports}
headrace send --model {names.model}{contract} {option} --wait
headrace results --model {names.model}{contract}

# Python
from headrace.producers.sync_client import SyncClient
with SyncClient.connect({connect}) as client:
    print(client.ask({given!r}))
{openai}
# kcat, or Kafka's console tools: an answer is in the encoding of its request, here JSON
echo {line} | kcat -P -b {address} -t {names.requests("standard")}
kcat -C -b {address} -t {names.results} -X isolation.level=read_committed
kafka-console-consumer.sh --bootstrap-server {address} --topic {names.results} \\
    --isolation-level read_committed --from-beginning
"""


def _openai_sample(endpoint: str, names: ContractNames) -> str:
    body = {"model": f"{names.model}@{names.contract}", "messages": [{"role": "user", "content": "Hello!"}]}
    return f"""
# any OpenAI client, or curl
from openai import OpenAI
client = OpenAI(base_url="{endpoint}/v1", api_key="none is asked for")
print(client.chat.completions.create(model="{body["model"]}", messages={body["messages"]}).choices[0].message.content)
curl {endpoint}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}
"""
