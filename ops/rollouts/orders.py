"""What an operator says of rollouts: start one, pause it, go on, promote it, take it back."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.consumers.catalogue import CatalogueRecords
from headrace.consumers.control import ControlRecords, read_into
from headrace.consumers.group_members import look_at_group
from headrace.consumers.rollouts import (
    Limits,
    Planned,
    Rollback,
    Rollout,
    RolloutId,
    RolloutState,
    Wish,
    Wished,
    shown_shares,
)
from headrace.ops.operator_name import operator_name
from headrace.ops.rollouts.steps import steps_without_a_unit
from headrace.producers.control import RolloutWriter
from headrace.producers.kafka import PlainProducer
from headrace.schemas.errors import UsageError
from headrace.topics.names import ContractNames

if TYPE_CHECKING:
    from headrace.consumers.group_members import GroupLooker, GroupMembers
    from headrace.consumers.records import Record
    from headrace.consumers.sharing import Plan
    from headrace.schemas.settings import Settings

Found = tuple[ControlRecords, CatalogueRecords]

SETTLED_WITHIN_S = 15.0
LOOK_AGAIN_S = 0.2


def read_all(settings: Settings) -> Found:
    """What the control topic says now. Raises TopicsError where it does not exist, KafkaUnavailable, KafkaFailed."""
    control, catalogue = ControlRecords(), CatalogueRecords()

    def take(record: Record) -> None:
        control.take(record.key, record.value, record.offset)
        catalogue.take(record.key, record.value, record.offset)

    read_into(settings, take)
    return control, catalogue


def new_id(to: str, now_ms: int) -> str:
    """Version and time: `4.20261130T101500`. A version's slashes would end the id in its record's key."""
    return f"{to.replace('/', '_')}.{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}"


def start(
    settings: Settings, names: ContractNames, to: str, steps: Sequence[int], hold_s: float, limits: Limits
) -> tuple[RolloutId, Rollout]:
    """Begin a rollout of a contract to a version: its record, and a plan that keeps all as it is until the first step.

    Raises UsageError where one is under way, where the version serves another contract, where nothing else serves or
    a step would give the version no unit; TopicsError, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    control, catalogue = read_all(settings)
    under_way = control.rollouts.open_rollout(names.group)
    if under_way is not None:
        raise UsageError(
            f"rollout {under_way[0]} is under way: `headrace rollout status {names.model}` shows it, "
            f"`headrace rollout rollback {names.model}` ends it"
        )
    _refuse_another_contract(catalogue, names, to)
    with look_at_group(settings, names) as looker:
        group = _settled(looker)
    before = _before(group, control.rollouts.plan(names.group), to)
    now_ms = int(time.time() * 1000)
    rollout = Rollout(
        model=names.model,
        contract=names.contract,
        to=to,
        before=before,
        steps=list(steps),
        hold_s=hold_s,
        limits=limits,
        by=operator_name(),
        at=now_ms,
    )
    _refuse_empty_steps(rollout, group.units)
    of = (names.group, new_id(to, now_ms))
    with _writer(settings) as writer:
        writer.write(of, rollout, Planned(shares=before, step=0, at=now_ms))
    return of, rollout


def _refuse_another_contract(catalogue: CatalogueRecords, names: ContractNames, to: str) -> None:
    here = catalogue.versions.get((names.model, names.contract), {})
    elsewhere = sorted(
        number
        for (model, number), versions in catalogue.versions.items()
        if model == names.model and to in versions
    )
    if to in here or not elsewhere:
        return
    numbers = ", ".join(map(str, elsewhere))
    raise UsageError(
        f"version {to} serves contract {numbers} of {names.model}, and not {names.contract}: its interface is another "
        f"one, and traffic does not shift across. Let both serve, move the callers with `headrace contracts alias "
        f"{names.model} {names.model}/{elsewhere[-1]}`, and retire the old one when nobody asks it any more"
    )


def _settled(looker: GroupLooker) -> GroupMembers:
    """The group once no member is just joining or leaving: until then their versions are not known. After
    SETTLED_WITHIN_S as it is."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while True:
        group = looker.look()
        if (group.is_stable and "" not in group.live()) or time.monotonic() > deadline:
            return group
        time.sleep(LOOK_AGAIN_S)


def _before(group: GroupMembers, plan: Plan | None, to: str) -> dict[str, int]:
    """What serves beside the new version, as the assignor has it: by the plan, but for its versions without a worker;
    where none has one, by who has the units now. Of a group that does not settle, who lives is not known, and the plan
    is all that is. Raises UsageError where nothing serves."""
    live = {version: members for version, members in group.live().items() if version}
    shares: Mapping[str, int] = {} if plan is None else plan.shares
    followed = {
        version: weight
        for version, weight in shares.items()
        if weight and (live.get(version) or not group.is_stable)
    }
    if followed:
        # Units that others have still are on their way: what was taken back must not come back as a share.
        before = {version: weight for version, weight in followed.items() if version != to}
    else:
        there = live.keys() - {to}
        owned = {version: units for version, units in group.owned().items() if version in there and units}
        before = owned or dict.fromkeys(sorted(there), 1)
    if not before:
        planned = f" Planned is {shown_shares(shares)}." if any(shares.values()) else ""
        versions = ", ".join(sorted(f"version {version}" for version in live)) or "no version"
        raise UsageError(
            f"nothing but version {to} serves: there is no traffic to move.{planned} Workers are there of {versions}. "
            "Without a plan, a version's workers share all units"
        )
    return before


def _refuse_empty_steps(rollout: Rollout, units: int) -> None:
    empty = steps_without_a_unit(rollout, units)
    if empty:
        least = next(
            percent
            for percent in range(1, 101)
            if not steps_without_a_unit(rollout.model_copy(update={"steps": [percent]}), units)
        )
        raise UsageError(
            f"a step of {', '.join(map(str, empty))} % of {units} units is none: the least is {least} %"
        )


# --- a word on the rollout under way ---


def wish(settings: Settings, names: ContractNames, wished: Wish) -> str:
    """Say pause, go_on or promote of the rollout under way; its id. Raises UsageError where there is none."""
    id_, _ = under_way(read_all(settings)[0], names)
    now_ms = int(time.time() * 1000)
    with _writer(settings) as writer:
        writer.write((names.group, id_), Wished(wish=wished, by=operator_name(), at=now_ms))
    return id_


def roll_back(settings: Settings, names: ContractNames, why: str) -> tuple[str, Mapping[str, int]]:
    """End the rollout under way, or undo the last one; its id, and what is served instead. At once: no controller is
    asked. Raises UsageError where there is none, or it was rolled back already."""
    control, _ = read_all(settings)
    begun = [each for each in control.rollouts.states(names.group) if each[1].rollout is not None]
    if not begun:
        raise UsageError(f"there was no rollout of {names.model}")
    id_, state = begun[-1]
    rollout = state.rollout
    assert rollout is not None
    if state.rollback is not None:
        raise UsageError(
            f"rollout {id_} was rolled back already, to {shown_shares(state.shares or {})}: {state.rollback.why}"
        )
    now_ms = int(time.time() * 1000)
    with _writer(settings) as writer:
        writer.write(
            (names.group, id_), Rollback(shares=rollout.before, why=why, by=operator_name(), at=now_ms)
        )
    return id_, rollout.before


def under_way(control: ControlRecords, names: ContractNames) -> tuple[str, RolloutState]:
    """The open rollout of a contract. Raises UsageError."""
    found = control.rollouts.open_rollout(names.group)
    if found is None:
        raise UsageError(
            f"no rollout of {names.model} is under way; `headrace rollout history {names.model}` lists those that were"
        )
    return found


@contextmanager
def _writer(settings: Settings) -> Generator[RolloutWriter]:
    producer = PlainProducer(settings)
    try:
        yield RolloutWriter(producer, prefix=settings.prefix)
    finally:
        producer.close()
