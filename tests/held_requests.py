"""The requests of a worker on a loop, with an engine and answers in the hands of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from fake_worker import NAMES, SOURCES
from packages import a_package
from serving_parts import until

from headrace.consumers.records import Record, TopicPartition
from headrace.schemas.codec import Codec
from headrace.schemas.errors import RegistryFailed
from headrace.schemas.messages import Output
from headrace.workers.admission import Admission, Room
from headrace.workers.answers import Answers, Served
from headrace.workers.cancels import Cancels
from headrace.workers.intake import work_of
from headrace.workers.requests import Requests
from headrace.workers.serving import Serving
from headrace.workers.work import Completion, Work

SOURCE = SOURCES[2]
OK = Served("ok", outputs=[Output(text="fine", finish_reason="stop")])


def a_work(offset: int, source: TopicPartition = SOURCE) -> Work:
    record = Record(*source, offset, 0, None, b'{"id":"r%d","prompt":"x"}' % offset)
    return work_of(record, source=source, epoch=1, lane="standard", codec=Codec())


class ScriptedServing(Serving):
    """Serves as it is told."""

    def __init__(self, serve: Callable[[Work], Awaitable[Served]]) -> None:
        self._serve = serve

    async def serve(self, work: Work, measured: Callable[[int], None] = lambda tokens: None) -> Served:
        return await self._serve(work)


class FlakyAnswers(Answers):
    """The registry is down for the first so many results."""

    failures = 0

    def completion(self, work: Work, served: Served) -> Completion:
        if self.failures:
            self.failures -= 1
            raise RegistryFailed("no answer")
        return super().completion(work, served)


class Held:
    """Requests, and what comes of them."""

    def __init__(self, directory: Path, serve: Callable[[Work], Awaitable[Served]], cap: int = 2) -> None:
        self.completed: list[Completion] = []
        self.failures: list[BaseException] = []
        self.answers = FlakyAnswers(
            package=a_package(directory), names=NAMES, slot="s", codec=Codec(), check_size=lambda record: None
        )
        self.admission = Admission(Room(cap, None, 0))
        self.handed_back: list[tuple[frozenset[int], list[Work]]] = []
        self.requests = Requests(
            model="tagger",
            admission=self.admission,
            serving=ScriptedServing(serve),
            answers=self.answers,
            cancels=Cancels(),
            complete=self.completed.append,
            hand_back=lambda units, works: self.handed_back.append((units, works)),
            failed=self.failures.append,
        )

    async def end(self) -> None:
        self.requests.stop()
        await self.requests.wait_for_end()

    @property
    def offsets(self) -> list[int]:
        return [each.offset for each in self.completed]


class Gate:
    """Serves each request once it is let through; what is cancelled meanwhile is noted."""

    def __init__(self) -> None:
        self.inside: list[Work] = []
        self.cancelled: list[int] = []
        self._open: dict[int, asyncio.Event] = {}

    async def serve(self, work: Work) -> Served:
        self.inside.append(work)
        try:
            await self._open.setdefault(work.offset, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cancelled.append(work.offset)
            raise
        finally:
            self.inside.remove(work)
        return OK

    def let_through(self, *offsets: int) -> None:
        for offset in offsets:
            self._open.setdefault(offset, asyncio.Event()).set()

    async def has(self, *offsets: int) -> None:
        await until(lambda: sorted(work.offset for work in self.inside) == sorted(offsets))


async def at_once(work: Work) -> Served:
    return OK
