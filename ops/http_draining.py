"""The HTTP server that finishes what it has begun before it ends.

Told to end, it keeps the port open: what runs goes on, other calls are told to go elsewhere, and whoever asks is told
that it is not ready. It ends once nothing runs any more. What still runs past the budget, or when it is told a second
time, is given up and ends with an error of its own shape, an event where events are being sent.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from asyncio import TimerHandle
from collections.abc import Callable, Generator
from contextlib import contextmanager
from socket import socket
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headrace.producers.http.failures import CLOSE
from headrace.producers.http.responding import error_response
from headrace.producers.http.wanted import ApiError

if TYPE_CHECKING:
    from headrace.producers.http.service import Service

CUT_OFF_AFTER_S = 2.0  # whoever does not take what it is told at the end
LOOK_S = 0.02
MOST_HEAD_BYTES = 64 * 1024  # of a request: its URL and headers


class _HeadTooLargeError(Exception):
    """Of a request that has come: no answer is begun."""


class Connection(HttpToolsProtocol):
    """One connection of a caller.

    uvicorn waits for ever for the head of a request (its URL and headers), and holds all of it that comes. Here it has
    to come whole within `head_within_s` and to be no larger than MOST_HEAD_BYTES. That time runs from the connection's
    beginning, later from the first byte that is no part of a call; in between runs uvicorn's timer of an idle
    connection.
    """

    head_within_s = 30.0
    head_timer: TimerHandle | None = None  # while a head is awaited
    _head_bytes = 0  # of the one that is awaited, so far
    _in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] (as uvicorn has it)
        """It has begun."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed or reset. After a reset uvicorn leaves the timer of an idle connection running, which holds on to the
        connection and its last call, 20 kB, until its time is up."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._unset_head_timer()

    def data_received(self, data: bytes) -> None:
        """More has come, of one request or several."""
        if self.transport.is_closing():
            return
        if self.head_timer is None and not self.is_answering:
            # It may be blank lines, or what is left of the body of a call that was refused, and no head begins: but
            # uvicorn takes any byte for the end of the connection's idleness.
            self._await_head()
        awaited, in_body = self.head_timer, self._in_body
        super().data_received(data)
        if in_body or self.head_timer is None or self.head_timer is not awaited:
            return  # it has come, or begun behind something else
        self._head_bytes += len(data)
        if self._head_bytes > MOST_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._unset_keepalive_if_required()
        if self.head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """The head has come whole. Raises what the parser makes an error of, whereupon uvicorn calls
        `send_400_response`."""
        self._unset_head_timer()
        self._head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self._head_bytes > MOST_HEAD_BYTES:
            raise _HeadTooLargeError
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The last byte of a request. Where it was answered before, the connection is idle from now on."""
        super().on_message_complete()
        self._in_body = False
        if not self.is_answering and not self.transport.is_closing():
            self._unset_head_timer()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def send_400_response(self, msg: str) -> None:
        """Tell of what cannot be read as HTTP."""
        if self._head_bytes > MOST_HEAD_BYTES:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    @property
    def is_answering(self) -> bool:
        """Whether there is a call whose answer is not all sent."""
        return bool(self.cycle) and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._head_bytes = 0
        self.head_timer = self.loop.call_later(self.head_within_s, self._head_is_late)

    def _head_is_late(self) -> None:
        if self.is_answering:  # the head is of a call behind it, which waits anyway
            self.head_timer = self.loop.call_later(self.head_within_s, self._head_is_late)
        else:
            self.head_timer = None
            self.transport.close()

    def _unset_head_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _refuse_head(self) -> None:
        """Nobody reads a status in the middle of an answer, so that there it is cut off without one."""
        self._unset_head_timer()
        if not self.is_answering:
            response = error_response(
                ApiError(
                    431,
                    f"The request's URL and headers are larger than {MOST_HEAD_BYTES} bytes.",
                    reason="headers_too_large",
                    headers=CLOSE,
                )
            )
            lines = [name + b": " + value for name, value in response.raw_headers]
            head = b"\r\n".join([STATUS_LINE[431].rstrip(), *lines])
            self.transport.write(head + b"\r\n\r\n" + bytes(response.body))
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Whoever asks for a WebSocket is answered without one; uvicorn would log two lines for each."""


class DrainingServer(uvicorn.Server):
    """Serves one `service`. `listens` is told the port once it is bound."""

    def __init__(
        self, config: uvicorn.Config, service: Service, budget_s: float, listens: Callable[[int], None]
    ) -> None:
        super().__init__(config)
        self._service = service
        self._budget_s = budget_s
        self._listens = listens
        self._ends_at = math.inf  # monotonic seconds

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """uvicorn's own raises the signal once more at the end: whoever told it to end would see it killed."""
        handlers = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in handlers.items():
                signal.signal(each, handler)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Bind the port."""
        await super().startup(sockets)
        if self.started:
            self._listens(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Told to end, for the first time or again."""
        if self._service.draining:
            super().handle_exit(sig, frame)
            return
        self._service.draining = True
        self._ends_at = time.monotonic() + self._budget_s

    async def on_tick(self, counter: int) -> bool:
        """Whether to end now; called ten times a second."""
        ends = await super().on_tick(counter)
        if self._service.draining and not ends:
            ends = time.monotonic() >= self._ends_at or not self._busy()
        if ends:
            await self._service.close()
            await self._finish_answers()
        return ends

    def _busy(self) -> list[Connection]:
        """The connections with an answer that is not all sent."""
        # Whatever else is there (another protocol, after an upgrade) is none of ours to wait for.
        connections = [each for each in self.server_state.connections if isinstance(each, Connection)]
        return [each for each in connections if each.transport.get_write_buffer_size() or each.is_answering]

    async def _finish_answers(self) -> None:
        """Let go out what was told at the end. Who does not take it is cut off: uvicorn would cancel its task, and log
        that as a failure."""
        cut_off_at = time.monotonic() + CUT_OFF_AFTER_S
        while self._busy() and time.monotonic() < cut_off_at:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(LOOK_S)
        for connection in self._busy():
            connection.transport.abort()
