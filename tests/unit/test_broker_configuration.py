"""What the brokers that we start are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ops.broker_docker import container_environment
from headrace.ops.broker_embedded import broker_command
from headrace.ops.broker_install import parse_sha512
from headrace.ops.java import Java, find_java, major_version
from headrace.ops.kafka_process import Node, server_properties
from headrace.ops.pins import pins

ONE = [Node(1, 9092, 9093)]
THREE = [Node(1, 9092, 9095), Node(2, 9093, 9096), Node(3, 9094, 9097)]


def test_one_node_keeps_one_copy_of_everything() -> None:
    properties = server_properties(ONE[0], ONE, Path("/data"))
    copies = {name: value for name, value in properties.items() if name.endswith("replication.factor")}
    assert set(copies) == {
        "default.replication.factor",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "share.coordinator.state.topic.replication.factor",
    }
    assert set(copies.values()) == {"1"}
    assert properties["min.insync.replicas"] == properties["transaction.state.log.min.isr"] == "1"


def test_three_nodes_keep_three_copies_and_go_on_with_two() -> None:
    properties = server_properties(THREE[1], THREE, Path("/data"))
    copies = {value for name, value in properties.items() if name.endswith("replication.factor")}
    assert copies == {"3"}
    assert properties["min.insync.replicas"] == properties["transaction.state.log.min.isr"] == "2"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:9095,2@127.0.0.1:9096,3@127.0.0.1:9097"
    assert properties["node.id"] == "2"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9093"


def test_no_client_makes_a_topic_by_accident_and_dead_transactions_end_soon() -> None:
    properties = server_properties(ONE[0], ONE, Path("/data"))
    assert properties["auto.create.topics.enable"] == "false"
    assert properties["transaction.abort.timed.out.transaction.cleanup.interval.ms"] == "1000"
    assert int(properties["group.min.session.timeout.ms"]) <= 1000


def test_the_container_listens_everywhere_inside_and_advertises_what_clients_reach() -> None:
    environment = container_environment("10.1.2.3", 29092)
    assert environment["KAFKA_LISTENERS"] == "PLAINTEXT://0.0.0.0:29092,CONTROLLER://127.0.0.1:9093"
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://10.1.2.3:29092"
    assert environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] == "1@127.0.0.1:9093"
    assert environment["KAFKA_PROCESS_ROLES"] == "broker,controller"
    assert environment["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    assert environment["KAFKA_INTER_BROKER_LISTENER_NAME"] == "PLAINTEXT"


def test_the_containers_variables_name_each_server_property() -> None:
    inside = server_properties(ONE[0], ONE, "/tmp/kraft-combined-logs")
    names = {name.removeprefix("KAFKA_").lower().replace("_", ".") for name in container_environment("h", 1)}
    assert names == {*inside, "inter.broker.listener.name"}


def test_the_embedded_broker_keeps_its_data_in_memory_and_listens_on_this_machine_only() -> None:
    command = broker_command(Path("/bin/tansu"), 29092)
    assert command[command.index("--storage-engine") + 1] == "memory://tansu/"
    assert command[command.index("--listener-url") + 1] == "tcp://127.0.0.1:29092"
    assert command[command.index("--advertised-listener-url") + 1] == "tcp://127.0.0.1:29092"


@pytest.mark.parametrize(
    ("printed", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_javas_major_version_is_read_from_what_it_prints(printed: str, major: int | None) -> None:
    assert major_version(printed) == major


def test_java_8_and_11_do_not_run_kafka() -> None:
    assert [Java("java", major).runs_kafka for major in (8, 11, 16, 17, 21)] == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_no_java_on_the_path_is_none(tmp_path: Path) -> None:
    assert find_java({"PATH": str(tmp_path)}) is None


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    for place, version in (("home/bin", "21.0.1"), ("path", "17.0.1")):
        (tmp_path / place).mkdir(parents=True)
        command = tmp_path / place / "java"
        command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        command.chmod(0o755)
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{tmp_path}/path:/bin:/usr/bin"})
    assert found == Java(str(tmp_path / "home/bin/java"), 21)


DIGEST = "0123456789abcdef" * 8


def test_a_checksum_is_read_in_the_form_that_apache_publishes() -> None:
    groups = [DIGEST[i : i + 8].upper() for i in range(0, 128, 8)]
    lines = [" ".join(groups[i : i + 4]) for i in range(0, 16, 4)]
    text = "kafka_2.13-4.3.1.tgz: " + "\n                      ".join(lines) + "\n"
    assert parse_sha512(text) == DIGEST


def test_a_checksum_is_read_where_the_name_stands_on_a_line_of_its_own() -> None:
    assert parse_sha512(f"kafka_2.13-4.3.1.tgz:\n{DIGEST[:64]}\n{DIGEST[64:]}\n") == DIGEST


def test_a_checksum_is_read_in_the_form_of_sha512sum() -> None:
    assert parse_sha512(f"{DIGEST}  kafka_2.13-4.3.1.tgz\n") == DIGEST


@pytest.mark.parametrize(
    "text", ["", "<html>not here</html>", "kafka_2.13-4.3.1.tgz: 0123 4567", DIGEST[:-1]]
)
def test_a_text_without_a_whole_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no SHA-512"):
        parse_sha512(text)


def test_the_pinned_image_is_of_the_pinned_version() -> None:
    assert pins().kafka_image == f"apache/kafka:{pins().kafka_version}"
    assert all(base.startswith("https://") for base in pins().kafka_releases)
