"""`headrace backfill`: a table in, the same table enriched out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.ops.cli import options
from headrace.ops.cli.backfill_control import COMMANDS
from headrace.ops.cli.backfill_estimate import estimate_command
from headrace.schemas.errors import UsageError

if TYPE_CHECKING:
    from headrace.producers.backfill.job import JobSpec

GROUP_EXAMPLES = """\b
Examples:
  headrace backfill run --model movie-tagger --input films.parquet --output tags.parquet
  headrace backfill status tags.parquet
  headrace backfill list
"""
RUN_EXAMPLES = """\b
Examples:
  headrace backfill run tags.toml
  headrace backfill run --model movie-tagger --input films.parquet --output tags.parquet
  headrace backfill run --model movie-tagger --input films.csv --output tags.jsonl --variable title=Title --keep Title
  headrace backfill run --model storyteller --input films.csv --output plots.jsonl --prompt 'A film called {{ Title }}'
  headrace backfill run tags.toml --max-failures 200 --sampling temperature=0 --sampling max_tokens=160
  headrace backfill run tags.toml plots.toml      # side by side; they share one read of the results
  headrace backfill run --openai-batch requests.jsonl --output answers.jsonl
"""


@click.group(epilog=GROUP_EXAMPLES)
def backfill() -> None:
    """Send a table through a model, and get it back with the model's outputs as columns.

    A job reads rows (Parquet, Arrow, CSV, JSONL), asks about each in the lane for work that can wait, and writes the
    rows in the same order with typed columns of the output. Stopped or killed at any point and run again, from any
    machine, it goes on where it was: its state lies beside the output.
    """


def _pairs(_: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE`, each name once."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals or not value:
            raise click.BadParameter(f"{each!r}: write {parameter.metavar}")
        if name in found:
            raise click.BadParameter(f"{name} is given twice")
        found[name] = value
    return found


def _sampling(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """`temperature=0`, `stop=["a"]`: JSON where it is some, else a text."""
    found: dict[str, Any] = {}
    for name, text in _pairs(context, parameter, given).items():
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    if isinstance(found.get("stop"), str):
        found["stop"] = [found["stop"]]
    return found


def _columns(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> list[str] | None:
    return [name.strip() for each in given for name in each.split(",") if name.strip()] or None


@backfill.command(epilog=RUN_EXAMPLES)
@click.argument("jobs", nargs=-1, metavar="[JOB.toml]...", type=click.Path(path_type=Path))
@click.option("--model", help="The model's name, an alias, or movie-tagger@2.")
@click.option(
    "--contract", type=click.IntRange(min=1), help="Its contract. Default: what the model's name means."
)
@click.option(
    "--input", metavar="PATH", help="The rows: a file, a folder, a pattern or a URI (s3://, gs://, hdfs://)."
)
@click.option(
    "--input-format", metavar="FORMAT", help="parquet, arrow, csv, tsv or jsonl. Default: by its suffix."
)
@click.option("--output", metavar="PATH", help="A file (.parquet, .jsonl), or a folder of parts (tags/).")
@click.option("--output-format", metavar="FORMAT", help="parquet or jsonl. Default: by its suffix.")
@click.option("--openai-batch", metavar="PATH", help="Instead of --input: a file of OpenAI's batch format.")
@click.option("--name", help="What the job is called. Default: the output's stem.")
@click.option("--package", metavar="DIR", help="The model's package, where no worker has served it yet.")
@click.option(
    "--keep",
    multiple=True,
    callback=_columns,
    metavar="COLUMN",
    help="Columns of the input that the output has: several times, or a,b,c. Default: all.",
)
@click.option(
    "--variable",
    "variables",
    multiple=True,
    callback=_pairs,
    metavar="NAME=COLUMN",
    help="A variable of the package, from a column or a template: 'year={{ row[\"Release Date\"][-4:] }}'. "
    "Several times. Default: each from the column of its name.",
)
@click.option(
    "--prompt",
    help="Instead of variables: a template over the row. Without --system the model goes on from it, and no chat "
    "template is applied.",
)
@click.option("--prompt-file", metavar="PATH", help="The same, from a file.")
@click.option("--system", help="With --prompt: the system's turn; the prompt is then the user's.")
@click.option(
    "--output-schema",
    metavar="PATH",
    help="JSON Schema of the outputs, where the contract has none.",
)
@click.option(
    "--sampling",
    multiple=True,
    callback=_sampling,
    metavar="KEY=VALUE",
    help="max_tokens=160, temperature=0, seed=7, ... Several times. Default: the package's.",
)
@click.option(
    "--max-failures",
    metavar="N|N%",
    help="Stop when more rows fail: a number, or a share, first of 1,000 rows and then of all so far. Default: 5%.",
)
@click.option(
    "--token-budget",
    type=click.IntRange(min=1),
    help="Stop before more tokens are spent, of prompts and answers.",
)
@click.option(
    "--dedupe/--no-dedupe", default=None, help="Ask once for rows that ask the same. Default: --dedupe."
)
@click.option("--reuse", metavar="JOB|OUTPUT", help="Take over the answers of an earlier job.")
@click.option(
    "--rows-per-part", type=click.IntRange(min=1), help="Rows that are written at a time. Default: 10000."
)
@click.option("--give-up-after", metavar="DURATION", help="Of each request: 30m, 2h. Default: never.")
@click.option("--lane", type=click.Choice(["backfill", "standard"]), help="Which queue. Default: backfill.")
@click.option("--tenant", help="On whose account the requests are.")
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="What each request says of itself, for your own use. Several times.",
)
@click.option(
    "--anew", is_flag=True, help="Begin again where another job has the output: that one is set aside."
)
@click.option("--quiet", is_flag=True, help="Say nothing on the way.")
@click.option("--json", "as_json", is_flag=True, help="At the end one JSON object for each job.")
@options.bootstrap_servers
@options.prefix
def run(
    jobs: tuple[Path, ...],
    anew: bool,
    quiet: bool,
    as_json: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
    **given: Any,
) -> int:
    """Run jobs until they are done: each from a JOB.toml, or one from options.

    Beside one JOB.toml, options come before its keys. Several jobs run side by side.

    Ctrl-C stops soon and loses nothing: the same command (without --anew) goes on, and finds what was answered. A
    changed input, prompt or parameter makes another job of it, which is said; --anew begins it in this one's place.

    Exit codes: 0 done, also where some rows failed (the summary counts them); 1 stopped before its end, or every row
    failed; 2 a mistake in the job, its input or the options; 3 no Kafka; 5 another process has taken the job over; 130
    Ctrl-C (143: SIGTERM). Of several jobs the highest one.
    """
    from headrace.ops.cli.backfill_run import run_jobs
    from headrace.schemas.settings import Settings

    specs = specs_of(jobs, given)
    settings = Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)
    return run_jobs(settings, specs, anew=anew, quiet=quiet, json_wanted=as_json)


backfill.add_command(estimate_command(run))


def specs_of(jobs: tuple[Path, ...], given: dict[str, Any]) -> list[JobSpec]:
    """The jobs that are meant. Raises UsageError, JobInvalid."""
    from headrace.producers.backfill.job import job_of_options, load_job
    from headrace.producers.backfill.job_origin import option_of

    fields = {name: value for name, value in given.items() if value not in (None, {}, [])}
    if not jobs:
        if not fields:
            raise UsageError(
                "give a JOB.toml, or at least --model, --input and --output (--help has examples)"
            )
        return [job_of_options(fields)]
    if len(jobs) > 1 and fields:
        names = ", ".join(map(option_of, fields))
        raise UsageError(f"{names}: options go with one job; several say all in their files")
    return [load_job(path, fields) for path in jobs]


for each in COMMANDS:
    backfill.add_command(each)
