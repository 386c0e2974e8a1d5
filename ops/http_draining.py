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
from collections.abc import Callable, Generator
from contextlib import contextmanager
from socket import socket
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from headrace.producers.http.service import Service

CUT_OFF_AFTER_S = 2.0  # whoever does not take what it is told at the end
LOOK_S = 0.02


class Connection(HttpToolsProtocol):
    """One connection of a caller."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed or reset. After a reset uvicorn leaves the timer of an idle connection running, which holds on to the
        connection and its last call, 20 kB, until its time is up."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()


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

    def _busy(self) -> list[Any]:
        """The connections with an answer that is not all sent."""
        connections: set[Any] = self.server_state.connections
        return [
            each
            for each in connections
            if each.transport.get_write_buffer_size() or (each.cycle and not each.cycle.response_complete)
        ]

    async def _finish_answers(self) -> None:
        """Let go out what was told at the end. Who does not take it is cut off: uvicorn would cancel its task, and log
        that as a failure."""
        cut_off_at = time.monotonic() + CUT_OFF_AFTER_S
        while self._busy() and time.monotonic() < cut_off_at:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(LOOK_S)
        for connection in self._busy():
            connection.transport.abort()
