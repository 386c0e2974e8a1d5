"""Rollouts, as the control topic has them: which versions of a contract are to serve how many of a group's units.

    rollout/<group>/<id>    {"model", "contract", "to": version, "before": {version: share}, "steps": [percent, ...],
                             "hold_s", "limits": {"error_rate", "invalid_rate", "p95_ratio": each a number or null},
                             "by", "at"}: what was asked for; written once
    wish/<group>/<id>       {"wish": "go_on" | "pause" | "promote", "by", "at"}: an operator's last word on it
    progress/<group>/<id>   {"step": index, "state": "waiting" | "moving" | "holding" | "finished", "since": ms, "why"}
    plan/<group>/<id>       {"shares": {version: weight}, "step": index, "at"}: what the assignor is to follow
    rollback/<group>/<id>   {"shares", "why", "by", "at"}: final; plans of that rollout are void, whenever they land

`at` and `since` are ms since the epoch. Of a group's rollouts the one that was begun last counts. A plan's revision is
the offset of the newest plan or rollback of its group: that one is kept when the topic is compacted, so that all who
have read as far agree on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.consumers.sharing import Plan

ROLLOUT = "rollout"
WISH = "wish"
PROGRESS = "progress"
PLAN = "plan"
ROLLBACK = "rollback"
KINDS = (ROLLOUT, WISH, PROGRESS, PLAN, ROLLBACK)

Wish = Literal["go_on", "pause", "promote"]
State = Literal["waiting", "moving", "holding", "finished"]
RolloutId = tuple[str, str]
"""Group, and the id within it."""

_Shares = dict[str, Annotated[int, Field(ge=0)]]
_Percent = Annotated[int, Field(ge=1, le=100)]
_Rate = Annotated[float, Field(ge=0, lt=1)]


class _Written(BaseModel):
    """A record's value. Fields that a later release has added are passed over."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Limits(_Written):
    """What the new version may cost; None: not looked at. Rates are parts of its own answers."""

    error_rate: _Rate | None = 0.01
    invalid_rate: _Rate | None = 0.01
    p95_ratio: Annotated[float, Field(ge=1)] | None = None  # its 95th percentile over the others'


class Rollout(_Written):
    """What was asked for."""

    model: str
    contract: int = Field(ge=1)
    to: str
    before: _Shares  # weights by version: what is served without it
    steps: list[_Percent] = Field(min_length=1)
    hold_s: float = Field(ge=0)
    limits: Limits
    by: str
    at: int


class Wished(_Written):
    """An operator's last word on a rollout."""

    wish: Wish
    by: str
    at: int


class Progress(_Written):
    """How far the controller is. `since`: when the state began, ms since the epoch."""

    step: int = Field(ge=0)
    state: State
    since: int
    why: str = ""


class Planned(_Written):
    """Weights by version for one step."""

    shares: _Shares
    step: int = Field(ge=0)
    at: int


class Rollback(_Written):
    """The end of a rollout that was not good, and what is served instead."""

    shares: _Shares
    why: str
    by: str
    at: int


Value = Rollout | Wished | Progress | Planned | Rollback
_KIND_OF: dict[type[Value], str] = {
    Rollout: ROLLOUT,
    Wished: WISH,
    Progress: PROGRESS,
    Planned: PLAN,
    Rollback: ROLLBACK,
}
_TYPE_OF = {kind: type_ for type_, kind in _KIND_OF.items()}

V = TypeVar("V", bound=Value)


def rollout_record(of: RolloutId, value: Value) -> tuple[bytes, bytes]:
    """Key and value of a record."""
    return f"{_KIND_OF[type(value)]}/{of[0]}/{of[1]}".encode(), json.dumps(value.model_dump()).encode()


@dataclass(slots=True)
class RolloutState:
    """All that is known of one rollout. Offsets are those of the records in the control topic."""

    rollout: Rollout | None = None
    begun_at: int = -1  # offset
    wish: Wish = "go_on"
    progress: Progress | None = None
    planned: Planned | None = None
    rollback: Rollback | None = None
    revision: int = -1  # offset of its newest plan or rollback

    @property
    def is_open(self) -> bool:
        """Whether the controller still has to do with it."""
        finished = self.progress is not None and self.progress.state == "finished"
        return self.rollout is not None and self.rollback is None and not finished

    @property
    def shares(self) -> Mapping[str, int] | None:
        """What is to be served by its last word; None: it has not said anything yet."""
        if self.rollback is not None:
            before = {} if self.rollout is None else self.rollout.before
            return self.rollback.shares or before
        return None if self.planned is None else self.planned.shares


@dataclass(slots=True)
class RolloutRecords:
    """What the records read so far say. The last one of a key counts."""

    groups: dict[str, dict[str, RolloutState]] = field(default_factory=dict[str, dict[str, RolloutState]])

    def take(self, key: bytes | None, value: bytes | None, offset: int) -> str | None:
        """Note a record; what is wrong with it, where it cannot be read. Without a value it takes its key back."""
        kind, *name = (key or b"").decode("utf-8", "replace").split("/")
        if kind not in KINDS:
            return None
        if len(name) != 2 or not all(name):
            return f"its key is not {kind}/<group>/<id>"
        group, id_ = name
        read: Value | None = None
        wrong = None
        if value is not None:
            try:
                read = _TYPE_OF[kind].model_validate_json(value)
            except ValidationError as error:
                wrong = _explain(error)
        state = self.groups.setdefault(group, {}).setdefault(id_, RolloutState())
        if wrong is None:
            _note(state, kind, read, offset)
        elif kind == ROLLBACK:
            # That it was rolled back is certain, to what is not.
            _note(state, kind, Rollback(shares={}, why=wrong, by="", at=0), offset)
        return wrong

    def states(self, group: str) -> list[tuple[str, RolloutState]]:
        """A group's rollouts by id, the one begun first first."""
        return sorted(self.groups.get(group, {}).items(), key=lambda each: (each[1].begun_at, each[0]))

    def open_rollout(self, group: str) -> tuple[str, RolloutState] | None:
        """The rollout of a group that is under way: the one begun last, unless it has ended."""
        begun = [each for each in self.states(group) if each[1].rollout is not None]
        return begun[-1] if begun and begun[-1][1].is_open else None

    def plan(self, group: str) -> Plan | None:
        """What a group's assignor is to follow; None: nobody has planned anything."""
        said = [(id_, shares) for id_, state in self.states(group) if (shares := state.shares) is not None]
        if not said:
            return None
        id_, shares = said[-1]
        revision = max(state.revision for state in self.groups[group].values())
        return Plan(revision, id_, dict(shares))


def shown_shares(shares: Mapping[str, int]) -> str:
    """`version 3: 75 %, version 4: 25 %`: weights as parts of their sum."""
    total = sum(shares.values())
    return ", ".join(
        f"version {version}: {100 * weight / total:.3g} %"
        for version, weight in sorted(shares.items())
        if weight
    )


def _note(state: RolloutState, kind: str, read: Value | None, offset: int) -> None:
    if kind in (PLAN, ROLLBACK):
        state.revision = max(state.revision, offset)
    if kind == ROLLOUT:
        assert read is None or isinstance(read, Rollout)
        state.rollout, state.begun_at = read, offset if read is not None else -1
    elif kind == WISH:
        assert read is None or isinstance(read, Wished)
        state.wish = "go_on" if read is None else read.wish
    elif kind == PROGRESS:
        assert read is None or isinstance(read, Progress)
        state.progress = read
    elif kind == PLAN:
        assert read is None or isinstance(read, Planned)
        state.planned = read
    else:
        assert read is None or isinstance(read, Rollback)
        state.rollback = read


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'its value'}: {first['msg']}"
