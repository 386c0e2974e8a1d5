"""`make demo`: forty real films, a real model, a real broker, and every answer checked.

    python -m headrace.ops.demo [--engine vllm|simulated]

Each film goes through Kafka as a request of its own; a worker in a process of its own answers. At the end the results
topic is read as any other team would read it, and what it says is held against what was sent.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from headrace.consumers.results import ResultReader
from headrace.ops import demo_call
from headrace.ops.broker import RunningBroker, find_or_start
from headrace.ops.demo_tally import Tally
from headrace.ops.demo_view import View, view_for
from headrace.ops.running import EngineKind
from headrace.ops.worker_process import WorkerProcess
from headrace.producers.client import Client, Pending
from headrace.schemas.errors import HeadraceError, OutputError, RequestFailed, SettingsError
from headrace.schemas.messages import Result
from headrace.schemas.output_schema import OutputSchema
from headrace.schemas.package import Package, load_package
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

EXAMPLES = Path(__file__).parents[1] / "examples"
PARTITIONS = 4
WORKER_READY_WITHIN_S = 300.0
ANSWERED_WITHIN_S = 900.0
STOPPED_WITHIN_S = 90.0


def run(engine: EngineKind, view: View) -> Tally:
    """The whole demo. Raises HeadraceError where it cannot go on."""
    settings = Settings.from_environment()
    package = load_package(EXAMPLES / "movie-tagger")
    films = [
        json.loads(line) for line in (EXAMPLES / "movies.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    logs = writable(settings.cache_dir / "logs")
    weights = _weights(engine, settings, view)
    with view.stage("broker") as stage, _broker(settings, stage.says) as broker:
        stage.done(f"{broker.kind} at {broker.bootstrap_servers}")
        for limit in broker.limits:
            view.note(limit)
        # A prefix of its own: a second demo on a broker that stays must not find the first one's results.
        prefix = f"demo-{int(time.time())}"
        settings = Settings.from_environment(bootstrap_servers=broker.bootstrap_servers, prefix=prefix)
        names = ContractNames(prefix, package.model, package.contract)
        with view.stage("topics") as topics:
            changes = bring_in_line(settings, names, LayoutOptions(partitions=PARTITIONS))
            topics.done(f"{len(changes)} topics, {names.base}.*")
        with WorkerProcess(
            settings,
            EXAMPLES / "movie-tagger",
            engine=engine,
            slot="demo",
            log=logs / f"{prefix}-worker.log",
            options=("--weights", str(weights)) if weights else (),
        ) as worker:
            with view.stage("worker") as starting:
                starting.says("loading the model" if engine == "vllm" else "starting")
                worker.wait_ready(WORKER_READY_WITHIN_S)
                starting.done(f"{package.model} {package.version} on {engine}")
            tally = asyncio.run(_ask(settings, package, films, view))
            tally.retried = int(worker.metric("headrace_generation_attempts_total")) - tally.sent
            by_http = demo_call.call(settings, names, logs / f"{prefix}-http.log", view)
            with view.stage("leaving") as leaving:
                worker.stop(STOPPED_WITHIN_S)
                leaving.done("in-flight work finished, member removed from its group")
        with view.stage("checking") as checking:
            _check(settings, names, package, tally, leave_out=by_http)
            checking.done(f"read {tally.published.total()} results back")
        view.finish(tally, films, names, broker)
    return tally


def writable(directory: Path) -> Path:
    """The directory of the cache, made where it is not there. Raises SettingsError where it cannot be written to."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as error:
        raise SettingsError(
            f"{directory} cannot be written to ({error.strerror}): set HEADRACE_CACHE_DIR to a folder that can"
        ) from None


def _weights(engine: EngineKind, settings: Settings, view: View) -> Path | None:
    if engine == "simulated":
        return None
    from headrace.ops.demo_model import NAME, prepare_demo_model

    with view.stage("model") as stage:
        weights = prepare_demo_model(settings.cache_dir / "models", stage.says)
        stage.done(NAME)
    return weights


def _broker(settings: Settings, says: Callable[[str], None]) -> RunningBroker:
    return find_or_start(settings, on_progress=says)


async def _ask(settings: Settings, package: Package, films: list[dict[str, Any]], view: View) -> Tally:
    tally = Tally()
    async with Client.connect(package.model, package.contract, settings=settings) as client:
        with view.asking(len(films)) as progress:
            began = time.monotonic()
            pendings = [
                await client.submit(_variables(film), id=film["id"], timeout=ANSWERED_WITHIN_S)
                for film in films
            ]
            tally.sent = len(pendings)
            async for done in client.as_completed(pendings):
                result = await _answer_of(done)
                tally.answered[result.id] = result
                tally.seconds = time.monotonic() - began
                progress.answered(result, tally)
    return tally


async def _answer_of(done: Pending[Result]) -> Result:
    try:
        return await done.result()
    except RequestFailed as error:
        return error.result


def _variables(film: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in film.items() if name != "id"}


def _check(
    settings: Settings, names: ContractNames, package: Package, tally: Tally, *, leave_out: str
) -> None:
    """Read `results` as any other reader would, and hold each value against the schema once more.

    `leave_out` is the id of a request that is none of the films'.
    """
    assert package.output is not None, "the example has an output schema"
    with ResultReader(settings, names) as reader:
        for read in reader:
            if read is None:
                continue
            result = read.result
            if not isinstance(result, Result):
                raise result
            if result.id == leave_out:
                continue
            tally.published[result.id] += 1
            tally.dead += result.status not in ("ok", "expired", "cancelled")
            if result.status == "ok" and not _accepts(package.output, result):
                tally.invalid.append(result.id)


def _accepts(schema: OutputSchema, result: Result) -> bool:
    try:
        schema.check(result.outputs[0].text)
    except OutputError:
        return False
    return True


@click.command(
    epilog="Example: make demo ENGINE=simulated",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--engine",
    type=click.Choice(["vllm", "simulated"]),
    default="vllm",
    show_default=True,
    help="What generates.",
)
def main(engine: EngineKind) -> None:
    """Tag forty films through Kafka and show what came of it. Exits with 1 if anything was lost or invalid."""
    view = view_for(sys.stdout)
    try:
        tally = run(engine, view)
    except HeadraceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("interrupted: worker and broker were ended", err=True)
        sys.exit(130)
    sys.exit(0 if tally.passed else 1)


if __name__ == "__main__":
    main()
