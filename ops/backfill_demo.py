"""`make demo-backfill`: 3,201 real films as a table in, the same table tagged out, though its process dies on the way.

    python -m headrace.ops.backfill_demo [--rows N] [--kill-at SHARE] [--folder DIR]

`headrace backfill run` on the job of examples/backfill is killed by SIGKILL once part of the answers is there, and run
again. At the end its output, and the topics in Kafka, are read as any other team would read them, and counted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from headrace.ops.backfill_demo_count import Count, Topics, count_up
from headrace.ops.backfill_demo_view import BackfillView, view_for
from headrace.ops.broker import find_or_start
from headrace.ops.demo import writable
from headrace.ops.faults.reading import read_answers, read_asked
from headrace.ops.worker_process import WorkerProcess
from headrace.producers.backfill.job import JobSpec, load_job
from headrace.producers.backfill.job_files import JobFiles
from headrace.schemas.errors import HeadraceError
from headrace.schemas.package import Package, load_package
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

EXAMPLES = Path(__file__).parents[1] / "examples"
FILMS = 3_201
LEAST_ROWS = (
    300  # more than the engine takes at a time: else all answers come at once, and there is nothing to kill
)
PARTITIONS = 4
TIME_SCALE = "2"  # of the simulated engine: the whole takes about three quarters of a minute
READY_WITHIN_S = 60.0
DONE_WITHIN_S = 600.0
STOPPED_WITHIN_S = 60.0
LOOK_S = 0.1


class DemoFailed(HeadraceError):
    """The demonstration could not be gone through."""

    code = "demo_failed"


class BackfillProcess:
    """`headrace backfill run` on a job's file, in a process of its own. Each line that it says goes to `says`."""

    def __init__(self, settings: Settings, job: Path, says: Callable[[str], None]) -> None:
        environment = {
            "HEADRACE_BOOTSTRAP_SERVERS": str(settings.bootstrap_servers),
            "HEADRACE_PREFIX": settings.prefix,
            "PYTHONUNBUFFERED": "1",
        }
        # In a session of its own: Ctrl-C ends the demonstration, and that ends the process.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.ops.cli", "backfill", "run", str(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | environment,
            start_new_session=True,
        )
        self._says = says
        self._reading = threading.Thread(target=self._read, name="backfill's lines", daemon=True)
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._says(line.rstrip())

    @property
    def exit_code(self) -> int | None:
        """None as long as it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL, if it still runs; all that it has said is shown afterwards."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait(STOPPED_WITHIN_S)

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises DemoFailed where it does not end."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the backfill did not end within {timeout_s:.0f} s") from None
        self._reading.join()
        return code


def run(rows: int, kill_at: float, folder: Path | None, view: BackfillView) -> Count:
    """The whole of it. `kill_at` is the part of the rows that are answered by then.

    Raises HeadraceError where it cannot go on.
    """
    settings = Settings.from_environment()
    package = load_package(EXAMPLES / "movie-tagger")
    job = lay_out(folder or settings.cache_dir / "backfill-demo", rows)
    spec = load_job(job)
    logs = writable(settings.cache_dir / "logs")
    with ExitStack() as ends:
        with view.stage("broker") as stage:
            broker = ends.enter_context(find_or_start(settings, on_progress=stage.says))
            stage.done(f"{broker.kind} at {broker.bootstrap_servers}")
        # A prefix of its own: a second demo on a broker that stays must not find the first one's results.
        prefix = f"backfill-demo-{int(time.time())}"
        settings = Settings.from_environment(bootstrap_servers=broker.bootstrap_servers, prefix=prefix)
        names = ContractNames(prefix, package.model, package.contract)
        with view.stage("topics") as stage:
            changes = bring_in_line(settings, names, LayoutOptions(partitions=PARTITIONS))
            stage.done(f"{len(changes)} topics, {names.base}.*")
        worker = ends.enter_context(
            WorkerProcess(
                settings,
                EXAMPLES / "movie-tagger",
                engine="simulated",
                slot="demo",
                log=logs / f"{prefix}-worker.log",
                environment={"HEADRACE_SIMULATED_TIME_SCALE": TIME_SCALE},
            )
        )
        with view.stage("worker") as stage:
            worker.wait_ready(READY_WITHIN_S)
            stage.done(f"{package.model} {package.version} on the simulated engine")
        _run_and_kill(settings, job, rows, kill_at, worker, view)
        _run_again(settings, job, rows, worker, view)
        generated = int(worker.metric("headrace_generation_attempts_total"))
        worker.stop(STOPPED_WITHIN_S)
        with view.stage("checking") as stage:
            topics = Topics(read_asked(settings, names), read_answers(settings, names), generated)
            count = _counted(spec, package, topics)
            stage.done(f"read {count.rows:,} rows and {len(topics.answers):,} results back")
        view.finish_backfill(count, spec, names, stays=broker.kind == "given")
    return count


def lay_out(folder: Path, rows: int) -> Path:
    """The example's job and the last so many of its films in a folder of their own, from which an earlier demo's go.

    Raises DemoFailed where the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "films.toml").touch()
    except OSError as error:
        raise DemoFailed(
            f"{folder} cannot be written to ({error.strerror}): give --folder one that can"
        ) from None
    example = EXAMPLES / "backfill"
    job = folder / "films.toml"
    shutil.copyfile(example / job.name, job)
    spec = load_job(job)
    files = JobFiles(spec.output_path)
    shutil.rmtree(f"{spec.output_path}.headrace", ignore_errors=True)
    for file in (files.places.file, files.places.rejects_file):
        (folder / file).unlink(missing_ok=True)
    films = (example / "films.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "films.jsonl").write_text("".join(films[-rows:]), encoding="utf-8")
    return job


def _run_and_kill(
    settings: Settings, job: Path, rows: int, kill_at: float, worker: WorkerProcess, view: BackfillView
) -> None:
    """`kill_at`: the share of the rows that are answered by then."""
    view.line(f"$ headrace backfill run {job}")
    with view.answers(rows) as tell, BackfillProcess(settings, job, view.said) as process:
        deadline = time.monotonic() + DONE_WITHIN_S
        while (answered := _answered(worker)) < rows * kill_at:
            if process.exit_code is not None:
                raise DemoFailed(f"the backfill ended with {process.exit_code} before it was to be killed")
            if time.monotonic() > deadline:
                raise DemoFailed(f"{answered:,} answers after {DONE_WITHIN_S:.0f} s")
            tell(answered)
            time.sleep(LOOK_S)
        process.kill()
        if process.exit_code == 0:
            raise DemoFailed("the backfill was done before it could be killed: give more --rows")
    state = JobFiles(load_job(job).output_path).state()
    if state is None:
        raise DemoFailed("the backfill left no state beside its output")
    view.killed(answered, state)


def _run_again(settings: Settings, job: Path, rows: int, worker: WorkerProcess, view: BackfillView) -> None:
    view.line(f"$ headrace backfill run {job}")
    with view.answers(rows) as tell, BackfillProcess(settings, job, view.said) as process:
        deadline = time.monotonic() + DONE_WITHIN_S
        while process.exit_code is None and time.monotonic() < deadline:
            tell(_answered(worker))
            time.sleep(LOOK_S)
        if (code := process.wait(STOPPED_WITHIN_S)) != 0:
            raise DemoFailed(f"the backfill, run again, ended with {code}")


def _answered(worker: WorkerProcess) -> int:
    return int(worker.metric("headrace_requests_total"))


def _counted(spec: JobSpec, package: Package, topics: Topics) -> Count:
    """Read the output, and hold it against the input. Raises DemoFailed where there is none."""
    state = JobFiles(spec.output_path).state()
    if state is None or not Path(spec.output_path).exists():
        raise DemoFailed(f"there is no {spec.output_path}")
    assert package.output is not None, "the example has an output schema"
    rejects = Path(JobFiles(spec.output_path).rejects_shown)
    return count_up(
        Path(spec.input_path),
        Path(spec.output_path),
        rejects.read_text(encoding="utf-8") if rejects.exists() else "",
        state.job,
        package.output,
        topics,
    )


@click.command(
    epilog="Example: make demo-backfill",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--rows",
    type=click.IntRange(LEAST_ROWS, FILMS),
    default=FILMS,
    show_default=True,
    help="The last so many films.",
)
@click.option(
    "--kill-at",
    type=click.FloatRange(0.01, 0.9),
    default=0.45,
    show_default=True,
    help="The share of the films that are answered when the process is killed.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the job and its output lie; what an earlier demo left there is replaced. [default: in the cache]",
)
def main(rows: int, kill_at: float, folder: Path | None) -> None:
    """Tag a table of films, kill it on the way, and go on. Exits with 1 if a row is lost, doubled or wrong."""
    view = view_for(sys.stdout)
    try:
        count = run(rows, kill_at, folder, view)
    except HeadraceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("interrupted: job, worker and broker were ended", err=True)
        sys.exit(130)
    sys.exit(0 if count.passed else 1)


if __name__ == "__main__":
    main()
