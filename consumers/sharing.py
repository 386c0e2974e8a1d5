"""Which member of a group serves which unit: partition n of all the topics that it reads. Pure.

A unit moves after its last token. It is never taken from a member that claims it: the member is told to
drain it, and once it claims it no longer, the same round gives it away. What a member is told is the whole
truth: a unit that is not on its drain list any more is served on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# Of each unit, at most so many slots are remembered that may have left a transaction open over it.
HOLDERS_KEPT = 3

Holders = Mapping[int, tuple[str, ...]]
"""By unit, the slots that may have left a transaction open over it: the one that is known to have held it last,
and then those that were given it since, of whom nobody knows yet whether they ever took it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which share of the units each version is to have. Of two plans, that of the higher revision counts."""

    revision: int
    rollout: str
    shares: Mapping[str, int]  # weights by version; no version named, no share


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member says of itself when it joins."""

    slot: str
    incarnation: str = ""  # of the slot
    version: str = ""  # of the model that it serves
    capacity: int = 1  # requests that it can have in flight
    reads_offset_format: int = 1  # the newest
    generation: int = -1  # the one in which it got what it owns
    owned: frozenset[int] = frozenset()  # units that it serves, those that it drains among them
    draining: frozenset[int] = frozenset()
    leaving: bool = False  # it wants no share: what it has is to be drained
    plan: Plan | None = None  # the newest that it knows
    holders: Holders = field(default_factory=dict[int, tuple[str, ...]])  # as of its generation


@dataclass(frozen=True, slots=True)
class Assigned:
    """What a member is given. `units` has what it is to drain, too."""

    units: tuple[int, ...] = ()
    drain: frozenset[int] = frozenset()
    # Of units that are new to it: a slot that may have left a transaction open over them, and that is gone.
    predecessors: Mapping[int, str] = field(default_factory=dict[int, str])


def assign_units(members: Mapping[str, Claim], units: int) -> dict[str, Assigned]:
    """Share out units 0 to `units - 1`, by member id.

    Each version with members that stay gets its planned share by largest remainder, without a plan all
    members are equal; and as few units move as that allows. What is drained already is what moves first;
    what nobody claims goes to the slot that held it last, if that may have more. Where two claim one unit,
    the claim of the higher generation holds, the other is from a past life. A claimed unit that is not below
    `units` stays as it is (the leader may not have heard of it yet). Units that nobody may have stay unowned.
    """
    order = _order(members)
    owners = _owners(members)
    last = _last_holders(members, owners)
    held: dict[str, list[int]] = {member: [] for member in order}
    for unit, member in sorted(owners.items()):
        held[member].append(unit)
    free = [unit for unit in range(units) if unit not in owners]
    homes = _homes(members, free, last)
    share = _shares(members, units, held, homes)
    given = _give(free, homes, {member: share[member] - _below(held[member], units) for member in order})
    slots = {claim.slot for claim in members.values()}
    return {
        member: Assigned(
            tuple(sorted(held[member] + given[member])),
            _to_drain(members[member], held[member], share[member], units),
            {
                unit: departed[-1]
                for unit in given[member]
                if (departed := [slot for slot in last.get(unit, ()) if slot not in slots])
            },
        )
        for member in order
    }


def keep_units(members: Mapping[str, Claim]) -> dict[str, Assigned]:
    """Everything stays as it is: each claimed unit with its owner, drained if it was."""
    owners = _owners(members)
    return {
        member: Assigned(
            tuple(sorted(unit for unit, owner in owners.items() if owner == member)),
            frozenset(unit for unit in claim.draining if owners.get(unit) == member),
        )
        for member, claim in members.items()
    }


def newest_plan(members: Mapping[str, Claim]) -> Plan | None:
    """The plan that counts."""
    plans = [members[member].plan for member in _order(members)]
    return max((plan for plan in plans if plan is not None), key=lambda plan: plan.revision, default=None)


def lowest_offset_format(members: Mapping[str, Claim]) -> int:
    """The newest format of offset metadata that every member reads."""
    return min((claim.reads_offset_format for claim in members.values()), default=1)


def holders_after(
    members: Mapping[str, Claim], assigned: Mapping[str, Assigned]
) -> dict[int, tuple[str, ...]]:
    """What is to be remembered once this has been given: for all members, so that it survives its leader."""
    owners = _owners(members)
    last = _last_holders(members, owners)
    for member, given in assigned.items():
        slot = members[member].slot
        for unit in given.units:
            if owners.get(unit) != member:
                before = [each for each in last.get(unit, ()) if each != slot]
                last[unit] = (*before, slot)[-HOLDERS_KEPT:]
    return last


# --- who has what ---


def _order(members: Mapping[str, Claim]) -> list[str]:
    return sorted(members, key=lambda member: (members[member].slot, member))


def _owners(members: Mapping[str, Claim]) -> dict[int, str]:
    """The member that owns each claimed unit."""
    owners: dict[int, str] = {}
    for member in sorted(_order(members), key=lambda member: members[member].generation):
        owners.update(dict.fromkeys(members[member].owned, member))
    return owners


def _last_holders(members: Mapping[str, Claim], owners: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
    """What is known before this round: the newest map, and what the claims say since."""
    told = [members[member] for member in _order(members) if members[member].holders]
    newest = max(told, key=lambda claim: claim.generation, default=Claim(""))
    # A member of that generation has taken what it was given, and settled what was open before it.
    took = {claim.slot for claim in members.values() if claim.generation >= newest.generation}
    last: dict[int, tuple[str, ...]] = {}
    for unit, slots in newest.holders.items():
        settled = max((place for place, slot in enumerate(slots) if slot in took), default=0)
        last[unit] = slots[settled:]
    return last | {unit: (members[member].slot,) for unit, member in owners.items()}


def _homes(members: Mapping[str, Claim], free: Iterable[int], last: Holders) -> dict[int, str]:
    """The members whose slots held the free units last."""
    of_slot = {claim.slot: member for member, claim in members.items() if not claim.leaving}
    return {unit: of_slot[last[unit][-1]] for unit in free if last.get(unit, ("",))[-1] in of_slot}


def _below(held: Sequence[int], units: int) -> int:
    return sum(unit < units for unit in held)


# --- who is to have how much ---


def _shares(
    members: Mapping[str, Claim], units: int, held: Mapping[str, Sequence[int]], homes: Mapping[int, str]
) -> dict[str, int]:
    """How many units each member is to have."""
    has = {member: _below(some, units) for member, some in held.items()}
    keeps = {
        member: _below([unit for unit in some if unit not in members[member].draining], units)
        for member, some in held.items()
    }
    for home in homes.values():
        has[home] += 1
    crews = _crews(members)
    of_version = apportion(
        units,
        {version: weight for version, (weight, _) in crews.items()},
        {version: sum(has[member] for member in crew) for version, (_, crew) in crews.items()},
        {version: sum(keeps[member] for member in crew) for version, (_, crew) in crews.items()},
    )
    share = dict.fromkeys(members, 0)
    for version, (_, crew) in crews.items():
        share |= apportion(of_version[version], dict.fromkeys(crew, 1), has, keeps)
    return share


def _crews(members: Mapping[str, Claim]) -> dict[str, tuple[int, list[str]]]:
    """The members that stay, by version, with the version's weight; all in one where no weight is known."""
    staying = [member for member in _order(members) if not members[member].leaving]
    plan = newest_plan(members)
    shares: Mapping[str, int] = plan.shares if plan is not None else {}
    versions = sorted({members[member].version for member in staying})
    if not any(shares.get(version, 0) for version in versions):
        return {"": (1, staying)} if staying else {}
    return {
        version: (shares.get(version, 0), [each for each in staying if members[each].version == version])
        for version in versions
    }


def apportion(
    units: int, weights: Mapping[str, int], has: Mapping[str, int], keeps: Mapping[str, int]
) -> dict[str, int]:
    """Shares by largest remainder. Of equal remainders, those go first that have more than the smaller share
    (so that fewest units move), and among them those that are not draining it away (so that a drain that has
    begun goes on)."""
    total = sum(weights.values())
    share = {name: units * weight // total for name, weight in weights.items()}

    def place(name: str) -> tuple[int, bool, bool]:
        remainder = units * weights[name] % total
        return -remainder, has[name] <= share[name], keeps[name] <= share[name]

    for name in sorted(weights, key=place)[: units - sum(share.values())]:
        share[name] += 1
    return share


# --- what moves ---


def _to_drain(claim: Claim, held: Sequence[int], share: int, units: int) -> frozenset[int]:
    """What a member has beyond its share, first what it drains already. One that leaves drains all."""
    if claim.leaving:
        return frozenset(held)
    known = sorted(
        (unit for unit in held if unit < units), key=lambda unit: (unit not in claim.draining, -unit)
    )
    beyond = [unit for unit in held if unit >= units and unit in claim.draining]
    return frozenset(known[: max(0, len(known) - share)] + beyond)


def _give(free: Sequence[int], homes: Mapping[int, str], room: dict[str, int]) -> dict[str, list[int]]:
    """Who gets which of the free units; `room`: how many each may have, in the order of preference."""
    given: dict[str, list[int]] = {member: [] for member in room}

    def give(unit: int, member: str) -> None:
        given[member].append(unit)
        room[member] -= 1

    elsewhere: list[int] = []
    for unit in free:
        home = homes.get(unit)
        if home is not None and room[home] > 0:
            give(unit, home)
        else:
            elsewhere.append(unit)
    for unit in elsewhere:
        member = max(room, key=room.__getitem__, default=None)
        if member is not None and room[member] > 0:
            give(unit, member)
    return given
