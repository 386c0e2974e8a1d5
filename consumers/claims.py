"""What the members of a group tell each other: the user data of subscriptions and of assignments, as JSON.

Whatever cannot be read counts as not said. Which units a member owns, and since which generation, is not said
here but in the fields that Kafka's own protocol has for it, so that the two cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from headrace.consumers.sharing import Claim, Holders, Plan

FORMAT = 1

_Name = TypeVar("_Name", str, tuple[str, ...])


@dataclass(frozen=True, slots=True)
class Told:
    """What the leader tells a member beside its partitions."""

    incarnation: str = ""  # whom the assignment was made for: another life of the slot sees that it was not
    version: str = ""
    plan: Plan | None = None  # the one that was followed
    drain: frozenset[int] = frozenset()
    predecessors: Mapping[int, str] = field(default_factory=dict[int, str])
    holders: Holders = field(default_factory=dict[int, tuple[str, ...]])
    lowest_offset_format: int = 1
    moving: bool = False  # another round is to be expected: something is being drained, or has no owner


def encode_claim(claim: Claim) -> bytes:
    """A member's user data."""
    return _encode(
        slot=claim.slot,
        incarnation=claim.incarnation,
        version=claim.version,
        capacity=claim.capacity,
        reads=claim.reads_offset_format,
        drain=sorted(claim.draining),
        leaving=claim.leaving,
        plan=_from_plan(claim.plan),
        holders=_from_holders(claim.holders),
    )


def decode_claim(user_data: bytes | None, *, owned: frozenset[int], generation: int) -> Claim | None:
    """What a member says of itself; None where that is not to be read."""
    try:
        said = _object(user_data)
        return Claim(
            slot=_text(said["slot"]),
            incarnation=_text(said["incarnation"]),
            version=_text(said["version"]),
            capacity=_number(said["capacity"]),
            reads_offset_format=_number(said["reads"]),
            generation=generation,
            owned=owned,
            draining=frozenset(_numbers(said["drain"])) & owned,
            leaving=_flag(said["leaving"]),
            plan=_plan(said["plan"]),
            holders=_holders(said["holders"]),
        )
    except (KeyError, ValueError, RecursionError):
        return None


def encode_told(told: Told) -> bytes:
    """An assignment's user data."""
    return _encode(
        incarnation=told.incarnation,
        version=told.version,
        plan=_from_plan(told.plan),
        drain=sorted(told.drain),
        predecessors=_grouped((slot, unit) for unit, slot in told.predecessors.items()),
        holders=_from_holders(told.holders),
        reads=told.lowest_offset_format,
        moving=told.moving,
    )


def decode_told(user_data: bytes | None) -> Told:
    """What the leader says; nothing where that is not to be read."""
    try:
        said = _object(user_data)
        return Told(
            incarnation=_text(said["incarnation"]),
            version=_text(said["version"]),
            plan=_plan(said["plan"]),
            drain=frozenset(_numbers(said["drain"])),
            predecessors={unit: _text(slot) for slot, unit in _ungrouped(said["predecessors"])},
            holders=_holders(said["holders"]),
            lowest_offset_format=_number(said["reads"]),
            moving=_flag(said["moving"]),
        )
    except (KeyError, ValueError, RecursionError):
        return Told()


def _encode(**said: object) -> bytes:
    return json.dumps({"f": FORMAT} | said, separators=(",", ":")).encode()


# --- parts: each way, and back with every type checked ---


def _from_plan(plan: Plan | None) -> object:
    return plan and {"revision": plan.revision, "rollout": plan.rollout, "shares": dict(plan.shares)}


def _plan(said: object) -> Plan | None:
    if said is None:
        return None
    plan = _mapping(said)
    shares = {version: _number(weight) for version, weight in _mapping(plan["shares"]).items()}
    return Plan(_number(plan["revision"]), _text(plan["rollout"]), shares)


def _from_holders(holders: Holders) -> object:
    return _grouped((slots, unit) for unit, slots in holders.items())


def _holders(said: object) -> dict[int, tuple[str, ...]]:
    holders = {unit: tuple(_text(slot) for slot in _list(slots)) for slots, unit in _ungrouped(said)}
    if not all(holders.values()):
        raise ValueError(said)
    return holders


def _grouped(pairs: Iterable[tuple[_Name, int]]) -> list[tuple[_Name, list[int]]]:
    """Each name once, with its units: names of slots are long."""
    groups: dict[_Name, list[int]] = {}
    for name, unit in pairs:
        groups.setdefault(name, []).append(unit)
    return sorted((name, sorted(units)) for name, units in groups.items())


def _ungrouped(said: object) -> list[tuple[object, int]]:
    pairs: list[tuple[object, int]] = []
    for group in _list(said):
        if len(parts := _list(group)) != 2:
            raise ValueError(said)
        pairs += [(parts[0], unit) for unit in _numbers(parts[1])]
    return pairs


def _object(user_data: bytes | None) -> Mapping[str, object]:
    said = _mapping(json.loads(user_data or b"{}"))
    if said["f"] != FORMAT:
        raise ValueError(said["f"])
    return said


def _mapping(said: object) -> Mapping[str, object]:
    if not isinstance(said, dict):
        raise ValueError(said)
    return cast("dict[str, object]", said)


def _list(said: object) -> list[object]:
    if not isinstance(said, list):
        raise ValueError(said)
    return cast("list[object]", said)


def _text(said: object) -> str:
    if not isinstance(said, str):
        raise ValueError(said)
    return said


def _number(said: object) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or said < 0:
        raise ValueError(said)
    return said


def _numbers(said: object) -> Collection[int]:
    return [_number(each) for each in _list(said)]


def _flag(said: object) -> bool:
    if not isinstance(said, bool):
        raise ValueError(said)
    return said
