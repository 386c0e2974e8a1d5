"""The ground that a scenario stands on: a real broker, topics of its own, a package, and a place for workers' logs."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.ops.broker import BrokerNeeds, find_or_start
from headrace.ops.demo import writable
from headrace.ops.faults.fleet import Page, read_page
from headrace.ops.worker_process import WorkerProcess
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

if TYPE_CHECKING:
    from headrace.ops.running import EngineKind

MODEL = "bench"
PACKAGE = f'model = "{MODEL}"\nversion = "1"\ncontract = 1\nweights = "none/none"\n'
LOOK_S = 0.05  # between two looks at a condition that is waited for

Say = Callable[[str], None]


class BenchFailed(HeadraceError):
    """A measurement could not be made."""

    code = "bench_failed"


@dataclass(frozen=True, slots=True)
class Ground:
    """What the workers of one run share."""

    settings: Settings  # with the broker's address, and a prefix of this run's own
    names: ContractNames
    partitions: int  # of each topic: the number of units
    package: Path
    logs: Path

    def worker(
        self,
        slot: str,
        engine: EngineKind = "simulated",
        *,
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        """Start a worker in a process of its own; a second life of a slot adds to its log."""
        return WorkerProcess(
            self.settings,
            self.package,
            engine=engine,
            slot=slot,
            log=self.logs / f"{self.settings.prefix}-{slot}.log",
            options=options,
            environment=environment,
        )


@contextlib.contextmanager
def ground(
    partitions: int,
    say: Say,
    *,
    several_workers: bool = False,
    engine_arguments: Mapping[str, int | bool | str] | None = None,
) -> Generator[Ground]:
    """Find or start a broker and make the topics. Raises BrokerNotFound where there is no real Kafka."""
    settings = Settings.from_environment()
    logs = writable(settings.cache_dir / "logs")
    needs = BrokerNeeds(exactly_once=True, several_workers=several_workers)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory,
        find_or_start(settings, needs, on_progress=say) as broker,
    ):
        # A prefix of its own: a second run on a broker that stays must not find the first one's results.
        prefix = f"bench-{time.time_ns() // 1_000_000}"
        settings = Settings.from_environment(
            bootstrap_servers=broker.bootstrap_servers, prefix=prefix, metrics_port=0
        )
        names = ContractNames(prefix, MODEL, 1)
        bring_in_line(settings, names, LayoutOptions(partitions=partitions))
        package = Path(directory)
        (package / "package.toml").write_text(PACKAGE + engine_table(engine_arguments or {}))
        say(f"{broker.kind} broker at {broker.bootstrap_servers}; workers' logs: {logs / prefix}-*.log")
        yield Ground(settings, names, partitions, package, logs)


def engine_table(arguments: Mapping[str, int | bool | str]) -> str:
    """The table of a package.toml. Numbers, booleans and strings look in TOML as they do in JSON."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in arguments.items()]
    return "\n[engine]\n" + "\n".join(lines) + "\n" if lines else ""


def wait_until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Look until it holds. Raises BenchFailed, which says `what` did not come about."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchFailed(f"{what}: not within {within_s:.0f} s")
        time.sleep(LOOK_S)


def page_of(worker: WorkerProcess) -> Page:
    """What a worker's page says now. Raises BenchFailed when it cannot be read."""
    status, text = worker.get("/metrics")
    if status != 200:
        raise BenchFailed(f"a worker's page cannot be read; its log: {worker.log}")
    return read_page(text)


def rss_bytes(worker: WorkerProcess) -> float:
    """Bytes of memory that a worker has."""
    return process_figure(worker, "process_resident_memory_bytes")


def cpu_seconds(worker: WorkerProcess) -> float:
    """Seconds of CPU that a worker has used."""
    return process_figure(worker, "process_cpu_seconds_total")


def process_figure(worker: WorkerProcess, name: str) -> float:
    """A figure of the process on a worker's page. Raises BenchFailed where it is not there."""
    value = worker.metric(name)
    if not value:
        raise BenchFailed(f"{name} is not on the worker's page: prometheus_client knows it on Linux only")
    return value


def prompt_of(number: int, words: int) -> str:
    """A prompt unlike the others, of about so many words."""
    return " ".join(
        f"{'abcdefghij'[(number * 7 + place * 3) % 10]}{number + place}" for place in range(words)
    )
