"""What it takes to bring a cluster's topics in line with their layout. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from headrace.topics.layout import TopicLayout

# What is in these is work, or what has come of it: kept for longer than we would, it stays unless somebody asks.
KEPT_FOR_LONGER: Final = frozenset({"requests", "results", "dead"})
RETENTION: Final = frozenset({"retention.ms", "retention.bytes"})


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as the cluster has it. `configs` has the brokers' defaults too; None: the broker does not say."""

    partitions: int
    replication: int
    configs: Mapping[str, str | None] | None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The topics that are there; `unread`: how many records of each request topic its group has not done."""

    brokers: int
    topics: Mapping[str, FoundTopic]
    unread: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Create:
    """The topic is not there."""

    layout: TopicLayout

    @property
    def topic(self) -> str:
        return self.layout.name

    def __str__(self) -> str:
        configs = ", ".join(f"{name}={value}" for name, value in sorted(self.layout.configs.items()))
        return (
            f"{_count(self.layout.partitions, 'partition')} by {self.layout.key}, "
            f"{_count(self.layout.replication, 'replica')}, {configs}"
        )


@dataclass(frozen=True, slots=True)
class AlterConfig:
    """Configs that differ, by name: what is there (None: unset) and what is to be."""

    topic: str
    configs: Mapping[str, tuple[str | None, str]]

    def __str__(self) -> str:
        return ", ".join(f"{name}: {old} -> {new}" for name, (old, new) in sorted(self.configs.items()))


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """The topic has fewer partitions than it is to have."""

    topic: str
    found: int
    wanted: int

    def __str__(self) -> str:
        return f"partitions: {self.found} -> {self.wanted}"


@dataclass(frozen=True, slots=True)
class Refuse:
    """What is wanted cannot be done, or would do harm."""

    topic: str
    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Same:
    """The topic is as it is to be; `note` says what was left as it is."""

    topic: str
    note: str = ""

    def __str__(self) -> str:
        return self.note or "as it is to be"


Change: TypeAlias = Create | AlterConfig | AddPartitions | Refuse | Same


def diff(wanted: Sequence[TopicLayout], found: ClusterState, *, accept_reorder: bool = False) -> list[Change]:
    """What it takes to bring the cluster in line, in the order of `wanted`.

    The topics of a contract whose partitions are its units change together or not at all: when one of them may not
    get its partitions, none does. With `accept_reorder` partitions are added while requests are unread: a key that
    moves to another partition may then be served out of order.
    """
    obstacle = _units_obstacle(
        [each for each in wanted if each.partitioning == "units"], found, accept_reorder
    )
    changes: list[Change] = []
    for each in wanted:
        topic = found.topics.get(each.name)
        if topic is None:
            missing = obstacle if each.partitioning == "units" else ""
            changes.append(Refuse(each.name, missing) if missing else Create(each))
        else:
            changes += _differences(each, topic, obstacle)
    return changes


def differs(changes: Iterable[Change]) -> bool:
    """Whether anything is not as it is to be."""
    return any(not isinstance(change, Same) for change in changes)


def _differences(wanted: TopicLayout, found: FoundTopic, obstacle: str) -> list[Change]:
    changes: list[Change] = []
    notes: list[str] = []
    if found.partitions > wanted.partitions:
        if wanted.partitioning == "at_least":
            notes.append(f"has {found.partitions} partitions, more than {wanted.partitions}: left as it is")
        else:
            changes.append(Refuse(wanted.name, _cannot_shrink(wanted, found)))
    elif found.partitions < wanted.partitions:
        if wanted.partitioning == "units" and obstacle:
            changes.append(Refuse(wanted.name, obstacle))
        else:
            changes.append(AddPartitions(wanted.name, found.partitions, wanted.partitions))
    if found.configs is None:
        notes.append("its configs cannot be read on this broker and were not compared")
    else:
        configs = {
            name: (found.configs.get(name), value)
            for name, value in wanted.configs_at(found.replication).items()
            if found.configs.get(name) != value
        }
        longer = [name for name, (there, value) in configs.items() if _stays(wanted, name, there, value)]
        for name in longer:
            there, value = configs.pop(name)
            notes.append(f"{name} is {there}, longer than {value}: left as it is (--set alters it)")
        if configs:
            changes.append(AlterConfig(wanted.name, configs))
    if found.replication != wanted.replication:
        notes.append(
            f"has {_count(found.replication, 'replica')}, not {wanted.replication}: "
            "left as it is (kafka-reassign-partitions changes it)"
        )
    return changes or [Same(wanted.name, "; ".join(notes))]


def _stays(wanted: TopicLayout, config: str, there: str | None, value: str) -> bool:
    """Whether a topic keeps its records for longer than the layout says, without having been asked to."""
    if (
        config not in RETENTION
        or config in wanted.chosen
        or wanted.what not in KEPT_FOR_LONGER
        or there is None
    ):
        return False
    return _is_unlimited(there) or (not _is_unlimited(value) and int(there) > int(value))


def _is_unlimited(retention: str) -> bool:
    return retention.startswith("-")


def _units_obstacle(units: Sequence[TopicLayout], found: ClusterState, accept_reorder: bool) -> str:
    """Why the partitions of these topics may not be added to, "" if they may."""
    there = [(each, found.topics[each.name]) for each in units if each.name in found.topics]
    for each, topic in there:
        if topic.partitions > each.partitions:
            return f"{each.name}: {_cannot_shrink(each, topic)}"
    unread = {topic: count for topic, count in found.unread.items() if count > 0}
    grows = any(topic.partitions < each.partitions for each, topic in there)
    if grows and unread and not accept_reorder:
        counts = ", ".join(f"{count} in {topic}" for topic, count in sorted(unread.items()))
        return (
            f"requests are unread ({counts}), and with more partitions their keys would change units: "
            "wait until workers have answered them, or give --accept-reorder"
        )
    return ""


def _cannot_shrink(wanted: TopicLayout, found: FoundTopic) -> str:
    if wanted.partitioning == "units":
        remedy = f"give --partitions {found.partitions}, or delete the topic and what is in it"
    else:
        remedy = f"it must have {wanted.partitions}: delete the topic and what is in it"
    return f"has {_count(found.partitions, 'partition')}, and Kafka cannot take any away; {remedy}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
