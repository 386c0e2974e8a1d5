"""What each topic is to look like: partitions, replicas, retention, sizes. Pure.

Three kinds of partitions. `units`: a key's partition is its unit, which one worker serves, so their number changes
only when nothing is waiting, and on all of a contract's request lanes and its results at once. `exact`: the number
is part of what the topic is. `at_least`: more do no harm and are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from headrace.schemas.errors import SettingsError
from headrace.topics.names import ContractNames, ShadowNames, control_topic, replies_topic

Partitioning = Literal["units", "exact", "at_least"]

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MIB = 1024 * 1024

DEFAULT_PARTITIONS = 16  # of the request lanes and results: the number of units
DEAD_PARTITIONS = 4  # dead letters are few, and each partition costs its replicas
REPLY_PARTITIONS = 32
REPLICATION = 3  # where there are as many brokers
REQUEST_BYTES = MIB  # of a request: the default of most producers
# `max.message.bytes` counts the whole record batch: its header, and keys and headers of the record beside the value.
BATCH_OVERHEAD_BYTES = 16 * 1024
UNLIMITED = "-1"


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """One topic as it is to be. `configs` has only what we set: all else is left to the brokers' defaults."""

    name: str
    what: str  # `requests`, `results`, `dead`, `cancels`, `replies`, `control`
    key: str  # what its records are keyed by
    partitions: int
    replication: int
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    partitioning: Partitioning = "at_least"
    chosen: frozenset[str] = frozenset()  # configs that somebody has asked for by name

    def configs_at(self, replication: int) -> Mapping[str, str]:
        """The configs for a topic that has another number of replicas than the layout's.

        What a topic of three replicas needs, two in sync, would keep one of a single replica from being written.
        """
        ours = _safe(self.replication)
        return (
            {**self.configs, **_safe(replication)} if ours.items() <= self.configs.items() else self.configs
        )


@dataclass(frozen=True, slots=True)
class Retention:
    """How long records are kept: milliseconds, and bytes of a partition.

    Requests go by size, not by age: a request that nobody has read yet must not vanish because it is old.
    """

    requests_bytes: int = 1024 * MIB
    results_ms: int = 7 * DAY_MS
    dead_ms: int = 90 * DAY_MS
    cancels_ms: int = HOUR_MS  # workers keep a cancel for an hour at most
    replies_ms: int = HOUR_MS


def default_replication(brokers: int) -> int:
    """Replicas of each partition where nobody says: three, or as many as there are brokers."""
    return max(1, min(REPLICATION, brokers))


def layout(
    names: ContractNames,
    *,
    partitions: int = DEFAULT_PARTITIONS,
    replication: int,
    retention: Retention | None = None,
    max_record_bytes: int,
) -> list[TopicLayout]:
    """The topics of a contract, and the two that all contracts of a prefix share.

    `partitions` is the number of units, `max_record_bytes` the size of the largest record of results, dead letters
    and replies. Raises SettingsError where one of the numbers cannot be.
    """
    if partitions < 1 or replication < 1:
        raise SettingsError(
            f"partitions ({partitions}) and replication ({replication}) are whole numbers from 1"
        )
    kept = retention or Retention()
    # A dead letter holds the whole request and more, so requests are half as large at most.
    small = {"max.message.bytes": str(min(REQUEST_BYTES, max_record_bytes // 2) + BATCH_OVERHEAD_BYTES)}
    large = {"max.message.bytes": str(max_record_bytes + BATCH_OVERHEAD_BYTES)}
    safe = _safe(replication)
    requests = small | safe | _deleted(retention_bytes=kept.requests_bytes) | _append_time()
    return [
        *(
            TopicLayout(
                lane, "requests", "the request's key, else its id", partitions, replication, requests, "units"
            )
            for lane in names.request_topics
        ),
        TopicLayout(
            names.results,
            "results",
            "the request's key, else its id",
            partitions,
            replication,
            large | safe | _deleted(retention_ms=kept.results_ms),
            "units",
        ),
        TopicLayout(
            names.dead,
            "dead",
            "the request's id",
            DEAD_PARTITIONS,
            replication,
            large | safe | _deleted(retention_ms=kept.dead_ms),
        ),
        TopicLayout(
            names.cancels,
            "cancels",
            "a request's id or a job",
            1,
            replication,
            small | safe | _deleted(retention_ms=kept.cancels_ms) | _append_time(),
        ),
        *_shared(names.prefix, replication, kept, large),
    ]


def shadow_layout(
    names: ShadowNames,
    *,
    units: int,
    replication: int,
    retention: Retention | None = None,
    max_record_bytes: int,
) -> list[TopicLayout]:
    """The topics of a version in the shadow of a contract that has so many units: its results and dead letters.

    Its results are in no order that anybody builds on, so partitions may be added at any time. Raises as `layout`.
    """
    wanted = layout(
        names,
        partitions=units,
        replication=replication,
        retention=retention,
        max_record_bytes=max_record_bytes,
    )
    return [
        replace(each, partitioning="at_least") for each in wanted if each.name in (names.results, names.dead)
    ]


def _shared(
    prefix: str, replication: int, kept: Retention, large: dict[str, str]
) -> tuple[TopicLayout, TopicLayout]:
    return (
        TopicLayout(
            replies_topic(prefix),
            "replies",
            "the correlation id",
            REPLY_PARTITIONS,
            replication,
            large | _safe(replication) | _deleted(retention_ms=kept.replies_ms) | _append_time(),
        ),
        TopicLayout(
            control_topic(prefix),
            "control",
            "the record's kind and name",
            1,
            replication,
            {"cleanup.policy": "compact"} | _safe(replication),
            "exact",
        ),
    )


def with_configs(
    layouts: Sequence[TopicLayout], overrides: Mapping[tuple[str, str], str]
) -> list[TopicLayout]:
    """The same with other configs: `{("requests", "retention.bytes"): "1000000"}` goes to all request lanes.

    Raises SettingsError for a kind of topic that there is not.
    """
    kinds = {each.what for each in layouts}
    for what, config in overrides:
        if what not in kinds:
            raise SettingsError(f"{what}.{config}: {what!r} is none of {', '.join(sorted(kinds))}")
    return [
        replace(
            each,
            configs={**each.configs, **own},
            chosen=each.chosen | own.keys(),
        )
        for each in layouts
        for own in [{name: value for (what, name), value in overrides.items() if what == each.what}]
    ]


def _deleted(*, retention_ms: int | None = None, retention_bytes: int | None = None) -> dict[str, str]:
    """Deleted by age or by size. Only closed segments are: one is closed after a quarter of its time, or an hour."""
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": UNLIMITED if retention_ms is None else str(retention_ms),
        "retention.bytes": UNLIMITED if retention_bytes is None else str(retention_bytes),
    }
    if retention_ms is not None and retention_ms < DAY_MS:
        configs["segment.ms"] = str(max(MINUTE_MS, retention_ms // 4))
    if retention_bytes is not None:
        configs["segment.bytes"] = str(max(MIB, min(256 * MIB, retention_bytes // 4)))
    return configs


def _append_time() -> dict[str, str]:
    """The broker's clock: a caller's may be wrong, and ages are reckoned from it."""
    return {"message.timestamp.type": "LogAppendTime"}


def _safe(replication: int) -> dict[str, str]:
    """An acknowledged record is on two brokers wherever one of three may fail."""
    return {"min.insync.replicas": "2" if replication >= 3 else "1"}
