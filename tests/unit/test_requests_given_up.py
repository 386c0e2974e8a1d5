"""Requests that are given up: by a drain that they would keep for ever, and by the death of their engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from fake_worker import SOURCES
from held_requests import Gate, Held, a_work
from serving_parts import until

from headrace.schemas.errors import EngineDead
from headrace.schemas.messages import Request
from headrace.workers import requests as requests_module
from headrace.workers.answers import Served
from headrace.workers.work import Work

REGISTRY_IS_DOWN = 99


def expired(offset: int) -> Work:
    return replace(a_work(offset), request=Request(id=f"r{offset}", prompt="x", deadline=1000))


async def with_one_that_waits_for_the_registry(directory: Path, gate: Gate) -> Held:
    """Offset 0 runs; 1 has expired while it waited, and its answer cannot be written."""
    held = Held(directory, gate.serve, cap=1)
    held.answers.failures = REGISTRY_IS_DOWN
    held.requests.accept([a_work(0), expired(1)])
    await gate.has(0)
    held.requests.expire()
    await until(lambda: held.answers.failures < REGISTRY_IS_DOWN)
    return held


@pytest.fixture(autouse=True)
def registry_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "REGISTRY_RETRY_S", 3600)


def test_one_that_expired_and_waits_for_the_registry_is_given_back_past_the_budget_of_its_drain(
    tmp_path: Path,
) -> None:
    async def run() -> Held:
        held = await with_one_that_waits_for_the_registry(tmp_path, Gate())
        held.requests.hold(frozenset({0}))
        held.requests.abort(frozenset({0}))
        await until(lambda: len(held.handed_back) == 2)
        return held

    held = asyncio.run(run())
    assert [work.offset for _, works in held.handed_back for work in works] == [0, 1]
    assert held.completed == []
    assert held.failures == []


@pytest.mark.parametrize("how", ["lost", "stopped"])
def test_one_that_expired_and_waits_for_the_registry_ends_with_its_partition_and_its_worker(
    tmp_path: Path, how: str
) -> None:
    async def run() -> Held:
        held = await with_one_that_waits_for_the_registry(tmp_path, Gate())
        if how == "lost":
            held.requests.drop(frozenset({SOURCES[2]}))
        else:
            held.requests.stop()
        await until(lambda: not any("expired" in task.get_name() for task in asyncio.all_tasks()))
        return held

    held = asyncio.run(run())
    assert held.completed == []
    assert held.failures == []


def test_what_is_aborted_is_not_given_back_before_the_engine_has_let_go_of_it_and_then_served_on_once(
    tmp_path: Path,
) -> None:
    async def run() -> Held:
        gate = Gate()
        let_go = asyncio.Event()

        async def slow_to_let_go(work: Work) -> Served:
            try:
                return await gate.serve(work)
            except asyncio.CancelledError:
                await let_go.wait()  # as vLLM, whose abort is awaited
                raise

        held = Held(tmp_path, slow_to_let_go, cap=4)
        held.requests.accept([a_work(0)])
        await gate.has(0)
        held.requests.abort(frozenset({0}))
        await gate.has()
        for _ in range(10):
            await asyncio.sleep(0)
        assert held.handed_back == [], "if its drain is cancelled it would be in the engine twice"
        let_go.set()
        await until(lambda: held.handed_back != [])
        held.requests.accept(held.handed_back[0][1])
        gate.let_through(0)
        await until(lambda: held.admission.in_flight == 0)
        return held

    held = asyncio.run(run())
    assert held.offsets == [0]
    assert held.admission.in_flight_tokens == 0
    assert held.failures == []


def test_who_was_in_the_engine_is_known_to_whoever_sees_its_death_before_their_tasks_are_done(
    tmp_path: Path,
) -> None:
    async def run() -> list[Work]:
        died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        inside = 0

        async def serve(work: Work) -> Served:
            nonlocal inside
            inside += 1
            await asyncio.shield(died)
            raise EngineDead("signal 9")

        async def watch() -> list[Work]:
            await asyncio.shield(died)
            # The works' tasks were waiting before this one: they have raised, and no callback has run yet.
            return held.requests.stop()

        held = Held(tmp_path, serve)
        held.requests.accept([a_work(0), a_work(1)])
        await until(lambda: inside == 2)
        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        died.set_result(None)
        return await watching

    assert sorted(work.offset for work in asyncio.run(run())) == [0, 1]
