"""`headrace backfill estimate`: what a job will come to, before anything is spent but a few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from headrace.ops.cli.options import duration
from headrace.schemas.errors import UsageError

EXAMPLES = """\b
Examples:
  headrace backfill estimate tags.toml
  headrace backfill estimate --model movie-tagger --input films.parquet --output tags.parquet
  headrace backfill estimate tags.toml --rows 0       # only look at the rows: nothing is asked
  headrace backfill estimate tags.toml --json | jq .tokens
"""
_NOT_OF_AN_ESTIMATE: Final = ("anew", "jobs", "as_json")


def estimate_command(run: click.Command) -> click.Command:
    """The command, which takes the options that say to `run` what the job is."""
    options = [each for each in run.params if each.name not in _NOT_OF_AN_ESTIMATE]
    own: list[click.Parameter] = [
        click.Argument(["job"], required=False, metavar="[JOB.toml]", type=click.Path(path_type=Path)),
        click.Option(
            ["--rows"],
            type=click.IntRange(min=0, max=1_000),
            default=20,
            show_default=True,
            help="How many rows are asked about; 0: none.",
        ),
        click.Option(
            ["--timeout"],
            callback=duration,
            default="120s",
            show_default=True,
            metavar="DURATION",
            help="How long their answers are waited for.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="One JSON object."),
    ]
    return click.Command(
        "estimate",
        callback=_estimate,
        params=[*own[:1], *options, *own[1:]],
        help=_estimate.__doc__,
        short_help="Say what a job will come to, before it runs.",
        epilog=EXAMPLES,
    )


def _estimate(
    job: Path | None,
    rows: int,
    timeout: float,
    quiet: bool,
    as_json: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
    **given: Any,
) -> int:
    """Say what a job will come to, before it runs.

    Looks at every row: which are refused, and why, and which are spared because they ask the same. Asks about a few
    of the others, by chance over the whole input, as a job of their own. Says requests, tokens, hours and what is
    refused, each with what it is reckoned of, and shows three outputs. Nothing is written, and these few are all that
    is spent. The options are those of `run`.

    Exit codes: 0 the job can run; 1 it would come to nothing (all rows are refused, or max_failures would stop it); 2
    a mistake in the job, its input or the options; 3 no Kafka.
    """
    import logging

    from headrace.ops.cli.backfill import specs_of
    from headrace.ops.cli.backfill_estimate_view import Checking, json_line, show
    from headrace.producers.backfill.estimate import EstimateTellers, estimate
    from headrace.schemas.settings import Settings

    if timeout <= 0:
        raise UsageError("--timeout must be more than nothing")
    logging.getLogger("kafka").setLevel(logging.ERROR)
    settings = Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)
    [spec] = specs_of(() if job is None else (job,), given)
    with Checking(quiet=quiet or as_json) as checking:
        tellers = EstimateTellers(checking.say, checking.reading, checking.rows)
        found = estimate(settings, spec, tellers, tried=rows, within_s=timeout)
    if as_json:
        click.echo(json_line(found))
    else:
        show(found)
    return 0 if found.cannot_run is None else 1
