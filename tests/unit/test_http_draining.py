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
from unittest.mock import Mock

import pytest
from http_callers import CHAT, MODEL, Endpoint
from serving_parts import until

from headrace.ops import http_draining
from headrace.ops.http_draining import MOST_HEAD_BYTES, Connection, DrainingServer
from headrace.ops.http_serving import Listening, config_of
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
async def serving(answer: str, budget_s: float, head_s: float, idle_s: int) -> AsyncGenerator[Served]:
    endpoint = Endpoint(answer, body_within_s=0.5)
    connections: list[Connection] = []

    class Noted(Connection):
        head_within_s = head_s

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            connections.append(self)

    config = config_of(endpoint.app, Listening(HOST, port=0, idle_timeout_s=idle_s))
    config.http, config.lifespan = Noted, "off"
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
    work: Callable[[Served], Awaitable[None]],
    answer: str = "It is a mill.",
    *,
    budget_s: float = 60,
    head_s: float = 60,
    idle_s: int = 60,
) -> None:
    async def go() -> None:
        async with serving(answer, budget_s, head_s, idle_s) as served:
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


def test_a_page_that_wants_a_websocket_is_told_that_there_is_none_and_does_not_disturb_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(served: Served) -> None:
        loop = asyncio.get_running_loop()
        with await served.connect() as caller:
            await loop.sock_sendall(
                caller,
                b"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            )
            assert (await loop.sock_recv(caller, 4096)).startswith(b"HTTP/1.1 404")
            served.server.handle_exit(signal.SIGTERM, None)
            await served.ended()

    with caplog.at_level(logging.WARNING):
        run(work)
    assert not caplog.records


def test_a_connection_of_another_protocol_does_not_keep_it_from_ending() -> None:
    async def work(served: Served) -> None:
        connections = served.server.server_state.connections
        other = Mock(spec=["transport", "shutdown"])
        other.transport.get_write_buffer_size.return_value = 0
        other.shutdown.side_effect = lambda: connections.discard(other)
        connections.add(other)
        served.server.handle_exit(signal.SIGTERM, None)
        await served.ended()

    run(work)


# --- heads that do not end --------------------------------------------------------------------------------------


HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: h\r\n"


async def all_of(caller: socket.socket) -> bytes:
    """What comes until the other side closes."""
    content = b""
    async with asyncio.timeout(10):
        while piece := await asyncio.get_running_loop().sock_recv(caller, 4096):
            content += piece
    return content


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, b"\r\n", b"GET /heal"])
def test_a_connection_on_which_no_whole_head_comes_is_closed(sent: bytes) -> None:
    async def work(served: Served) -> None:
        with await served.connect() as caller:
            await asyncio.get_running_loop().sock_sendall(caller, sent)
            assert await all_of(caller) == b""

    run(work, head_s=0.1)


@pytest.mark.parametrize("sent", [HALF_A_HEAD, b"\r\n"])
def test_so_is_one_whose_second_head_does_not_come_whole(sent: bytes) -> None:
    async def work(served: Served) -> None:
        loop = asyncio.get_running_loop()
        with await served.connect() as caller:
            await loop.sock_sendall(caller, HALF_A_HEAD + b"\r\n")
            assert (await loop.sock_recv(caller, 4096)).endswith(b"ok\n")
            await loop.sock_sendall(caller, sent)
            assert await all_of(caller) == b""

    run(work, head_s=0.1)


def test_a_call_may_take_longer_than_its_head_though_half_of_another_head_lies_behind_it() -> None:
    async def work(served: Served) -> None:
        served.endpoint.client.delay_s = 0.5
        with await served.connect() as caller:
            await asyncio.get_running_loop().sock_sendall(caller, a_stream() + HALF_A_HEAD)
            assert b"[DONE]" in await all_of(caller)

    run(work, head_s=0.1)


def test_between_calls_a_connection_has_its_idle_time_and_not_that_of_a_head() -> None:
    async def work(served: Served) -> None:
        loop = asyncio.get_running_loop()
        with await served.connect() as caller:
            await loop.sock_sendall(caller, HALF_A_HEAD + b"\r\n")
            assert (await loop.sock_recv(caller, 4096)).endswith(b"ok\n")
            (connection,) = served.connections
            idle: Any = connection.timeout_keep_alive_task
            assert idle.when() - loop.time() > 30
            assert connection.head_timer is None

    run(work, head_s=0.1)


@pytest.mark.parametrize(
    "begin",
    [b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000],
    ids=["url", "one header", "many headers"],
)
def test_a_head_that_becomes_too_large_is_refused_before_it_has_ended(begin: bytes) -> None:
    async def work(served: Served) -> None:
        # Not a byte more than it takes: a socket that is closed with bytes unread takes its last ones back.
        head = begin + b"x" * (MOST_HEAD_BYTES + 1 - len(begin))
        with await served.connect() as caller:
            await asyncio.get_running_loop().sock_sendall(caller, head)
            answer = await all_of(caller)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b'"code":"headers_too_large"' in answer
        assert b"\r\nx-request-id: " in answer

    run(work)


def test_so_is_one_that_is_too_large_and_comes_at_once() -> None:
    async def work(served: Served) -> None:
        connection = Connection(served.server.config, served.server.server_state, {})
        transport = Mock(is_closing=Mock(return_value=False))
        connection.connection_made(transport)
        connection.data_received(HALF_A_HEAD + b"X: " + b"x" * MOST_HEAD_BYTES + b"\r\n\r\n")
        (((answer,), _),) = transport.write.call_args_list
        assert answer.startswith(b"HTTP/1.1 431 ")
        transport.close.assert_called_once_with()
        connection.connection_lost(None)
        assert connection.head_timer is None

    run(work)


def test_a_body_does_not_count_as_head_however_it_is_cut() -> None:
    async def work(served: Served) -> None:
        loop = asyncio.get_running_loop()
        body = json.dumps(
            {"model": MODEL, "messages": [{"role": "user", "content": "x" * 3 * MOST_HEAD_BYTES}]}
        )
        head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with await served.connect() as caller:
            for _ in range(2):
                await loop.sock_sendall(caller, (head + body).encode())
                assert (await loop.sock_recv(caller, 65536)).startswith(b"HTTP/1.1 200")

    run(work)


def test_what_comes_of_a_body_after_its_call_was_refused_is_no_head_and_the_connection_stays() -> None:
    async def work(served: Served) -> None:
        loop = asyncio.get_running_loop()
        size = 3 * MOST_HEAD_BYTES
        with await served.connect() as caller:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: {size}\r\n\r\n"
            await loop.sock_sendall(caller, head.encode())
            assert (await loop.sock_recv(caller, 65536)).startswith(b"HTTP/1.1 400")
            (connection,) = served.connections
            await loop.sock_sendall(caller, b"x" * (size - 1))
            await until(lambda: connection.head_timer is not None)
            await loop.sock_sendall(caller, b"x")
            await until(lambda: connection.head_timer is None)
            assert connection.timeout_keep_alive_task is not None
            await loop.sock_sendall(caller, HALF_A_HEAD + b"\r\n")
            assert (await loop.sock_recv(caller, 65536)).startswith(b"HTTP/1.1 200")

    run(work)


# --- the end ----------------------------------------------------------------------------------------------------


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
