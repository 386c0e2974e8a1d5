"""Fills the index of answers: from the parts of a job that goes on, and from an earlier job whose answers it reuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.consumers.backfill_jobs import read_backfills
from headrace.producers.backfill.assembly import AssembledFile, Places
from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.failures import JobInvalid
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.output_parts import outcomes_in
from headrace.producers.backfill.parts import read_part
from headrace.producers.backfill.row_ids import digest_in

if TYPE_CHECKING:
    from headrace.producers.backfill.answer_index import AnswerIndex
    from headrace.producers.backfill.outcome import Outcome
    from headrace.producers.backfill.preparing import PreparedJob
    from headrace.producers.backfill.state import JobState
    from headrace.schemas.settings import Settings


def fill_from_parts(answers: AnswerIndex, places: Places, state: JobState, columns: OutputColumns) -> None:
    """From the parts that a job has written. Raises OutputFailed."""
    for outcome in _outcomes(places, state, columns):
        _put(answers, outcome)


def is_replaced(reuse: str, files: JobFiles, state: JobState | None) -> bool:
    """Whether the answers that are to be reused lay in the output that this job, by its state, has replaced since."""
    if state is None or not (state.status in ("written", "done") or state.redo is not None):
        return False
    former = _former(reuse, files)
    return former is not None and former[0].job != state.job and _lies_in_output(*former)


def fill_from_earlier_job(
    answers: AnswerIndex,
    settings: Settings,
    reuse: str,
    files: JobFiles,
    job: PreparedJob,
    *,
    only_looks: bool = False,
) -> int:
    """How many answers of an earlier job (its id, or its output's path) there are now.

    Requests that are the same as before have the digests of before, so the input, the columns and the prompt may all
    have changed since. Raises JobInvalid where there is no such job or it was of another contract, OutputFailed, and
    what reading the control topic raises. `only_looks`: nothing is written, so that the job that has the output now,
    and would be set aside for this one, may be meant as well.
    """
    state, places = _found(settings, reuse, files, job, only_looks=only_looks)
    if (state.model, state.contract) != job.view.id:
        raise job.spec.fault(
            f"job {state.job} was of {state.model}@{state.contract}, and this one is of {job.view.name}",
            "reuse",
        )
    columns = job.columns.without_input(state.names)
    if state.names.keys() != job.columns.names.keys():
        raise job.spec.fault(
            f"job {state.job} had another output schema: none of its answers can be taken over", "reuse"
        )
    for outcome in _outcomes(places, state, columns):
        _put(answers, outcome)
    return len(answers)


def _put(answers: AnswerIndex, outcome: Outcome) -> None:
    digest = None if outcome.request_id is None else digest_in(outcome.request_id)
    if outcome.status == "ok" and digest is not None:
        answers.put(digest, outcome)


def _lies_in_output(state: JobState, places: Places) -> bool:
    """Whether a job's answers are in the file that its parts were put together to, and in no parts."""
    parts = [part for part in state.parts if part.statuses.get("ok", 0)]
    return bool(places.file) and any(places.parts.size(part.file) is None for part in parts)


def _outcomes(places: Places, state: JobState, columns: OutputColumns) -> Iterator[Outcome]:
    parts = [part for part in state.parts if part.statuses.get("ok", 0)]
    if _lies_in_output(state, places):
        with AssembledFile.opened(places.folder, places.file, state.parts, columns) as assembled:
            for part in parts:
                yield from outcomes_in(assembled.table(part), columns)
        return
    for part in parts:
        yield from outcomes_in(read_part(places.parts, part, columns), columns)


def _is_id(reuse: str) -> bool:
    return "/" not in reuse and not Path(reuse).suffix


def _former(reuse: str, files: JobFiles) -> tuple[JobState, Places] | None:
    """The job that was set aside here, if its id, or the path of its output, is this."""
    if _is_id(reuse):
        return files.former(reuse)
    return files.former(None) if JobFiles(reuse).shown == files.shown else None


def _found(
    settings: Settings, reuse: str, files: JobFiles, job: PreparedJob, *, only_looks: bool
) -> tuple[JobState, Places]:
    """The state and the places of the job that is meant."""
    if (former := _former(reuse, files)) is not None:
        return former
    path = reuse
    if _is_id(reuse):
        known = read_backfills(settings).of(reuse)
        places = {each.running.output for each in known if each.running is not None}
        if len(places) != 1:
            what = "no job is" if not places else "several jobs are"
            raise job.spec.fault(
                f"{what} called {reuse!r}: give the path of its output (`headrace backfill list` has them)",
                "reuse",
            )
        path = places.pop()
    of = JobFiles(path)
    state = of.state()
    if _is_id(reuse) and (state is None or state.job != reuse):  # another has begun in its place
        if (former := of.former(reuse)) is None:
            raise job.spec.fault(f"job {reuse} is not beside {of.shown} any more", "reuse")
        return former
    if state is None:
        raise job.spec.fault(f"there is no job beside {of.shown}", "reuse")
    if of.shown == files.shown and not only_looks:
        raise JobInvalid(
            f"{of.shown}: a job cannot take answers over from itself; give another output, or --anew"
        )
    return state, of.places
