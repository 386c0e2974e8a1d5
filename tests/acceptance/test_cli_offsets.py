"""`headrace offsets` as its user runs it: what it prints, what it asks, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import NoError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition
from kafka_members import WITHIN_S, admin_client, produce, read_all, settings_for
from packages import write_package
from waiting import wait_until

from headrace.consumers import offset_encoding
from headrace.consumers.control import ControlReader, partition_key, partition_value
from headrace.consumers.group import read_committed_offsets
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import TopicPartition
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, control_topic
from headrace.topics.provision import LayoutOptions, bring_in_line

HEADRACE = [sys.executable, "-c", "from headrace.ops.cli import main; main()", "offsets"]
MODEL = ["--model", "tagger"]


def run(*arguments: str, answer: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return subprocess.run(
        [*HEADRACE, *arguments],
        env=environment | variables,
        input=answer,
        capture_output=True,
        text=True,
        timeout=120,
    )


@dataclass
class Incident:
    """One partition in order, and three that are parked: each another way."""

    settings: Settings
    names: ContractNames

    def run(self, *arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        assert self.settings.bootstrap_servers is not None
        variables = {
            "HEADRACE_BOOTSTRAP_SERVERS": self.settings.bootstrap_servers,
            "HEADRACE_PREFIX": self.names.prefix,
        }
        return run(*arguments, answer=answer, **variables)

    def states(self) -> dict[str, str]:
        rows = json.loads(self.run("list", *MODEL, "--json").stdout)["partitions"]
        return {f"{row['lane']}-{row['partition']}": row["state"] for row in rows}

    def written(self) -> list[bytes | None]:
        records = read_all(self.settings, control_topic(self.names.prefix))
        return [each.value for each in records if (each.key or b"").startswith(b"accept/")]

    @contextmanager
    def running_worker(self) -> Iterator[ControlReader]:
        """What a running worker has of the control topic."""
        reader = ControlReader(self.settings)
        thread = threading.Thread(target=reader.run)
        thread.start()
        try:
            wait_until(lambda: reader.ready, WITHIN_S, "the control reader")
            yield reader
        finally:
            reader.stop()
            thread.join(WITHIN_S)


@pytest.fixture
def incident(kafka_bootstrap: str, unique_prefix: str) -> Incident:
    settings = settings_for(kafka_bootstrap, prefix=unique_prefix)
    names = ContractNames(unique_prefix, "tagger", 1)
    bring_in_line(settings, names, LayoutOptions(partitions=1, replication=1))
    interactive, standard, backfill = (TopicPartition(topic, 0) for topic in names.request_topics)
    for tp in (interactive, standard, backfill):
        produce(kafka_bootstrap, tp.topic, 0, [b"r"] * 10)
    read_committed_offsets(settings, names.group, [standard], WITHIN_S)  # there is a coordinator
    metadata = offset_encoding.encode(2, Progress(6, (range(4, 6),)), 4096)
    committed: dict[Any, Any] = {
        KafkaTopicPartition(*interactive): OffsetAndMetadata(10, "", -1),
        KafkaTopicPartition(*standard): OffsetAndMetadata(2, metadata, -1),
    }
    with admin_client(kafka_bootstrap) as admin:
        assert set(admin.alter_group_offsets(names.group, committed).values()) == {NoError}
        admin.delete_records({KafkaTopicPartition(*standard): 7})
    producer = PlainProducer(settings)
    key = partition_key(names.group, backfill)
    producer.send(OutgoingRecord(control_topic(unique_prefix), key, partition_value(1))).result(WITHIN_S)
    producer.close()
    return Incident(settings, names)


def test_list_shows_what_is_parked_and_alerts(incident: Incident) -> None:
    shown = incident.run("list", *MODEL)
    assert (shown.returncode, shown.stderr) == (1, "")
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0] == "partition log frontier done in doubt lag headroom state"
    assert lines[1] == "interactive-0 0-10 10 0 0 0 100% ok"
    assert lines[2] == "standard-0 7-10 2 2 2 3 0% parked: removed before it was served, 3 lost at most"
    assert lines[3] == "backfill-0 0-10 - 0 0 10 100% parked: its committed offsets are gone"
    assert lines[4].startswith("3 partitions, 2 parked; lag 13,")
    assert "retention of standard: 1,024.0 MiB a partition, no limit of age" in lines
    assert any("offsets 2 to 6 were removed" in line for line in lines)

    told = json.loads(incident.run("list", *MODEL, "--json").stdout)
    assert (told["parked"], told["lag"]) == (2, 13)
    standard = told["partitions"][1]
    assert (standard["cause"], standard["lost"], standard["lost_at_most"]) == (
        "retention",
        {"from": 2, "to": 6},
        3,
    )
    assert standard["headroom"] == 0.0


def test_accept_says_what_it_does_and_asks(incident: Incident) -> None:
    refused = incident.run("accept", *MODEL, "standard-0", answer="n\n")
    assert refused.returncode == 130
    assert "2 to 6, at most 3" in refused.stdout
    assert "> 7 (beginning)" in refused.stdout
    assert "answered again:" in refused.stdout
    assert incident.written() == []

    accepted = incident.run("accept", *MODEL, "standard-0", answer="y\n")
    assert accepted.returncode == 0, accepted.stderr
    assert "accepted for 1 partition" in accepted.stdout
    assert incident.states() == {
        "interactive-0": "ok",
        "standard-0": "accepted",
        "backfill-0": "parked",
    }
    (value,) = incident.written()
    assert json.loads(value or b"")["committed"]["offset"] == 2


def test_everything_that_is_parked_at_the_end_of_its_log(incident: Incident) -> None:
    with incident.running_worker() as worker:
        done = incident.run("accept", *MODEL, "--all", "--at", "end", "--yes")
        assert done.returncode == 0, done.stderr
        lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
        assert "backfill-0 its committed offsets are gone not known 0 (beginning) at most 10 none" in lines
        assert "> 10 (end) none at most 10" in lines
        tp = TopicPartition(incident.names.requests("backfill"), 0)

        def picked_up() -> bool:
            acceptance = worker.accepted(incident.names.group, tp)
            return acceptance is not None and (acceptance.committed, acceptance.resume_at) == (None, 10)

        wait_until(picked_up, WITHIN_S, "the running worker to learn of it")
    after = incident.run("list", *MODEL)
    assert after.returncode == 0
    assert "accepted: goes on at 10" in after.stdout
    assert incident.run("accept", *MODEL, "--all").stdout == "nothing is parked\n"


def test_a_package_names_the_model(incident: Incident, tmp_path: Path) -> None:
    package = write_package(tmp_path / "tagger")
    assert incident.run("list", "--package", str(package)).returncode == 1


def test_what_cannot_be_accepted_is_refused_and_nothing_written(incident: Incident) -> None:
    for arguments, said in (
        (["standard-0", "interactive-0", "--yes"], "interactive-0 is not parked"),
        (["standard-9", "--yes"], "there is no partition"),
        (["batch-0", "--yes"], "give LANE-NUMBER, as standard-3"),
        (["standard-0", "--at", "3", "--yes"], "3 is not in its log, which has 7 to 10"),
    ):
        made = incident.run("accept", *MODEL, *arguments)
        assert (made.returncode, made.stdout) == (2, "")
        assert said in made.stderr
    assert incident.written() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list"], "Give --package DIR, or --model NAME"),
        (["list", *MODEL, "--package", "."], "not both"),
        (["accept", *MODEL], "give --all"),
        (["accept", *MODEL, "--all", "standard-0"], "give --all"),
        (["accept", *MODEL, "--all", "--at", "middle"], "neither beginning, end nor an offset"),
    ],
)
def test_the_callers_mistake_has_exit_code_2(arguments: list[str], said: str) -> None:
    made = run(*arguments, HEADRACE_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert made.returncode == 2
    assert said in made.stderr
    assert "Traceback" not in made.stderr


def test_without_brokers_the_variable_is_named() -> None:
    made = run("list", *MODEL)
    assert made.returncode == 3
    assert "HEADRACE_BOOTSTRAP_SERVERS" in made.stderr


def test_topics_that_are_missing_are_named_with_what_makes_them(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    made = run("list", *MODEL, HEADRACE_BOOTSTRAP_SERVERS=kafka_bootstrap, HEADRACE_PREFIX=unique_prefix)
    assert made.returncode == 1
    assert f"{unique_prefix}.tagger.c1.requests.standard" in made.stderr
    assert "headrace topics apply" in made.stderr
