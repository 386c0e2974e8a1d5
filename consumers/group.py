"""What can be asked of a group without being in it, and the calls that all our consumers make."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Literal

from headrace.consumers.connection import client_options, connect, translate
from headrace.consumers.kafka_client import FetchingConsumer, kafka_partition
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.untyped_kafka import MemberToRemove
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.schemas.errors import KafkaUnavailable
from headrace.topics.admin import open_admin

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping

    from headrace.schemas.settings import Settings

CALL_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0
# One try at the committed offsets: the broker gives no answer while a transaction over them is open.
COMMITTED_TRY_S = 2.0


def read_committed_offsets(
    settings: Settings, group: str, partitions: Collection[TopicPartition], deadline_s: float
) -> dict[TopicPartition, CommitPoint | None]:
    """What a group has committed for each partition, read anew without joining it; None: nothing.

    Waits for the end of a transaction that is open over them, `deadline_s` seconds in all: the answer is
    final.
    Raises KafkaUnavailable, KafkaFailed.
    """
    started = time.monotonic()
    with asking_about(settings, group, isolation="read_committed", within_s=deadline_s) as client:
        return committed_points(client, group, partitions, deadline_s - (time.monotonic() - started))


@contextlib.contextmanager
def asking_about(
    settings: Settings,
    group: str,
    *,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_uncommitted",
    within_s: float | None = None,
) -> Generator[FetchingConsumer]:
    """A client that is asked about a group, and does not join it. Raises KafkaUnavailable, KafkaFailed, BrokerNotFound.

    `read_uncommitted` does not wait for the end of a transaction that is open over the group's offsets.
    """
    within = {} if within_s is None else {"bootstrap_timeout_ms": max(1, int(within_s * 1000))}
    with translated(f"connecting to ask about group {group}"):
        client: FetchingConsumer = connect(
            FetchingConsumer,
            **client_options(settings) | within,
            group_id=group,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level=isolation,
        )
    try:
        yield client
    finally:
        client.close(autocommit=False, timeout_ms=int(CLOSE_TIMEOUT_S * 1000))


def remove_member(settings: Settings, group: str, slot: str) -> bool:
    """Take a slot out of its group, so that its partitions move now and not when its session times out.

    False: the group has no such member. Raises KafkaUnavailable, KafkaFailed.
    """
    with open_admin(settings, f"removing slot {slot} from group {group}") as admin:
        answers: Mapping[Any, Any] = admin.remove_group_members(
            group, [MemberToRemove(group_instance_id=slot)]
        )
        for answer in answers.values():
            if answer is kafka_errors.UnknownMemberIdError:
                return False
            if answer is not kafka_errors.NoError:
                raise answer
    return True


@contextlib.contextmanager
def translated(doing: str) -> Generator[None]:
    try:
        yield
    except kafka_errors.KafkaError as error:
        raise translate(error, doing) from error


def log_offsets(
    client: FetchingConsumer, which: str, partitions: Iterable[TopicPartition], timeout_s: float
) -> dict[TopicPartition, int]:
    wanted = [kafka_partition(tp) for tp in partitions]
    names = ", ".join(sorted({tp.topic for tp in wanted}))
    with translated(f"{which.replace('_', ' ')} of {names} (do the topics exist?)"):
        try:
            found: Mapping[Any, int] = getattr(client, which)(wanted, timeout_ms=int(timeout_s * 1000))
        except KeyError as unknown:  # the client's, for a partition that its newest metadata does not have
            raise KafkaUnavailable(f"{names}: the brokers do not know {unknown} just now") from unknown
    return {TopicPartition(*tp): offset for tp, offset in found.items()}


def committed_points(
    client: FetchingConsumer, group: str, partitions: Collection[TopicPartition], deadline_s: float
) -> dict[TopicPartition, CommitPoint | None]:
    deadline = time.monotonic() + deadline_s
    wanted = [kafka_partition(tp) for tp in partitions]
    while True:
        timeout_s = min(COMMITTED_TRY_S, max(0.0, deadline - time.monotonic()))
        try:
            with translated(f"reading the committed offsets of group {group}"):
                found = client.committed_offsets(wanted, timeout_s)
        except KafkaUnavailable:
            if time.monotonic() >= deadline:
                raise
        else:
            return {TopicPartition(*tp): _point(found.get(tp)) for tp in wanted}


def _point(found: Any) -> CommitPoint | None:
    return None if found is None else CommitPoint(found.offset, found.metadata or "")
