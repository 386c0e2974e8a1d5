"""The in-memory twin: what it promises as a client, and what it offers to tests beyond that."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest
from conformance.client_parts import HEAT, Fate, until
from conformance.client_port import ClientPort

from headrace.producers.client import Client
from headrace.producers.sync_client import SyncClient
from headrace.producers.testing import InMemoryClient
from headrace.schemas.errors import Failed, KafkaFailed, NoReply, UsageError
from headrace.schemas.messages import Request


class InMemoryFate:
    """Hands the script to the one client that a test makes."""

    def __init__(self) -> None:
        self._client = InMemoryClient()
        self.answer_with = self._client.answer_with
        self.fail_next = self._client.fail_next
        self.lose_next_reply = self._client.lose_next_reply
        self.restart_next_stream = self._client.restart_next_stream
        self.ignore_next = self._client.ignore_next

    def client(self, **options: Any) -> Client:
        if options:
            limited = InMemoryClient(**options)
            limited.answer_with(self._client._memory.worker.answer)
            self._client = limited
        return self._client

    @property
    def generated(self) -> list[Request]:
        return self._client.generated

    @property
    def cancelled(self) -> list[str | None]:
        return [cancel.id for cancel in self._client.cancels]


class TestInMemoryClient(ClientPort):
    @pytest.fixture
    def fate(self) -> Fate:
        return InMemoryFate()


def test_it_records_every_request_and_its_lane_but_no_reminder() -> None:
    async def work() -> None:
        async with InMemoryClient("yes") as client:
            client.lose_next_reply()
            await client.ask("a", id="same", timeout=1.5)
            await client.ask("b", id="same", lane="standard")
            assert [(request.id, request.prompt) for request in client.requests] == [
                ("same", "a"),
                ("same", "b"),
            ]
            assert client.lanes == ["interactive", "standard"]
            assert [request.prompt for request in client.generated] == ["a"]

    asyncio.run(work())


def test_an_answer_may_depend_on_the_request() -> None:
    def answer(request: Request) -> dict[str, Any]:
        return {"shout": request.variables["title"].upper() if request.variables else ""}

    async def work() -> None:
        async with InMemoryClient(answer) as client:
            assert await client.ask(HEAT, into=dict[str, str]) == {"shout": "HEAT"}

    asyncio.run(work())


def test_an_answer_that_raises_fails_the_request_instead_of_hanging_it() -> None:
    def answer(request: Request) -> str:
        raise KeyError("title")

    async def work() -> None:
        async with InMemoryClient(answer) as client:
            with pytest.raises(Failed, match="KeyError: 'title'"):
                await client.ask("x")

    asyncio.run(work())


def test_a_delay_longer_than_the_timeout_is_no_reply() -> None:
    async def work() -> None:
        async with InMemoryClient("late", delay_s=60) as client:
            with pytest.raises(NoReply):
                await client.ask("x", timeout=0.05)

    asyncio.run(work())


def test_a_reply_reader_that_dies_fails_everything_that_waits_and_all_that_comes() -> None:
    async def work() -> None:
        async with InMemoryClient() as client:
            client.ignore_next()
            pending = await client.submit("x")
            client.lose_connection(KafkaFailed("the disk is full"))
            await until(pending.done)
            with pytest.raises(NoReply, match="the disk is full") as raised:
                await pending.result()
            assert isinstance(raised.value.__cause__, KafkaFailed)
            with pytest.raises(NoReply, match="open another client"):
                await client.ask("y")

    asyncio.run(work())


def test_a_client_used_on_another_event_loop_says_so() -> None:
    client = InMemoryClient()
    asyncio.run(client.open())
    with pytest.raises(UsageError, match="SyncClient"):
        asyncio.run(client.ask("x"))


def test_a_whole_result_may_be_answered_and_its_value_counts_before_its_text() -> None:
    async def work() -> None:
        async with InMemoryClient({"genre": "raw"}) as client:
            made = await client.ask("x")
            changed = made.outputs[0].model_copy(update={"value": {"genre": "drama"}})
            client.answer_with(made.model_copy(update={"outputs": [changed]}))
            assert await client.ask("y", into=dict[str, str]) == {"genre": "drama"}

    asyncio.run(work())


def test_a_request_is_sent_as_it_stands_but_for_what_the_call_decides() -> None:
    request = Request(id="whole", prompt="x", tenant="films", deadline=4_000_000_000_000)

    async def work() -> None:
        async with InMemoryClient("yes") as client:
            assert await client.ask(request, into=str) == "yes"
            assert client.requests == [request]
            with pytest.raises(UsageError, match="tenant"):
                await client.ask(request, tenant="others")

    asyncio.run(work())


def test_threads_that_ask_while_a_synchronous_client_is_closed_are_all_answered_or_refused() -> None:
    client = SyncClient(InMemoryClient("yes"))
    client.open()
    outcomes: list[str] = []

    def ask() -> None:
        while True:
            try:
                client.ask("x", timeout=30)
            except (NoReply, UsageError) as error:
                outcomes.append(error.code)
                return

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    client.close()
    for thread in threads:
        thread.join(30)
    assert len(outcomes) == 8
    client.close()


def test_importing_the_client_imports_nothing_of_the_command_line_or_the_worker() -> None:
    heavy = "{'rich', 'click', 'jinja2', 'vllm', 'torch', 'transformers', 'httpx', 'pyarrow'}"
    code = f"import sys, headrace.producers.client; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
