"""Whether a broker answers: asked with a real client request, as the workers will ask."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING, Any, cast

from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient

from headrace.schemas.errors import BrokerFailed, KafkaUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ATTEMPT_S = (
    5.0  # for one try at a broker of ours; one that is still starting may take a connection and not answer
)
CONNECT_S = 5.0  # for the connection alone
LAST_PORT = 65535
BETWEEN_TRIES_S = 0.1

# The client logs each failed attempt as an error. What matters of them is in the errors raised here; without
# a handler they would go to standard error.
logging.getLogger("kafka").addHandler(logging.NullHandler())


def brokers_that_answer(bootstrap_servers: str, options: Mapping[str, Any], timeout_s: float) -> int:
    """Ask for the cluster's description; returns the number of its live brokers.

    `options` are keyword arguments of kafka-python's clients (security). Raises KafkaUnavailable.
    """
    servers = bootstrap_servers.split(",")
    # Asked first, because the client leaves sockets behind where nothing listens.
    if not any(_listens(address) for address in servers):
        raise KafkaUnavailable(f"nothing listens at {bootstrap_servers}")
    clients: list[Any] = []

    def remembered(**config: Any) -> Any:
        # When its first request fails, the admin client's constructor raises and leaves its thread and its
        # sockets behind; only who made the inner client can close it.
        clients.append(KafkaNetClient(**config))
        return clients[-1]

    patience = int(timeout_s * 1000)
    given: dict[str, Any] = {"request_timeout_ms": patience, **options}
    given |= {"bootstrap_servers": servers, "bootstrap_timeout_ms": patience}
    try:
        with contextlib.closing(cast("Any", KafkaAdminClient)(**given, kafka_client=remembered)) as admin:
            return len(admin.describe_cluster()["brokers"])
    except (KafkaError, OSError, ValueError, AssertionError) as error:
        # OSError: certificate files that are not there. ValueError and AssertionError: addresses and options
        # that the client does not understand.
        raise KafkaUnavailable(f"{bootstrap_servers}: {error or type(error).__name__}") from error
    finally:
        for client in clients:
            client.close()


def wait_until_answering(
    bootstrap_servers: str, *, brokers: int, deadline_s: float, check: Callable[[], None]
) -> None:
    """Wait until that many brokers of ours answer.

    `check` is called between tries and raises when waiting is in vain (the process has ended).
    Raises BrokerFailed after `deadline_s` seconds.
    """
    deadline = time.monotonic() + deadline_s
    last = "it does not listen"
    while time.monotonic() < deadline:
        check()
        # Asked only when all listen: the client's own retries are slower than a start.
        if all(_listens(address) for address in bootstrap_servers.split(",")):
            try:
                live = brokers_that_answer(bootstrap_servers, {}, ATTEMPT_S)
            except KafkaUnavailable as error:
                last = str(error)
            else:
                if live >= brokers:
                    return
                last = f"{live} of {brokers} brokers are up"
        time.sleep(BETWEEN_TRIES_S)
    raise BrokerFailed(f"the broker at {bootstrap_servers} did not answer within {deadline_s:.0f} s: {last}")


def _listens(address: str) -> bool:
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdecimal() or int(port) > LAST_PORT:
        raise KafkaUnavailable(f"{address!r} is not an address, host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True
