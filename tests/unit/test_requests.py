"""The requests on the loop: what is cancelled, what cannot be answered just now, and how they are drained."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_worker import NAMES, SOURCES
from packages import a_package
from serving_parts import until

from headrace.consumers.records import Record, TopicPartition
from headrace.schemas.codec import Codec
from headrace.schemas.errors import RegistryFailed
from headrace.schemas.messages import Output
from headrace.workers import requests as requests_module
from headrace.workers.admission import Admission
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

    async def serve(self, work: Work) -> Served:
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
        self.admission = Admission(cap)
        self.requests = Requests(
            model="tagger",
            admission=self.admission,
            serving=ScriptedServing(serve),
            answers=self.answers,
            cancels=Cancels(),
            complete=self.completed.append,
            failed=self.failures.append,
        )


async def for_ever(work: Work) -> Served:
    await asyncio.Event().wait()
    return OK


async def at_once(work: Work) -> Served:
    return OK


def test_what_is_cancelled_by_nobody_that_may_stops_the_worker_instead_of_staying_open(
    tmp_path: Path,
) -> None:
    async def cancelled(work: Work) -> Served:
        raise asyncio.CancelledError  # as a library does that cancels its own future

    async def run() -> Held:
        held = Held(tmp_path, cancelled)
        held.requests.accept([a_work(0)])
        await until(lambda: held.failures != [])
        return held

    assert "cancelled by nobody" in str(asyncio.run(run()).failures[0])


def test_what_is_dropped_before_and_while_it_runs_leaves_room_for_the_rest(tmp_path: Path) -> None:
    async def run() -> Held:
        release = asyncio.Event()

        async def serve(work: Work) -> Served:
            await release.wait()
            return OK

        held = Held(tmp_path, serve)
        held.requests.accept([a_work(n, SOURCES[n % 2 + 2]) for n in range(6)])
        held.requests.drop(frozenset({SOURCES[2]}))  # the two tasks of the first batch have not begun yet
        release.set()
        await until(lambda: len(held.completed) == 3)
        await held.requests.drain(1, cut_short=asyncio.Event())
        return held

    held = asyncio.run(run())
    assert {each.source for each in held.completed} == {SOURCES[3]}
    assert held.admission.in_flight == 0
    assert held.failures == []


def test_a_result_waits_for_the_registry_and_the_worker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> Held:
        held = Held(tmp_path, at_once)
        held.answers.failures = 3
        held.requests.accept([a_work(0), a_work(1)])
        await until(lambda: len(held.completed) == 2)
        return held

    monkeypatch.setattr(requests_module, "REGISTRY_RETRY_S", 0.001)
    assert asyncio.run(run()).failures == []


def test_a_drain_is_cut_short_when_the_worker_fails_meanwhile(tmp_path: Path) -> None:
    async def run() -> Held:
        held = Held(tmp_path, for_ever)
        held.requests.accept([a_work(0)])
        failed = asyncio.Event()
        draining = asyncio.create_task(held.requests.drain(3600, cut_short=failed))
        await asyncio.sleep(0)
        held.requests.accept([a_work(1)])  # it came with the last poll
        failed.set()
        await draining
        return held

    held = asyncio.run(run())
    assert held.completed == []
    assert held.failures == []
    assert held.admission.in_flight == 0
    assert held.admission.waiting("standard") == 1, "what came late is left to its next owner"
