"""The requests that this worker holds, on the loop: admit, serve, complete."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from headrace.consumers.records import TopicPartition
from headrace.schemas import metrics
from headrace.schemas.errors import EngineError, RegistryFailed
from headrace.schemas.messages import LANES, Cancel
from headrace.workers.admission import Admission
from headrace.workers.answers import Answers, Served
from headrace.workers.cancels import Cancels
from headrace.workers.serving import Serving
from headrace.workers.work import Completion, Work

log = logging.getLogger(__name__)

REGISTRY_RETRY_S = 0.5
ABORT_S = 10.0  # for the engine to let go of what was cancelled


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
        failed: Callable[[BaseException], None],
    ) -> None:
        self._model = model
        self._admission = admission
        self._serving = serving
        self._answers = answers
        self._cancels = cancels
        self._complete = complete
        self._failed = failed
        self._running: dict[asyncio.Task[None], Work] = {}
        self._given_up: set[asyncio.Task[None]] = set()
        self._generating: set[asyncio.Task[None]] = set()  # of those that run: not yet answered
        self._admitting = True

    def accept(self, works: list[Work]) -> None:
        """Take what the consumer thread polled."""
        for work in works:
            self._admission.offer(work)
        self._admit()

    def _admit(self) -> None:
        while self._admitting and (work := self._admission.admit()) is not None:
            task = asyncio.create_task(self._serve(work), name=f"request {work.request_id}")
            self._running[task] = work
            task.add_done_callback(self._done)

    async def _serve(self, work: Work) -> None:
        task = asyncio.current_task()
        assert task is not None, "this runs as a task"
        self._generating.add(task)
        try:
            served = await self._serving.serve(work)
        finally:
            self._generating.discard(task)
        self._complete(await self._completion(work, served))

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
        self._admission.finished()
        if not task.cancelled() and (error := task.exception()) is not None:
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
        self._admission.forget(lambda work: work.source in lost)
        for task, work in self._running.items():
            if work.source in lost:
                self._give_up(task)

    def cancel(self, cancel: Cancel, appended_ms: int) -> None:
        """End what a cancel is about: what runs now, what waits when its turn comes, and what is still to come."""
        self._cancels.note(cancel, appended_ms)
        for task in list(self._generating):
            if self._cancels.of(self._running[task]) is not None:
                task.cancel()

    async def drain(self, budget_s: float, *, cut_short: asyncio.Event) -> None:
        """Admit nothing more; what runs may finish within the budget (seconds), and is aborted past it.

        `cut_short`: nothing that still finishes could be committed, so that the budget is over.
        """
        self._admitting = False
        if not self._running:
            return
        log.info("waiting for %d requests in flight, %.0f s at most", len(self._running), budget_s)
        finished = asyncio.gather(*self._running, return_exceptions=True)
        cut = asyncio.ensure_future(cut_short.wait())
        await asyncio.wait([finished, cut], timeout=budget_s, return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        late = list(self._running)
        if late:
            log.warning("%d requests did not finish in time; their next owner begins them anew", len(late))
            for task in late:
                self._give_up(task)
            # An engine that has died may not let go of them either: its end is not to wait for that.
            await asyncio.wait(late, timeout=ABORT_S)

    def show(self) -> None:
        """Set the gauges. Called now and then: for each request it would cost more than the rest of this class."""
        metrics.IN_FLIGHT.labels(self._model).set(self._admission.in_flight)
        for lane in LANES:
            metrics.WAITING.labels(self._model, lane).set(self._admission.waiting(lane))
