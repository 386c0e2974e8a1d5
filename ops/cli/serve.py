"""`headrace serve`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from headrace.ops.cli import options
from headrace.ops.cli.worker import log_to_stderr


def _show_parameters(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    from headrace.producers.http.parameters import markdown_table

    if wanted:
        click.echo(markdown_table().strip())
        context.exit()


# As browsers write it: small letters, and no path.
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")


def _check_origins(_: click.Context, __: click.Parameter, origins: tuple[str, ...]) -> tuple[str, ...]:
    """One that no browser would write lets nobody in, without a word."""
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            raise click.BadParameter(
                f"{origin!r} is no origin: write it as https://app.example, without a path"
            )
    return origins


@click.command(
    epilog="""\b
    Examples:
      headrace keys create films && headrace serve
      headrace serve --no-auth --port 8000
      headrace serve --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem"""
)
@click.option(
    "--parameters",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_parameters,
    help="Print what becomes of each parameter of a call, as a Markdown table, and exit.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one."
)
@click.option(
    "--no-auth", is_flag=True, help="Ask nobody for a key. Said aloud, since it is the door of every model."
)
@click.option(
    "--keys",
    "keys_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of API keys. Default: HEADRACE_API_KEYS, else api_keys.json in the cache directory.",
)
@click.option(
    "--trust-tenant-header",
    is_flag=True,
    help="A gateway before this endpoint says for whom each call is, in X-Headrace-Tenant.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds, where a call says none.",
)
@click.option(
    "--longest-timeout",
    type=click.FloatRange(1, 86_400),
    default=3_600.0,
    show_default=True,
    help="Seconds: the most that a call may ask for.",
)
@click.option(
    "--keep-alive",
    "keep_alive_s",
    type=click.FloatRange(0.01, 3_600),
    default=15.0,
    show_default=True,
    help="Seconds of silence in a stream, then a comment is sent: fewer than the proxies before it wait.",
)
@click.option(
    "--tenant-max-concurrent",
    type=click.IntRange(1),
    help="Requests of one tenant at a time. Default: no limit.",
)
@click.option(
    "--tenant-requests-per-minute", type=click.IntRange(1), help="Of one tenant. Default: no limit."
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    callback=_check_origins,
    help="An origin whose pages may call: https://app.example. Default: none.",
)
@click.option(
    "--tls-certificate", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A PEM file."
)
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A PEM file.")
@click.option(
    "--drain-budget",
    "drain_budget_s",
    type=click.IntRange(0),
    default=60,
    show_default=True,
    help="Seconds to finish what runs when told to stop.",
)
@click.option(
    "--idle-timeout",
    "idle_timeout_s",
    type=click.IntRange(1),
    default=75,
    show_default=True,
    help="Seconds that a connection without a call is kept: more than a load balancer before it keeps one.",
)
@options.bootstrap_servers
@options.prefix
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Of Headrace's own log on standard error.",
)
def serve(
    host: str,
    port: int,
    no_auth: bool,
    keys_file: Path | None,
    trust_tenant_header: bool,
    timeout: float,
    longest_timeout: float,
    keep_alive_s: float,
    tenant_max_concurrent: int | None,
    tenant_requests_per_minute: int | None,
    cors_origins: tuple[str, ...],
    tls_certificate: Path | None,
    tls_key: Path | None,
    drain_budget_s: int,
    idle_timeout_s: int,
    bootstrap_servers: str | None,
    prefix: str | None,
    log_level: str,
) -> None:
    """Serve the OpenAI-compatible endpoint: /v1/chat/completions, /v1/completions, /v1/models.

    It holds no model: calls become requests in Kafka, of the interactive lane, and are answered by the workers. Any
    number of instances may run side by side. Nobody enters without a key (`headrace keys create`), unless --no-auth
    says so.

    Exit codes: 0 told to stop; 2 a setting or an address is wrong; 3 no broker.
    """
    from headrace.ops.http_serving import Listening
    from headrace.ops.http_serving import serve as run
    from headrace.producers.http.caller import Limits
    from headrace.producers.http.key_file import FILE_NAME
    from headrace.producers.http.keys import KeyRing
    from headrace.producers.http.service import ServiceOptions
    from headrace.schemas.errors import UsageError
    from headrace.schemas.settings import Settings

    if (tls_certificate is None) != (tls_key is None):
        raise UsageError("--tls-certificate and --tls-key go together")
    if no_auth and keys_file is not None:
        raise UsageError("--no-auth asks nobody for a key: leave --keys out")
    settings = Settings.from_environment(
        bootstrap_servers=bootstrap_servers, prefix=prefix, api_keys=keys_file
    )
    if settings.bootstrap_servers is None:
        raise UsageError(
            "no broker: set HEADRACE_BOOTSTRAP_SERVERS or give --bootstrap-servers (`headrace up` starts one)"
        )
    log_to_stderr(log_level)
    keys = None if no_auth else KeyRing(settings.api_keys or settings.cache_dir / FILE_NAME)
    service = ServiceOptions(
        keys,
        trusts_tenant_header=trust_tenant_header,
        per_tenant=Limits(
            max_concurrent=tenant_max_concurrent, requests_per_minute=tenant_requests_per_minute
        ),
        default_timeout_s=timeout,
        longest_timeout_s=max(timeout, longest_timeout),
        keep_alive_s=keep_alive_s,
    )
    listening = Listening(host, port, tls_certificate, tls_key, cors_origins, drain_budget_s, idle_timeout_s)
    run(settings, service, listening, lambda address: click.echo(_announcement(address, no_auth=no_auth)))


def _announcement(address: str, *, no_auth: bool) -> str:
    key = "none needed" if no_auth else "one of `headrace keys create`"
    return f"""\
serving {address}/v1 (Ctrl-C ends it; documentation: {address}/docs)

    from openai import OpenAI
    client = OpenAI(base_url="{address}/v1", api_key="...")  # {key}
    print([model.id for model in client.models.list()])"""
