"""Three real brokers that can be killed and started again, each reached by each worker over a link of its own."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from nemesis.links import Link, Network, State

from headrace.ops.broker_ready import wait_until_answering
from headrace.ops.kafka_process import (
    JVM_OPTIONS,
    LOG_OPTION,
    KafkaCluster,
    Node,
    server_properties,
    start_cluster,
)
from headrace.ops.kept_process import KeptProcess
from headrace.ops.ports import HOST, free_ports
from headrace.schemas.errors import BrokerFailed, KafkaFailed, TopicsError
from headrace.schemas.settings import Settings
from headrace.topics.admin import open_admin

BROKERS = 3
HEAP = ("-Xmx400m",)
STOPS_WITHIN_S = 40.0


class Brokers:
    """A cluster of three; `positions` workers can reach it, each over its own three links."""

    def __init__(self, home: Path, java: str, place: Path, network: Network, positions: int) -> None:
        """Start them. Raises BrokerFailed."""
        self._home, self._java, self._place = home, java, place
        self._network = network
        self.links: list[list[Link]] = [[network.link() for _ in range(BROKERS)] for _ in range(positions)]
        self._cluster: KafkaCluster = start_cluster(
            home, java, brokers=BROKERS, data_dir=place, extra=self._listeners
        )
        self._running: dict[int, KeptProcess] = {
            node.id: process
            for node, process in zip(self._cluster.nodes, self._cluster.processes, strict=True)
        }
        self._earlier: list[KeptProcess] = []
        self.bootstrap_servers = self._cluster.bootstrap_servers  # straight, past the links

    def bootstrap_of(self, position: int) -> str:
        """The addresses that the worker at a position is given."""
        return ",".join(f"{HOST}:{link.port}" for link in self.links[position])

    def set_links(self, position: int, broker: int | None, state: State) -> None:
        """Cut, stall or open the links of a position to one broker (from 1), or to all."""
        links = self.links[position]
        self._network.set(links if broker is None else [links[broker - 1]], state)

    def open_all(self) -> None:
        """Heal every link."""
        self._network.set([link for links in self.links for link in links], "open")

    def kill(self, broker: int) -> None:
        """SIGKILL."""
        self._signal(broker, signal.SIGKILL)

    def stop(self, broker: int) -> None:
        """SIGTERM: it hands its partitions over and ends."""
        self._signal(broker, signal.SIGTERM)

    def start(self, broker: int) -> None:
        """Start one again on the data that it has."""
        properties = self._place / f"node-{broker}" / "server.properties"
        command = [self._java, *JVM_OPTIONS, LOG_OPTION, *HEAP, "-cp", f"{self._home}/libs/*", "kafka.Kafka"]
        self._earlier.append(self._running[broker])
        self._running[broker] = KeptProcess(
            [[*command, str(properties)]], log=self._place / f"node-{broker}" / "broker.log"
        )

    def wait_whole(self, settings: Settings, topics: list[str], timeout_s: float) -> float | None:
        """Until all brokers answer and have every replica of these topics: after how long; None: not in time."""
        began = time.monotonic()
        try:
            # All must listen: of one that was just killed the controller believes for a while that it is there.
            wait_until_answering(
                self.bootstrap_servers, brokers=BROKERS, deadline_s=timeout_s, check=lambda: None
            )
            while self._under_replicated(settings, topics):
                if time.monotonic() - began > timeout_s:
                    return None
                time.sleep(0.3)
        except (BrokerFailed, KafkaFailed, TopicsError):
            return None
        return time.monotonic() - began

    def check(self) -> None:
        """Raises BrokerFailed when one has ended by itself."""
        for broker, process in self._running.items():
            if (status := process.exit_status()) is not None:
                raise BrokerFailed(f"broker {broker} ended with {status}:\n{process.last_lines()}")

    def close(self) -> None:
        """Kill them and remove their data; their logs stay."""
        for broker, process in self._running.items():
            if process.exit_status() is None:
                self.kill(broker)
        for process in [*self._running.values(), *self._earlier]:
            process.stop()
        for broker in self._running:
            shutil.rmtree(self._place / f"node-{broker}" / "data", ignore_errors=True)

    def _signal(self, broker: int, number: int) -> None:
        process = self._running[broker]
        pid = process.process_id()
        assert pid is not None, "a broker that answered has a process"
        os.kill(pid, number)
        deadline = time.monotonic() + STOPS_WITHIN_S
        while process.exit_status() is None:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                deadline += STOPS_WITHIN_S
            time.sleep(0.05)

    def _under_replicated(self, settings: Settings, topics: list[str]) -> bool:
        with open_admin(settings, "looking at replicas") as admin:
            found = admin.describe_topics([*topics, "__consumer_offsets", "__transaction_state"])
        return any(
            len(partition["isr_nodes"]) < len(partition["replica_nodes"])
            for topic in found
            for partition in topic["partitions"]
        )

    def _listeners(self, node: Node) -> dict[str, str]:
        """A listener for each worker, which says of itself that it is at the link's port."""
        lines = server_properties(node, [node], "")
        ports = free_ports(len(self.links))
        names = [f"WORKER{position}" for position in range(len(self.links))]
        listeners: list[str] = []
        advertised: list[str] = []
        protocols: list[str] = []
        for links, port, name in zip(self.links, ports, names, strict=True):
            link = links[node.id - 1]
            link.broker_port = port
            listeners.append(f"{name}://{HOST}:{port}")
            advertised.append(f"{name}://{HOST}:{link.port}")
            protocols.append(f"{name}:PLAINTEXT")
        return {
            "listeners": ",".join([lines["listeners"], *listeners]),
            "advertised.listeners": ",".join([lines["advertised.listeners"], *advertised]),
            "listener.security.protocol.map": ",".join([lines["listener.security.protocol.map"], *protocols]),
            "num.network.threads": "1",
            # A killed broker's partitions have new leaders soon, and not when it is back.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "1000",
        }
