"""Retiring a contract: looking at it, and removing what `ops/retirement.py` says, in that order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.consumers.contract_traffic import members_of, read_traffic
from headrace.consumers.contracts import ContractId, ContractRecords, contract_key
from headrace.consumers.control import ControlRecords, read_into
from headrace.ops.retirement import (
    Forget,
    Hindrance,
    Note,
    RemoveGroup,
    RemoveTopics,
    Standing,
    Step,
    TakeBack,
    count,
    hindrances,
    keys_of,
    without_note,
)
from headrace.producers.control import ContractWriter
from headrace.producers.kafka import PlainProducer
from headrace.schemas.errors import UsageError
from headrace.topics.names import ContractNames
from headrace.topics.removal import held_topics, remove_group, remove_topics, shadows_of

if TYPE_CHECKING:
    from headrace.consumers.records import Record
    from headrace.schemas.settings import Settings


def look(settings: Settings, of: ContractId, idle_s: float) -> Standing:
    """The contract as it stands now; changes nothing.

    Raises UsageError where nothing of it is there; TopicsError, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    names = ContractNames(settings.prefix, *of)
    contracts, control = ContractRecords(), ControlRecords()
    keys: dict[str, None] = {}

    def take(record: Record) -> None:
        contracts.take(record.key, record.value)
        control.take(record.key, record.value, record.offset)
        key = (record.key or b"").decode("utf-8", "replace")
        if record.value is None:
            keys.pop(key, None)
        else:
            keys[key] = None

    read_into(settings, take)
    traffic = read_traffic(settings, [names], idle_s)[names]
    shadows = shadows_of(settings, names.base)
    members = members_of(settings, list(shadows))
    own = [*names.request_topics, names.cancels, names.results, names.dead]
    topics = held_topics(settings, [*own, *(topic for topics in shadows.values() for topic in topics)])
    under_way = control.rollouts.open_rollout(names.group)
    frozen, begun = contracts.contracts.get(of), contracts.retired.get(of)
    schemas = [*(begun.result_schemas if begun is not None else ())]
    if frozen is not None and frozen.result_schema is not None:
        schemas.append(frozen.result_schema)
    found = Standing(
        names=names,
        traffic=traffic,
        idle_s=idle_s,
        topics=topics,
        keys=keys_of(names, keys),
        aliases=contracts.aliases_of(of),
        open_rollout=None if under_way is None else under_way[0],
        unreadable=contracts.unreadable.get(contract_key(*of).decode()),
        result_schemas=list(dict.fromkeys(schemas)),
        begun=begun,
        shadows={group: len(there) for group, there in members.items()},
    )
    if not found.is_anything:
        known = ", ".join(f"{model}/{number}" for model, number in sorted(contracts.contracts)) or "none"
        raise UsageError(f"there is nothing of contract {of[0]}/{of[1]} (frozen: {known})")
    return found


def retire(
    settings: Settings,
    standing: Standing,
    steps: Sequence[Step],
    *,
    results_too: bool,
    tell: Callable[[Step], None],
) -> list[Hindrance]:
    """Carry out the steps; `tell` hears of each when it is done. Returns what hinders it after all: then nothing was
    removed.

    The first step is the note that it is being removed. After it all is looked at once more: workers and endpoints that
    start from now on keep away, and who was quicker is seen. A request that a caller sends within the moment between
    that look and the removal of the topics is lost; callers that wait for their result will know.
    Raises TopicsError, KafkaUnavailable, KafkaFailed, BrokerNotFound: retiring again goes on from there.
    """
    producer = PlainProducer(settings)
    try:
        writer = ContractWriter(producer, prefix=settings.prefix)
        first, *others = steps
        assert isinstance(first, Note), "a removal begins with the note of it"
        writer.retire(first.retirement)
        found = _come_meanwhile(settings, standing, results_too)
        if found and (standing.is_untouched or not standing.is_half_removed):
            _carry_out(settings, writer, standing, without_note(standing))
        if found:
            return found
        tell(first)
        for step in others:
            _carry_out(settings, writer, standing, step)
            tell(step)
    finally:
        producer.close()
    return []


def give_up(settings: Settings, standing: Standing) -> bool:
    """Take the note of a removal back that was interrupted before anything was removed; whether there was one.

    Raises KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    if not (standing.is_half_removed and standing.is_untouched):
        return False
    producer = PlainProducer(settings)
    try:
        writer = ContractWriter(producer, prefix=settings.prefix)
        _carry_out(settings, writer, standing, without_note(standing))
    finally:
        producer.close()
    return True


def _come_meanwhile(settings: Settings, standing: Standing, results_too: bool) -> list[Hindrance]:
    names = standing.names
    now = look(settings, (names.model, names.contract), standing.idle_s)
    found = hindrances(now, results_too=results_too)
    came = sum(max(0, end - standing.traffic.ends.get(tp, 0)) for tp, end in now.traffic.ends.items())
    if came and not now.traffic.recent:
        found.append(Hindrance(f"asked just now: {count(came, 'request')}", "move whoever sends them"))
    return found


def _carry_out(settings: Settings, writer: ContractWriter, standing: Standing, step: Step) -> None:
    match step:
        case Note(retirement):
            writer.retire(retirement)
        case TakeBack(keys):
            writer.take_back([key.encode() for key in keys])
        case RemoveTopics(topics):
            remove_topics(settings, topics)
        case RemoveGroup(group):
            remove_group(settings, group)
        case Forget():
            writer.forget_retirement(standing.names.model, standing.names.contract)
