"""What a backfill under fire stands on: one real Kafka that may be killed, workers likewise, and rows of all kinds."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from backfill_outputs import FAILURES, MODEL
from packages import TAGS_SCHEMA, write_package
from worker_processes import WorkerProcess, create_topics

from headrace.ops.broker_ready import wait_until_answering
from headrace.ops.kafka_process import JVM_OPTIONS, LOG_OPTION, KafkaCluster, start_cluster
from headrace.ops.kept_process import KeptProcess
from headrace.producers.backfill.results_feed import end_of_results
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

PREFIX = "nemesis"
LOOKS_WITHIN_S = 5.0
HANGS_AFTER_S = 25.0  # a transaction that is alive has ended by its timeout, 10 s
ENDS_WITHIN_S = 30.0
ANSWERS_WITHIN_S = 90.0


class KilledKafka:
    """One broker on data of its own, which may be killed and comes back on the same."""

    def __init__(self, home: Path, java: str, place: Path) -> None:
        """Start it. Raises BrokerFailed."""
        self._home, self._java, self._place = home, java, place
        self._cluster: KafkaCluster = start_cluster(home, java, data_dir=place)
        self._process = self._cluster.processes[0]
        self._earlier: list[KeptProcess] = []
        self.bootstrap = self._cluster.bootstrap_servers

    def kill(self) -> None:
        """SIGKILL."""
        pid = self._process.process_id()
        assert pid is not None, "a broker that answered has a process"
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + ENDS_WITHIN_S
        while self._process.exit_status() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        node = self._place / "node-1"
        command = [self._java, *JVM_OPTIONS, LOG_OPTION, "-Xmx512m", "-cp", f"{self._home}/libs/*"]
        self._earlier.append(self._process)
        self._process = KeptProcess(
            [[*command, "kafka.Kafka", str(node / "server.properties")]], log=node / "broker.log"
        )
        wait_until_answering(self.bootstrap, brokers=1, deadline_s=ANSWERS_WITHIN_S, check=lambda: None)

    def end_transaction(self, topic: str, partition: int, start: int) -> None:
        """As an operator does with one that hangs."""
        self._transactions(
            "abort", "--topic", topic, "--partition", str(partition), "--start-offset", str(start)
        )

    def _transactions(self, *arguments: str) -> str:
        command = [self._java, *JVM_OPTIONS, "-Xmx200m", "-cp", f"{self._home}/libs/*"]
        tool = ["org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", self.bootstrap]
        return subprocess.run(
            [*command, *tool, *arguments], capture_output=True, text=True, timeout=120, check=False
        ).stdout

    def close(self) -> None:
        for process in (*self._earlier, self._process):
            process.stop()


class Operator:
    """Ends transactions that hang: those of which the coordinator knows nothing any more.

    Seen of Apache Kafka 4.3: a broker that is killed amid a transaction and started again on its data notes the abort
    as complete, and one of the partitions has no marker. Who reads what is committed waits there for ever.
    """

    def __init__(self, kafka: KilledKafka, topic: str) -> None:
        self.ended = 0
        self._kafka, self._topic = kafka, topic
        self._settings = Settings(bootstrap_servers=kafka.bootstrap, prefix=PREFIX)
        self._stands: dict[
            int, tuple[int, float]
        ] = {}  # by partition: the offset at which it stands, since when

    def look(self) -> None:
        """To be called often. During an outage nothing is known."""
        try:
            stable = end_of_results(self._settings, self._topic, LOOKS_WITHIN_S)
            tips = end_of_results(self._settings, self._topic, LOOKS_WITHIN_S, committed=False)
        except HeadraceError:
            self._stands.clear()
            return
        now = time.monotonic()
        for partition, offset in stable.items():
            at, since = self._stands.get(partition, (-1, now))
            if offset >= tips[partition]:
                self._stands.pop(partition, None)
            elif at != offset:
                self._stands[partition] = offset, now
            elif now - since > HANGS_AFTER_S:
                self._kafka.end_transaction(self._topic, partition, offset)
                self._stands.pop(partition)
                self.ended += 1


class Workers:
    """Workers of one contract by slot; each may be killed and is started again in its slot."""

    def __init__(self, bootstrap: str, place: Path, count: int, **environment: object) -> None:
        self.names = ContractNames(PREFIX, MODEL, 1)
        self._bootstrap, self._place = bootstrap, place
        self._environment: dict[str, Any] = {
            f"HEADRACE_{name.upper()}": str(value) for name, value in environment.items()
        }
        self._package = write_package(place / "package", model=MODEL, output=TAGS_SCHEMA)
        create_topics(bootstrap, self.names)
        self._lock = threading.Lock()  # over the next three
        self._lives: dict[int, int] = dict.fromkeys(range(count), 0)
        self._running: dict[int, WorkerProcess] = {}
        self._attempts: dict[tuple[int, int], float] = {}  # by slot and life: generations begun, as seen last
        for slot in range(count):
            self._start(slot)
        try:
            for worker in self._running.values():
                worker.wait_ready(ANSWERS_WITHIN_S)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._running)

    def _start(self, slot: int) -> None:
        self._running[slot] = WorkerProcess(
            self._bootstrap,
            self._package,
            prefix=PREFIX,
            slot=f"slot-{slot}",
            log=self._place / f"worker-{slot}-{self._lives[slot]}.log",
            HEADRACE_SIMULATED_FAILURES=FAILURES,
            **self._environment,
        )

    def kill(self, slot: int) -> None:
        """SIGKILL, and start another one in its slot."""
        with self._lock:
            self._scrape(slot)
            self._running[slot].kill()
            self._start_again(slot)

    def look_after(self) -> None:
        """See what each has begun, and start those again that have ended: without a broker one does not start.

        To be called often, as what a killed one has not said is lost.
        """
        with self._lock:
            for slot, worker in self._running.items():
                if worker.process.poll() is not None:
                    self._start_again(slot)
                else:
                    self._scrape(slot)

    def _start_again(self, slot: int) -> None:
        self._lives[slot] += 1
        self._start(slot)

    def _scrape(self, slot: int) -> None:
        seen = self._running[slot].metric("headrace_generation_attempts_total")
        life = slot, self._lives[slot]
        self._attempts[life] = max(seen, self._attempts.get(life, 0.0))

    @property
    def generations(self) -> int:
        """Begun by all lives, but for what was begun after the last look at one that was killed."""
        return round(sum(self._attempts.values()))

    def close(self) -> None:
        for worker in self._running.values():
            if worker.process.poll() is None:
                worker.kill()
