"""Where backfill jobs run under fire: what is run, a broker with workers and jobs, and what has happened to each."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from backfill_outputs import write_job, write_rows
from nemesis.backfill_ground import KilledKafka, Workers

OUTPUTS = ("tags.parquet", "tags.jsonl", "tags")


@dataclass(frozen=True)
class BackfillPlan:
    """What is run. `rows` of each job; `kills` of each job's process, of workers, and of the broker."""

    seed: int
    rows: int = 3_400
    rows_per_part: int = 150
    workers: int = 3
    kills: int = 10
    freezes: int = 2  # of each job's process
    over_s: float = 330.0  # in which all that befalls them
    max_in_flight: int = 8
    time_scale: float = 2.5


@dataclass(slots=True)
class JobLog:
    """What has happened to a job."""

    kills: int = 0
    frozen: int = 0
    taken: int = 0  # that came back, found the job taken and ended with 5
    asked: int = 0
    asked_again: int = 0
    ended: Counter[str] = field(default_factory=Counter[str])  # by itself before its end, by what it said
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Scene:
    """A broker, workers and jobs at one place."""

    name: str
    place: Path
    kafka: KilledKafka
    workers: Workers
    jobs: dict[str, JobLog]
    stopped: threading.Event  # whoever looks on has had enough

    def output(self, name: str) -> Path:
        """Where a job's output goes."""
        return self.place / f"out-{name}" / name

    def close(self) -> None:
        """End the workers and the broker."""
        self.workers.close()
        self.kafka.close()

    def job_file(self, name: str) -> Path:
        """Where a job is written."""
        return self.place / f"{name}.toml"


def stage(
    plan: BackfillPlan, name: str, place: Path, home: Path, java: str, stopped: threading.Event
) -> Scene:
    """A broker, workers, and the jobs' rows. Raises BrokerFailed, WorkerFailed."""
    place.mkdir(parents=True)
    kafka = KilledKafka(home, java, place / "kafka")
    try:
        workers = Workers(
            kafka.bootstrap,
            place,
            plan.workers,
            max_in_flight=plan.max_in_flight,
            simulated_time_scale=plan.time_scale,
        )
    except BaseException:
        kafka.close()
        raise
    scene = Scene(name, place, kafka, workers, {output: JobLog() for output in OUTPUTS}, stopped)
    for number, output in enumerate(OUTPUTS):
        rows = place / f"rows-{number}.jsonl"
        write_rows(rows, plan.rows, random.Random(f"{plan.seed} {output}"))
        write_job(scene.job_file(output), rows, scene.output(output), plan.rows_per_part)
    return scene
