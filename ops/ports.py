"""Free TCP ports for the processes that we start."""

from __future__ import annotations

import contextlib
import random
import socket

from headrace.schemas.errors import BrokerFailed, UsageError

HOST = "127.0.0.1"
# Below the range that systems take for outgoing connections (Linux from 32768, macOS from 49152): between our
# look and the server's bind no client's connection can take the port.
FIRST, LAST = 20_000, 32_000


def check_port(port: int) -> None:
    """Raises UsageError, saying what to do, when a server of ours could not listen there."""
    remedy = "choose another with --port, or leave --port out for a free one"
    try:
        _try_to_bind(port)
    except OverflowError:
        raise UsageError(f"there is no port {port}, they end at 65535: {remedy}") from None
    except PermissionError:
        raise UsageError(f"port {port} is only for root on this system: {remedy}") from None
    except OSError:
        raise UsageError(f"port {port} is in use: stop what listens there, {remedy}") from None


def free_ports(count: int) -> list[int]:
    """Different ports that are free now. Another process may still take one: then try again with others."""
    found: list[int] = []
    for port in random.sample(range(FIRST, LAST), LAST - FIRST):
        with contextlib.suppress(OSError):
            _try_to_bind(port)
            found.append(port)
        if len(found) == count:
            return found
    raise BrokerFailed(f"fewer than {count} free ports between {FIRST} and {LAST} on {HOST}")


def _try_to_bind(port: int) -> None:
    with socket.socket() as candidate:
        candidate.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as servers do: TIME_WAIT is no obstacle
        candidate.bind((HOST, port))
