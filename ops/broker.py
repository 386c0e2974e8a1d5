"""Find a broker, or start one that goes when we go.

    with find_or_start(settings, BrokerNeeds(several_workers=True), on_progress=print) as broker:
        ... broker.bootstrap_servers ...

The order stands in `broker_choice.choose`: HEADRACE_BOOTSTRAP_SERVERS, KAFKA_HOME, what
`headrace broker install` fetched, Docker, the embedded one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headrace.ops import broker_docker, broker_embedded, broker_install, broker_ready, kafka_process
from headrace.ops.broker_choice import BrokerNeeds, Choice, Found, Kind, choose
from headrace.ops.java import find_java
from headrace.schemas.errors import BrokerNotFound, KafkaUnavailable, SettingsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from headrace.schemas.settings import Settings

__all__ = ["BrokerNeeds", "RunningBroker", "find_or_start", "look_around"]

GIVEN_ANSWERS_WITHIN_S = 15.0

DATA_GOES = "its data is gone when it stops"
ONE_COPY = "one broker: each record has one copy"


class RunningBroker:
    """A broker that answers. `stop()`, or the end of the `with` block, ends it if we started it.

    `limits` says, a line each, what it does not promise; empty for a given one, which we know nothing about.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        kind: Kind,
        limits: list[str],
        *,
        stop: Callable[[], None] = lambda: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.kind: Kind = kind
        self.limits = limits
        self._stop = stop
        self._check = check

    def check(self) -> None:
        """Raises BrokerFailed, with the end of its log, when a broker that we started has ended by itself."""
        self._check()

    def stop(self) -> None:
        """End it and wait until it is gone. May be called again."""
        stop, self._stop = self._stop, lambda: None
        stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def look_around(settings: Settings) -> Found:
    """What `choose` decides from; nothing more is looked for once one of the two variables settles it."""
    if settings.bootstrap_servers:
        return Found(bootstrap_servers=settings.bootstrap_servers)
    home, java = os.environ.get("KAFKA_HOME"), find_java()
    if home:
        return Found(
            kafka_home=Path(home), kafka_home_is_kafka=kafka_process.holds_kafka(Path(home)), java=java
        )
    return Found(
        java=java,
        installed=broker_install.newest_installed(settings.cache_dir),
        docker=broker_docker.docker_answers(),
        embedded=broker_embedded.embedded_binary(),
    )


def find_or_start(
    settings: Settings,
    needs: BrokerNeeds | None = None,
    *,
    brokers: int = 1,
    port: int | None = None,
    data_dir: Path | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> RunningBroker:
    """A broker that answers: the given one, or one started here at `port` (else a free one).

    Data that lies in `data_dir` stays; without it, nothing is left afterwards.
    Raises BrokerNotFound (none, or the given one does not answer), BrokerFailed (it did not start) and
    UsageError (the port is in use, or `data_dir` was asked for where it cannot be had).
    """
    found = look_around(settings)
    choice = choose(found, needs or BrokerNeeds(), brokers=brokers)
    if choice.kind == "given":
        return _given(choice, settings)
    _refuse_security(settings)
    if choice.kind in ("kafka_home", "installed"):
        return _start_kafka(choice, found, brokers, port, data_dir, on_progress)
    if data_dir is not None:
        raise UsageError(
            f"the {choice.kind} broker keeps no data: leave out --data, or set KAFKA_HOME, "
            "or run `headrace broker install`"
        )
    if choice.kind == "docker":
        container = broker_docker.start_container(port=port, on_progress=on_progress)
        limits = [ONE_COPY, DATA_GOES]
        return RunningBroker(container.address, "docker", limits, stop=container.stop, check=container.check)
    embedded = broker_embedded.start_embedded(Path(choice.place), port=port, on_progress=on_progress)
    limits = list(broker_embedded.LIMITS)
    return RunningBroker(embedded.address, "embedded", limits, stop=embedded.stop, check=embedded.check)


def _given(choice: Choice, settings: Settings) -> RunningBroker:
    options = settings.kafka.client_options()
    try:
        broker_ready.brokers_that_answer(choice.place, options, GIVEN_ANSWERS_WITHIN_S)
    except KafkaUnavailable as error:
        raise BrokerNotFound(
            f"HEADRACE_BOOTSTRAP_SERVERS={choice.place} did not answer within "
            f"{GIVEN_ANSWERS_WITHIN_S:.0f} s ({error.message}): "
            "check the address and the security settings HEADRACE_KAFKA_*, or unset it"
        ) from error
    return RunningBroker(choice.place, "given", [])


def _start_kafka(
    choice: Choice,
    found: Found,
    brokers: int,
    port: int | None,
    data_dir: Path | None,
    on_progress: Callable[[str], None],
) -> RunningBroker:
    java = found.java
    assert java is not None, "choose() has seen to it"
    cluster = kafka_process.start_cluster(
        Path(choice.place),
        java.command,
        brokers=brokers,
        port=port,
        data_dir=data_dir,
        on_progress=on_progress,
    )
    limits = [ONE_COPY] if brokers == 1 else ["all brokers are on this machine"]
    limits += [DATA_GOES] if data_dir is None else []
    return RunningBroker(
        cluster.bootstrap_servers, choice.kind, limits, stop=cluster.stop, check=cluster.check
    )


def _refuse_security(settings: Settings) -> None:
    """A broker started here speaks plain text on this machine: clients told otherwise could not reach it."""
    if settings.kafka.security_protocol != "PLAINTEXT":
        raise SettingsError(
            f"HEADRACE_KAFKA_SECURITY_PROTOCOL={settings.kafka.security_protocol} without "
            "HEADRACE_BOOTSTRAP_SERVERS: a broker started here speaks PLAINTEXT; "
            "set the one or unset the other"
        )
