"""What holds of `assign_units` alone, whatever the members claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from headrace.consumers.sharing import Claim, Plan, assign_units

MEMBERS = "abcde"
Claims = dict[str, Claim]


@st.composite
def claims(draw: st.DrawFn, planned: bool = True) -> tuple[Claims, int]:
    """Members with claims that do not overlap, some of it draining, and the number of units."""
    units = draw(st.integers(0, 16))
    names = draw(st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True))
    owners = draw(st.lists(st.sampled_from([*names, None]), min_size=units, max_size=units))
    drains = draw(st.sets(st.integers(0, 15)))
    shares = draw(st.dictionaries(st.sampled_from("123"), st.integers(0, 99), max_size=3)) if planned else {}
    members: Claims = {}
    for name in names:
        owned = frozenset(unit for unit, owner in enumerate(owners) if owner == name)
        members[name] = Claim(
            name,
            version=draw(st.sampled_from("123")),
            generation=draw(st.integers(1, 9)),
            owned=owned,
            draining=owned & drains,
            leaving=draw(st.sampled_from([False, False, False, True])) if planned else False,
            plan=Plan(1, "r", shares) if shares else None,
        )
    return members, units


def few_moves(members: Claims, units: int) -> None:
    """Without plans: whoever holds more than the smaller share is the first to get a larger one."""
    given = assign_units(members, units)
    smaller, larger = divmod(units, len(members))
    has = [len(claim.owned) for claim in members.values()]
    most = sum(min(owned, smaller) for owned in has) + min(larger, sum(owned > smaller for owned in has))
    assert sum(len(members[name].owned - each.drain) for name, each in given.items()) == most


def no_oscillation(members: Claims, units: int, order: list[int]) -> None:
    """However the drains end, none is cancelled, none begins later, and nothing moves twice."""
    given = assign_units(members, units)
    draining = {unit for each in given.values() for unit in each.drain}
    homes = _homes(members)
    moved: set[int] = set()
    for unit in order:
        released = {unit} & {each for assigned in given.values() for each in assigned.drain}
        members = {
            name: replace(
                members[name],
                owned=frozenset(each.units) - released,
                draining=each.drain - released,
                generation=10,
            )
            for name, each in given.items()
        }
        given = assign_units(members, units)
        now = {unit for each in given.values() for unit in each.drain}
        assert now == draining - released
        draining = now
        for unit_, home in _homes(
            {name: replace(members[name], owned=frozenset(each.units)) for name, each in given.items()}
        ).items():
            if homes.get(unit_, home) != home:
                assert unit_ in released
                assert unit_ not in moved
                moved.add(unit_)
            homes[unit_] = home
    if set(order) >= set(range(units)):
        assert not draining


def _homes(members: Mapping[str, Claim]) -> dict[int, str]:
    return {unit: name for name, claim in members.items() for unit in claim.owned}


def order_does_not_matter(members: Claims, units: int, order: list[str]) -> None:
    """Whatever the broker lists first."""
    shuffled = {name: members[name] for name in sorted(members, key=order.index)}
    assert assign_units(members, units) == assign_units(shuffled, units)
