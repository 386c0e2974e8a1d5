"""Workers in processes of their own, and the topics they need, for tests that kill them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from waiting import wait_until

from headrace.consumers.kafka import TailReader
from headrace.consumers.records import Record, TopicPartition
from headrace.ops.worker_process import WorkerProcess as Base
from headrace.schemas.codec import Codec
from headrace.schemas.messages import DeadLetter, Result
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, replies_topic

PARTITIONS = 4


def create_topics(bootstrap: str, names: ContractNames, **configs: str) -> None:
    """The topics of a contract. `configs` of `results` and `dead` come as `results_max_message_bytes="1000"`."""
    topics = [
        NewTopic(topic, PARTITIONS, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})
        for topic in names.request_topics
    ]
    results = {"max.message.bytes": configs.get("results_max_message_bytes", str(9 * 1024 * 1024))}
    topics += [NewTopic(topic, PARTITIONS, 1, topic_configs=results) for topic in (names.results, names.dead)]
    topics += [NewTopic(names.cancels, 1, 1), NewTopic(replies_topic(names.prefix), PARTITIONS, 1)]
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics(topics)
    finally:
        admin.close()


class Traffic:
    """Sends requests, and reads what came of them as any other reader would: read_committed."""

    def __init__(self, bootstrap: str, names: ContractNames) -> None:
        self.names = names
        self.settings = Settings(bootstrap_servers=bootstrap, prefix=names.prefix)
        self._producer = KafkaProducer(bootstrap_servers=bootstrap)
        partitions = [TopicPartition(t, n) for t in (names.results, names.dead) for n in range(PARTITIONS)]
        self._reader = TailReader(self.settings, partitions, "beginning")
        self.results: list[tuple[Record, Result]] = []
        self.dead: list[tuple[Record, DeadLetter]] = []

    def send(self, value: bytes | dict[str, Any], lane: str = "standard", **options: Any) -> None:
        """Send one request to a lane."""
        data = json.dumps(value).encode() if isinstance(value, dict) else value
        self._producer.send(f"{self.names.base}.requests.{lane}", value=data, **options)

    def send_many(self, ids: list[str], lane: str = "standard") -> None:
        """Send a request for each id, keyed by it."""
        for each in ids:
            self.send({"id": each, "variables": {"title": f"film {each}"}}, lane, key=each.encode())
        self._producer.flush()

    def read(self) -> None:
        """Take what has come since."""
        self._producer.flush()
        codec = Codec()
        for record in self._reader.poll(0.2):
            if record.topic == self.names.results:
                self.results.append((record, codec.decode(Result, record.value).message))
            else:
                self.dead.append((record, codec.decode(DeadLetter, record.value).message))

    def answered(self) -> Counter[str]:
        """How often each id was answered."""
        return Counter(result.id for _, result in self.results)

    def wait_for_results(self, count: int, timeout_s: float = 60) -> None:
        """Read until so many results are there."""

        def enough() -> bool:
            self.read()
            return len(self.results) >= count

        wait_until(enough, timeout_s, f"{count} results")

    def wait_for_dead(self, count: int, timeout_s: float = 30) -> None:
        """Read until so many dead letters are there."""

        def enough() -> bool:
            self.read()
            return len(self.dead) >= count

        wait_until(enough, timeout_s, f"{count} dead letters")

    def close(self) -> None:
        self._producer.close()
        self._reader.close()


@contextmanager
def traffic(bootstrap: str, names: ContractNames) -> Iterator[Traffic]:
    """A Traffic, closed at the end."""
    made = Traffic(bootstrap, names)
    try:
        yield made
    finally:
        made.close()


class WorkerProcess(Base):
    """A worker that a test may kill: quick, with a short session."""

    def __init__(
        self,
        bootstrap: str,
        package: Path,
        *,
        prefix: str,
        slot: str = "slot-1",
        log: Path,
        engine: str = "simulated",
        options: tuple[str, ...] = (),
        **environment: str,
    ) -> None:
        defaults = {"HEADRACE_SIMULATED_TIME_SCALE": "0", "HEADRACE_SESSION_TIMEOUT_MS": "6000"}
        super().__init__(
            # Taken as they are: a test may give a prefix that is wrong.
            Settings.model_construct(bootstrap_servers=bootstrap, prefix=prefix),
            package,
            engine=engine,
            slot=slot,
            log=log,
            options=options,
            environment=defaults | environment,
        )

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(20)

    def exit_code(self, timeout_s: float = 30) -> int:
        """Wait for its end."""
        return self.process.wait(timeout_s)
