"""One instance of the endpoint: how its clients are opened, and which requests are too large for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from headrace.consumers.catalogue import CatalogueRecords
from headrace.consumers.contracts import ContractId
from headrace.producers.client import Client
from headrace.producers.http.service import Service, ServiceOptions, check_sizes
from headrace.producers.http.wanted import ApiError
from headrace.producers.testing import InMemoryClient
from headrace.schemas.errors import TopicsError
from headrace.schemas.messages import Request

T = TypeVar("T")
CONTRACT: ContractId = ("tagger", 1)


class Nothing:
    """A catalogue without records."""

    ready = True

    def asked(self, ask: Callable[[CatalogueRecords], T]) -> T:
        return ask(CatalogueRecords())


class SlowClient(InMemoryClient):
    """Opens when the test lets it, or fails then."""

    def __init__(self, gate: asyncio.Event, *, missing: bool) -> None:
        super().__init__("")
        self._gate = gate
        self._missing = missing

    async def open(self) -> None:
        await self._gate.wait()
        if self._missing:
            raise TopicsError("there is no topic headrace.tagger.c1.requests.interactive")
        await super().open()


class Scene:
    """A service whose clients open at the gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.missing = False
        self.made: list[Client] = []
        self.service = Service(ServiceOptions(keys=None), Nothing(), self._connect)

    def _connect(self, contract: ContractId) -> Client:
        client = SlowClient(self.gate, missing=self.missing)
        self.made.append(client)
        return client

    def ask(self, count: int) -> list[asyncio.Task[Client]]:
        return [asyncio.create_task(self.service.client_of(CONTRACT)) for _ in range(count)]


def run(work: Callable[[Scene], Awaitable[None]]) -> None:
    async def go() -> None:
        scene = Scene()
        try:
            await work(scene)
        finally:
            await scene.service.close()

    asyncio.run(go())


def test_calls_that_come_at_once_share_one_client() -> None:
    async def work(scene: Scene) -> None:
        asking = scene.ask(5)
        await asyncio.sleep(0)
        scene.gate.set()
        clients = await asyncio.gather(*asking)
        assert clients == [scene.made[0]] * 5
        assert await scene.service.client_of(CONTRACT) is scene.made[0]
        assert len(scene.made) == 1

    run(work)


def test_calls_that_wait_for_a_client_in_vain_are_told_together_and_the_next_one_tries_anew() -> None:
    async def work(scene: Scene) -> None:
        scene.missing = True
        asking = scene.ask(5)
        await asyncio.sleep(0)
        scene.gate.set()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [TopicsError] * 5
        assert len(scene.made) == 1
        scene.missing = False
        assert await scene.service.client_of(CONTRACT) is scene.made[1]

    run(work)


def test_a_call_that_is_given_up_leaves_the_client_to_those_that_still_wait() -> None:
    async def work(scene: Scene) -> None:
        leaving, staying = scene.ask(2)
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        scene.gate.set()
        assert await staying is scene.made[0]

    run(work)


def test_a_client_that_has_lost_its_replies_makes_room_for_another() -> None:
    async def work(scene: Scene) -> None:
        scene.gate.set()
        first = await scene.service.client_of(CONTRACT)
        await first.close()
        second = await scene.service.client_of(CONTRACT)
        assert second is not first
        assert second.is_usable

    run(work)


def test_a_client_that_is_still_opened_when_the_service_closes_is_closed_too() -> None:
    async def go() -> None:
        scene = Scene()
        asking = scene.ask(1)
        await asyncio.sleep(0)
        closing = asyncio.create_task(scene.service.close())
        await asyncio.sleep(0)
        assert not closing.done()
        scene.gate.set()
        await closing
        assert not (await asking[0]).is_usable

    asyncio.run(go())


def test_a_request_that_no_broker_would_take_is_refused_before_it_is_sent() -> None:
    fits = Request(id="a", prompt="x" * 900)
    check_sizes([fits], 2048)
    with pytest.raises(ApiError) as refused:
        check_sizes([fits, Request(id="b", prompt="x" * 1100)], 2048)
    assert (refused.value.status, refused.value.reason) == (413, "request_too_large")
