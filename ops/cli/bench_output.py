"""What the commands of `headrace bench` have in common."""

from __future__ import annotations

from pathlib import Path

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
vllm_model = click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Weights for vLLM. Default: a tiny random Llama, made on first use.",
)


def say(line: str) -> None:
    """Progress, which is not for scripts."""
    click.echo(line, err=True)


def verdict(is_met: bool) -> str:
    """How a goal stands."""
    return "met" if is_met else "NOT MET"
