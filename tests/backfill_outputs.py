"""What goes into backfill jobs that are killed, and what has come out of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from worker_processes import PARTITIONS

from headrace.consumers.records import TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.state import JobState
from headrace.producers.backfill.table_files import parquet_file
from headrace.schemas.headers import JOB, REQUEST_ID, STATUS
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

MODEL = "tagger"
FAILURES = json.dumps(
    [
        {"kind": "reject", "prompt_contains": "REFUSED"},
        {"kind": "truncated", "prompt_contains": "CUT"},
        {"kind": "error", "prompt_contains": "BROKEN"},
    ]
)  # HEADRACE_SIMULATED_FAILURES


def write_rows(path: Path, count: int, dice: random.Random) -> None:
    """Rows as they come in life: most are good, some the same as another, some bad, some that no engine can answer."""
    good: list[str] = []
    lines: list[str] = []
    for number in range(count):
        roll = dice.random()
        if roll < 0.01:
            lines.append(f'{{"n": {number}, "title": "half a l')
            continue
        title: str | None = f"film {dice.randrange(10**9)}"
        if roll < 0.03:
            title = None
        elif roll < 0.06:
            title = f"{dice.choice(('REFUSED', 'CUT', 'BROKEN'))} {number}"
        elif roll < 0.16 and good:
            title = dice.choice(good)
        else:
            good.append(str(title))
        lines.append(json.dumps({"n": number, "title": title, "year": dice.randrange(1900, 2030)}))
    path.write_text("\n".join(lines) + "\n")


def write_job(path: Path, rows: Path, output: Path, rows_per_part: int) -> Path:
    """The file of a job over these rows."""
    path.write_text(
        f'model = "{MODEL}"\ninput = "{rows}"\noutput = "{output}"\nrows_per_part = {rows_per_part}\n'
        'max_failures = "50%"\n[variables]\ntitle = "title"\n'
    )
    return path


def state_of(output: Path) -> JobState:
    """Of the job that has this output."""
    state = JobFiles(str(output)).state()
    assert state is not None, f"there is no job for {output}"
    return state


def rows_of(output: Path) -> list[dict[str, Any]]:
    """The rows of an output in their order, without the ids of their requests, which have the job's."""
    if output.suffix == ".jsonl":
        rows = [json.loads(line) for line in output.read_text().splitlines()]
    else:
        files = sorted(output.glob("part-*.parquet")) if output.is_dir() else [output]
        rows = [row for file in files for row in parquet_file(file.read_bytes()).read().to_pylist()]
    for row in rows:
        row.pop("headrace_id")
    return rows


def rejects_of(output: Path) -> list[dict[str, Any]]:
    """The lines of an output's rejects, likewise."""
    beside = output.with_name(f"{output.name}.rejects.jsonl")
    file = output / "_headrace" / "rejects.jsonl" if output.is_dir() else beside
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row.pop("id")
    return rows


def leftovers(output: Path) -> list[str]:
    """Files that should not be there once a job is done: of parts, and what killed processes had half written."""
    found = [path for path in output.parent.rglob("*") if path.is_file() and output.name in str(path)]
    parts = [] if output.is_dir() else [path for path in found if path.name.startswith("part-")]
    return sorted(str(path) for path in {*parts, *(path for path in found if path.suffix == ".partial")})


def results_of(bootstrap: str, names: ContractNames, job: str) -> list[tuple[str, str]]:
    """Id and status of each result of a job."""
    settings = Settings(bootstrap_servers=bootstrap, prefix=names.prefix)
    partitions = [TopicPartition(names.results, number) for number in range(PARTITIONS)]
    reader = TailReader(settings, partitions, "beginning")
    found: list[tuple[str, str]] = []
    try:
        ends = reader.end_offsets()
        while any((reader.position(tp) or 0) < end for tp, end in ends.items()):
            for record in reader.poll(0.5, 2_000):
                headers = {name: (value or b"").decode() for name, value in record.headers}
                if headers.get(JOB) == job:
                    found.append((headers[REQUEST_ID], headers[STATUS]))
    finally:
        reader.close()
    return found


def answered_twice(results: list[tuple[str, str]]) -> list[str]:
    """Ids with more than one answer. A rejection is none: workers know no id by it, and it costs nothing."""
    counts = Counter(id_ for id_, status in results if status != "rejected")
    return [id_ for id_, count in counts.items() if count > 1]
