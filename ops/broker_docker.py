"""Apache Kafka's own image, run by a local Docker engine through testcontainers."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import socket
import urllib.parse
from typing import TYPE_CHECKING, Any

from headrace.ops.broker_ready import wait_until_answering
from headrace.ops.kafka_process import Node, server_properties
from headrace.ops.pins import pins
from headrace.ops.ports import HOST, check_port, free_ports
from headrace.schemas.errors import BrokerFailed

if TYPE_CHECKING:
    from collections.abc import Callable

PING_WITHIN_S = 2.0
ANSWERS_WITHIN_S = 90.0  # after the image is there
CONTROLLER_PORT = 9093  # inside the container only
LOG_DIRS = "/tmp/kraft-combined-logs"  # inside the container, where the image has it


def docker_answers() -> bool:
    """Whether a Docker engine answers quickly, and testcontainers is installed to use it."""
    if importlib.util.find_spec("testcontainers") is None or importlib.util.find_spec("docker") is None:
        return False
    docker: Any = importlib.import_module("docker")
    try:
        # The Docker client's constructor asks the engine, and leaves its sockets open when that fails.
        if not _listens(docker.utils.parse_host(os.environ.get("DOCKER_HOST"))):
            return False
        with contextlib.closing(docker.from_env(timeout=PING_WITHIN_S)) as client:
            return bool(client.ping())
    except Exception:  # noqa: BLE001 - whatever it is (a bad DOCKER_HOST, no permission): no engine to use
        return False


def _listens(url: str) -> bool:
    """Whether something listens at a Docker engine's address; True where only its client can tell (ssh)."""
    scheme, _, place = url.partition("://")
    if scheme in ("http+unix", "unix"):
        with socket.socket(socket.AF_UNIX) as engine:
            engine.settimeout(PING_WITHIN_S)
            return engine.connect_ex(place if place.startswith("/") else f"/{place}") == 0
    if scheme in ("http", "https", "tcp"):
        parsed = urllib.parse.urlsplit(url)
        try:
            socket.create_connection((parsed.hostname, parsed.port), timeout=PING_WITHIN_S).close()
        except OSError:
            return False
    return True


def container_environment(host: str, port: int) -> dict[str, str]:
    """`server.properties` as the image takes it: `KAFKA_` and the name, in upper case, dots as underscores.

    The port is the same inside and outside the container: what the broker advertises is what clients reach.
    """
    node = Node(1, port, CONTROLLER_PORT)
    properties = server_properties(node, [node], LOG_DIRS) | {
        "listeners": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://{HOST}:{CONTROLLER_PORT}",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "inter.broker.listener.name": "PLAINTEXT",  # else the image sets one that is not among our listeners
    }
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in properties.items()}


class KafkaContainer:
    """A running container; testcontainers' reaper removes it too when this process is killed."""

    def __init__(self, port: int) -> None:
        containers: Any = importlib.import_module("testcontainers.core.container")
        self._image = pins().kafka_image
        self._container: Any = containers.DockerContainer(self._image)
        engine_host: str = self._container.get_docker_client().host()
        host = HOST if engine_host == "localhost" else engine_host
        self.address = f"{host}:{port}"
        self._container.with_bind_ports(port, port)
        for name, value in container_environment(host, port).items():
            self._container.with_env(name, value)
        self._container.start()

    def stop(self) -> None:
        self._container.stop()

    def check(self) -> None:
        """Raises BrokerFailed, with the end of its log, when it has ended."""
        self._container.reload()
        if self._container.status in ("exited", "dead"):
            printed = b"".join(self._container.get_logs()).decode(errors="replace")
            last = "\n".join(printed.splitlines()[-15:])
            raise BrokerFailed(f"the container of {self._image} ended; the end of its log:\n{last}")


def start_container(
    *, port: int | None = None, on_progress: Callable[[str], None] = lambda _: None
) -> KafkaContainer:
    """Start Apache Kafka's image at `port`, else at a free one, and return when it answers.

    Raises UsageError (port in use) and BrokerFailed.
    """
    if port is not None:
        check_port(port)
    on_progress(f"starting {pins().kafka_image} with Docker (the first time, the image is fetched)")
    try:
        container = KafkaContainer(port if port is not None else free_ports(1)[0])
    except Exception as error:
        raise BrokerFailed(f"Docker could not start {pins().kafka_image}: {error}") from error
    try:
        wait_until_answering(container.address, brokers=1, deadline_s=ANSWERS_WITHIN_S, check=container.check)
    except BaseException:
        container.stop()
        raise
    return container
