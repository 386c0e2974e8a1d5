"""Apache Kafka from an unpacked release, run by the local Java in KRaft mode: one node, or several."""

from __future__ import annotations

import base64
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.ops.broker_ready import wait_until_answering
from headrace.ops.kept_process import KeptProcess, new_temporary_directory
from headrace.ops.ports import HOST, check_port, free_ports
from headrace.schemas.errors import BrokerFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ANSWERS_WITHIN_S = 120.0  # seen: 4-6 s for one node on two cores, 14 s for three
STOPS_WITHIN_S = 30.0  # only for data that is kept; a broker whose data goes with it is killed at once
ATTEMPTS = 3  # when another process took a port between our look and the broker's bind
DEFAULT_HEAP = "-Xmx512m"

# Serial collector and C1 alone: a development broker starts in half the time and takes 300 MB.
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# The release's own logging configuration is not on the class path: this is the level of log4j's default one.
LOG_OPTION = "-Dorg.apache.logging.log4j.level=WARN"


@dataclass(frozen=True)
class Node:
    """One broker-and-controller process of a cluster on this machine."""

    id: int  # from 1
    port: int
    controller_port: int

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


def holds_kafka(home: Path) -> bool:
    """Whether this is an unpacked Apache Kafka (its jars in `libs/`)."""
    return any((home / "libs").glob("kafka_2.*.jar")) if home.is_dir() else False


def server_properties(node: Node, nodes: Sequence[Node], log_dirs: Path | str) -> dict[str, str]:
    """`server.properties` of one node: for development, so it starts fast and notices dead members soon."""
    copies = min(3, len(nodes))
    in_sync = max(1, copies - 1)
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": ",".join(f"{other.id}@{HOST}:{other.controller_port}" for other in nodes),
        "listeners": f"PLAINTEXT://{node.address},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{node.address}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(log_dirs),
        "auto.create.topics.enable": "false",  # no client makes a topic by accident
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(in_sync),
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "offsets.topic.num.partitions": "1",  # fewer files, faster start
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        # A transaction whose owner died ends at its timeout, not up to 10 s (the default scan) after it.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }


class KafkaCluster:
    """A running cluster; `stop()` ends it and, unless `data_dir` was given, removes its data."""

    def __init__(self, nodes: Sequence[Node], processes: Sequence[KeptProcess]) -> None:
        self.nodes = tuple(nodes)
        self.processes = tuple(processes)
        self.bootstrap_servers = ",".join(node.address for node in nodes)

    def stop(self) -> None:
        for process in self.processes:
            process.ask_to_stop()
        for process in self.processes:
            process.stop()

    def check(self) -> None:
        """Raises BrokerFailed, with the end of its log, when a node has ended."""
        for node, process in zip(self.nodes, self.processes, strict=True):
            if (status := process.exit_status()) is not None:
                raise BrokerFailed(
                    f"Apache Kafka (node {node.id}, {node.address}) ended with status {status}; "
                    f"the end of its log:\n{process.last_lines()}"
                )


def start_cluster(
    home: Path,
    java: str,
    *,
    brokers: int = 1,
    port: int | None = None,
    data_dir: Path | None = None,
    extra: Callable[[Node], Mapping[str, str]] = lambda _: {},
    on_progress: Callable[[str], None] = lambda _: None,
) -> KafkaCluster:
    """Start `brokers` nodes and return when all answer.

    The first listens at `port`, the others at the ports after it; without it, at free ones. `extra` gives
    further lines of a node's `server.properties`. Data lies in `data_dir` and stays; without it, in a
    temporary directory that goes when the cluster stops or this process ends in any way.
    Raises UsageError (port in use, data of another size of cluster) and BrokerFailed.
    """
    if data_dir is not None:
        _check_data(data_dir, brokers)
    for attempt in range(1, ATTEMPTS + 1):
        nodes = _nodes(brokers, port)
        on_progress(f"starting Apache Kafka from {home} ({brokers} broker{'s' if brokers > 1 else ''})")
        cluster = _launch(home, java, nodes, data_dir, extra)
        try:
            wait_until_answering(
                cluster.bootstrap_servers, brokers=brokers, deadline_s=ANSWERS_WITHIN_S, check=cluster.check
            )
        except BrokerFailed as error:
            cluster.stop()
            if attempt == ATTEMPTS or not _lost_a_port(str(error)):
                raise
        except BaseException:
            cluster.stop()
            raise
        else:
            return cluster
    raise AssertionError("the last attempt returns or raises")


def _nodes(brokers: int, port: int | None) -> list[Node]:
    if port is None:
        ports = free_ports(2 * brokers)
        clients, controllers = ports[:brokers], ports[brokers:]
    else:
        clients = list(range(port, port + brokers))
        for wanted in clients:
            check_port(wanted)
        controllers = [free for free in free_ports(2 * brokers) if free not in clients][:brokers]
    return [Node(i + 1, *pair) for i, pair in enumerate(zip(clients, controllers, strict=True))]


def _launch(
    home: Path,
    java: str,
    nodes: Sequence[Node],
    data_dir: Path | None,
    extra: Callable[[Node], Mapping[str, str]],
) -> KafkaCluster:
    root = data_dir if data_dir is not None else new_temporary_directory("kafka")
    heap = os.environ.get("KAFKA_HEAP_OPTS", DEFAULT_HEAP).split()  # Kafka's own name for it
    base = [java, *JVM_OPTIONS, LOG_OPTION]
    class_path = ["-cp", f"{home}/libs/*"]
    cluster_id = _existing_cluster_id(root) or _new_cluster_id()
    processes: list[KeptProcess] = []
    for node in nodes:
        place = root / f"node-{node.id}"
        properties = place / "server.properties"
        lines = server_properties(node, nodes, place / "data") | dict(extra(node))
        storage = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster_id]
        processes.append(
            KeptProcess(
                [
                    [*base, *class_path, *storage, "-c", str(properties)],
                    [*base, *heap, *class_path, "kafka.Kafka", str(properties)],
                ],
                log=place / "broker.log",
                files={properties: "".join(f"{name}={value}\n" for name, value in lines.items())},
                remove=[] if data_dir is not None else [place],
                remove_if_empty=None if data_dir is not None else root,
                grace_s=STOPS_WITHIN_S if data_dir is not None else 0.0,
            )
        )
    return KafkaCluster(nodes, processes)


def _check_data(data_dir: Path, brokers: int) -> None:
    existing = len(list(data_dir.glob("node-*")))
    if existing and existing != brokers:
        raise UsageError(
            f"{data_dir} holds the data of {existing} broker(s), not {brokers}: "
            f"start it with --brokers {existing}, or choose another directory"
        )


def _existing_cluster_id(root: Path) -> str | None:
    """Of data that is already there: it must be told again when its nodes start."""
    for file in sorted(root.glob("node-*/data/meta.properties")):
        for line in file.read_text().splitlines():
            if line.startswith("cluster.id="):
                return line.removeprefix("cluster.id=").strip()
    return None


def _new_cluster_id() -> str:
    """A random id as Kafka writes it; never with a leading dash, which its tools take for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _lost_a_port(log: str) -> bool:
    return "Address already in use" in log or "Failed to bind" in log
