"""The requests on the loop: cancelled, held, aborted, expired, alone, or not to be answered just now."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from fake_worker import SOURCES
from held_requests import OK, Gate, Held, a_work, at_once
from serving_parts import until

from headrace.schemas.errors import EngineDead
from headrace.schemas.messages import ErrorDetail, Request
from headrace.workers import requests as requests_module
from headrace.workers.answers import Served
from headrace.workers.work import Work


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
        await held.requests.wait_for_end()
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


# --- a unit drains ---


def test_what_has_not_begun_of_a_unit_that_drains_is_given_back_in_order_and_what_runs_goes_on(
    tmp_path: Path,
) -> None:
    async def run() -> Held:
        gate = Gate()
        held = Held(tmp_path, gate.serve, cap=2)
        held.requests.accept([a_work(n, SOURCES[2 + n % 2]) for n in range(7)])  # units 0 and 1 in turn
        await gate.has(0, 1)
        held.requests.hold(frozenset({0}))
        gate.let_through(0, 1, 3, 5)
        await until(lambda: len(held.completed) == 4)
        return held

    held = asyncio.run(run())
    assert sorted(held.offsets) == [0, 1, 3, 5], "the other unit does not notice"
    [(units, works)] = held.handed_back
    assert units == {0}
    assert [work.offset for work in works] == [2, 4, 6]
    assert held.failures == []


def test_a_unit_of_which_nothing_waits_is_answered_for_all_the_same(tmp_path: Path) -> None:
    async def run() -> Held:
        held = Held(tmp_path, at_once)
        held.requests.hold(frozenset({0, 1}))
        return held

    assert asyncio.run(run()).handed_back == [(frozenset({0, 1}), [])]


def test_what_is_given_back_can_be_served_again_after_a_cancelled_drain(tmp_path: Path) -> None:
    async def run() -> Held:
        gate = Gate()
        held = Held(tmp_path, gate.serve, cap=1)
        held.requests.accept([a_work(0), a_work(1)])
        await gate.has(0)
        held.requests.hold(frozenset({0}))
        held.requests.accept(held.handed_back[0][1])
        gate.let_through(0, 1)
        await until(lambda: len(held.completed) == 2)
        return held

    assert asyncio.run(run()).offsets == [0, 1]


def test_what_runs_past_the_budget_is_ended_and_given_back_and_no_failure_of_the_worker(
    tmp_path: Path,
) -> None:
    async def run() -> tuple[Held, Gate]:
        gate = Gate()
        held = Held(tmp_path, gate.serve, cap=4)
        held.requests.accept([a_work(3), a_work(1), a_work(0, SOURCES[3])])
        await gate.has(3, 1, 0)
        held.requests.abort(frozenset({0}))
        await until(lambda: gate.cancelled == [3, 1] or gate.cancelled == [1, 3])
        gate.let_through(0)
        await until(lambda: held.completed != [] and held.handed_back != [])
        return held, gate

    held, _ = asyncio.run(run())
    assert [(each.source, each.offset) for each in held.completed] == [(SOURCES[3], 0)]
    [(units, works)] = held.handed_back
    assert units == {0}
    assert [work.offset for work in works] == [1, 3]
    assert held.failures == []
    assert held.admission.in_flight == 0


def test_what_is_aborted_and_comes_again_is_served(tmp_path: Path) -> None:
    async def run() -> Held:
        gate = Gate()
        held = Held(tmp_path, gate.serve, cap=1)
        held.requests.accept([a_work(0)])
        await gate.has(0)
        held.requests.abort(frozenset({0}))
        await until(lambda: held.handed_back != [])
        assert gate.inside == [], "not before the engine has let go of it"
        held.requests.accept(held.handed_back[0][1])
        gate.let_through(0)
        await until(lambda: held.completed != [])
        return held

    assert asyncio.run(run()).offsets == [0]


def test_what_is_aborted_and_cancelled_by_its_caller_at_once_is_given_back_or_answered_and_not_both(
    tmp_path: Path,
) -> None:
    async def run() -> Held:
        gate = Gate()

        async def cancelled_in_time(work: Work) -> Served:
            try:
                return await gate.serve(work)
            except asyncio.CancelledError:
                return Served("cancelled", error=ErrorDetail(code="cancelled", message="by its caller"))

        held = Held(tmp_path, cancelled_in_time)
        held.requests.accept([a_work(0)])
        await gate.has(0)
        held.requests.abort(frozenset({0}))
        await until(lambda: held.handed_back != [])
        return held

    held = asyncio.run(run())
    given_back = [work.offset for _, works in held.handed_back for work in works]
    assert len(held.completed) + len(given_back) == 1


# --- the engine dies ---


def test_who_was_in_the_engine_when_it_died_is_known_and_nothing_more_is_admitted(tmp_path: Path) -> None:
    async def run() -> tuple[Held, list[Work]]:
        gate = Gate()

        async def serve(work: Work) -> Served:
            served = await gate.serve(work)
            if work.offset == 1:
                raise EngineDead("signal 9")
            return served

        held = Held(tmp_path, serve, cap=3)
        held.requests.accept([a_work(n) for n in range(5)])
        await gate.has(0, 1, 2)
        gate.let_through(0)
        await gate.has(1, 2, 3)
        gate.let_through(1)
        await until(lambda: held.failures != [])
        await gate.has(2, 3)
        inside = held.requests.stop()
        await held.requests.wait_for_end()
        held.requests.accept([a_work(9)])
        await asyncio.sleep(0)
        return held, inside

    held, inside = asyncio.run(run())
    assert sorted(work.offset for work in inside) == [1, 2, 3], "the one that told of it too"
    assert held.offsets == [0]
    assert [type(failure) for failure in held.failures] == [EngineDead]
    assert held.admission.in_flight == 0


def test_what_is_generated_and_waits_for_the_registry_when_the_engine_dies_was_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "REGISTRY_RETRY_S", 3600)

    async def run() -> list[Work]:
        gate = Gate()
        held = Held(tmp_path, gate.serve)
        held.answers.failures = 99
        held.requests.accept([a_work(0), a_work(1)])
        await gate.has(0, 1)
        gate.let_through(0)
        await until(lambda: held.answers.failures == 98)
        return held.requests.stop()

    assert [work.offset for work in asyncio.run(run())] == [1]


# --- deadlines, and alone ---


def test_what_waits_past_its_deadline_is_answered_without_a_turn_in_the_engine(tmp_path: Path) -> None:
    async def run() -> tuple[Held, list[Work]]:
        gate = Gate()
        held = Held(tmp_path, gate.serve, cap=1)
        late = replace(a_work(1), request=Request(id="r1", prompt="x", deadline=1000))
        held.requests.accept([a_work(0), late, a_work(2)])
        await gate.has(0)
        held.requests.expire()
        await until(lambda: held.completed != [])
        held.requests.expire()
        await asyncio.sleep(0)
        inside = list(gate.inside)
        await held.end()
        return held, inside

    held, inside = asyncio.run(run())
    assert [(each.offset, each.result and each.result.status) for each in held.completed] == [(1, "expired")]
    assert [work.offset for work in inside] == [0]
    assert held.failures == []


def test_one_that_runs_alone_waits_until_nothing_is_in_flight_and_nothing_begins_beside_it(
    tmp_path: Path,
) -> None:
    async def run() -> Held:
        gate = Gate()
        held = Held(tmp_path, gate.serve, cap=3)
        held.requests.accept([a_work(0), a_work(1)])
        await gate.has(0, 1)
        held.requests.accept([a_work(2), replace(a_work(3), alone=True), a_work(4)])
        gate.let_through(0)
        await until(lambda: held.offsets == [0])
        await gate.has(1)
        gate.let_through(1)
        await gate.has(3)
        assert held.admission.in_flight == 1, "there is room for three"
        gate.let_through(3)
        await gate.has(2, 4)
        await held.end()
        return held

    held = asyncio.run(run())
    assert held.offsets == [0, 1, 3]
    assert held.failures == []
