"""The synchronous client where its event loop is not there for whoever asks: after a fork, at its end, in itself."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conformance.client_parts import ENOUGH, STORY

from headrace.producers import sync_client
from headrace.producers.sync_client import SyncClient
from headrace.producers.testing import InMemoryClient
from headrace.schemas.errors import ClientClosed, UsageError
from headrace.schemas.messages import Request


@pytest.fixture
def without_garbage_collection() -> Iterator[None]:
    """What is abandoned is collected where the test says."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)  # where it hangs, the tests still end
    thread.start()
    return thread


# --- after a fork -----------------------------------------------------------------------------------------

FORKING = """
import os, signal, sys
from headrace.producers.sync_client import SyncClient
from headrace.producers.testing import InMemoryClient
from headrace.schemas.errors import UsageError

client = SyncClient(InMemoryClient("once upon a time"))
client.open()
texts = client.stream("x")
next(texts)
child = os.fork()
if child == 0:
    signal.alarm(20)  # it must not outlive the test
    try:
        client.ask("x", timeout=1)
    except UsageError as error:
        print(error, flush=True)
    texts.close()
    client.close()
    with SyncClient(InMemoryClient("mine")) as another:
        print(another.ask("x", into=str), flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
print(client.ask("x", into=str), "".join(texts), sep="|")
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_client_that_was_opened_before_a_fork_says_so_in_the_child_and_goes_on_in_the_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said, childs, parents = done.stdout.splitlines()
    assert "opened in another process: open one after the fork" in said
    assert childs == "mine"
    assert parents == "once upon a time| upon a time"


# --- at its end -------------------------------------------------------------------------------------------


def test_a_client_that_was_closed_refuses_as_the_asynchronous_one_does() -> None:
    client = SyncClient(InMemoryClient())
    with pytest.raises(UsageError, match="not open"):
        client.ask("too early")
    client.open()
    client.close()
    with pytest.raises(ClientClosed, match="closed"):
        client.ask("too late")


class Contended:
    """A lock that says when somebody has to wait for it."""

    def __init__(self, waited_for: threading.Event) -> None:
        self._lock = threading.RLock()
        self._waited_for = waited_for

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waited_for.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_what_is_asked_while_the_loop_is_drained_is_not_left_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread is about to hand its coroutine over; another closes the client, or has to wait until that is done."""
    handing_over, go_on, handed_over = threading.Event(), threading.Event(), threading.Event()
    outcomes: list[object] = []
    submit = asyncio.run_coroutine_threadsafe
    finish = sync_client._finish

    def held(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        if threading.current_thread() is not asking:
            return submit(work, loop)
        handing_over.set()
        go_on.wait(ENOUGH)
        future = submit(work, loop)
        handed_over.set()
        return future

    async def drained() -> None:
        await finish()
        go_on.set()
        handed_over.wait(ENOUGH)

    async def many_turns() -> str:
        for _ in range(1000):
            await asyncio.sleep(0)
        return "done"

    def ask() -> None:
        handing_over_begins.wait(ENOUGH)
        try:
            outcomes.append(client.run(many_turns()))
        except ClientClosed as error:
            outcomes.append(error)

    client = SyncClient(InMemoryClient("yes"))
    client.open()
    handing_over_begins = threading.Event()
    asking = in_thread(ask)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", held)
    monkeypatch.setattr(sync_client, "_finish", drained)
    monkeypatch.setattr(client, "_taking", Contended(go_on), raising=False)
    handing_over_begins.set()
    handing_over.wait(ENOUGH)
    client.close()
    asking.join(ENOUGH / 3)
    assert not asking.is_alive()
    assert len(outcomes) == 1


def test_a_thread_that_asks_while_another_closes_sees_the_client_open_or_closed() -> None:
    class Vanishing(SyncClient):
        """Is closed right after its loop was looked at for the first time."""

        seen = 0

        @property
        def _loop(self) -> asyncio.AbstractEventLoop | None:
            self.seen += 1
            return loop if self.seen == 1 else None

        @_loop.setter
        def _loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
            pass

    async def yes() -> str:
        return "yes"

    loop = asyncio.new_event_loop()
    running = in_thread(loop.run_forever)
    try:
        assert Vanishing(InMemoryClient()).run(yes()) == "yes"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        running.join(ENOUGH)
        loop.close()


def test_two_threads_may_close_it() -> None:
    client = SyncClient(InMemoryClient())
    client.open()
    failures: list[BaseException] = []

    def close() -> None:
        try:
            client.close()
        except BaseException as error:  # noqa: BLE001  whatever it is, the test tells
            failures.append(error)

    closing = [in_thread(close) for _ in range(8)]
    for thread in closing:
        thread.join(ENOUGH)
    assert not any(thread.is_alive() for thread in closing)
    assert failures == []


# --- in itself --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_garbage_collection")
def test_an_abandoned_stream_that_is_collected_on_the_clients_own_loop_does_not_stop_it() -> None:
    collected: list[int] = []

    def answer(request: Request) -> str:
        if request.prompt == "collect":
            collected.append(gc.collect())
        return STORY

    client = SyncClient(InMemoryClient(answer))
    client.open()

    def abandon() -> None:
        texts = client.stream("Tell me")
        assert next(texts) == "Once"
        cycle: list[Any] = [texts]
        cycle.append(cycle)

    def ask() -> None:
        abandon()
        client.ask("collect", timeout=ENOUGH)
        client.close()

    asking = in_thread(ask)
    asking.join(ENOUGH / 3)
    assert collected
    assert not asking.is_alive()
