"""Which member gets which unit, drains which, and whose open transactions it is to end."""

from __future__ import annotations

from headrace.consumers.sharing import (
    Assigned,
    Claim,
    Plan,
    assign_units,
    holders_after,
    keep_units,
    lowest_offset_format,
    newest_plan,
)


def owning(
    slot: str, *units: int, generation: int = 5, draining: tuple[int, ...] = (), **more: object
) -> Claim:
    return Claim(slot, generation=generation, owned=frozenset(units), draining=frozenset(draining), **more)  # type: ignore[arg-type]


def units_of(given: dict[str, Assigned]) -> dict[str, tuple[int, ...]]:
    return {member: assigned.units for member, assigned in given.items()}


def drains_of(given: dict[str, Assigned]) -> dict[str, set[int]]:
    return {member: set(assigned.drain) for member, assigned in given.items()}


def test_no_members_and_no_units() -> None:
    assert assign_units({}, 16) == {}
    assert assign_units({"a": Claim("a")}, 0) == {"a": Assigned()}


def test_a_single_member_gets_all() -> None:
    assert units_of(assign_units({"a": Claim("a")}, 4)) == {"a": (0, 1, 2, 3)}


def test_a_member_with_too_many_keeps_and_drains_them() -> None:
    given = assign_units({"a": owning("a", 0, 1, 2, 3), "b": Claim("b")}, 4)
    assert units_of(given) == {"a": (0, 1, 2, 3), "b": ()}
    assert drains_of(given) == {"a": {2, 3}, "b": set()}


def test_what_is_no_longer_claimed_is_given_away_in_that_round() -> None:
    given = assign_units({"a": owning("a", 0, 1, 2, draining=(2,)), "b": Claim("b")}, 4)
    assert units_of(given) == {"a": (0, 1, 2), "b": (3,)}
    assert drains_of(given) == {"a": {2}, "b": set()}


def test_what_drains_already_is_what_moves() -> None:
    members = {"a": owning("a", 0, 1, 2, 3, draining=(0,)), "b": Claim("b")}
    assert drains_of(assign_units(members, 4))["a"] == {0, 3}
    members = {"a": owning("a", 0, 1, 2, 3, draining=(0, 1, 2)), "b": Claim("b")}
    assert drains_of(assign_units(members, 4))["a"] <= {0, 1, 2}


def test_a_drain_for_a_member_that_is_gone_is_cancelled() -> None:
    assert drains_of(assign_units({"a": owning("a", 0, 1, draining=(1,))}, 2)) == {"a": set()}


def test_of_members_that_hold_the_same_the_one_that_drains_goes_on_with_it() -> None:
    members = {"a": owning("a", 0, 1), "b": owning("b", 2, 3), "c": Claim("c")}
    assert drains_of(assign_units(members, 4)) == {"a": set(), "b": {3}, "c": set()}
    members = {"a": owning("a", 0, 1, draining=(1,)), "b": owning("b", 2, 3), "c": Claim("c")}
    assert drains_of(assign_units(members, 4)) == {"a": {1}, "b": set(), "c": set()}


def test_one_that_leaves_drains_all_and_is_given_nothing() -> None:
    members = {"a": owning("a", 0, leaving=True), "b": owning("b", 2)}
    given = assign_units(members, 4)
    assert units_of(given) == {"a": (0,), "b": (1, 2, 3)}
    assert drains_of(given) == {"a": {0}, "b": set()}


def test_what_one_that_leaves_has_released_stays_unowned_when_all_leave() -> None:
    members = {
        "a": owning("a", leaving=True, holders={0: ("a",), 1: ("b",)}),
        "b": owning("b", 1, leaving=True, holders={0: ("a",), 1: ("b",)}),
    }
    given = assign_units(members, 2)
    assert units_of(given) == {"a": (), "b": (1,)}
    assert drains_of(given) == {"a": set(), "b": {1}}


def test_the_claim_of_the_higher_generation_holds() -> None:
    members = {"expelled": owning("a", 0, 1, generation=3), "owner": owning("b", 0, 1, generation=7)}
    assert units_of(assign_units(members, 2)) == {"owner": (0, 1), "expelled": ()}


def test_a_claim_beyond_the_known_units_stays_as_it_is() -> None:
    members = {"a": owning("a", 0, 8, 9, draining=(8,)), "b": Claim("b")}
    given = assign_units(members, 0)
    assert units_of(given) == {"a": (0, 8, 9), "b": ()}
    assert drains_of(given) == {"a": {8}, "b": set()}


def test_more_members_than_units() -> None:
    given = assign_units({name: Claim(name) for name in "abc"}, 2)
    assert sorted(len(assigned.units) for assigned in given.values()) == [0, 1, 1]


# --- plans ---


def shares(plan: dict[str, int], units: int, **versions: int) -> dict[str, int]:
    """How many units each version gets; `versions`: how many members each has."""
    members = {
        f"{version}-{index}": Claim(f"{version}-{index}", version=version, plan=Plan(1, "r", plan))
        for version, count in versions.items()
        for index in range(count)
    }
    given = assign_units(members, units)
    return {
        version: sum(len(given[member].units) for member in members if member.startswith(version))
        for version in versions
    }


def test_versions_share_by_largest_remainder() -> None:
    assert shares({"v1": 94, "v2": 6}, 16, v1=2, v2=1) == {"v1": 15, "v2": 1}
    assert shares({"v1": 75, "v2": 25}, 16, v1=1, v2=3) == {"v1": 12, "v2": 4}
    assert shares({"v1": 2, "v2": 2, "v3": 1}, 4, v1=1, v2=1, v3=1) == {"v1": 2, "v2": 1, "v3": 1}


def test_the_share_of_a_version_without_members_goes_to_the_others() -> None:
    assert shares({"v1": 20, "v2": 20, "v9": 60}, 16, v1=1, v2=1) == {"v1": 8, "v2": 8}


def test_without_any_weight_all_are_equal() -> None:
    assert shares({"v9": 100}, 16, v1=3, v2=1) == {"v1": 12, "v2": 4}
    assert shares({"v1": 0}, 16, v1=3, v2=1) == {"v1": 12, "v2": 4}


def test_a_version_that_only_leaves_has_no_share() -> None:
    plan = Plan(1, "r", {"1": 50, "2": 50})
    members = {"a": Claim("a", version="1", plan=plan), "b": Claim("b", version="2", plan=plan, leaving=True)}
    assert units_of(assign_units(members, 4)) == {"a": (0, 1, 2, 3), "b": ()}


def test_the_plan_of_the_highest_revision_counts_whoever_knows_it() -> None:
    old, new = Plan(3, "r", {"1": 100}), Plan(4, "r", {"2": 100})
    members = {
        "a": Claim("a", version="1", plan=old),
        "b": Claim("b", version="2", plan=new),
        "c": Claim("c", version="1"),
    }
    assert newest_plan(members) == new
    assert newest_plan({"c": members["c"]}) is None
    assert units_of(assign_units(members, 2)) == {"a": (), "b": (0, 1), "c": ()}


def test_the_lowest_offset_format_is_what_every_member_reads() -> None:
    members = {"a": Claim("a", reads_offset_format=3), "b": Claim("b", reads_offset_format=2)}
    assert lowest_offset_format(members) == 2
    assert lowest_offset_format(members | {"c": Claim("c")}) == 1


# --- who held it last ---


def test_a_unit_goes_back_to_the_slot_that_held_it_last() -> None:
    held = {0: ("b",), 1: ("b",), 2: ("a",), 3: ("a",)}
    members = {"old": owning("a", 2, 3, holders=held), "restarted": Claim("b")}
    given = assign_units(members, 4)
    assert units_of(given) == {"old": (2, 3), "restarted": (0, 1)}
    assert given["restarted"].predecessors == {}, "a process ends what its own slot left open"


def test_the_predecessor_is_named_once_it_is_gone() -> None:
    held = {0: ("gone",), 1: ("c",), 2: ("a",)}
    members = {"a": owning("a", 2, holders=held), "c": owning("c", holders=held)}
    given = assign_units(members, 3)
    assert {unit: slot for each in given.values() for unit, slot in each.predecessors.items()} == {0: "gone"}
    assert not any(
        each.predecessors for each in assign_units({"a": owning("a", 0, holders=held)}, 1).values()
    )


def test_holders_survive_the_death_of_all_but_one_member() -> None:
    members: dict[str, Claim] = {"a": owning("a", 0), "b": owning("b", 1)}
    held = holders_after(members, assign_units(members, 2))
    assert held == {0: ("a",), 1: ("b",)}
    alone = {"a": owning("a", 0, holders=held)}
    assert assign_units(alone, 2)["a"].predecessors == {1: "b"}
    assert holders_after(alone, assign_units(alone, 2)) == {0: ("a",), 1: ("b", "a")}


def test_the_map_of_the_highest_generation_counts() -> None:
    members = {
        "a": owning("a", generation=6, holders={0: ("new",)}),
        "b": owning("b", generation=5, holders={0: ("old",)}),
    }
    assert holders_after(members, {}) == {0: ("new",)}


def test_one_that_never_took_what_it_was_given_does_not_hide_its_predecessor() -> None:
    held = {0: ("gone", "b")}
    never_took = {"a": owning("a", generation=6, holders=held), "b": owning("b", generation=5)}
    given = assign_units(never_took, 1)
    assert given["b"].units == (0,)
    assert given["b"].predecessors == {0: "gone"}
    took = {"a": owning("a", generation=6, holders=held), "b": owning("b", generation=6, holders=held)}
    assert assign_units(took, 1)["b"].predecessors == {}
    died = {"a": owning("a", generation=6, holders=held)}
    assert assign_units(died, 1)["a"].predecessors == {0: "b"}


def test_keeping_what_is_claimed_goes_on_with_drains() -> None:
    members = {"a": owning("a", 0, 1, generation=3), "b": owning("b", 1, 2, generation=5, draining=(2,))}
    assert keep_units(members) == {
        "a": Assigned((0,)),
        "b": Assigned((1, 2), frozenset({2})),
    }
