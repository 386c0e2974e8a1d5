"""What hinders a contract's retirement, and what it takes away in which order. Pure.

The order, and why:

1. A record that it is being removed: from here on it is seen as such, cannot be opened or served, and can be retired
   again, which does what is left.
2. The frozen contract and what its workers said that they serve: endpoints know it no more, and refuse callers instead
   of leaving them waiting.
3. Its topics. Before its group: a group without offsets beside requests would have them answered twice.
4. Its group, which the brokers refuse while it has members; so too those of versions in its shadow.
5. What the control topic has of the group. Last: a partition that is known and has no offsets is never answered from
   its beginning.
6. The first record: taken back, or, where results were kept, what it takes to read them.

Each step can be done again, and what is done already is not there to be removed any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from headrace.consumers.catalogue import SERVING
from headrace.consumers.contracts import contract_key
from headrace.consumers.control import ACCEPT, PARTITION
from headrace.consumers.retirements import Retirement
from headrace.consumers.rollouts import KINDS as ROLLOUT_KINDS

if TYPE_CHECKING:
    from headrace.consumers.contract_traffic import ContractTraffic
    from headrace.topics.names import ContractNames
    from headrace.topics.removal import HeldTopic


@dataclass(frozen=True, slots=True)
class Standing:
    """A contract that somebody wants to retire, as it was found. `traffic.recent` counts the requests that came
    within `idle_s` seconds."""

    names: ContractNames
    traffic: ContractTraffic
    idle_s: float
    topics: Sequence[HeldTopic]  # that are there, those of versions in its shadow too
    keys: Sequence[str]  # of its records in the control topic, but for the one that it is being removed
    aliases: Sequence[str] = ()
    open_rollout: str | None = None
    unreadable: str | None = None  # why its frozen record cannot be read
    result_schemas: Sequence[str] = ()  # Avro, as JSON texts: of its results, and of those kept before
    begun: Retirement | None = None  # it was retired, or is being
    shadows: Mapping[str, int] = field(
        default_factory=dict[str, int]
    )  # workers by group, of versions in its shadow

    @property
    def is_half_removed(self) -> bool:
        """Whether a removal has begun and not ended."""
        return self.begun is not None and self.begun.is_removing

    @property
    def is_untouched(self) -> bool:
        """Whether it is certain that nothing was removed: the frozen record would be the first."""
        return contract_key(self.names.model, self.names.contract).decode() in self.keys

    @property
    def is_anything(self) -> bool:
        """Whether there is something to remove."""
        return bool(self.topics or self.keys or self.traffic.has_group or self.begun is not None)

    @property
    def is_retired(self) -> bool:
        """Whether nothing but what a retirement has kept is there."""
        left = {each.name for each in self.topics}
        return (
            self.begun is not None
            and not self.begun.is_removing
            and not (self.keys or self.traffic.has_group)
            and left <= set(self.begun.kept)
        )


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why a contract cannot be retired now, and what to do about it."""

    why: str
    remedy: str


# --- what hinders ---


def hindrances(standing: Standing, *, results_too: bool) -> list[Hindrance]:
    """All that stands against a retirement; none: it may be removed."""
    names, traffic = standing.names, standing.traffic
    contract = f"{names.model}/{names.contract}"
    found: list[Hindrance] = []
    for alias in standing.aliases:
        found.append(
            Hindrance(
                f"the alias {alias} means it",
                f"`headrace contracts alias {alias} MODEL/NUMBER` lets it mean another one, "
                f"`headrace contracts alias {alias} --remove` none",
            )
        )
    if standing.open_rollout is not None:
        found.append(
            Hindrance(
                f"rollout {standing.open_rollout} is under way",
                f"`headrace rollout rollback {names.model} --contract {names.contract}` ends it, "
                "`headrace rollout promote` finishes it",
            )
        )
    if live := traffic.live():
        workers = ", ".join(
            f"{members} of version {version or '?'}" for version, members in sorted(live.items())
        )
        found.append(Hindrance(f"live: {count(sum(live.values()), 'worker')} ({workers})", "stop them"))
    for group, workers in sorted(standing.shadows.items()):
        if workers:
            found.append(Hindrance(f"live in its shadow: {count(workers, 'worker')} of {group}", "stop them"))
    if not live and not traffic.is_stable:
        found.append(
            Hindrance("its group is rebalancing: a worker comes or goes", "wait for that, and look again")
        )
    if traffic.waiting:
        found.append(
            Hindrance(
                f"not done: {count(traffic.waiting, 'request')}",
                "let a worker answer them: every request gets its result",
            )
        )
    if traffic.recent:
        found.append(
            Hindrance(
                f"{count(traffic.recent, 'request')} came within {shown_duration(standing.idle_s)}",
                "move whoever sends them (`headrace contracts list` shows the last), and wait; --idle says how long",
            )
        )
    if standing.unreadable is not None and not results_too:
        found.append(
            Hindrance(
                f"its frozen record cannot be read ({standing.unreadable}), and its results may need the schema in it",
                f"`headrace contracts freeze DIR --replace-unreadable` writes it anew, --results-too removes the "
                f"results of {contract} as well",
            )
        )
    return found


# --- what is removed ---


@dataclass(frozen=True, slots=True)
class Note:
    """Write that the contract is being removed, or what is left of it."""

    retirement: Retirement


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Take records of the control topic back."""

    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class RemoveTopics:
    """Delete topics with all that is in them."""

    topics: Sequence[str]


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    """Delete the consumer group with its offsets."""

    group: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Take the note of the removal back: nothing of the contract is left."""


Step: TypeAlias = Note | TakeBack | RemoveTopics | RemoveGroup | Forget


def keys_of(names: ContractNames, keys: Iterable[str]) -> list[str]:
    """Those of the control topic's keys that are the contract's own, in order; neither aliases nor retirements."""
    return sorted(key for key in keys if _is_offer(names, key) or _is_of_group(names, key))


def _is_offer(names: ContractNames, key: str) -> bool:
    """Whether a record says that the contract can be asked."""
    frozen = contract_key(names.model, names.contract).decode()
    return key == frozen or key.startswith(f"{SERVING}/{names.model}/{names.contract}/")


def _is_of_group(names: ContractNames, key: str) -> bool:
    kind, group, *_ = (*key.split("/"), "")
    is_one = group == names.group or group.startswith(f"{names.base}.shadow.")
    return is_one and kind in (PARTITION, ACCEPT, *ROLLOUT_KINDS)


def kept_topics(names: ContractNames, *, results_too: bool) -> list[str]:
    """The topics that a retirement leaves."""
    return [] if results_too else [names.results, names.dead]


def removal(standing: Standing, *, results_too: bool, by: str, at_ms: int) -> list[Step]:
    """What a retirement does, in order. What is not there any more has no step, but for the note at its ends."""
    names = standing.names
    there = [each.name for each in standing.topics]
    kept = [topic for topic in kept_topics(names, results_too=results_too) if topic in there]
    schemas = tuple(standing.result_schemas) if names.results in kept else ()
    before = () if standing.begun is None else tuple(standing.begun.kept)
    note = Retirement(
        names.model, names.contract, "removing", by, at_ms, tuple(standing.result_schemas), before
    )
    steps: list[Step] = [Note(note)]
    if offers := [key for key in standing.keys if _is_offer(names, key)]:
        steps.append(TakeBack(offers))
    if gone := [topic for topic in there if topic not in kept]:
        steps.append(RemoveTopics(gone))
    if standing.traffic.has_group:
        steps.append(RemoveGroup(names.group))
    steps += [RemoveGroup(group) for group in sorted(standing.shadows)]
    if rest := [key for key in standing.keys if not _is_offer(names, key)]:
        steps.append(TakeBack(rest))
    if kept:
        steps.append(Note(replace(note, state="removed", result_schemas=schemas, kept=tuple(kept))))
    else:
        steps.append(Forget())
    return steps


def without_note(standing: Standing) -> Note | Forget:
    """What to write of a retirement that was given up before anything was removed: what was there before it."""
    begun = standing.begun
    if begun is None or not begun.kept:
        return Forget()
    return Note(replace(begun, state="removed"))


# --- telling it ---


def told(standing: Standing, steps: Sequence[Step], *, results_too: bool) -> list[str]:
    """What would be removed and what stays, a line each."""
    names = standing.names
    held = {each.name: each for each in standing.topics}
    lines: list[str] = []
    for step in steps:
        match step:
            case RemoveTopics(topics):
                lines += [f"topic   {_told_topic(held[topic])}" for topic in topics]
            case RemoveGroup(group):
                lines.append(f"group   {group} and its offsets")
            case TakeBack(keys):
                lines += _told_keys(keys)
            case Note() | Forget():
                pass
    kept = [held[topic] for topic in kept_topics(names, results_too=results_too) if topic in held]
    lines += [f"kept    {_told_topic(each)}" for each in kept]
    return lines


def _told_keys(keys: Sequence[str]) -> list[str]:
    """A line for each record, but one for all of a kind where a group has one for each of its partitions."""
    alike = Counter(
        "/".join(key.split("/")[:2]) for key in keys if key.startswith((f"{PARTITION}/", f"{ACCEPT}/"))
    )
    others = [f"record  {key}" for key in keys if not key.startswith((f"{PARTITION}/", f"{ACCEPT}/"))]
    return [
        *others,
        *(f"record  {start}/...: {count(number, 'record')}" for start, number in sorted(alike.items())),
    ]


def _told_topic(topic: HeldTopic) -> str:
    size = "" if topic.size is None else f", {shown_size(topic.size)}"
    return f"{topic.name}: {count(topic.partitions, 'partition')}, {count(topic.records, 'record')}{size}"


def shown_size(size: int) -> str:
    """Bytes, as KiB and more."""
    amount, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"


def shown_duration(seconds: float) -> str:
    """`90 s`, `10 min`, `36 h`."""
    for unit, name in ((3_600, "h"), (60, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


def count(number: int, what: str) -> str:
    """`1 request`, `1,000 requests`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
