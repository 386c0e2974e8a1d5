"""`headrace send`: requests from a file, from standard input, or one from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

import click

from headrace.ops.cli import options
from headrace.ops.cli.request_lines import Line, only, read_lines
from headrace.schemas.errors import HeadraceError, MessageError, NoReply, RequestFailed, UsageError
from headrace.schemas.messages import LANES, Lane, Location, Request, Result

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from headrace.ops.cli.result_rows import ResultRows
    from headrace.producers.client import Client

IN_FLIGHT = 512  # requests sent, or with --wait not answered, at a time

EXAMPLES = """\b
Examples:
  headrace send --model movie-tagger examples/movies.jsonl --as-variables --id-field id --wait
  headrace send --model my-model --variables '{"message": "Where is my parcel?"}' --wait --json
  headrace send --model storyteller --prompt 'Once upon a time' --wait
  zcat requests.jsonl.gz | headrace send --model movie-tagger --lane backfill -
"""


@click.command(epilog=EXAMPLES)
@click.argument("file", required=False, type=click.File("rb"))
@click.option("--model", required=True, help="The model's name.")
@click.option("--contract", type=click.IntRange(min=1), default=1, show_default=True, help="Its contract.")
@click.option("--prompt", help="Send one request with this text as its prompt.")
@click.option("--variables", help="Send one request with these variables: a JSON object.")
@click.option("--as-variables", is_flag=True, help="Each line of FILE is an object of variables.")
@click.option(
    "--id-field", metavar="NAME", help="With --as-variables: which of them is the request's id instead."
)
@click.option("--lane", type=click.Choice(LANES), default="standard", show_default=True, help="Which queue.")
@click.option("--wait", is_flag=True, help="Wait for the results and print them.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="With --wait: seconds for each. Default: 60.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line: what was sent, or the results."
)
@options.bootstrap_servers
@options.prefix
def send(
    file: IO[bytes] | None,
    model: str,
    contract: int,
    prompt: str | None,
    variables: str | None,
    as_variables: bool,
    id_field: str | None,
    lane: Lane,
    wait: bool,
    timeout: float | None,
    as_json: bool,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> int:
    """Send requests to a model.

    Each line of FILE (`-`: standard input) is a request as JSON: prompt, messages or variables, and whatever else a
    request may hold. A line without an id gets a random one, which is printed: sending the file again asks all
    of those again, so give an id to whatever must be answered once. Every line is checked before it is sent; one
    that is wrong is named with its field, and the others go on.

    Exit codes: 0 all went well; 1 some lines were wrong, with --wait not every result is `ok`, or the topics do
    not exist; 2 a wrong option; 3 no Kafka.
    """
    if [file, prompt, variables].count(None) != 2:
        raise UsageError("give exactly one of FILE (or -), --prompt and --variables")
    if as_variables and file is None:
        raise UsageError("--as-variables says how to read FILE: give one")
    if id_field is not None and not as_variables:
        raise UsageError("--id-field goes with --as-variables; a request as JSON has its id in `id`")
    if timeout is not None and not wait:
        raise UsageError(
            "--timeout goes with --wait; to limit how long a request stays valid, give it a deadline"
        )
    from headrace.ops.cli.result_rows import ResultRows
    from headrace.producers.client import DEFAULT_TIMEOUT, Client
    from headrace.schemas.settings import Settings

    settings = Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)
    client = Client.connect(model, contract, settings=settings)
    lines = read_lines(file, as_variables, id_field) if file else only(_single(prompt, variables))
    rows = ResultRows.on_stdout(as_json=as_json)
    sending = Sending(client, lane, timeout or DEFAULT_TIMEOUT if wait else None, as_json, file is None, rows)
    with progress_beside(rows, as_json) as progress:
        asyncio.run(sending.run(lines, progress))
    click.echo(sending.summary(f"{model} (contract {contract}, lane {lane})"), err=True)
    return 1 if sending.went_wrong else 0


def _single(prompt: str | None, variables: str | None) -> Line:
    from headrace.producers.asking import build_request
    from headrace.schemas.strict_json import JsonFault, parse

    if prompt is not None:
        return Line(None, build_request(prompt), id_is_new=True)
    try:
        given = parse(variables or "")
    except JsonFault as fault:
        raise UsageError(f"--variables: {fault.reason}") from None
    if not isinstance(given, dict):
        raise UsageError('--variables is not a JSON object, as {"title": "Heat"} is')
    return Line(None, build_request(cast("dict[str, Any]", given)), id_is_new=True)


# --- sending ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sending:
    """Sends lines and tells what becomes of each. `timeout`: wait so many seconds for its result; None: do not."""

    client: Client
    lane: Lane
    timeout: float | None
    as_json: bool
    alone: bool  # one request from the command line: its text is what is wanted
    rows: ResultRows
    sent: int = 0
    refused: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    progress: Progress | None = None
    task: TaskID | None = None

    async def run(self, lines: AsyncIterator[Line], progress: Progress | None) -> None:
        """All of them, IN_FLIGHT at a time. Raises KafkaFailed where it makes no sense to go on."""
        if progress is not None:
            self.progress, self.task = progress, progress.add_task("sending", total=None)
        turns = asyncio.Semaphore(IN_FLIGHT)
        async with self.client:
            try:
                async with asyncio.TaskGroup() as running:
                    async for line in lines:
                        await turns.acquire()
                        running.create_task(self._one(line)).add_done_callback(lambda _: turns.release())
            except* HeadraceError as errors:
                raise _first(errors) from None

    async def _one(self, line: Line) -> None:
        request = line.request
        try:
            if isinstance(request, MessageError):
                self._refuse(line, request)
            elif self.timeout is None:
                _, location = await self.client.publish(request, lane=self.lane)
                self._sent(line, request, location)
            else:
                self._answered(await self.client.ask(request, lane=self.lane, timeout=self.timeout))
        except RequestFailed as error:
            self._answered(error.result)
        except MessageError as error:
            self._refuse(line, error)
        except NoReply as error:
            self.outcomes["no reply"] += 1
            self._complain(line, error)
        self._show_progress()

    def _sent(self, line: Line, request: Request, location: Location) -> None:
        self.sent += 1
        if self.as_json:
            _echo_json({"line": line.number, "id": request.id, **location.model_dump()})
        elif line.id_is_new:
            click.echo(request.id)

    def _answered(self, result: Result) -> None:
        self.sent += 1
        self.outcomes[result.status] += 1
        if self.alone and not self.as_json and result.status == "ok":
            click.echo("\n".join(output.text for output in result.outputs))
        else:
            self.rows.add(result)

    def _refuse(self, line: Line, error: MessageError) -> None:
        self.refused += 1
        self._complain(line, error)

    def _complain(self, line: Line, error: MessageError | NoReply) -> None:
        if self.as_json:
            detail = {"code": error.code, "message": error.message, "path": error.path}
            _echo_json({"line": line.number, "error": detail})
            return
        place = "" if line.number is None else f"line {line.number}: "
        click.echo(f"{place}{error}", err=True)

    def _show_progress(self) -> None:
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, completed=self.sent, description=self._counts())

    def _counts(self) -> str:
        counts = [f"{self.sent:,} {'sent' if self.timeout is None else 'answered'}"]
        counts += [f"{count:,} {outcome}" for outcome, count in sorted(self.outcomes.items())]
        if self.refused:
            counts.append(f"{self.refused:,} refused")
        return ", ".join(counts)

    def summary(self, to: str) -> str:
        """What became of it all."""
        return f"{to}: {self._counts()}"

    @property
    def went_wrong(self) -> bool:
        """Whether anything was refused, or answered otherwise than `ok`."""
        return self.refused > 0 or any(self.outcomes[outcome] for outcome in self.outcomes if outcome != "ok")


def _first(errors: BaseExceptionGroup[HeadraceError]) -> HeadraceError:
    """When one has failed the others are stopped; where several have, the first says why."""
    found = errors.exceptions[0]
    return found if isinstance(found, HeadraceError) else _first(found)


def _echo_json(fields: dict[str, Any]) -> None:
    click.echo(json.dumps(fields, ensure_ascii=False))


@contextlib.contextmanager
def progress_beside(rows: ResultRows, as_json: bool) -> Generator[Progress | None]:
    """A live line below what is printed, where standard error is a terminal."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    both = rows.console.is_terminal  # then rows and the live line share it; else rows go elsewhere
    console = rows.console if both else Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=both) as progress:
        yield progress
