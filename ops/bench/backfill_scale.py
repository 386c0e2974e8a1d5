"""Very many rows through one worker that takes no time: what a row costs, and whether memory stays flat.

Then a smaller job is killed at half of its rows and run again: what is generated a second time is counted in `results`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.consumers.results import ResultReader
from headrace.ops.bench.ground import BenchFailed, Ground, Say, cpu_seconds, ground
from headrace.schemas.errors import MessageError

if TYPE_CHECKING:
    from headrace.producers.backfill.state import JobState
    from headrace.schemas.settings import Settings

UNITS = 16
ROW_GROUP = 100_000
MAX_TOKENS = 8  # of each answer: it is the path that is measured
LOOK_S = 0.5
SAY_S = 30.0
LEAST_LOOKS = 10  # at memory


@dataclass(frozen=True, slots=True)
class ScaleFigures:
    """One job. Memory in bytes, of the backfill process alone; CPU in microseconds a row."""

    rows: int
    seconds: float  # from command to finished file, start-up included
    rss_at_tenth: int
    rss_at_half: int
    rss_at_nine_tenths: int
    rss_most: int
    cpu_us_backfill: float
    cpu_us_worker: float

    @property
    def rows_per_s(self) -> float:
        """From command to finished file."""
        return self.rows / self.seconds


@dataclass(frozen=True, slots=True)
class KilledFigures:
    """A job that was killed at half of its rows and run again."""

    rows: int
    settled_at_kill: int
    outstanding_at_kill: int  # as the state said last
    generated: int  # results that there are in the end
    twice: int  # rows with more than one
    written: int  # rows of the output

    @property
    def regenerated(self) -> int:
        """Answers beyond one for each row."""
        return self.generated - self.rows


def measure(rows: int, killed_rows: int, say: Say) -> tuple[ScaleFigures, KilledFigures | None]:
    """Raises BrokerNotFound where there is no real Kafka, BenchFailed."""
    with (
        ground(UNITS, say) as on,
        tempfile.TemporaryDirectory(prefix="headrace-scale-") as directory,
        on.worker("w1", environment={"HEADRACE_SIMULATED_TIME_SCALE": "0"}) as worker,
    ):
        worker.wait_ready(60)
        place = Path(directory)
        job = _write_job(place, "scale", rows)
        before = cpu_seconds(worker)
        measured = _watched(on, job, rows, say)
        worker_cpu = cpu_seconds(worker) - before
        figures = ScaleFigures(**measured, cpu_us_worker=worker_cpu / rows * 1e6)
        killed = None
        if killed_rows:
            killed = _killed(on, _write_job(place, "killed", killed_rows), killed_rows, say)
        worker.stop(60)
        return figures, killed


def _write_job(place: Path, name: str, rows: int) -> Path:
    """A table of so many films, and a job over it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"id": pa.int64(), "title": pa.string(), "year": pa.int64()}
    schema = pa.schema([pa.field(column, type_) for column, type_ in columns.items()])
    table: Any = pq.ParquetWriter(place / f"{name}-rows.parquet", schema)
    with table as writer:
        for group in _groups(rows):
            titles = [f"Film number {row} of a long list" for row in group]
            years = [1900 + row % 120 for row in group]
            arrays = [pa.array(list(group), pa.int64()), pa.array(titles), pa.array(years, pa.int64())]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    job = place / f"{name}.toml"
    job.write_text(
        f"""model = "bench"
contract = 1
input = "{name}-rows.parquet"
output = "{name}.parquet"
prompt = "Say something of {{{{ title }}}} ({{{{ year }}}})."
dedupe = false
package = "PACKAGE"

[sampling]
max_tokens = {MAX_TOKENS}
"""
    )
    return job


def _groups(rows: int) -> Iterator[range]:
    for first in range(0, rows, ROW_GROUP):
        yield range(first, min(rows, first + ROW_GROUP))


def _start(on: Ground, job: Path) -> subprocess.Popen[bytes]:
    job.write_text(job.read_text().replace("PACKAGE", str(on.package)))
    command = [sys.executable, "-m", "headrace.ops.cli", "backfill", "run", str(job), "--quiet", "--json"]
    environment = os.environ | {
        "HEADRACE_BOOTSTRAP_SERVERS": str(on.settings.bootstrap_servers),
        "HEADRACE_PREFIX": on.settings.prefix,
    }
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)


def _watched(on: Ground, job: Path, rows: int, say: Say) -> dict[str, Any]:
    began = time.monotonic()
    looks: list[int] = []
    with _start(on, job) as process:
        pid = process.pid
        collected: list[bytes] = []
        assert process.stdout is not None
        stream = process.stdout
        reading = threading.Thread(target=lambda: collected.append(stream.read()))
        reading.start()
        cpu, said = 0.0, began
        while process.poll() is None:
            time.sleep(LOOK_S)
            try:
                looks.append(_rss(pid))
                cpu = _cpu(pid)
            except OSError:
                break  # it has ended between two looks
            if time.monotonic() - said > SAY_S:
                said = time.monotonic()
                say(f"after {said - began:.0f} s: {looks[-1] / 1e6:.0f} MB")
        code = process.wait()
        seconds = time.monotonic() - began
        reading.join()
    if code != 0:
        raise BenchFailed(f"the backfill ended with {code}: {collected}")
    if len(looks) < LEAST_LOOKS:
        raise BenchFailed(f"{rows:,} rows are too few to see how memory goes: it took {seconds:.1f} s")
    at = [looks[len(looks) * tenth // 10] for tenth in (1, 5, 9)]
    return {
        "rows": rows,
        "seconds": seconds,
        "rss_at_tenth": at[0],
        "rss_at_half": at[1],
        "rss_at_nine_tenths": at[2],
        "rss_most": max(looks),
        "cpu_us_backfill": cpu / rows * 1e6,
    }


def _rss(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _killed(on: Ground, job: Path, rows: int, say: Say) -> KilledFigures:
    output = job.with_suffix(".parquet")
    with _start(on, job) as process:
        half = _await_half(on.settings, process, output, rows)
        process.kill()
    say(f"killed with {half.written_rows:,} rows in parts and {half.outstanding:,} outstanding; again")
    with _start(on, job) as process:
        assert process.stdout is not None
        process.stdout.read()
        if process.wait() != 0:
            raise BenchFailed("the second run failed")
    import pyarrow.parquet as pq

    written: Any = pq.ParquetFile(output)
    counts: Counter[str] = Counter()
    with ResultReader(on.settings, on.names) as reader:
        for found in reader:
            if found is None or isinstance(found.result, MessageError):
                continue
            if found.result.id.startswith("killed-"):
                counts[found.result.id.split(".")[1]] += 1
    return KilledFigures(
        rows,
        half.written_rows,
        half.outstanding,
        counts.total(),
        sum(count > 1 for count in counts.values()),
        written.metadata.num_rows,
    )


def _await_half(settings: Settings, process: subprocess.Popen[bytes], output: Path, rows: int) -> JobState:
    from headrace.producers.backfill.job_files import JobFiles

    files = JobFiles(str(output))
    while process.poll() is None:
        state = files.state()
        if state is not None and state.written_rows >= rows / 2:
            return state
        time.sleep(0.05)
    raise BenchFailed("the job ended before it could be killed: give it more rows")
