"""`headrace worker`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.ops.cli import options
from headrace.ops.cli.percents import Percent

if TYPE_CHECKING:
    from headrace.ops.running import EngineKind

DEFAULT_SAMPLE = 0.1  # of a shadow
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr(level: str) -> None:
    """Our own records from `level` on, other libraries' only when something is wrong."""
    logging.basicConfig(format=LOG_FORMAT, level=logging.WARNING)
    logging.getLogger("headrace").setLevel(level.upper())
    # The client logs every lost connection as an error; what it means for us is said by our own records.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)


@click.group(epilog="Example: headrace worker run --package examples/movie-tagger --engine simulated")
def worker() -> None:
    """Run a worker."""


@worker.command(
    epilog="""\b
    Example:
      headrace worker run --package examples/movie-tagger --engine simulated --slot worker-1
      headrace worker run --package movie-tagger-4 --shadow --sample 5%"""
)
@options.package
@options.engine
@options.weights
@click.option(
    "--slot", help="This worker's name, unique in its group. Default: HEADRACE_SLOT, else the host's name."
)
@options.bootstrap_servers
@options.prefix
@click.option(
    "--max-in-flight",
    type=int,
    help="Requests given to the engine at a time. Default: what it takes in a step, and an eighth more.",
)
@click.option(
    "--drain-budget", "drain_budget_s", type=int, help="Seconds to finish what is in flight. Default: 60."
)
@options.metrics_port
@click.option(
    "--shadow",
    is_flag=True,
    help="Serve beside the version that answers: for `headrace rollout compare`, and nobody else.",
)
@click.option(
    "--sample", type=Percent(), help="With --shadow: the part of the requests that is served. Default: 10%."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Of Headrace's own log on standard error.",
)
def run(
    package_dir: Path,
    engine: EngineKind,
    weights: Path | None,
    slot: str | None,
    bootstrap_servers: str | None,
    prefix: str | None,
    max_in_flight: int | None,
    drain_budget_s: int | None,
    metrics_port: int | None,
    shadow: bool,
    sample: float | None,
    log_level: str,
) -> None:
    """Serve one model package until SIGTERM.

    The first SIGTERM or Ctrl-C finishes what is in flight, gives each partition away as it is drained, and leaves
    the group; a second leaves at once.

    Exit codes: 0 told to stop, 1 failed, 2 a mistake in package or settings, 3 no brokers given or no engine here,
    4 the engine died, 5 another process has this slot, 70 a transaction hung. 3 too when no broker answers for a
    minute at its start, 130 told to stop twice. Start it again after anything but 0, 2, 5 and 130: it goes on where
    it stopped, and a request that kills engines is found.
    """
    from headrace.ops.running import run_worker, with_weights
    from headrace.schemas.errors import BrokerNotFound, UsageError
    from headrace.schemas.package import load_package
    from headrace.schemas.settings import Settings

    if sample is not None and not shadow:
        raise UsageError("--sample goes with --shadow: what answers callers takes every request")
    settings = Settings.from_environment(
        slot=slot,
        bootstrap_servers=bootstrap_servers,
        prefix=prefix,
        max_in_flight=max_in_flight,
        drain_budget_s=drain_budget_s,
        metrics_port=metrics_port,
    )
    if settings.bootstrap_servers is None:
        raise BrokerNotFound(
            "no brokers: set HEADRACE_BOOTSTRAP_SERVERS or --bootstrap-servers (headrace broker start runs one)"
        )
    log_to_stderr(log_level)
    run_worker(
        settings,
        with_weights(load_package(package_dir), weights),
        engine,
        shadow_share=(sample or DEFAULT_SAMPLE) if shadow else None,
    )
