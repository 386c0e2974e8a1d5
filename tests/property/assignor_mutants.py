"""Deliberate bugs in consumers/sharing.py and consumers/assignor.py: the properties must find every one.

Each is a function of pytest's monkeypatch that changes one thing for the duration of a test, and names the
property that finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from headrace.consumers import assignor, sharing
from headrace.consumers.assignor import UnitAssignor
from headrace.consumers.claims import Told
from headrace.consumers.sharing import Assigned, Claim

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, tuple[str, Bug]] = {}  # name: (the property that finds it, the bug)


def found_by(law: str) -> Callable[[Bug], Bug]:
    def register(apply: Bug) -> Bug:
        BUGS[apply.__name__] = law, apply
        return apply

    return register


def _claims(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    """The leader reads every claim with something changed."""
    assign_units = sharing.assign_units
    patch.setattr(
        assignor,
        "assign_units",
        lambda members, units: assign_units(
            {name: replace(claim, **changed) for name, claim in members.items()}, units
        ),
    )


# --- deciding ---


@found_by("history")
def a_unit_is_moved_though_it_is_claimed(patch: pytest.MonkeyPatch) -> None:
    assign_units = sharing.assign_units

    def at_once(members: Mapping[str, Claim], units: int) -> dict[str, Assigned]:
        given = assign_units(members, units)
        drained = {
            name: replace(members[name], owned=members[name].owned - each.drain)
            for name, each in given.items()
        }
        return assign_units(drained, units)

    patch.setattr(assignor, "assign_units", at_once)


@found_by("history")
def nothing_is_ever_drained(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sharing, "_to_drain", lambda claim, held, share, units: frozenset())


@found_by("history")
def one_that_leaves_has_a_share(patch: pytest.MonkeyPatch) -> None:
    _claims(patch, leaving=False)


@found_by("history")
def plans_are_not_followed(patch: pytest.MonkeyPatch) -> None:
    _claims(patch, plan=None)


@found_by("history")
def shares_are_rounded_down(patch: pytest.MonkeyPatch) -> None:
    apportion = sharing.apportion

    def rounded(units: int, weights: Mapping[str, int], has: Any, keeps: Any) -> dict[str, int]:
        total = sum(weights.values())
        share = {name: units * weight // total for name, weight in weights.items()}
        return share if len(weights) > 1 else apportion(units, weights, has, keeps)

    patch.setattr(sharing, "apportion", rounded)


@found_by("few_moves")
def the_larger_shares_go_to_whoever_comes_first(patch: pytest.MonkeyPatch) -> None:
    apportion = sharing.apportion
    patch.setattr(
        sharing,
        "apportion",
        lambda units, weights, has, keeps: apportion(units, weights, dict.fromkeys(has, 0), keeps),
    )


@found_by("no_oscillation")
def what_drains_already_is_not_what_moves(patch: pytest.MonkeyPatch) -> None:
    to_drain = sharing._to_drain

    def others_first(claim: Claim, held: list[int], share: int, units: int) -> frozenset[int]:
        drain = to_drain(claim, held, share, units)
        return frozenset(sorted(held, key=lambda unit: unit in claim.draining)[: len(drain)])

    patch.setattr(sharing, "_to_drain", others_first)


@found_by("history")
def predecessors_that_live_are_named(patch: pytest.MonkeyPatch) -> None:
    assign_units = sharing.assign_units

    def all_named(members: Mapping[str, Claim], units: int) -> dict[str, Assigned]:
        last = sharing.holders_after(members, {})
        return {
            name: replace(each, predecessors={unit: last[unit][-1] for unit in each.units if unit in last})
            for name, each in assign_units(members, units).items()
        }

    patch.setattr(assignor, "assign_units", all_named)


# --- telling ---


def _member(patch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    patch.setattr(UnitAssignor, name, value)


@found_by("history")
def released_units_are_claimed_still(patch: pytest.MonkeyPatch) -> None:
    metadata = UnitAssignor.metadata

    def with_all(self: UnitAssignor, topics: Any) -> Any:
        released, self._released = self._released, frozenset()
        said = metadata(self, topics)
        self._released = self._known_released = released
        return said

    _member(patch, "metadata", with_all)


@found_by("history")
def a_release_is_forgotten_once_it_was_said(patch: pytest.MonkeyPatch) -> None:
    metadata = UnitAssignor.metadata

    def once(self: UnitAssignor, topics: Any) -> Any:
        said = metadata(self, topics)
        self._released = frozenset()
        return said

    _member(patch, "metadata", once)


def _on_assignment(patch: pytest.MonkeyPatch, after: Callable[[UnitAssignor, dict[str, Any]], None]) -> None:
    on_assignment = UnitAssignor.on_assignment

    def changed(self: UnitAssignor, assignment: Any, generation: int) -> None:
        before = dict(vars(self))
        on_assignment(self, assignment, generation)
        after(self, before)

    _member(patch, "on_assignment", changed)


@found_by("history")
def a_drain_is_never_cancelled(patch: pytest.MonkeyPatch) -> None:
    def after(self: UnitAssignor, before: dict[str, Any]) -> None:
        self._drain |= before["_drain"]

    _on_assignment(patch, after)


@found_by("history")
def what_was_released_is_never_opened_again(patch: pytest.MonkeyPatch) -> None:
    def after(self: UnitAssignor, before: dict[str, Any]) -> None:
        self._released |= before["_released"]

    _on_assignment(patch, after)


@found_by("history")
def a_cancelled_drain_opens_the_unit_anew(patch: pytest.MonkeyPatch) -> None:
    def after(self: UnitAssignor, before: dict[str, Any]) -> None:
        self._reopened |= (before["_drain"] - self._drain) & self.units

    _on_assignment(patch, after)


@found_by("history")
def a_lost_membership_keeps_its_claims(patch: pytest.MonkeyPatch) -> None:
    _member(patch, "lost", lambda self: None)


@found_by("history")
def an_assignment_made_for_another_incarnation_is_good_enough(patch: pytest.MonkeyPatch) -> None:
    def after(self: UnitAssignor, before: dict[str, Any]) -> None:
        self._rejoin_wished.clear()

    _on_assignment(patch, after)


@found_by("history")
def a_newer_plan_is_kept_to_oneself(patch: pytest.MonkeyPatch) -> None:
    offer_plan = UnitAssignor.offer_plan

    def quietly(self: UnitAssignor, plan: Any) -> None:
        offer_plan(self, plan)
        self._rejoin_wished.clear()

    _member(patch, "offer_plan", quietly)


@found_by("history")
def every_wish_to_rejoin_is_repeated(patch: pytest.MonkeyPatch) -> None:
    _member(patch, "take_rejoin_wish", lambda self: self._rejoin_wished.is_set())


@found_by("history")
def the_offset_format_is_the_highest_that_anybody_reads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        assignor,
        "lowest_offset_format",
        lambda members: max(each.reads_offset_format for each in members.values()),
    )


@found_by("history")
def user_data_of_others_takes_all_from_them(patch: pytest.MonkeyPatch) -> None:
    decode_claim = assignor.decode_claim
    patch.setattr(assignor, "decode_claim", lambda *of, **more: decode_claim(*of, **more) or Claim("?"))


@found_by("history")
def drains_are_not_told(patch: pytest.MonkeyPatch) -> None:
    encode_told = assignor.encode_told

    def without(told: Told) -> bytes:
        return encode_told(replace(told, drain=frozenset()))

    patch.setattr(assignor, "encode_told", without)
