"""Options that several commands have, so that they mean the same everywhere."""

from __future__ import annotations

from pathlib import Path

import click

package = click.option(
    "--package",
    "package_dir",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of a model package (or its package.toml).",
)
engine = click.option(
    "--engine",
    type=click.Choice(["vllm", "simulated"]),
    default="vllm",
    show_default=True,
    help="What generates.",
)
weights = click.option(
    "--weights",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A local copy of the weights that the package names.",
)
bootstrap_servers = click.option(
    "--bootstrap-servers", help="Kafka brokers. Default: HEADRACE_BOOTSTRAP_SERVERS."
)
prefix = click.option("--prefix", help="Begins every topic's name. Default: HEADRACE_PREFIX, else headrace.")
metrics_port = click.option(
    "--metrics-port", type=int, help="Port of /metrics, /healthz, /readyz; 0: any free one. Default: 9400."
)


def duration(_: click.Context, __: click.Parameter, given: str) -> float:
    """An option's callback: `90s`, `10m`, `2h` or plain seconds, as seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (given[:-1], given[-1]) if given[-1:] in units else (given, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 10**7:
        raise click.BadParameter(f"{given!r} is no duration: 90s, 10m or 2h")
    return seconds
