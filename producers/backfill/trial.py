"""A few of a job's requests, asked for an estimate: as a job of their own, through the same lane."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.consumers.lane_progress import LaneProgress, LaneWatcher
from headrace.producers.backfill.asking import request_of
from headrace.producers.backfill.job_process import Feeds
from headrace.producers.backfill.results_feed import end_of_results
from headrace.producers.backfill.row_ids import RowId, new_job_id, request_id, row_id
from headrace.producers.backfill.wire import KafkaWire
from headrace.schemas.errors import HeadraceError, MessageError

if TYPE_CHECKING:
    from headrace.consumers.records import RecordLocation
    from headrace.producers.backfill.examining import Chosen
    from headrace.producers.backfill.job import JobSpec
    from headrace.producers.backfill.results_feed import Findings
    from headrace.schemas.messages import Result
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

LOOK_WITHIN_S: Final = 15.0  # for the first look at the lane
POLL_S: Final = 0.1


@dataclass(slots=True)
class Trial:
    """What came of it. `problem`: why not all were answered, or none were asked; `job` is empty where none were.

    `refused`: by row, what could not be sent or read.
    """

    job: str = ""
    results: dict[int, Result] = field(default_factory=dict[int, "Result"])
    refused: dict[int, HeadraceError] = field(default_factory=dict[int, HeadraceError])
    lane: LaneProgress | None = None
    problem: str | None = None


def ask_some(
    settings: Settings, spec: JobSpec, names: ContractNames, chosen: Sequence[Chosen], within_s: float
) -> Trial:
    """Ask these and wait for the answers, so many seconds at most. What is unanswered then is taken back.

    Raises TopicsError where a topic is missing, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    trial = Trial()
    trial.lane = _lane(settings, spec, names)
    model = f"{names.model}@{names.contract}"
    if trial.lane is None:
        trial.problem = (
            f"how its group stands could not be read within {LOOK_WITHIN_S:.0f} s: nothing was asked"
        )
    elif not trial.lane.members:
        trial.problem = (
            f"no worker serves {model}, so nothing was asked: start one for tokens, times and outputs"
        )
    elif chosen:
        _ask(settings, spec, names, chosen, within_s, trial)
    return trial


def _lane(settings: Settings, spec: JobSpec, names: ContractNames) -> LaneProgress | None:
    """One look at the lane."""
    looks: queue.SimpleQueue[LaneProgress] = queue.SimpleQueue()
    watcher = LaneWatcher(settings, names, names.requests(spec.lane), looks.put)
    watching = threading.Thread(target=watcher.run, name="estimate lane", daemon=True)
    watching.start()
    try:
        return looks.get(timeout=LOOK_WITHIN_S)
    except queue.Empty:
        return None
    finally:
        watcher.stop()
        watching.join(LOOK_WITHIN_S)


def _ask(
    settings: Settings,
    spec: JobSpec,
    names: ContractNames,
    chosen: Sequence[Chosen],
    within_s: float,
    trial: Trial,
) -> None:
    trial.job = job = new_job_id(f"estimate-{spec.job_name}")
    inbox: queue.SimpleQueue[Findings] = queue.SimpleQueue()
    starts = end_of_results(settings, names.results)  # before anything is asked
    with (
        _wire(settings, spec, names) as wire,
        Feeds(settings).reading(names.results, job, starts, inbox.put),
    ):
        began = time.monotonic()
        deadline_ms = int((time.time() + within_s) * 1000)
        waiting: set[int] = set()
        for each in chosen:
            id_ = request_id(job, RowId(each.row, 0, each.question.digest))
            try:
                request = request_of(each.question, id_, job, deadline_ms)
                wire.send(request, each.row % wire.partitions, partial(_note_unsent, trial, each.row))
            except MessageError as error:
                trial.refused[each.row] = error
            else:
                waiting.add(each.row)
        while (waiting := waiting - trial.refused.keys()) and time.monotonic() - began < within_s:
            with contextlib.suppress(queue.Empty):
                waiting -= _take(inbox.get(timeout=POLL_S), trial)
        if waiting:
            trial.problem = f"{len(waiting)} of {len(chosen)} requests had no answer within {within_s:.0f} s"
            with contextlib.suppress(HeadraceError):
                wire.cancel(job, "the estimate waits no longer")


def _note_unsent(trial: Trial, row: int, found: RecordLocation | HeadraceError) -> None:
    if isinstance(found, HeadraceError):
        trial.refused[row] = found


def _take(findings: Findings, trial: Trial) -> set[int]:
    """The rows that are answered with it."""
    rows: set[int] = set()
    for found in findings.found:
        of = row_id(trial.job, found.request_id)
        if of is None:
            continue
        rows.add(of.row)
        if isinstance(found.result, MessageError):
            trial.refused[of.row] = found.result
        else:
            trial.results[of.row] = found.result
    return rows


@contextlib.contextmanager
def _wire(settings: Settings, spec: JobSpec, names: ContractNames) -> Generator[KafkaWire]:
    wire = KafkaWire(settings, names, spec.lane)
    try:
        yield wire
    finally:
        wire.close()
