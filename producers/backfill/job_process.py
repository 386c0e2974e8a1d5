"""A job from its file to its output, in one process: what is there is looked at, the rest done, the end put down."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from headrace.consumers.backfill_jobs import JobId
from headrace.consumers.lane_progress import LaneWatcher
from headrace.producers.backfill.answer_index import AnswerIndex
from headrace.producers.backfill.asking import RowAsker
from headrace.producers.backfill.batch_lines import BatchLines
from headrace.producers.backfill.batch_output import BatchOutput
from headrace.producers.backfill.failures import JobCancelled, JobInvalid, JobTaken, OutputFailed
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.known_answers import fill_from_earlier_job, fill_from_parts, is_replaced
from headrace.producers.backfill.locations import without_secrets
from headrace.producers.backfill.manifest import manifest_of
from headrace.producers.backfill.openai_batch import BatchMapping
from headrace.producers.backfill.orders import OrdersLink
from headrace.producers.backfill.output_parts import TableOutput
from headrace.producers.backfill.preparing import PreparedJob, prepare
from headrace.producers.backfill.progress import JobView
from headrace.producers.backfill.replacing import put_all_in_place
from headrace.producers.backfill.results_feed import ResultsFeed, end_of_results
from headrace.producers.backfill.rounds import Redo, begin_again, rows_to_redo
from headrace.producers.backfill.row_ids import new_job_id
from headrace.producers.backfill.run import JobRun
from headrace.producers.backfill.run_ports import End, Limits, Parts
from headrace.producers.backfill.state import JobState, check_same_job
from headrace.producers.backfill.wire import KafkaWire
from headrace.schemas.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.producers.backfill.job import JobSpec
    from headrace.schemas.messages import JsonObject
    from headrace.schemas.settings import Settings

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tellers:
    """How a job speaks while it works. `say` is of sentences, `look` of the job's state twice a second; `reading` has
    bytes of the input and `joining` rows of the output."""

    say: Callable[[str], None] = lambda _: None
    look: Callable[[JobView], None] = lambda _: None
    reading: Callable[[int, int | None], None] = lambda _read, _of: None
    joining: Callable[[int], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Finished:
    """How a job has ended here. `error`: why before its end. `nothing_to_do`: it had ended before."""

    state: JobState
    files: JobFiles
    view: JobView | None = None
    error: HeadraceError | None = None
    nothing_to_do: bool = False


@dataclass(slots=True)
class JobProcess:
    """One job. `open` it, `run` it, `close` it; `stop` may come from anywhere."""

    settings: Settings
    spec: JobSpec
    tell: Tellers = field(default_factory=Tellers)
    anew: bool = False
    redo: Redo | None = None
    _run: JobRun | None = None
    _stopped: str | None = None

    def stop(self, why: str) -> None:
        """Stop soon; what is on its way is found by the next run."""
        self._stopped = why
        if self._run is not None:
            self._run.stop(why)

    def run(self, feeds: Feeds | None = None) -> Finished:
        """Do what is left of the job. `feeds`: shared by jobs that run in one process.

        Raises JobInvalid, JobChanged, JobCancelled, JobTaken, InputFailed, OutputFailed, StateUnreadable, TopicsError,
        KafkaUnavailable, KafkaFailed, BrokerNotFound. Why a job stopped by itself is in what is returned.
        """
        files = JobFiles.of(self.spec)
        job = prepare(self.settings, self.spec, self.tell.reading)
        state = self._state_before(files, job)
        if state is not None and state.status == "done" and not self._has_round(state):
            self._clear_away(state, files)
            return Finished(state, files, nothing_to_do=True)
        files.sweep()
        with contextlib.ExitStack() as stack:
            wire = KafkaWire(self.settings, job.names, self.spec.lane)
            stack.callback(wire.close)
            is_new = state is None
            # Before there is a job: what is to be reused may not be there.
            answers = self._answers(stack, files, job, state)
            if state is None:
                state = self._new_state(files, job, wire)
                files.begin(state)
            link = stack.enter_context(self._link(state, files))
            state = self._within_results(self._take_over(state, files, link))
            files.bring_back(state)
            put_all_in_place(files.places, state.parts)
            if state.status == "done" and not self._has_round(state):  # meanwhile, by another process
                files.remove_parts(state)
                _say_done(state, files, link)
                return Finished(state, files, nothing_to_do=True)
            found, state = state, files.laid_out(state, job.columns, about_of(state))
            if self.redo is not None and not is_new:
                state = begin_again(state, self.redo)
            if state is not found:
                files.save(state)
            end = None
            if state.status != "written":
                end = self._work(stack, state, files, job, wire, link, answers, feeds or Feeds(self.settings))
                state = end.state
            if state.status == "written":
                state = self._put_together(files, state, job, link)
                _say_done(state, files, link)
            return Finished(
                state, files, None if end is None else end.view, None if end is None else end.error
            )

    # --- before ---

    def _state_before(self, files: JobFiles, job: PreparedJob) -> JobState | None:
        state = files.state()
        if state is None:
            return None
        if self.anew:
            files.set_aside(state)
            self.tell.say(f"job {state.job} is set aside: a new one begins in its place")
            return None
        check_same_job(state, job.identity)
        return state

    def _clear_away(self, state: JobState, files: JobFiles) -> None:
        """Remove what a killed process has left of the parts of a job that is done, or take back its setting aside.

        Parts may as well be there because another process lays them out for a round, while the state says done: so
        only whoever has the job removes any, and it is not taken from a process that is at it.
        """
        is_half_aside = files.is_set_aside(state.job)  # what readers of a directory would miss
        if not is_half_aside and not files.has_parts_left(state):
            return
        link = OrdersLink(self.settings, JobId(state.model, state.contract, state.job), files.shown)
        try:
            if link.other_process() is None and files.state() == state:
                self._take_over(state, files, link)
                files.bring_back(state)
                files.remove_parts(state)
                _say_done(state, files, link)
        finally:
            link.close()

    def _has_round(self, state: JobState) -> bool:
        return self.redo is not None and rows_to_redo(state, self.redo) > 0

    def _new_state(self, files: JobFiles, job: PreparedJob, wire: KafkaWire) -> JobState:
        model, contract = job.view.id
        now = int(time.time() * 1000)
        return JobState(
            job=new_job_id(self.spec.job_name),
            model=model,
            contract=contract,
            identity=job.identity,
            rows=job.source.row_count,
            rows_per_part=self.spec.rows_per_part,
            lane_partitions=wire.partitions,
            results_topic=job.names.results,
            # Before anything is asked: no answer can lie below.
            offsets=end_of_results(self.settings, job.names.results),
            created_ms=now,
            updated_ms=now,
            job_file=_without_secrets(self.spec.model_dump(mode="json", exclude_unset=True)),
            input=without_secrets(self.spec.input_path),
            output=files.shown,
            names=job.columns.names,
        )

    def _within_results(self, state: JobState) -> JobState:
        """Where `results` ends before what the state says it was made anew, or cut back: all of it is read."""
        ends = end_of_results(self.settings, state.results_topic, committed=False)
        offsets = {at: offset if offset <= ends.get(at, 0) else 0 for at, offset in state.offsets.items()}
        if offsets != state.offsets:
            log.warning("%s is not the one that the job began with: it is read anew", state.results_topic)
        return state.model_copy(update={"offsets": offsets})

    @contextlib.contextmanager
    def _link(self, state: JobState, files: JobFiles) -> Generator[OrdersLink]:
        link = OrdersLink(self.settings, JobId(state.model, state.contract, state.job), files.shown)
        try:
            order = link.order()
            if order is not None and order.order == "cancel":
                raise JobCancelled(
                    f"job {state.job} was cancelled by {order.by}: `headrace backfill resume {state.job}` lets it go on"
                )
            if order is not None:
                self.tell.say(f"paused by {order.by}: `headrace backfill resume {state.job}` lets it go on")
            if (other := link.other_process()) is not None:
                self.tell.say(f"taking the job over from {other.host}, which was at it a moment ago")
            yield link
        finally:
            link.close()

    def _take_over(self, state: JobState, files: JobFiles, link: OrdersLink) -> JobState:
        """From here on any other process finds the job taken. Until now one may have gone on with it: so the state is
        read once more."""
        settled = state.written_rows
        link.tell("running", rows=state.rows, settled=settled, failed=settled - state.statuses.get("ok", 0))
        found = files.state()
        if found is None or found.job != state.job:
            raise JobTaken(f"{files.shown}: another process has begun another job here at the same moment")
        return files.take_over(found, link.incarnation)

    # --- the work ---

    def _work(
        self,
        stack: contextlib.ExitStack,
        state: JobState,
        files: JobFiles,
        job: PreparedJob,
        wire: KafkaWire,
        link: OrdersLink,
        answers: AnswerIndex | None,
        feeds: Feeds,
    ) -> End:
        if answers is not None and self.spec.dedupe and state.parts and self.spec.openai_batch is None:
            fill_from_parts(answers, files.places, state, job.columns)
        topic = job.names.requests(self.spec.lane)
        output = output_of(files, job, state)
        parts = Parts(
            source=job.source,
            mapping=job.mapping,
            asker=RowAsker(job.mapping, job.digests),
            output=output,
            save=files.save,
            wire=wire,
            link=link,
            results_end=lambda: end_of_results(self.settings, job.names.results),
            results_tip=lambda: end_of_results(self.settings, job.names.results, committed=False),
            lane_topic=topic,
            answers=answers,
            still_ours=lambda: files.check_ours(state.job),
        )
        spec = self.spec
        limits = Limits(spec.breaker, spec.token_budget, spec.dedupe, spec.give_up_after_s)
        run = self._run = JobRun(state, parts, limits, self.tell.look)
        if self._stopped is not None:
            run.stop(self._stopped)
        watcher = LaneWatcher(self.settings, job.names, topic, run.look)
        watching = threading.Thread(target=watcher.run, name="backfill lane", daemon=True)
        watching.start()
        stack.callback(watching.join)
        stack.callback(watcher.stop)
        stack.enter_context(feeds.reading(job.names.results, state.job, state.offsets, run.deliver))
        end = run.run()
        if end.state.status != "written":
            lines = (output.failure_line(*failure) for failure in run.open_failures())
            files.write_open_failures(lines, end.state)
        return end

    def _answers(
        self, stack: contextlib.ExitStack, files: JobFiles, job: PreparedJob, state: JobState | None
    ) -> AnswerIndex | None:
        spec = self.spec
        if not spec.dedupe and spec.reuse is None:
            return None
        answers = AnswerIndex()
        stack.callback(answers.close)
        if spec.reuse is not None and not is_replaced(spec.reuse, files, state):
            try:
                count = fill_from_earlier_job(answers, self.settings, spec.reuse, files, job)
            except (JobInvalid, OutputFailed) as error:
                if state is None:
                    raise
                # What it has answered so far is in this job's parts, and what is left can be asked.
                self.tell.say(f"goes on without the answers of {spec.reuse}: {error.message}")
            else:
                self.tell.say(f"{count:,} answers of {spec.reuse} can be taken over")
        return answers

    # --- after ---

    def _put_together(self, files: JobFiles, state: JobState, job: PreparedJob, link: OrdersLink) -> JobState:
        def joined(rows: int) -> None:
            link.check()
            if rows == state.rows:  # what follows puts the file in the place of the one that is there
                files.check_ours(state.job)
            self.tell.joining(rows)

        files.check_ours(state.job)
        assembled = files.put_together(state, job.columns, about_of(state), joined)
        link.check()
        state = state.model_copy(
            update={"status": "done", "redo": None, "redone": [], "updated_ms": int(time.time() * 1000)}
        )
        files.check_ours(state.job)
        files.write_manifest(manifest_of(state, files, assembled))
        files.save(state)
        files.remove_parts(state)
        return state


def _without_secrets(job_file: JsonObject) -> JsonObject:
    """Keys to places stay with whoever has them."""
    cleaned: JsonObject = {}
    for name, value in job_file.items():
        if isinstance(value, dict):
            cleaned[name] = _without_secrets(cast("JsonObject", value))
        else:
            is_place = isinstance(value, str) and name in ("input", "output", "openai_batch", "path", "reuse")
            cleaned[name] = without_secrets(value) if is_place else value
    return cleaned


def _say_done(state: JobState, files: JobFiles, link: OrdersLink) -> None:
    """Unless another process has the job by now: this word would take it back."""
    with contextlib.suppress(HeadraceError):
        files.check_ours(state.job)
        settled = sum(state.statuses.values())
        link.tell("done", rows=state.rows, settled=settled, failed=settled - state.statuses.get("ok", 0))


def output_of(files: JobFiles, job: PreparedJob, state: JobState) -> TableOutput | BatchOutput:
    """Where a job's parts go."""
    if isinstance(job.mapping, BatchMapping):
        lines = BatchLines(job.mapping, state.job, created=state.created_ms // 1000)
        return BatchOutput(files.places, lines)
    return TableOutput(files.places, job.columns, job.spec.output_format, about_of(state))


def about_of(state: JobState) -> dict[str, str]:
    """What a Parquet file says of the job that it came from."""
    return {"job": state.job, "model": state.model, "contract": str(state.contract)}


class Feeds:
    """The readers of `results`, one for each topic, whatever the number of jobs that read it.

    Jobs that share one have to subscribe before any of them reads: `expect` says how many there are.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._feeds: dict[str, _SharedFeed] = {}

    @contextlib.contextmanager
    def reading(
        self, topic: str, job: str, starts: dict[int, int], deliver: Callable[..., None]
    ) -> Generator[None]:
        """Deliver a job's results for as long as the block."""
        with self._lock:
            shared = self._feeds.get(topic)
            if shared is None:
                shared = self._feeds[topic] = _SharedFeed(ResultsFeed(self._settings, topic))
                shared.thread.start()
            shared.feed.subscribe(job, starts, deliver)
            shared.jobs += 1
        try:
            yield
        finally:
            with self._lock:
                shared.feed.unsubscribe(job)
                shared.jobs -= 1
                is_last = shared.jobs == 0
                if is_last:
                    del self._feeds[topic]
            if is_last:
                shared.feed.stop()
                shared.thread.join()


@dataclass(slots=True)
class _SharedFeed:
    feed: ResultsFeed
    jobs: int = 0
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.feed.run, name="backfill results", daemon=True)
