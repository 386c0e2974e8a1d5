"""Deliberate bugs in what rollout records say: the laws must find every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.consumers import rollouts
from headrace.consumers.rollouts import RolloutRecords, RolloutState
from headrace.consumers.sharing import Plan

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}

note = rollouts._note  # pyright: ignore[reportPrivateUsage]
plan = RolloutRecords.plan
take = RolloutRecords.take


def bug(apply: Bug) -> Bug:
    BUGS[apply.__name__] = apply
    return apply


@bug
def a_plan_after_a_rollback_counts(patch: pytest.MonkeyPatch) -> None:
    def late(state: RolloutState, kind: str, read: object, offset: int) -> None:
        note(state, kind, read, offset)  # pyright: ignore[reportArgumentType]
        if kind == rollouts.PLAN:
            state.rollback = None

    patch.setattr(rollouts, "_note", late)


@bug
def the_plan_written_last_counts(patch: pytest.MonkeyPatch) -> None:
    def by_revision(self: RolloutRecords, group: str) -> list[tuple[str, RolloutState]]:
        return sorted(self.groups.get(group, {}).items(), key=lambda each: each[1].revision)

    patch.setattr(RolloutRecords, "states", by_revision)


@bug
def a_revision_is_its_rollouts_alone(patch: pytest.MonkeyPatch) -> None:
    def alone(self: RolloutRecords, group: str) -> Plan | None:
        found = plan(self, group)
        if found is None:
            return None
        return replace(found, revision=self.groups[group][found.rollout].revision)

    patch.setattr(RolloutRecords, "plan", alone)


@bug
def groups_are_mixed_up(patch: pytest.MonkeyPatch) -> None:
    def mixed(self: RolloutRecords, key: bytes | None, value: bytes | None, offset: int) -> str | None:
        kind, _, id_ = (key or b"").decode("utf-8", "replace").split("/", 2)
        return take(self, f"{kind}/g/{id_}".encode(), value, offset)

    patch.setattr(RolloutRecords, "take", mixed)


@bug
def a_rollback_that_cannot_be_read_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    def passing(self: RolloutRecords, key: bytes | None, value: bytes | None, offset: int) -> str | None:
        before = RolloutRecords()
        if before_take(before, key, value, offset) is not None:
            return "wrong"
        return before_take(self, key, value, offset)

    before_take = take
    patch.setattr(RolloutRecords, "take", passing)


@bug
def revisions_count_from_the_start_of_the_reader(patch: pytest.MonkeyPatch) -> None:
    def counted(state: RolloutState, kind: str, read: object, offset: int) -> None:
        note(state, kind, read, state.revision + 1)  # pyright: ignore[reportArgumentType]

    patch.setattr(rollouts, "_note", counted)
