"""A proxy before a broker that reads as much of Kafka's protocol as it needs to cut off one kind of request."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from headrace.ops.ports import HOST

# Kafka's API keys.
PRODUCE = 0
INIT_PRODUCER_ID = 22
END_TXN = 26


class KafkaProxy:
    """Forwards to a broker that advertises this proxy's address instead of its own."""

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._cut = False
        self._refused: set[int] = set()
        self._answer_lost: set[int] = set()
        self._healed_by: int | None = None
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._muted: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def refuse(self, api_key: int) -> None:
        """Close every connection over which such a request comes."""
        self._refused.add(api_key)

    def lose_next_answer(self, api_key: int) -> None:
        """Let the next such request through, and nothing come back over its connection any more."""
        self._answer_lost.add(api_key)

    def heal_at(self, api_key: int) -> None:
        """Forward everything again from the next such request on."""
        self._healed_by = api_key

    def cut(self) -> None:
        """Close all connections and take no new ones."""
        self._cut = True
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._close(pair)

    def heal(self) -> None:
        """Forward everything again."""
        self._cut = False
        self._refused.clear()
        self._answer_lost.clear()
        self._healed_by = None

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._cut:
                client.close()
                continue
            try:
                broker = socket.create_connection((HOST, self._broker_port))
            except OSError:
                client.close()
                continue
            pair = (client, broker)
            with self._lock:
                self._pairs.add(pair)
            for forward in (self._requests, self._answers):
                threading.Thread(target=self._until_closed, args=(forward, pair), daemon=True).start()

    def _until_closed(self, forward: object, pair: tuple[socket.socket, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            forward(*pair)  # type: ignore[operator]
        self._close(pair)

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        while True:
            head = _read(client, 6)  # size of what follows, API key
            size, api_key = struct.unpack(">ih", head)
            body = _read(client, size - 2)
            if api_key == self._healed_by:
                self.heal()
            if api_key in self._refused:
                return
            if api_key in self._answer_lost:
                self._answer_lost.discard(api_key)
                self._muted.add(broker)
            broker.sendall(head + body)

    def _answers(self, client: socket.socket, broker: socket.socket) -> None:
        while data := broker.recv(65536):
            if broker not in self._muted:
                client.sendall(data)

    def _close(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (part := source.recv(size - len(data))):
            raise OSError("closed")
        data += part
    return data
