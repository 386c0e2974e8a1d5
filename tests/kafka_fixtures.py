"""Fixtures that give tests a real broker and a real schema registry, each started once for the session."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from run_summary import tell_the_broker_is_kafka
from waiting import wait_until

from headrace.ops.broker import find_or_start, look_around
from headrace.ops.broker_choice import BrokerNeeds, choose
from headrace.ops.java import find_java
from headrace.ops.kept_process import KeptProcess
from headrace.ops.ports import HOST, free_ports
from headrace.schemas.errors import BrokerNotFound
from headrace.schemas.settings import Settings

REGISTRY = "HEADRACE_TEST_REGISTRY"
REGISTRY_ANSWERS_WITHIN_S = 60.0


def not_to_be_had(reason: str) -> NoReturn:
    """Skip; with CI=true fail, since there a test that did not run must not pass for one that did."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI=true and {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """Bootstrap servers of a real Apache Kafka."""
    needs = BrokerNeeds(several_workers=True, exactly_once=True)
    try:
        broker = find_or_start(Settings.from_environment(), needs)
    except BrokerNotFound as error:
        not_to_be_had(f"no real Kafka: {error}")
    with broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="session")
def broker_bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """Bootstrap servers of whatever broker is found: the real Kafka above, else the embedded one."""
    settings = Settings.from_environment()
    try:
        kind = choose(look_around(settings), BrokerNeeds()).kind
    except BrokerNotFound as error:
        not_to_be_had(str(error))
    if kind != "embedded":
        tell_the_broker_is_kafka(request.config)
        yield request.getfixturevalue("kafka_bootstrap")
        return
    with find_or_start(settings, BrokerNeeds()) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="session")
def kafka_home() -> Path:
    """An unpacked Apache Kafka and a Java that runs it: for tests that start brokers of their own."""
    found = look_around(Settings.from_environment(bootstrap_servers=""))
    try:
        choice = choose(found, BrokerNeeds(several_workers=True))
    except BrokerNotFound as error:
        not_to_be_had(f"no real Kafka to start: {error}")
    if choice.kind == "docker":
        not_to_be_had("no unpacked Apache Kafka: set KAFKA_HOME, or run `headrace broker install`")
    return Path(choice.place)


@pytest.fixture
def unique_prefix() -> str:
    """A topic prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a real, Confluent-compatible schema registry."""
    where = os.environ.get(REGISTRY)
    if not where:
        not_to_be_had(
            f"no schema registry: set {REGISTRY} to its URL or to a folder with Apicurio's runner jar"
        )
    if where.startswith(("http://", "https://")):
        yield where.rstrip("/")
        return
    jars, java = sorted(Path(where).glob("*-runner.jar")), find_java()
    if not jars:
        not_to_be_had(f"{REGISTRY}={where} holds no *-runner.jar")
    if java is None:
        not_to_be_had("no Java, which the schema registry needs: install one, or set JAVA_HOME")
    port = free_ports(1)[0]
    settings = [f"-Dquarkus.http.port={port}", f"-Dquarkus.http.host={HOST}"]
    memory = ["-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    place = tmp_path_factory.mktemp("registry")
    process = KeptProcess(
        [[java.command, *memory, *settings, "-jar", str(jars[-1])]], log=place / "registry.log"
    )
    try:
        wait_until(
            lambda: _is_ready(process, port), REGISTRY_ANSWERS_WITHIN_S, "the schema registry to be ready"
        )
        yield f"http://{HOST}:{port}/apis/ccompat/v7"
    finally:
        process.stop()
        shutil.rmtree(place)


def _is_ready(process: KeptProcess, port: int) -> bool:
    assert process.exit_status() is None, f"the schema registry ended:\n{process.last_lines(40)}"
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/health/ready", timeout=2) as answer:
            return answer.status == 200
    except (
        urllib.error.HTTPError
    ) as error:  # 503 while it starts; an HTTPError is a response and holds a socket
        error.close()
        return False
    except OSError:
        return False
