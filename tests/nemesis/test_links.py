"""A link forwards, cuts and stalls."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from nemesis.links import Link, Network
from waiting import wait_until

from headrace.ops.ports import HOST


@contextmanager
def echo() -> Generator[int]:
    """The port of a server that sends back what it gets."""
    server = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client:
            while data := client.recv(1024):
                client.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


def connect(link: Link) -> socket.socket:
    client = socket.create_connection((HOST, link.port))
    client.settimeout(10)
    return client


def silent(client: socket.socket) -> bool:
    """Whether nothing comes for a while."""
    client.settimeout(0.3)
    try:
        return client.recv(10) == b"never"
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)


def closed(client: socket.socket) -> bool:
    try:
        return client.recv(10) == b""
    except ConnectionError:
        return True


def test_an_open_link_forwards_both_ways(network: Network) -> None:
    link = network.link()
    with echo() as link.broker_port, connect(link) as client:
        client.sendall(b"hello")
        assert client.recv(10) == b"hello"


def test_a_stalled_link_takes_everything_and_gives_nothing_until_it_is_opened(network: Network) -> None:
    link = network.link()
    with echo() as link.broker_port, connect(link) as before:
        before.sendall(b"one")
        assert before.recv(10) == b"one"
        network.set([link], "stalled")
        with connect(link) as after:
            before.sendall(b"two")
            after.sendall(b"three")
            assert silent(before)
            assert silent(after)
            network.set([link], "open")
            assert before.recv(10) == b"two"
            assert after.recv(10) == b"three"


def test_a_cut_link_closes_what_there_is_and_takes_nothing(network: Network) -> None:
    link = network.link()
    with echo() as link.broker_port, connect(link) as before:
        before.sendall(b"one")
        assert before.recv(10) == b"one"
        network.set([link], "cut")
        assert closed(before)
        with connect(link) as refused:
            assert closed(refused)
        network.set([link], "open")
        with connect(link) as after:
            after.sendall(b"two")
            wait_until(lambda: after.recv(10) == b"two", 10, "the link to forward again")
