"""Jobs that are meant, by id or by their output, and what is known of them: from the control topic and their state."""

from __future__ import annotations

import contextlib
import difflib
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from headrace.consumers.backfill_jobs import BackfillRecords, JobId, KnownJob, read_backfills
from headrace.ops.cli.backfill_view import duration
from headrace.producers.backfill.breaker import MaxFailures
from headrace.producers.backfill.job import job_of, load_job
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.job_origin import Origin
from headrace.producers.backfill.locations import without_secrets
from headrace.producers.backfill.orders import FRESH_MS
from headrace.producers.backfill.rounds import Redo, rows_to_redo
from headrace.schemas.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.producers.backfill.job import JobSpec
    from headrace.producers.backfill.state import JobState
    from headrace.schemas.settings import Settings

CLOSE_MATCHES: Final = 3
_OTHER: Final[dict[Redo, Redo]] = {"failed": "rejects", "rejects": "failed"}
_KIND: Final[dict[Redo, str]] = {"failed": "have failed", "rejects": "were refused"}
AT_WORK: Final = ("running", "paused")  # what a process says of a job as long as it is at it


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job by its records, by the state beside its output, or by both."""

    id: JobId
    known: KnownJob
    state: JobState | None = None
    files: JobFiles | None = None

    @property
    def output(self) -> str:
        """Where its output is, or is to be."""
        if self.files is not None:
            return self.files.shown
        return "" if self.known.running is None else self.known.running.output

    def silent_s(self, now_ms: int) -> float | None:
        """Seconds since its process has said something, where it says that it is at work; None: it does not."""
        running = self.known.running
        if running is None or running.status not in AT_WORK:
            return None
        return max(0, now_ms - running.at) / 1000

    def is_attended(self, now_ms: int) -> bool:
        """Whether a process is at work at it, as far as can be told."""
        silent = self.silent_s(now_ms)
        return silent is not None and silent * 1000 < FRESH_MS

    @property
    def is_done(self) -> bool:
        """Whether its output is complete."""
        if self.state is not None:
            return self.state.status == "done"
        return self.known.running is not None and self.known.running.status == "done"

    def stage(self, now_ms: int) -> str:
        """How it stands, in a few words."""
        running, order = self.known.running, self.known.order
        if self.is_done:
            return "done"
        if self.is_attended(now_ms):
            assert running is not None
            return running.status
        if order is not None:
            return "cancelled" if order.order == "cancel" else f"{order.order}d"
        if (silent := self.silent_s(now_ms)) is not None:
            return f"silent for {duration(silent)}"
        if self.state is not None and self.state.status != "running":
            return self.state.status
        return "stopped" if running is None else running.status

    @property
    def counts(self) -> tuple[int, int, int]:
        """(rows, rows that are through, of these failed): by whoever has said more."""
        said, written = (0, 0, 0), (0, 0, 0)
        if (running := self.known.running) is not None:
            said = (running.rows, running.settled, running.failed)
        if (state := self.state) is not None:
            done = state.written_rows
            written = (state.rows, done, done - state.statuses.get("ok", 0))
        return (
            written
            if self.is_done and self.state is not None
            else max(said, written, key=lambda each: each[1])
        )

    def as_json(self, now_ms: int) -> dict[str, Any]:
        """For a script."""
        running, order, state = self.known.running, self.known.order, self.state
        rows, settled, failed = self.counts if self.counts[0] else (state.rows if state else 0, 0, 0)
        silent = self.silent_s(now_ms)
        found: dict[str, Any] = {
            "job": self.id.job,
            "model": self.id.model,
            "contract": self.id.number,
            "stage": self.stage(now_ms),
            "is_attended": self.is_attended(now_ms),
            "rows": rows,
            "settled": settled,
            "failed": failed,
            "output": self.output,
            "host": None if running is None else running.host,
            "said_at_ms": None if running is None else running.at,
            "silent_s": None if silent is None else round(silent, 1),
            "order": None if order is None else order.model_dump(),
        }
        if state is not None:
            prompt, completion = state.tokens
            found["state"] = {
                "status": state.status,
                "reason": state.reason,
                "parts": len(state.parts),
                "rows_in_parts": state.written_rows,
                "statuses": state.statuses,
                "codes": state.codes,
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "outstanding": state.outstanding,
                "rounds": state.round + 1,
                "created_ms": state.created_ms,
                "updated_ms": state.updated_ms,
                "busy_ms": state.busy_ms,
                "input": without_secrets(state.input),
            }
        return found


def now_ms() -> int:
    """Since the epoch."""
    return int(time.time() * 1000)


def find_job(settings: Settings, named: str, records: BackfillRecords | None = None) -> FoundJob:
    """The job that is meant by an id, the beginning of one, the path of its output, or its JOB.toml.

    Raises UsageError where there is none, or several; OutputFailed, StateUnreadable, JobInvalid, and what reading the
    control topic raises.
    """
    files = files_of(named)
    if files is not None:
        state = files.state()
        if state is None:
            raise UsageError(f"there is no job beside {files.shown}: no state lies there")
        id_ = JobId(state.model, state.contract, state.job)
        records = records or read_backfills(settings)
        return FoundJob(id_, records.jobs.get(id_, KnownJob(id_)), state, files)
    records = records or read_backfills(settings)
    return with_state(_only(named, records))


def files_of(named: str) -> JobFiles | None:
    """The files of a job that is named by a path; None: by an id."""
    if PurePosixPath(named).suffix == ".toml":
        return JobFiles(load_job(Path(named)).output_path)
    is_path = "/" in named or bool(PurePosixPath(named).suffix) or Path(named).is_dir()
    return JobFiles(named) if is_path else None


def _only(named: str, records: BackfillRecords) -> KnownJob:
    found = records.of(named)
    if len(found) == 1:
        return found[0]
    names = sorted({each.id.job for each in (found or records.jobs.values())})
    if found:
        raise UsageError(f"several jobs are called {named}...: {', '.join(names)}; give more of the id")
    close = difflib.get_close_matches(named, names, n=CLOSE_MATCHES)
    # A name that was used before, without the id's random end, or with another.
    close += [
        name
        for name in names
        if name.startswith(f"{named.rpartition('-')[0] or named}-") and name not in close
    ]
    hint = (
        f"did you mean {' or '.join(close[:CLOSE_MATCHES])}?"
        if close
        else "`headrace backfill list --all` has all."
    )
    raise UsageError(f"no job is called {named!r}: {hint} Or give the path of its output")


def with_state(known: KnownJob) -> FoundJob:
    """With the state beside the output, where that can be read from here and is this job's."""
    if known.running is not None:
        with contextlib.suppress(HeadraceError):  # another machine's path
            files = JobFiles(known.running.output)
            state = files.state()
            if state is not None and state.job == known.id.job:
                return FoundJob(known.id, known, state, files)
    return FoundJob(known.id, known)


def spec_of(job: FoundJob) -> JobSpec:
    """The job as it was begun, from its state; its output is where the state was found.

    Raises UsageError where the state cannot be read from here, JobInvalid where a release has changed what jobs are.
    """
    state, files = job.state, job.files
    if state is None or files is None:
        raise UsageError(
            f"the state of job {job.id.job} cannot be read from here: it lies beside {job.output or 'its output'}"
        )
    fields: dict[str, Any] = dict(state.job_file)
    if fields.get("prompt") is not None:
        fields.pop("prompt_file", None)  # whose text it is
    place = files.output
    given: Any = fields.get("output")
    fields["output"] = {**given, "path": place} if isinstance(given, dict) else place
    return job_of(fields, Path.cwd())


def retry_spec(
    settings: Settings, named: str, which: Redo, max_failures: str | None
) -> tuple[JobSpec, int, str]:
    """The job for another round, how many rows it would ask about again, and a sentence on that.

    Raises as `find_job` and `spec_of` do, and UsageError for what `max_failures` cannot be.
    """
    job = find_job(settings, named)
    is_file = PurePosixPath(named).suffix == ".toml"
    spec = load_job(Path(named)) if is_file else spec_of(job)
    if job.state is None:
        raise UsageError(
            f"the state of job {job.id.job} cannot be read from here: it lies beside {job.output}"
        )
    if max_failures is not None:
        try:
            MaxFailures.parse(max_failures)
        except (ValueError, OverflowError) as error:
            raise UsageError(f"--max-failures: {error}") from None
        spec = spec.model_copy(update={"max_failures": max_failures}).written_in(Origin())
    count, other = (rows_to_redo(job.state, each) for each in (which, _OTHER[which]))
    hint = f"; {other:,} {_KIND[_OTHER[which]]}: `headrace backfill retry {_OTHER[which]}`" if other else ""
    verb = "asked about again" if count else "nothing to do"
    kind = _KIND[which]
    return spec, count, f"{job.id.job}: {count:,} rows of {job.state.rows:,} {kind}, {verb}{hint}"
