"""Workers in processes of their own, and the topics they need, for tests that kill them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from packages import write_package
from waiting import wait_until

from headrace.consumers.records import Record, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.ops.worker_process import WorkerProcess as Base
from headrace.schemas import headers as header
from headrace.schemas.codec import Codec
from headrace.schemas.messages import DeadLetter, Reply, Result
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, control_topic, replies_topic

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
    topics += [NewTopic(control_topic(names.prefix), 1, 1, topic_configs={"cleanup.policy": "compact"})]
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

    def send_to(
        self,
        partition: int,
        request_id: str,
        lane: str = "standard",
        headers: list[tuple[str, bytes]] | None = None,
        **fields: Any,
    ) -> None:
        """Send one request to a unit; `fields` are more of its fields."""
        value = {"id": request_id, "prompt": f"say something of {request_id}."} | fields
        self.send(value, lane, key=request_id.encode(), partition=partition, headers=headers or [])
        self._producer.flush()

    def cancel(self, reason: str, **target: str) -> None:
        """Cancel by `id=` or by `job=`."""
        value = target | {"reason": reason, "time": int(time.time() * 1000)}
        self._producer.send(self.names.cancels, value=json.dumps(value).encode())
        self._producer.flush()

    def by_id(self) -> dict[str, Result]:
        """The result of each id; fails if one has two."""
        twice = {request_id: count for request_id, count in self.answered().items() if count > 1}
        assert not twice, f"answered more than once: {twice}"
        return {result.id: result for _, result in self.results}

    def wait_for(self, *ids: str, timeout_s: float = 60) -> list[Result]:
        """Read until each of these ids has a result; those, in this order."""

        def there() -> bool:
            self.read()
            return set(ids) <= self.answered().keys()

        try:
            wait_until(there, timeout_s, "results")
        except AssertionError as error:
            raise AssertionError(f"{error}: without are {set(ids) - self.answered().keys()}") from None
        return [self.by_id()[each] for each in ids]

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


class Callers:
    """Whoever waits for replies: reads a partition of the replies' topic."""

    def __init__(self, bootstrap: str, names: ContractNames, partition: int = 0) -> None:
        self._place = TopicPartition(replies_topic(names.prefix), partition)
        settings = Settings(bootstrap_servers=bootstrap, prefix=names.prefix)
        self._reader = TailReader(settings, [self._place], "beginning")
        self._replies: list[tuple[str, Reply]] = []

    def headers(self, caller: str) -> list[tuple[str, bytes]]:
        """The headers of a request that this caller wants to hear of."""
        topic, partition = self._place
        values = {
            header.CORRELATION_ID: caller,
            header.REPLY_TOPIC: topic,
            header.REPLY_PARTITION: str(partition),
        }
        return [(name, value.encode()) for name, value in values.items()]

    def wait_for_last(self, caller: str, timeout_s: float = 60) -> Reply:
        """The reply that ends the caller's wait."""

        def last() -> list[Reply]:
            for record in self._reader.poll(0.2):
                assert record.key is not None
                self._replies.append((record.key.decode(), Codec().decode(Reply, record.value).message))
            return [reply for to, reply in self._replies if to == caller and reply.kind != "delta"]

        return wait_until(last, timeout_s, f"a reply to {caller}")[0]

    def close(self) -> None:
        self._reader.close()


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


class Scene:
    """A contract's topics, a package, what goes in and out, and the workers; made by `scene`."""

    def __init__(self, bootstrap: str, names: ContractNames, package: Path, seen: Traffic) -> None:
        self.bootstrap = bootstrap
        self.names = names
        self.seen = seen
        self._package = package
        self._workers = ExitStack()
        self._started = 0

    def start(self, slot: str = "slot-1", *options: str, **environment: Any) -> WorkerProcess:
        """Start a worker; it is killed at the end, if it still runs. `environment` without `HEADRACE_`."""
        self._started += 1
        return self._workers.enter_context(
            WorkerProcess(
                self.bootstrap,
                self._package,
                prefix=self.names.prefix,
                slot=slot,
                log=self._package.parent / f"{self._started:02}-{slot}.log",
                options=options,
                **{f"HEADRACE_{name.upper()}": str(value) for name, value in environment.items()},
            )
        )

    def units_of(self, *workers: str) -> dict[str, list[int]]:
        """Which units each of these slots serves, found by asking; fails unless they are all there is."""
        probes = [f"who-serves-{self._started}-{unit}" for unit in range(PARTITIONS)]
        for unit, probe in enumerate(probes):
            self.seen.send_to(unit, probe, sampling={"max_tokens": 1})
        owners: dict[str, list[int]] = {slot: [] for slot in workers}
        for unit, result in enumerate(self.seen.wait_for(*probes)):
            owners[result.provenance.slot].append(unit)
        return owners

    def close(self) -> None:
        self._workers.close()


@contextmanager
def scene(bootstrap: str, prefix: str, place: Path, **package: Any) -> Generator[Scene]:
    """A Scene, closed at the end. `package`: see `write_package`."""
    names = ContractNames(prefix, "tagger", 1)
    create_topics(bootstrap, names)
    with traffic(bootstrap, names) as seen:
        made = Scene(bootstrap, names, write_package(place / "package", **package), seen)
        try:
            yield made
        finally:
            made.close()


def long_text(tokens: int) -> dict[str, Any]:
    """Fields of a request whose text has so many tokens in the simulated engine, which takes 10 ms for each."""
    return {"output": {"regex": f"[a-z]{{{4 * tokens}}}"}, "sampling": {"max_tokens": 2 * tokens}}


def generations(*workers: WorkerProcess) -> int:
    """How many generations these have begun."""
    return round(sum(worker.metric("headrace_generation_attempts_total") for worker in workers))


def units(worker: WorkerProcess) -> int:
    """How many units a worker has."""
    return round(worker.metric("headrace_partitions")) // 3  # lanes
