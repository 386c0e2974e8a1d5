"""The threads that hooks run in: their time limit, those that hang, and those who wait for one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator

import pytest
from serving_parts import until

from headrace.schemas.errors import HookFailed
from headrace.workers.hooks import HookThreads


class Gate:
    """What hooks of a test wait at; never shut when the test is over."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waiting = 0
        self._lock = threading.Lock()

    def wait(self, _: object) -> str:
        with self._lock:
            self.waiting += 1
        self.opened.wait()
        return "through"


@contextlib.asynccontextmanager
async def hanging(timeout_s: float, threads: int) -> AsyncGenerator[tuple[HookThreads, Gate], None]:
    gate = Gate()
    pool = HookThreads(timeout_s, threads)
    try:
        yield pool, gate
    finally:
        gate.opened.set()
        pool.close()


def test_a_call_past_its_time_fails_and_others_are_served_by_the_threads_that_are_left() -> None:
    async def go() -> None:
        async with hanging(1, threads=2) as (pool, gate):
            with pytest.raises(HookFailed, match=r"slow did not return within 1 s"):
                await pool.call("slow", gate.wait, None)
            assert not pool.all_hang
            assert [await pool.call("quick", str, number) for number in range(20)] == list(
                map(str, range(20))
            )

    asyncio.run(go())


def test_when_all_threads_hang_those_who_wait_and_those_who_come_are_refused_until_one_returns() -> None:
    async def go() -> None:
        async with hanging(2, threads=2) as (pool, gate):
            slow = [asyncio.create_task(pool.call("slow", gate.wait, None)) for _ in range(2)]
            await until(lambda: gate.waiting == 2)
            waiting = [asyncio.create_task(pool.call("waits", str, 1)) for _ in range(5)]
            for task in (*slow, *waiting):
                with pytest.raises(HookFailed):
                    await task
            assert pool.all_hang
            with pytest.raises(HookFailed, match="all 2 threads for hooks"):
                await pool.call("late", str, 1)
            gate.opened.set()
            await until(lambda: not pool.all_hang)
            assert await pool.call("again", str, 1) == "1"
            await until(lambda: pool.hanging == 0)
            # As many places as threads, not one more and not one less.
            gate.opened.clear()
            gate.waiting = 0
            three = [asyncio.create_task(pool.call("slow", gate.wait, None)) for _ in range(3)]
            await until(lambda: gate.waiting == 2)
            assert pool._calls.empty(), "the third waits for a place"  # pyright: ignore[reportPrivateUsage]
            gate.opened.set()
            assert await asyncio.gather(*three) == ["through"] * 3

    asyncio.run(go())


def test_a_request_that_is_given_up_leaves_its_call_its_thread_and_it_still_counts_as_hung() -> None:
    async def go() -> None:
        async with hanging(1, threads=1) as (pool, gate):
            task = asyncio.create_task(pool.call("slow", gate.wait, None))
            await until(lambda: gate.waiting == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(HookFailed, match="all 1 threads"):
                await pool.call("waits", str, 1)
            gate.opened.set()
            await until(lambda: not pool.all_hang)
            assert await pool.call("again", str, 1) == "1"

    asyncio.run(go())


def test_waiting_for_a_thread_is_not_the_calls_own_time() -> None:
    async def go() -> None:
        async with hanging(30, threads=1) as (pool, gate):
            first = asyncio.create_task(pool.call("first", gate.wait, None))
            await until(lambda: gate.waiting == 1)
            second = asyncio.create_task(pool.call("second", str, 1))
            given_up = asyncio.create_task(pool.call("given up", str, 1))
            await asyncio.sleep(0)
            given_up.cancel()
            gate.opened.set()
            assert await first == "through"
            assert await second == "1"

    asyncio.run(go())
