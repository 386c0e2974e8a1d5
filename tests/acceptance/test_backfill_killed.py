"""A backfill that is killed at any moment and run again, from here or from elsewhere, ends as if nothing had been."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from backfill_outputs import (
    FAILURES,
    answered_twice,
    leftovers,
    rejects_of,
    results_of,
    rows_of,
    state_of,
    write_job,
    write_rows,
)
from backfill_processes import TAKEN, BackfillProcess
from packages import TAGS_SCHEMA
from waiting import wait_until
from worker_processes import Scene, WorkerProcess, generations, scene

from headrace.consumers.backfill_jobs import JobId
from headrace.producers.backfill.orders import give_order
from headrace.schemas.settings import Settings
from headrace.workers.batch import MAX_BATCH_RECORDS

SEED = 11
ROWS = 900
PART = 100  # rows
WAVE = 256  # rows: so many are outstanding at least, and are answered while nobody runs the job
SMALL_ROWS = 60  # of jobs with a part for each row: putting so many together takes a while
PLACES = 48  # of each worker's engine
ENDS_WITHIN_S = 60.0
SEEN_WITHIN_S = 30.0


@dataclass(slots=True)
class Ground:
    """Where jobs run: one contract with two workers, and directories that stand for machines."""

    stage: Scene
    place: Path
    workers: list[WorkerProcess]
    running: ExitStack
    begun: int = 0
    generations_lost: int = 0  # begun by a worker that was killed

    @property
    def settings(self) -> Settings:
        """Of whoever looks on."""
        return Settings(bootstrap_servers=self.stage.bootstrap, prefix=self.stage.names.prefix)

    def job(self, name: str, rows: Path, rows_per_part: int = PART) -> tuple[Path, Path]:
        """The file of a job, and its output, each in a folder of its own."""
        output = self.place / name / "tags.parquet"
        output.parent.mkdir()
        return write_job(self.place / f"{name}.toml", rows, output, rows_per_part), output

    def start(self, job: Path) -> BackfillProcess:
        """Run a job, from another machine than the last time."""
        self.begun += 1
        place = self.place / f"machine-{self.begun % 2}"
        place.mkdir(exist_ok=True)
        run = BackfillProcess(
            self.stage.bootstrap,
            self.stage.names.prefix,
            job,
            place=place,
            log=self.place / f"{job.stem}-{self.begun}.log",
        )
        return self.running.enter_context(run)

    def finish(self, job: Path) -> None:
        """Run a job to its end."""
        ended_well(self.start(job))

    def start_worker(self, number: int) -> WorkerProcess:
        """A worker in its slot."""
        return self.stage.start(
            f"slot-{number}", simulated_failures=FAILURES, max_in_flight=PLACES, simulated_time_scale=2
        )

    def kill_worker(self) -> None:
        """Kill the second worker, and start it again."""
        self.generations_lost += generations(self.workers[1])
        self.workers[1].kill()
        self.workers[1] = self.start_worker(1)


@dataclass(frozen=True, slots=True)
class ComesBack:
    """A process that has begun a job and was frozen, and the one that took the job over."""

    output: Path
    gone: BackfillProcess
    other: BackfillProcess
    frozen_s: float  # of `time.monotonic()`


@pytest.fixture(scope="module")
def ground(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    place = tmp_path_factory.mktemp("killed")
    prefix = f"t{uuid.uuid4().hex[:12]}"
    with scene(kafka_bootstrap, prefix, place, output=TAGS_SCHEMA) as stage, ExitStack() as running:
        made = Ground(stage, place, [], running)
        made.workers = [made.start_worker(number) for number in range(2)]
        for worker in made.workers:
            worker.wait_ready(ENDS_WITHIN_S)
        write_rows(place / "rows.jsonl", ROWS, random.Random(SEED))
        write_rows(place / "few.jsonl", SMALL_ROWS, random.Random(SEED))
        yield made


@pytest.fixture(scope="module")
def came_back(ground: Ground) -> ComesBack:
    """Frozen before all else is done, since it has to be away for a while."""
    job, output = ground.job("came-back", ground.place / "rows.jsonl")
    gone = ground.start(job)
    wait_until(lambda: gone.settled() > WAVE // 4, SEEN_WITHIN_S, "some rows")
    gone.freeze()
    return ComesBack(output, gone, ground.start(job), time.monotonic())


@pytest.fixture(scope="module")
def undisturbed(ground: Ground, came_back: ComesBack) -> Path:
    """The output of a run that nothing befalls."""
    job, output = ground.job("undisturbed", ground.place / "rows.jsonl")
    ground.finish(job)
    assert len(rows_of(output)) == ROWS
    return output


def ended_well(run: BackfillProcess) -> None:
    """Wait for its end."""
    assert run.exit_code(ENDS_WITHIN_S) == 0, run.said()


def results(ground: Ground, output: Path) -> list[tuple[str, str]]:
    """Of the job with this output."""
    return results_of(ground.stage.bootstrap, ground.stage.names, state_of(output).job)


def check_output(ground: Ground, output: Path, rows: int, like: Path | None = None) -> None:
    """Each row once, in the input's order, and as in the undisturbed run; no answer twice, nothing left of parts."""
    found = rows_of(output)
    assert len(found) == rows
    if like is not None:
        assert found == rows_of(like)
        assert rejects_of(output) == rejects_of(like)
    assert state_of(output).status == "done"
    assert leftovers(output) == []
    assert answered_twice(results(ground, output)) == []


def test_a_job_whose_process_is_killed_again_and_again_ends_as_if_it_had_not_been(
    ground: Ground, undisturbed: Path
) -> None:
    """And so it does where a worker is killed too."""
    dice = random.Random(SEED)
    job, output = ground.job("killed", ground.place / "rows.jsonl")
    for wave in range(3):
        moment = wave * WAVE + dice.randrange(WAVE // 2)
        run = ground.start(job)
        wait_until(lambda run=run, moment=moment: run.settled() > moment, SEEN_WITHIN_S, f"row {moment}")
        assert run.process.poll() is None, run.said()
        run.kill()
        if wave == 1:
            ground.kill_worker()
    ground.finish(job)
    check_output(ground, output, ROWS, undisturbed)


def test_a_process_whose_job_is_taken_over_ends_with_5_and_the_other_goes_on(
    ground: Ground, undisturbed: Path
) -> None:
    job, output = ground.job("taken", ground.place / "rows.jsonl")
    first = ground.start(job)
    wait_until(first.looks, SEEN_WITHIN_S, "the job to begin")
    state = state_of(output)
    id_ = JobId(state.model, state.contract, state.job)
    give_order(ground.settings, id_, "pause", "the test")  # or it might be done before the other has begun
    second = ground.start(job)
    assert first.exit_code(ENDS_WITHIN_S) == TAKEN, first.said()
    assert "is run by another process now" in first.said()
    give_order(ground.settings, id_, "run", "the test")
    ended_well(second)
    check_output(ground, output, ROWS, undisturbed)


def test_a_machine_that_comes_back_when_another_has_finished_its_job_stops_and_changes_nothing(
    ground: Ground, undisturbed: Path, came_back: ComesBack
) -> None:
    """It goes on where it stood, before it has heard that the job is taken: its state is older than the one there."""
    output = came_back.output
    ended_well(came_back.other)
    state, written = state_of(output), output.read_bytes()
    # It says where it stands, and writes it down, every ten seconds: so it does at once.
    wait_until(lambda: time.monotonic() > came_back.frozen_s + 11.0, SEEN_WITHIN_S, "it to be overdue")
    came_back.gone.thaw()
    assert came_back.gone.exit_code(ENDS_WITHIN_S) == TAKEN, came_back.gone.said()
    assert state_of(output) == state
    assert output.read_bytes() == written
    check_output(ground, output, ROWS, undisturbed)


def test_killed_after_the_last_part_it_has_only_to_put_them_together(ground: Ground) -> None:
    job, output = ground.job("written", ground.place / "few.jsonl", rows_per_part=1)
    run = ground.start(job)
    state = output.parent / "tags.parquet.headrace" / "state.json"
    wait_until(lambda: _says_written(state), SEEN_WITHIN_S, "the last part")
    run.kill()
    assert not output.exists(), "it was killed too late"
    again = ground.start(job)
    ended_well(again)
    assert again.asked() == 0
    check_output(ground, output, SMALL_ROWS)


def test_killed_while_the_parts_are_put_together_it_leaves_nothing_half(ground: Ground) -> None:
    job, output = ground.job("half", ground.place / "few.jsonl", rows_per_part=1)
    run = ground.start(job)
    half = wait_until(lambda: list(output.parent.glob(".tags.parquet.*.partial")), SEEN_WITHIN_S, "a half")
    run.kill()
    assert not output.exists(), "it was killed too late"
    assert half[0].exists()
    ground.finish(job)
    check_output(ground, output, SMALL_ROWS)


def test_no_more_is_generated_twice_than_was_in_flight_when_a_worker_was_killed(ground: Ground) -> None:
    """Killed or not, frozen or not: a process that runs a job costs nothing that was generated before."""
    begun = generations(*ground.workers) + ground.generations_lost
    outputs = [path.parent / "tags.parquet" for path in ground.place.glob("*/tags.parquet.headrace")]
    answered = sum(len(results(ground, output)) for output in outputs)
    # What the engine held, and what had come out of it and was not committed yet: backfill's results may wait for a
    # second, or until they fill a transaction.
    in_flight = PLACES + MAX_BATCH_RECORDS if ground.generations_lost else 0
    assert answered <= begun <= answered + in_flight


def _says_written(state: Path) -> bool:
    try:
        return '"status": "written"' in state.read_text()
    except OSError:
        return False
