"""The `headrace` command. Each subcommand is a module of this package, imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from headrace.schemas.errors import HeadraceError, UsageError

# name: (module, attribute, one line of help). The line stands here so that `headrace --help` imports no subcommand.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("up", "up", "Broker, topics and one worker in one command, for development."),
    "init": ("package", "init", "Write a new model package that passes the check."),
    "package": ("package", "package", "Check a model package."),
    "worker": ("worker", "worker", "Run a worker."),
    "send": ("send", "send", "Send requests: from a file, from standard input, or one prompt."),
    "results": ("results", "results", "Read results: follow, filter, as a table or JSON."),
    "backfill": ("backfill", "backfill", "A table in, the same table enriched out."),
    "dead": ("dead", "dead", "What was not served as asked: list, show, send it again."),
    "topics": ("topics", "topics", "Create and compare the topics of a model."),
    "contracts": ("contracts", "contracts", "The interface versions share: open, list, retire it."),
    "rollout": ("rollout", "rollout", "Move traffic to another version, step by step, and back."),
    "offsets": ("offsets", "offsets", "Where a model's group stands; accept what was lost."),
    "schema": ("schema", "schema", "Check output schemas: how each would be held."),
    "schemas": ("schemas", "schemas", "Export the Avro schemas, or register them."),
    "serve": ("serve", "serve", "The OpenAI-compatible HTTP endpoint."),
    "keys": ("keys", "keys", "Make, list and revoke keys of the HTTP endpoint."),
    "broker": ("broker", "broker", "Start or install a Kafka broker for development."),
    "bench": ("bench", "bench", "Measure, as ratios within one run."),
}


# What is imported only where it is installed, and the extra that brings it.
EXTRAS = {"pyarrow": "backfill"}


class LazyGroup(click.Group):
    """A group whose subcommands are imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"headrace.ops.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: headrace up --package examples/movie-tagger --engine simulated",
)
@click.version_option(package_name="headrace", prog_name="headrace")
def cli() -> None:
    """Headrace: Kafka in, checked JSON out.

    Runs vLLM models as exactly-once Kafka stream processors. Settings come from HEADRACE_* variables; each
    command's options override them.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; an error of ours becomes one line and its exit code."""
    try:
        result = cli.main(args=arguments, prog_name="headrace", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("aborted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        click.echo(f"error: {error.name} is needed: pip install 'headrace[{EXTRAS[error.name]}]'", err=True)
        sys.exit(UsageError.exit_code)
    except HeadraceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    sys.exit(result if isinstance(result, int) else 0)
