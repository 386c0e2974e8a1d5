"""Proxies between workers and brokers, one for each pair, that can be cut or stalled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Literal

from headrace.ops.ports import HOST

# cut: connections are closed, and new ones at once. stalled: they are taken, and nothing goes through.
State = Literal["open", "cut", "stalled"]


class _End(asyncio.Protocol):
    """One end of a connection; what it gets goes to its peer."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.transport: asyncio.Transport | None = None
        self.peer: _End | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.ends.add(self)
        self._link.arrange(self)

    def data_received(self, data: bytes) -> None:
        if self.peer is None or self.peer.transport is None:
            self._early += data
        else:
            self.peer.transport.write(data)

    def joined(self, peer: _End) -> None:
        """Its peer is there."""
        self.peer = peer
        if self._early and peer.transport is not None:
            peer.transport.write(self._early)
            self._early = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.ends.discard(self)
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None:
            self._link.arrange(self.peer)


class Link:
    """One worker's way to one broker. Its methods run on the network's loop."""

    def __init__(self) -> None:
        self.state: State = "open"
        self.ends: set[_End] = set()
        self.broker_port = 0  # set before the first connection comes
        self.port = 0
        self._dialling: set[asyncio.Task[None]] = set()
        self._moving = asyncio.Event()  # not stalled
        self._moving.set()

    async def listen(self) -> None:
        """Take connections; the port is known then."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._taken, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]

    def _taken(self) -> _End:
        end = _End(self)
        task = asyncio.get_running_loop().create_task(self._dial(end))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)
        return end

    async def _dial(self, end: _End) -> None:
        await self._moving.wait()
        loop = asyncio.get_running_loop()
        try:
            if self.state == "cut":
                raise OSError("cut")
            _, broker = await loop.create_connection(lambda: _End(self), HOST, self.broker_port)
        except OSError:
            if end.transport is not None:
                end.transport.abort()
            return
        broker.joined(end)
        end.joined(broker)
        if end.transport is None or end.transport.is_closing():
            broker.transport.close()  # type: ignore[union-attr]

    def arrange(self, end: _End) -> None:
        """Make an end do what the state says."""
        transport = end.transport
        if transport is None or transport.is_closing():
            return
        if self.state == "cut":
            transport.abort()
        elif self.state == "stalled":
            transport.pause_reading()
        else:
            transport.resume_reading()

    def set(self, state: State) -> None:
        """Change the state, for the connections that there are too: what was stalled goes on from where it was."""
        self.state = state
        if state == "stalled":
            self._moving.clear()
        else:
            self._moving.set()
        for end in list(self.ends):
            self.arrange(end)


class Network:
    """All links, on a loop in a thread. From any other thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def link(self) -> Link:
        """A new link that listens; its `broker_port` is still to be set."""
        link = Link()
        self._run(link.listen())
        return link

    def set(self, links: list[Link], state: State) -> None:
        """Cut, stall or open some links."""

        async def change() -> None:
            for each in links:
                each.set(state)

        self._run(change())

    def close(self) -> None:
        """Cut everything, for good."""

        async def end() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, doing: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(doing, self._loop).result(10)
