"""What `rollout start` takes for what serves now, whatever an old plan says."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from headrace.consumers.catalogue import CatalogueRecords
from headrace.consumers.control import ControlRecords
from headrace.consumers.group_members import GroupMembers, Member
from headrace.consumers.rollouts import Limits, Planned, Rollout, RolloutId, Value, rollout_record
from headrace.ops.rollouts import orders
from headrace.schemas.errors import UsageError
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

SETTINGS = Settings(prefix="p")
NAMES = ContractNames("p", "tagger", 1)
UNITS = 16


@dataclass
class Stage:
    """What the control topic says, who is in the group, and what was written."""

    plan: Mapping[str, int]  # the last one; empty: nobody has planned anything
    members: list[Member]
    written: list[Value] = field(default_factory=list[Value])
    unsettled: list[list[Member]] = field(
        default_factory=list[list[Member]]
    )  # that are seen before the members

    def read_all(self, settings: Settings) -> orders.Found:
        control = ControlRecords()
        if self.plan:
            planned = Planned(shares=dict(self.plan), step=0, at=1)
            control.take(*rollout_record((NAMES.group, "old"), planned), 0)
        return control, CatalogueRecords()

    @contextmanager
    def look_at_group(self, settings: Settings, names: ContractNames) -> Generator[Stage]:
        yield self

    def look(self) -> GroupMembers:
        if self.unsettled:
            return GroupMembers(self.unsettled.pop(0), UNITS, is_stable=False)
        return GroupMembers(self.members, UNITS, is_stable=True)

    @contextmanager
    def writer(self, settings: Settings) -> Generator[Stage]:
        yield self

    def write(self, of: RolloutId, *values: Value) -> None:
        self.written += values

    def before(self, monkeypatch: pytest.MonkeyPatch, to: str) -> dict[str, int]:
        """What a rollout to that version begins with."""
        monkeypatch.setattr(orders, "read_all", self.read_all)
        monkeypatch.setattr(orders, "look_at_group", self.look_at_group)
        monkeypatch.setattr(orders, "_writer", self.writer)
        _, rollout = orders.start(SETTINGS, NAMES, to, [25, 100], 0, Limits())
        assert isinstance(self.written[0], Rollout)
        assert isinstance(self.written[1], Planned)
        assert self.written[1].shares == rollout.before
        return rollout.before


def serving(version: str, *units: range, leaving: bool = False) -> Member:
    return Member(f"slot-{version}", version, 8, frozenset(unit for each in units for unit in each), leaving)


ALL = range(UNITS)
NONE = range(0)


@pytest.mark.parametrize(
    ("plan", "members", "before"),
    [
        pytest.param({}, [serving("3", ALL)], {"3": 16}, id="nobody has planned anything"),
        pytest.param({}, [serving("3", NONE)], {"3": 1}, id="and nobody has anything yet"),
        pytest.param(
            {"3": 3, "2": 1},
            [serving("3", range(12)), serving("2", range(12, 16))],
            {"3": 3, "2": 1},
            id="the plan is what is",
        ),
        pytest.param({"3": 1}, [serving("5", ALL)], {"5": 16}, id="only versions live that nobody planned"),
        pytest.param({"3": 1, "2": 1}, [serving("2", ALL)], {"2": 1}, id="one of the planned lives"),
        pytest.param(
            {"3": 1},
            [serving("5", ALL), serving("3", NONE, leaving=True)],
            {"5": 16},
            id="the planned one is leaving",
        ),
        pytest.param(
            {"3": 1},
            [serving("3", range(15)), serving("5", range(15, 16))],
            {"3": 1},
            id="what a planned one is to have is on its way from one that was taken back",
        ),
        pytest.param({"3": 1}, [serving("5", range(8)), serving("4", range(8, 16))], {"5": 8}, id="half is"),
    ],
)
def test_what_serves_now_is_what_a_rollout_begins_with(
    monkeypatch: pytest.MonkeyPatch, plan: dict[str, int], members: list[Member], before: dict[str, int]
) -> None:
    assert Stage(plan, members).before(monkeypatch, "4") == before


def test_a_group_in_which_some_are_just_joining_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they said last cannot be read then: a version without a name would have all units."""
    stage = Stage({"3": 1}, [serving("3", ALL)], unsettled=[[serving("", ALL)], [serving("", NONE)]])
    assert stage.before(monkeypatch, "4") == {"3": 1}
    assert stage.unsettled == []


@pytest.mark.parametrize(
    ("plan", "before"), [({"3": 3, "2": 1}, {"3": 3, "2": 1}), ({}, {"5": 4})], ids=["a plan", "none"]
)
def test_of_a_group_that_does_not_settle_the_plan_is_believed(
    monkeypatch: pytest.MonkeyPatch, plan: dict[str, int], before: dict[str, int]
) -> None:
    monkeypatch.setattr(orders, "SETTLED_WITHIN_S", -1.0)
    members = [serving("", range(12)), serving("5", range(12, 16))]
    assert Stage(plan, [], unsettled=[members]).before(monkeypatch, "4") == before


@pytest.mark.parametrize(
    ("plan", "members"),
    [
        pytest.param({}, [serving("4", ALL)], id="nothing else is there"),
        pytest.param({"4": 1}, [serving("4", ALL), serving("3", NONE)], id="the other has no share"),
        pytest.param(
            {"4": 1, "3": 3}, [serving("4", ALL), serving("2", NONE)], id="the one that had is gone"
        ),
        pytest.param({"3": 1}, [serving("4", ALL)], id="it serves in the place of the one that was planned"),
        pytest.param({"3": 1}, [], id="nobody is there"),
    ],
)
def test_where_nothing_else_serves_there_is_nothing_to_begin_with(
    monkeypatch: pytest.MonkeyPatch, plan: dict[str, int], members: list[Member]
) -> None:
    with pytest.raises(UsageError, match="there is no traffic to move"):
        Stage(plan, members).before(monkeypatch, "4")
