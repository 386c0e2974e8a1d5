"""How every kafka-python client of ours connects, and what its errors mean to us."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from headrace.consumers.untyped_kafka import KafkaNetClient
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.schemas.errors import (
    BrokerNotFound,
    HeadraceError,
    KafkaFailed,
    KafkaUnavailable,
    ResultTooLarge,
    SlotTaken,
    StaleGeneration,
)

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

logger = logging.getLogger(__name__)

# kafka-python waits up to 30 s before it tries a broker again: then an outage of 20 s costs 50.
RECONNECT_BACKOFF_MAX_MS = 1_000
# kafka-python 3.0.12 takes `allow_auto_create_topics` and does not hand it on: every client asks for its
# topics to be made. So it is set once more where it counts, in the `config` of a client's cluster metadata.
METADATA_OPTIONS = {"allow_auto_create_topics": False}
BOOTSTRAP_TIMEOUT_MS = 30_000
OUTAGE_FIRST_LOG_AFTER_S = 5.0  # finding the coordinator takes a moment at every start
OUTAGE_LOG_INTERVAL_S = 60.0


def connection_options(settings: Settings) -> dict[str, Any]:
    """Keyword arguments that every kafka-python client of ours is made with.

    Raises BrokerNotFound where no bootstrap servers are set.
    """
    if not settings.bootstrap_servers:
        raise BrokerNotFound("no Kafka to connect to: set HEADRACE_BOOTSTRAP_SERVERS to host:port")
    return {
        "bootstrap_servers": [address.strip() for address in settings.bootstrap_servers.split(",")],
        "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
        "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
        **settings.kafka.client_options(),
    }


def client_options(settings: Settings) -> dict[str, Any]:
    """`connection_options`, and what consumers and producers share beyond them."""
    return {
        **connection_options(settings),
        **METADATA_OPTIONS,
        "metrics_enabled": False,  # nobody reads kafka-python's own; ours are Prometheus'
    }


def connect(client_class: Any, **options: Any) -> Any:
    """Make a kafka-python client. Raises its errors.

    A constructor that finds no broker leaves its sockets and its thread behind: here they are closed.
    """
    made: list[Any] = []

    def network(**configs: Any) -> Any:
        made.append(KafkaNetClient(**configs))
        return made[0]

    try:
        return client_class(kafka_client=network, **options)
    except BaseException:
        for client in made:
            client.close()
        raise


def translate(error: BaseException, doing: str) -> HeadraceError:
    """Our error for one of kafka-python's; `doing` says what was tried ("joining group g")."""
    if isinstance(error, HeadraceError):
        return error
    name, said = type(error).__name__, str(error)
    # Some of the client's errors name themselves.
    text = (
        f"{doing}: {said}"
        if said.startswith(name)
        else f"{doing}: {name}: {said}"
        if said
        else f"{doing}: {name}"
    )
    if isinstance(error, kafka_errors.FencedInstanceIdError):
        return SlotTaken(f"{doing}: another process runs with this slot; give each its own with --slot")
    if isinstance(
        error,
        (
            kafka_errors.CommitFailedError,
            kafka_errors.IllegalGenerationError,
            kafka_errors.UnknownMemberIdError,
            kafka_errors.RebalanceInProgressError,
        ),
    ):
        return StaleGeneration(text)
    if isinstance(error, (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)):
        return ResultTooLarge(
            f"{text}; raise the topic's max.message.bytes, or lower HEADRACE_MAX_RECORD_BYTES"
        )
    if isinstance(error, (kafka_errors.RetriableError, kafka_errors.UnrecognizedBrokerVersion)):
        return KafkaUnavailable(f"{text}; check HEADRACE_BOOTSTRAP_SERVERS and that the brokers are up")
    if isinstance(error, kafka_errors.AuthorizationError):
        return KafkaFailed(f"{text}; grant this client's principal the access that it lacks")
    return KafkaFailed(text)


class OutageLog:
    """Says that a broker cannot be reached: after 5 s, then once a minute for as long as it lasts."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = None
        self._next_log = 0.0

    def failed(self, error: BaseException) -> None:
        """One more try has failed."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._next_log = now, now + OUTAGE_FIRST_LOG_AFTER_S
        if now < self._next_log:
            return
        self._next_log = now + OUTAGE_LOG_INTERVAL_S
        logger.warning(
            "%s: no answer from Kafka for %.0f s (%s); trying on",
            self._what,
            now - self._since,
            type(error).__name__,
        )

    def succeeded(self) -> None:
        """It works, or works again."""
        if self._since is not None and time.monotonic() - self._since >= OUTAGE_FIRST_LOG_AFTER_S:
            logger.warning("%s: Kafka answers again", self._what)
        self._since = None
