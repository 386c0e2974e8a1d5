"""`headrace backfill` for jobs that are there: how they stand, orders to those that run, and another round."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import click

from headrace.ops.cli import options

if TYPE_CHECKING:
    from headrace.ops.cli.backfill_orders import Wish
    from headrace.producers.backfill.rounds import Redo
    from headrace.schemas.settings import Settings


def _settings(bootstrap_servers: str | None, prefix: str | None) -> Settings:
    from headrace.schemas.settings import Settings

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what goes wrong there is raised here
    return Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)


@click.command(
    epilog="""\b
    Examples:
      headrace backfill status tags.parquet
      headrace backfill status tags-7f3a9c21
      headrace backfill status tags --json | jq .stage"""
)
@click.argument("job", metavar="JOB|OUTPUT")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@options.bootstrap_servers
@options.prefix
def status(job: str, as_json: bool, bootstrap_servers: str | None, prefix: str | None) -> None:
    """Show how a job stands: rows, failures by reason, tokens, who runs it, and what was ordered.

    JOB is its id or the beginning of one; OUTPUT the path of its output; a JOB.toml does too. The running process says
    where it is every ten seconds.

    Exit codes: 0; 2 no such job, or several; 3 no Kafka.
    """
    from headrace.ops.cli.backfill_jobs import find_job, now_ms
    from headrace.ops.cli.backfill_listing import print_json, print_status

    found = find_job(_settings(bootstrap_servers, prefix), job)
    if as_json:
        print_json([found], now_ms())
    else:
        print_status(found, now_ms())


@click.command(
    "list",
    epilog="""\b
    Examples:
      headrace backfill list
      headrace backfill list --model movie-tagger --all
      headrace backfill list --json | jq .job""",
)
@click.option("--model", help="Only this model's.")
@click.option("--all", "all_", is_flag=True, help="Those that are done or cancelled too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@options.bootstrap_servers
@options.prefix
def list_(
    model: str | None, all_: bool, as_json: bool, bootstrap_servers: str | None, prefix: str | None
) -> None:
    """List jobs, whoever runs them: how far each is, when its process last said something, where its output lies.

    "silent for 3 min": a process that was at it says nothing any more; run again, the job goes on.

    Exit codes: 0; 2 a wrong option; 3 no Kafka.
    """
    from headrace.consumers.backfill_jobs import read_backfills
    from headrace.ops.cli.backfill_jobs import FoundJob, now_ms
    from headrace.ops.cli.backfill_listing import print_json, print_list

    now = now_ms()
    records = read_backfills(_settings(bootstrap_servers, prefix))
    jobs = [FoundJob(known.id, known) for known in records.jobs.values() if model in (None, known.id.model)]
    jobs.sort(key=lambda each: 0 if each.known.running is None else each.known.running.at, reverse=True)
    shown = [each for each in jobs if all_ or each.stage(now) not in ("done", "cancelled")]
    if as_json:
        print_json(shown, now)
    else:
        print_list(shown, len(jobs) - len(shown), now)


def _ordered(
    wish: Wish, jobs: tuple[str, ...], as_json: bool, bootstrap_servers: str | None, prefix: str | None
) -> int:
    from headrace.consumers.backfill_jobs import read_backfills
    from headrace.ops.cli.backfill_jobs import find_job
    from headrace.ops.cli.backfill_orders import order

    settings = _settings(bootstrap_servers, prefix)
    records = read_backfills(settings)
    found = [find_job(settings, each, records) for each in jobs]
    code = 0
    for job in found:
        ordered = order(settings, job, wish)
        if as_json:
            told = {
                "job": job.id.job,
                "order": wish,
                "obeyed": ordered.obeyed,
                "message": ordered.sentence,
            }
            click.echo(json.dumps(told, ensure_ascii=False))
        else:
            click.echo(ordered.sentence)
        code = max(code, 1 if ordered.obeyed is False else 0)
    return code


_jobs = click.argument("jobs", nargs=-1, required=True, metavar="JOB|OUTPUT...")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object for each job.")


@click.command(epilog="Example: headrace backfill pause tags-7f3a9c21")
@_jobs
@_json
@options.bootstrap_servers
@options.prefix
def pause(jobs: tuple[str, ...], as_json: bool, bootstrap_servers: str | None, prefix: str | None) -> int:
    """Have jobs ask nothing more until `resume`. What was asked for is still answered and written.

    Waits until the process that runs the job has obeyed. Where none does, the next one begins paused.

    Exit codes: 0; 1 the job is done, or its process has not obeyed yet; 2 no such job, or several; 3 no Kafka.
    """
    return _ordered("pause", jobs, as_json, bootstrap_servers, prefix)


@click.command(
    epilog="""\b
    Examples:
      headrace backfill resume tags-7f3a9c21
      headrace backfill resume tags.parquet --run"""
)
@_jobs
@click.option("--run", "here", is_flag=True, help="Where no process runs it: run it here, as its state says.")
@click.option("--quiet", is_flag=True, help="With --run: say nothing on the way.")
@_json
@options.bootstrap_servers
@options.prefix
def resume(
    jobs: tuple[str, ...],
    here: bool,
    quiet: bool,
    as_json: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> int:
    """Let jobs go on that were paused or cancelled.

    A process that is paused goes on; where none runs the job, you are told how to run it, and --run does it, with what
    the state beside the output says of the job.

    Exit codes: 0; 1 the job is done, or its process has not obeyed yet; 2 no such job, or several; 3 no Kafka; with
    --run, those of `run`.
    """
    if not here:
        return _ordered("resume", jobs, as_json, bootstrap_servers, prefix)
    from headrace.ops.cli.backfill_jobs import find_job, now_ms, spec_of
    from headrace.ops.cli.backfill_orders import CannotBeOrdered, let_go_on
    from headrace.ops.cli.backfill_run import run_jobs

    settings = _settings(bootstrap_servers, prefix)
    found = [find_job(settings, each) for each in jobs]
    for job in found:
        if job.is_attended(now_ms()) and job.known.running is not None:
            raise CannotBeOrdered(f"job {job.id.job} is run by {job.known.running.host}: leave --run out")
    specs = [spec_of(job) for job in found]
    for job in found:
        let_go_on(settings, job)
    return run_jobs(settings, specs, quiet=quiet, json_wanted=as_json)


@click.command(
    epilog="""\b
    Examples:
      headrace backfill cancel tags-7f3a9c21
      headrace backfill cancel tags-7f3a9c21 plots-04be11d2"""
)
@_jobs
@_json
@options.bootstrap_servers
@options.prefix
def cancel(jobs: tuple[str, ...], as_json: bool, bootstrap_servers: str | None, prefix: str | None) -> int:
    """End jobs and take back what they have asked for; the rows that are written stay.

    Workers drop requests that they have not begun, and stop those that they have. `resume` takes it back.

    Exit codes: 0; 1 the job is done, or its process has not obeyed yet; 2 no such job, or several; 3 no Kafka.
    """
    return _ordered("cancel", jobs, as_json, bootstrap_servers, prefix)


@click.command(
    epilog="""\b
    Examples:
      headrace backfill retry failed tags.parquet
      headrace backfill retry rejects tags.toml --max-failures 100%"""
)
@click.argument("which", type=click.Choice(["failed", "rejects"]))
@click.argument("job", metavar="OUTPUT|JOB.toml")
@click.option(
    "--max-failures", metavar="N|N%", help="Stop when more rows fail again. Default: as the job has it."
)
@click.option("--quiet", is_flag=True, help="Say nothing on the way.")
@click.option("--json", "as_json", is_flag=True, help="At the end one JSON object.")
@options.bootstrap_servers
@options.prefix
def retry(
    which: Redo,
    job: str,
    max_failures: str | None,
    quiet: bool,
    as_json: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> int:
    """Ask again for rows of a job that have no output, and put them in their places.

    `failed`: what was asked and got no output that counts (failed, truncated, expired, invalid). `rejects`: rows that
    were refused, once what refused them has changed. All other rows stay as they are. The job is the one that its
    state beside the output says.

    Exit codes: those of `run`; 0 also where there is no such row.
    """
    from headrace.ops.cli.backfill_jobs import retry_spec
    from headrace.ops.cli.backfill_run import run_jobs

    settings = _settings(bootstrap_servers, prefix)
    spec, count, sentence = retry_spec(settings, job, which, max_failures)
    if not quiet:
        click.echo(sentence, err=True)
    if not count and not as_json:
        return 0
    return run_jobs(settings, [spec], redo=which, quiet=quiet, json_wanted=as_json)


COMMANDS: tuple[click.Command, ...] = (status, list_, pause, resume, cancel, retry)
