"""The server that drains: connections that were reset, callers that take nothing of what they asked for."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from http_callers import CHAT, MODEL, Endpoint
from serving_parts import until

from headrace.ops import http_draining
from headrace.ops.http_draining import Connection, DrainingServer
from headrace.ops.ports import HOST

LARGER_THAN_BUFFERS = 16_000_000  # bytes, of both sockets


class Served:
    """An endpoint that listens, and what a test needs to know of it."""

    def __init__(self, endpoint: Endpoint, server: DrainingServer, connections: list[Connection]) -> None:
        self.endpoint = endpoint
        self.server = server
        self.connections = connections
        self.port = 0
        self.serving: asyncio.Task[None] | None = None

    async def connect(self) -> socket.socket:
        found = socket.socket()
        found.setblocking(False)
        await asyncio.get_running_loop().sock_connect(found, (HOST, self.port))
        return found

    async def ended(self) -> None:
        """Once it has ended by itself."""
        assert self.serving is not None
        async with asyncio.timeout(10):
            await self.serving


@asynccontextmanager
async def serving(answer: str, budget_s: float) -> AsyncGenerator[Served]:
    endpoint = Endpoint(answer, body_within_s=0.5)
    connections: list[Connection] = []

    class Noted(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            connections.append(self)

    config = uvicorn.Config(
        endpoint.app, host=HOST, port=0, http=Noted, log_level="warning", lifespan="off", access_log=False
    )
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = DrainingServer(config, endpoint.service, budget_s, bound.set_result)
    served = Served(endpoint, server, connections)
    served.serving = asyncio.ensure_future(server.serve())
    try:
        served.port = await bound
        yield served
    finally:
        server.should_exit = True
        await served.ended()


def run(
    work: Callable[[Served], Awaitable[None]], answer: str = "It is a mill.", budget_s: float = 60
) -> None:
    async def go() -> None:
        async with serving(answer, budget_s) as served:
            await work(served)

    asyncio.run(go())


def a_stream() -> bytes:
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    ).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_a_connection_that_was_reset_is_forgotten_at_once() -> None:
    async def work(served: Served) -> None:
        loop = asyncio.get_running_loop()
        with await served.connect() as caller:
            await loop.sock_sendall(caller, b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await loop.sock_recv(caller, 4096)).startswith(b"HTTP/1.1 200")
            (connection,) = served.connections
            assert connection.timeout_keep_alive_task is not None
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: not served.server.server_state.connections)
        assert connection.timeout_keep_alive_task is None

    run(work)


def test_a_connection_whose_body_does_not_come_is_told_so_and_closed() -> None:
    async def work(served: Served) -> None:
        loop = asyncio.get_running_loop()
        with await served.connect() as caller:
            await loop.sock_sendall(caller, a_stream()[:-1])
            content = b""
            while piece := await loop.sock_recv(caller, 4096):
                content += piece
        assert content.startswith(b"HTTP/1.1 408")
        assert b'"code":"request_timeout"' in content

    run(work)


def test_it_ends_once_nothing_runs_any_more_and_lets_nobody_in_meanwhile() -> None:
    async def work(served: Served) -> None:
        loop = asyncio.get_running_loop()
        served.endpoint.client.delay_s = 0.5
        with await served.connect() as caller, await served.connect() as other:
            await loop.sock_sendall(caller, a_stream())
            await until(lambda: served.endpoint.service.pending == 1)
            served.server.handle_exit(signal.SIGTERM, None)
            await loop.sock_sendall(other, a_stream())
            assert (await loop.sock_recv(other, 4096)).startswith(b"HTTP/1.1 503")
            await served.ended()
            content = b""
            while piece := await loop.sock_recv(caller, 4096):
                content += piece
        assert b"[DONE]" in content

    run(work)


def test_told_a_second_time_it_ends_what_runs() -> None:
    async def work(served: Served) -> None:
        loop = asyncio.get_running_loop()
        served.endpoint.client.ignore_next()
        with await served.connect() as caller:
            await loop.sock_sendall(caller, a_stream())
            await until(lambda: served.endpoint.service.pending == 1)
            for _ in range(2):
                served.server.handle_exit(signal.SIGTERM, None)
            await served.ended()
            assert (await loop.sock_recv(caller, 4096)).startswith(b"HTTP/1.1 503")

    run(work)


def test_a_caller_that_takes_nothing_is_cut_off_past_the_budget_without_a_word_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_draining, "CUT_OFF_AFTER_S", 0.2)

    async def work(served: Served) -> None:
        loop = asyncio.get_running_loop()
        with await served.connect() as caller:
            await loop.sock_sendall(caller, a_stream())
            await until(lambda: len(served.connections) == 1)
            transport: Any = served.connections[0].transport
            await until(lambda: transport.get_write_buffer_size() > 0)
            served.server.handle_exit(signal.SIGTERM, None)
            await served.ended()
        assert transport.is_closing()

    with caplog.at_level(logging.WARNING):
        run(work, "x" * LARGER_THAN_BUFFERS + " y", budget_s=0.1)
    assert not caplog.records
