"""`headrace backfill` as a contender: with a worker that is up, and from nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.consumers.results import ResultReader
from headrace.ops.bench.backfill_contenders import (
    Answer,
    BadRowFigures,
    KilledFigures,
    Progress,
    RunFigures,
    lost_and_doubled,
)
from headrace.ops.bench.backfill_peer import LOOK_EVERY_S, SAID, WITHIN_S, EngineSettings, Peer
from headrace.ops.bench.backfill_rows import Asking, BadRow, FilmRow, table_lines, write_lines
from headrace.ops.bench.ground import BenchFailed, Say, engine_table
from headrace.ops.bench.watched_process import WatchedProcess
from headrace.ops.broker import BrokerNeeds, find_or_start
from headrace.ops.demo import writable
from headrace.ops.worker_process import WorkerProcess
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.row_ids import row_id
from headrace.schemas.errors import MessageError
from headrace.schemas.messages import Result
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

MODEL = "bench-films"
PARTITIONS = 4  # of each topic
READY_WITHIN_S = 300.0
# These workers serve one backfill and nobody else. By default a quarter of the engine is kept for requests that
# somebody waits for.
WORKER_SETTINGS = {"HEADRACE_BACKFILL_SHARE": "1"}


def write_package(place: Path, engine: EngineSettings, asking: Asking) -> Path:
    """A package that serves these weights as the peers do, in a folder of `place`."""
    package = place / "package"
    package.mkdir(exist_ok=True)
    (package / "output.schema.json").write_text(json.dumps(asking.schema))
    (package / "package.toml").write_text(
        f'model = "{MODEL}"\nversion = "1"\ncontract = 1\n'
        f"weights = {json.dumps(str(engine.weights.absolute()))}\n"
        f'output = "output.schema.json"\nstructured_outputs = "{engine.backend}"\n'
        + engine_table(engine.arguments)
    )
    return package


def write_job(source: Path, target: Path, package: Path, asking: Asking) -> Path:
    """A job that asks as the peers are asked: one message of the user, and no row twice."""
    job = target.with_suffix(".toml")
    sampling = "".join(f"{name} = {json.dumps(value)}\n" for name, value in asking.sampling.items())
    job.write_text(
        f'model = "{MODEL}"\ncontract = 1\npackage = {json.dumps(str(package))}\n'
        f"input = {json.dumps(str(source))}\noutput = {json.dumps(str(target))}\n"
        'keep = ["custom_id"]\ndedupe = false\n\n'
        f'[[messages]]\nrole = "user"\ncontent = "{{{{ prompt }}}}"\n\n[sampling]\n{sampling}'
    )
    return job


class _Headrace(Peer):
    """What both have in common: the rows as a table, the answers as lines with columns."""

    def input_lines(self, rows: Sequence[FilmRow]) -> list[str]:
        """See `Peer`."""
        return table_lines(rows)

    def target(self, place: Path) -> Path:
        """See `Peer`."""
        return place / "answers.jsonl"

    def answers(self, target: Path) -> list[Answer]:
        """See `Peer`."""
        if not target.exists():
            return []
        columns = list(self.asking.schema["properties"])
        return [headrace_answer(json.loads(line), columns) for line in target.read_text("utf-8").splitlines()]

    def with_bad_row(self, rows: Sequence[FilmRow], bad: BadRow, place: Path) -> BadRowFigures:
        """See the port. A line that is no JSON has no id: it is known by its place, for the output lines up."""
        found = super().with_bad_row(rows, bad, place)
        answers, middle = self.answers(self.target(place)), len(rows) // 2
        if found.said_of_it is None and len(answers) == len(rows) and answers[middle].error:
            return replace(found, said_of_it=str(answers[middle].error)[:SAID])
        return found


class HeadraceCold(_Headrace):
    """From nothing: broker, topics, worker and job, begun together; see `backfill_cold`."""

    steady_by = "its progress, twice a second"

    def __init__(self, engine: EngineSettings, asking: Asking, name: str = "Headrace, cold") -> None:
        super().__init__(name, engine, asking)

    def command(self, source: Path, target: Path, place: Path) -> list[str]:
        """See `Peer`."""
        package = write_package(place, self.engine, self.asking)
        job = write_job(source, target, package, self.asking)
        return [sys.executable, "-m", "headrace.ops.bench.backfill_cold", str(job), str(package)]

    def environment(self, scratch: Path) -> dict[str, str]:
        """See `Peer`."""
        del scratch
        return dict(os.environ) | WORKER_SETTINGS | self.engine.environment

    def done_by(self, line: str) -> int | None:
        """See `Peer`."""
        found = re.match(r"done (\d+) of \d+", line)
        return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class Fleet:
    """A broker and a worker that are up."""

    settings: Settings
    names: ContractNames
    package: Path
    worker: WorkerProcess


@contextlib.contextmanager
def fleet(engine: EngineSettings, asking: Asking, say: Say) -> Generator[Fleet]:
    """Find or start a broker, make topics of their own, and run a worker until it is ready.

    Raises BrokerNotFound, WorkerFailed.
    """
    settings = Settings.from_environment()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory,
        find_or_start(settings, BrokerNeeds(exactly_once=True), on_progress=say) as broker,
    ):
        settings = Settings.from_environment(
            bootstrap_servers=broker.bootstrap_servers,
            prefix=f"bench-{time.time_ns() // 1_000_000}",
            metrics_port=0,
        )
        names = ContractNames(settings.prefix, MODEL, 1)
        bring_in_line(settings, names, LayoutOptions(partitions=PARTITIONS))
        package = write_package(Path(directory), engine, asking)
        log = writable(settings.cache_dir / "logs") / f"{settings.prefix}-worker.log"
        say(f"{broker.kind} broker at {broker.bootstrap_servers}; the worker's log: {log}")
        with WorkerProcess(
            settings,
            package,
            engine="vllm",
            slot="bench",
            log=log,
            environment=WORKER_SETTINGS | engine.environment,
        ) as worker:
            worker.wait_ready(READY_WITHIN_S)
            yield Fleet(settings, names, package, worker)
            worker.stop(READY_WITHIN_S)


class HeadraceUp(_Headrace):
    """`headrace backfill run` with a broker and a worker that are up already."""

    steady_by = "the times at which Kafka took the results"

    def __init__(
        self, on: Fleet, engine: EngineSettings, asking: Asking, name: str = "Headrace, worker up"
    ) -> None:
        super().__init__(name, engine, asking)
        self._on = on

    def command(self, source: Path, target: Path, place: Path) -> list[str]:
        """See `Peer`."""
        del place
        job = write_job(source, target, self._on.package, self.asking)
        return [sys.executable, "-m", "headrace.ops.cli", "backfill", "run", str(job), "--json"]

    def environment(self, scratch: Path) -> dict[str, str]:
        """See `Peer`."""
        del scratch
        settings = self._on.settings
        return dict(os.environ) | {
            "HEADRACE_BOOTSTRAP_SERVERS": str(settings.bootstrap_servers),
            "HEADRACE_PREFIX": settings.prefix,
        }

    def done_by(self, line: str) -> int | None:
        """Its progress is read off the results."""
        del line
        return None

    def progress(self, process: WatchedProcess, target: Path) -> Progress:
        """See `Peer`."""
        ended = sorted(at for _, at in self._results_of(job_of_output(target)))
        return [(at - process.began, done) for done, at in enumerate(ended, 1)]

    def run(self, rows: Sequence[FilmRow], place: Path) -> RunFigures:
        """See the port. The memory is of the backfill's process; what was up already is told apart."""
        found = super().run(rows, place)
        return replace(found, peak_rss_beside=peak_rss_of_tree(self._on.worker.process.pid))

    def killed_halfway(self, rows: Sequence[FilmRow], place: Path) -> KilledFigures:
        """See the port. What is kept lies in `results`, whether or not a part of the output has it already."""
        source, target = place / "rows.jsonl", self.target(place)
        write_lines(self.input_lines(rows), source)
        with self._start(source, target, place) as process:
            self._wait_until_done(process, target, len(rows) // 2)
            seconds_until_kill = process.seconds
        kept = len({row for row, _ in self._results_of(job_of_output(target))})
        with self._start(source, target, place) as again:
            code = again.wait(WITHIN_S)
            seconds_again = again.seconds
        if code != 0:
            raise BenchFailed(f"{self.name}, run again, ended with {code}; its log: {again.log}")
        generated = Counter(row for row, _ in self._results_of(job_of_output(target)))
        lost, doubled = lost_and_doubled(rows, self.answers(target))
        return KilledFigures(
            contender=self.name,
            rows=len(rows),
            done_at_kill=kept,
            kept=kept,
            asked_again=generated.total() - kept,
            lost=lost,
            doubled=doubled,
            seconds_until_kill=seconds_until_kill,
            seconds_again=seconds_again,
        )

    def _wait_until_done(self, process: WatchedProcess, target: Path, rows: int) -> None:
        deadline = time.monotonic() + WITHIN_S
        seen = 0
        while not (job := _job_begun(target)):
            self._check_running(process, deadline)
        with ResultReader(self._on.settings, self._on.names, follow=True) as reader:
            for found in reader:
                self._check_running(process, deadline)
                seen += found is not None and _row_of(found.result, job) is not None
                if seen >= rows:
                    return

    def _check_running(self, process: WatchedProcess, deadline: float) -> None:
        if process.process.poll() is not None:
            raise BenchFailed(
                f"{self.name} had ended before half of its rows were seen to be done (take more rows); "
                f"its log: {process.log}"
            )
        if time.monotonic() > deadline:
            raise BenchFailed(f"{self.name} had not done half of its rows after {WITHIN_S:.0f} s")
        time.sleep(LOOK_EVERY_S / 100)

    def _results_of(self, job: str) -> Iterator[tuple[int, float]]:
        """Of each result of a job: its row, and when Kafka took it, in seconds since the epoch."""
        with ResultReader(self._on.settings, self._on.names) as reader:
            for found in reader:
                if found is not None and (row := _row_of(found.result, job)) is not None:
                    yield row, found.timestamp_ms / 1000


def headrace_answer(line: Mapping[str, Any], columns: Sequence[str]) -> Answer:
    """A line of the output: columns of the schema, and what Headrace says of the row."""
    is_ok = line["headrace_status"] == "ok"
    return Answer(
        id=str(line.get("custom_id") or ""),
        text=json.dumps({name: line[name] for name in columns}) if is_ok else None,
        prompt_tokens=line.get("headrace_prompt_tokens") or 0,
        completion_tokens=line.get("headrace_completion_tokens") or 0,
        error=None if is_ok else f"{line['headrace_status']}: {line.get('headrace_error')}",
    )


def job_of_output(target: Path) -> str:
    """The id of the job whose output this is. Raises BenchFailed where none has begun."""
    if (job := _job_begun(target)) is None:
        raise BenchFailed(f"no job has begun for {target}")
    return job


def _job_begun(target: Path) -> str | None:
    state = JobFiles(str(target)).state()
    return None if state is None else state.job


def _row_of(result: Result | MessageError, job: str) -> int | None:
    """None where it is another job's."""
    of = None if isinstance(result, MessageError) else row_id(job, result.id)
    return None if of is None else of.row


def peak_rss_of_tree(pid: int) -> int:
    """Bytes: the most that a process and those that it has started have had, each at its own time."""
    found = 0
    with contextlib.suppress(OSError):  # one that has just ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                found += int(line.split()[1]) * 1024
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += peak_rss_of_tree(int(child))
    return found
