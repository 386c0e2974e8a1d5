"""The requests that this worker holds, on the loop: admit, serve, complete."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping

from headrace.consumers.records import TopicPartition
from headrace.schemas import metrics
from headrace.schemas.errors import EngineDead, EngineError, RegistryFailed
from headrace.schemas.messages import LANES, Cancel
from headrace.workers.admission import Admission, Room
from headrace.workers.answers import Answers, Served
from headrace.workers.cancels import Cancels
from headrace.workers.engine import EngineIdentity
from headrace.workers.serving import Serving
from headrace.workers.work import Completion, Work

log = logging.getLogger(__name__)

REGISTRY_RETRY_S = 0.5
SEQUENCES = 256  # of an engine that does not say
BEGUN_AT_ONCE = 64  # requests: about 40 ms of the loop's time; with fewer a burst fills the engine late
ABORT_S = 10.0  # for the engine to let go of what was cancelled


def room_of(engine: EngineIdentity, max_in_flight: int | None) -> Room:
    """What may be handed to an engine: what one step takes, and an eighth more that waits inside for the next one.

    Enough for the next step when sequences end, and no more: what waits inside holds up a move, and an interactive
    request. `max_in_flight` is the operator's word on both together.
    """
    sequences = engine.max_sequences or SEQUENCES
    if max_in_flight is None:
        return Room(sequences, engine.kv_tokens, max(1, sequences // 8))
    return Room(
        min(sequences, max_in_flight), engine.kv_tokens, max_in_flight - min(sequences, max_in_flight)
    )


class Requests:
    """What waits and what runs. All methods run on the loop's thread."""

    def __init__(
        self,
        *,
        model: str,
        admission: Admission,
        serving: Serving,
        answers: Answers,
        cancels: Cancels,
        complete: Callable[[Completion], None],
        hand_back: Callable[[frozenset[int], list[Work]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._model = model
        self._admission = admission
        self._serving = serving
        self._answers = answers
        self._cancels = cancels
        self._complete = complete
        self._hand_back = hand_back
        self._failed = failed
        self._running: dict[asyncio.Task[None], Work] = {}
        self._given_up: set[asyncio.Task[None]] = set()
        self._generating: set[asyncio.Task[None]] = set()  # of those that run: not yet answered
        self._completion_tokens: dict[asyncio.Task[None], int] = {}
        self._killed: list[Work] = []  # what the engine died with, as far as it has said so
        self._expiring: dict[
            asyncio.Task[None], Work
        ] = {}  # taken out of the queue, on their way to be answered
        self._ending: set[asyncio.Task[None]] = set()  # that hand back what was aborted
        self._admitting = True
        self._goes_on = False  # `_admit_more` is on its way

    def accept(self, works: list[Work]) -> None:
        """Take what the consumer thread polled."""
        for work in works:
            self._admission.offer(work)
        self._admit()

    def _admit(self) -> None:
        """Begin what may begin, a few at a time: what has come meanwhile is not to wait for hundreds of prompts."""
        if self._goes_on:
            return
        for _ in range(BEGUN_AT_ONCE):
            work = self._admission.admit() if self._admitting else None
            if work is None:
                return
            task = asyncio.create_task(self._serve(work), name=f"request {work.request_id}")
            self._running[task] = work
            task.add_done_callback(self._done)
        self._goes_on = True
        asyncio.get_running_loop().call_soon(self._admit_more)

    def _admit_more(self) -> None:
        self._goes_on = False
        self._admit()

    async def _serve(self, work: Work) -> None:
        task = asyncio.current_task()
        assert task is not None, "this runs as a task"
        self._generating.add(task)
        try:
            served = await self._serving.serve(work, lambda tokens: self._measured(work, tokens))
        finally:
            self._generating.discard(task)
        if served.status not in ("cancelled", "expired"):  # how long a whole completion is
            self._completion_tokens[task] = served.usage.completion_tokens
        completion = await self._completion(work, served)
        if task not in self._given_up:  # else it was given back, and is another's to answer
            self._complete(completion)

    def _measured(self, work: Work, prompt_tokens: int) -> None:
        self._admission.measured(work, prompt_tokens)
        self._admit()  # it may be shorter than it looked

    async def _completion(self, work: Work, served: Served) -> Completion:
        try:
            return self._answers.completion(work, served)
        except RegistryFailed as error:
            log.warning("the result of request %s waits for the schema registry: %s", work.request_id, error)
        while True:
            await asyncio.sleep(REGISTRY_RETRY_S)
            # In a thread: while it does not answer, the registry may take seconds each time.
            with contextlib.suppress(RegistryFailed):
                return await asyncio.to_thread(self._answers.completion, work, served)

    def _done(self, task: asyncio.Task[None]) -> None:
        work = self._running.pop(task)
        given_up = task in self._given_up
        self._given_up.discard(task)
        self._admission.finished(work, self._completion_tokens.pop(task, None))
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, EngineDead):
                self._admitting = False
                self._killed.append(work)
            self._failed(error)
        elif task.cancelled() and not given_up:
            # Its offset would stay open for ever, and nobody would know why.
            self._failed(EngineError(f"request {work.request_id} was cancelled by nobody that may"))
        self._admit()

    def _give_up(self, task: asyncio.Task[None]) -> None:
        self._given_up.add(task)
        task.cancel()

    def drop(self, lost: frozenset[TopicPartition]) -> None:
        """Give up what came from partitions that went to another worker: it does them anew."""
        self._admission.take_back(lambda work: work.source in lost)
        for task, work in self._tasks():
            if work.source in lost:
                self._give_up(task)
        self._admit()

    def _tasks(self) -> list[tuple[asyncio.Task[None], Work]]:
        return [*self._running.items(), *self._expiring.items()]

    def hold(self, units: frozenset[int]) -> None:
        """Give back what has not begun of units that drain."""
        waiting = self._admission.take_back(lambda work: work.source.partition in units)
        self._hand_back(units, waiting)
        self._admit()

    def abort(self, units: frozenset[int]) -> None:
        """End what runs of units whose budget is over, and give it back once the engine has let go of it."""
        late = {task: work for task, work in self._tasks() if work.source.partition in units}
        metrics.GIVEN_UP.labels(self._model).inc(len(late))
        for task in late:
            self._give_up(task)
        ending = asyncio.create_task(self._hand_back_ended(units, late), name="aborting")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _hand_back_ended(self, units: frozenset[int], late: Mapping[asyncio.Task[None], Work]) -> None:
        """Not before: if they are served on after all, they must not be in the engine twice."""
        if late:
            await asyncio.wait(late, timeout=ABORT_S)
        self._hand_back(units, sorted(late.values(), key=lambda work: (work.source, work.offset)))

    def stop(self) -> list[Work]:
        """Begin nothing more, and give up what runs: the engine has died. What was in it."""
        self._admitting = False
        inside = [
            *self._killed,
            *(work for task, work in self._running.items() if task in self._generating or _was_killed(task)),
        ]
        for task, _ in self._tasks():
            self._give_up(task)
        return inside

    async def wait_for_end(self) -> None:
        """Until the engine has let go of everything; an engine that has died may not, and is not waited for long."""
        if self._running:
            await asyncio.wait(list(self._running), timeout=ABORT_S)

    def expire(self) -> None:
        """Answer those that wait and whose deadline has passed. Called now and then."""
        for work in self._admission.expired(int(time.time() * 1000)):
            task = asyncio.create_task(self._answer_expired(work), name=f"expired request {work.request_id}")
            self._expiring[task] = work
            task.add_done_callback(self._expired)

    async def _answer_expired(self, work: Work) -> None:
        completion = await self._completion(work, self._serving.expired_before(work))
        if asyncio.current_task() not in self._given_up:
            self._complete(completion)

    def _expired(self, task: asyncio.Task[None]) -> None:
        del self._expiring[task]
        self._given_up.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def cancel(self, cancel: Cancel, appended_ms: int) -> None:
        """End what a cancel is about: what runs now, what waits when its turn comes, and what is still to come."""
        self._cancels.note(cancel, appended_ms)
        for task in list(self._generating):
            if self._cancels.of(self._running[task]) is not None:
                task.cancel()

    def show(self) -> None:
        """Set the gauges. Called now and then: for each request it would cost more than the rest of this class."""
        metrics.IN_FLIGHT.labels(self._model).set(self._admission.in_flight)
        for lane in LANES:
            metrics.WAITING.labels(self._model, lane).set(self._admission.waiting(lane))


def _was_killed(task: asyncio.Task[None]) -> bool:
    """Whether it has ended with the engine, though its callback has not run yet."""
    return task.done() and not task.cancelled() and isinstance(task.exception(), EngineDead)
