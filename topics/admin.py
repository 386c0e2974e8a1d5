"""kafka-python's admin client as `topics` uses it, and what its errors mean there."""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.schemas.errors import BrokerNotFound, HeadraceError, KafkaFailed, KafkaUnavailable, TopicsError

if TYPE_CHECKING:
    from collections.abc import Generator

    from headrace.schemas.settings import Settings

# kafka-python ships no types.
KafkaAdminClient: Any = import_module("kafka").KafkaAdminClient
KafkaTopicPartition: Any = import_module("kafka").TopicPartition
ConfigResource: Any = import_module("kafka.admin").ConfigResource
kafka_errors: Any = import_module("kafka.errors")

CONNECT_TIMEOUT_MS = 10_000  # a command that finds no broker says so soon


@contextlib.contextmanager
def open_admin(settings: Settings, doing: str) -> Generator[Any]:
    """An admin client; `doing` says what for in the errors ("reading the topics").

    Raises BrokerNotFound where no bootstrap servers are set, KafkaUnavailable, TopicsError and KafkaFailed.
    """
    if not settings.bootstrap_servers:
        raise BrokerNotFound("no Kafka to connect to: set HEADRACE_BOOTSTRAP_SERVERS to host:port")
    admin = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        try:
            admin.__init__(
                bootstrap_servers=[each.strip() for each in settings.bootstrap_servers.split(",")],
                bootstrap_timeout_ms=CONNECT_TIMEOUT_MS,
                **settings.kafka.client_options(),
            )
            # The embedded broker names rights that Kafka does not know. Nobody here asks for any.
            admin._process_acl_operations = _as_it_stands
            yield admin
        finally:
            # A constructor that found no broker has left a thread and sockets, and close() would do nothing.
            if hasattr(admin, "_net"):
                admin.__dict__.setdefault("_closed", False)
                admin.close()
    except kafka_errors.KafkaError as error:
        raise _translated(error, doing) from error


def _as_it_stands(described: dict[str, Any]) -> dict[str, Any]:
    return described


def refused(code: int, message: object, doing: str) -> HeadraceError:
    """Our error for an error code that stood in a response, with the broker's own words where it has some."""
    return _translated(kafka_errors.for_code(code)(message or ""), doing)


def _translated(error: Any, doing: str) -> HeadraceError:
    name, said = type(error).__name__, str(error)
    text = f"{doing}: {said}" if name in said else f"{doing}: {name}: {said}"
    if isinstance(error, kafka_errors.InvalidReplicationFactorError):
        return TopicsError(f"{text}; give --replication no more than there are brokers")
    if isinstance(error, kafka_errors.TopicAlreadyExistsError):
        return TopicsError(
            f"{text}; another process made it at the same time: run `headrace topics apply` again"
        )
    if isinstance(
        error,
        (
            kafka_errors.InvalidConfigurationError,
            kafka_errors.PolicyViolationError,
            kafka_errors.InvalidPartitionsError,
            kafka_errors.InvalidRequestError,
            kafka_errors.InvalidTopicError,
        ),
    ):
        return TopicsError(text)
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
        return TopicsError(f"{text}; use Apache Kafka, or delete the topic and make it anew")
    if isinstance(error, kafka_errors.AuthorizationError):
        return KafkaFailed(
            f"{text}; grant this client's principal what `headrace topics` needs on the cluster"
        )
    if isinstance(error, (kafka_errors.RetriableError, kafka_errors.UnrecognizedBrokerVersion)):
        return KafkaUnavailable(f"{text}; check HEADRACE_BOOTSTRAP_SERVERS and that the brokers are up")
    return KafkaFailed(text)
