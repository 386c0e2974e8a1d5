"""A contract's group, its traffic and its controllers, second by second: any history of them, with everything that
controllers know taken from the control topic's records."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from headrace.consumers.rollouts import (
    Limits,
    Planned,
    Rollback,
    Rollout,
    RolloutRecords,
    RolloutState,
    Value,
    Wish,
    Wished,
    rollout_record,
)
from headrace.ops.rollouts import steps
from headrace.ops.rollouts.steps import GroupSeen, Next, units_of
from headrace.ops.rollouts.watching import Answer, Watch

GROUP, ID = "g", "r"
OLD, NEW = "3", "4"
NewIs = Literal["good", "bad", "silent"]


@dataclass
class World:
    """`new`: what the new version is. `rate`: requests a second of the whole group. `clock_s`: by how much the workers'
    clock is ahead of the controllers'. `reads_s`: for how long a controller that begins reads what was answered."""

    new: NewIs
    units: int
    percents: list[int]
    rate: int
    hold_s: int
    seed: int
    clock_s: int = 0
    reads_s: int = 0
    records: RolloutRecords = field(default_factory=RolloutRecords)  # what the control topic says
    end: int = 0  # its offset
    now_s: int = 0
    live: dict[str, int] = field(default_factory=lambda: {OLD: 2, NEW: 1})
    owned: dict[str, int] = field(default_factory=dict[str, int])
    answers: list[Answer] = field(default_factory=list[Answer])
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    watch: Watch | None = None  # of the controller that is active now
    read: int = 0  # answers that it has taken
    began_s: int = 0  # when it became that
    written: list[Value] = field(default_factory=list[Value])
    said: list[str] = field(default_factory=list[str])
    operator_undid: bool = False

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.owned = {OLD: self.units, NEW: 0}
        limits = Limits(error_rate=0.01, invalid_rate=0.01, p95_ratio=None)
        self.append(
            Rollout(
                model="m",
                contract=1,
                to=NEW,
                before={OLD: 1},
                steps=self.percents,
                hold_s=self.hold_s,
                limits=limits,
                by="me",
                at=0,
            )
        )

        self.append(Planned(shares={OLD: 1}, step=0, at=0))

    def append(self, value: Value) -> None:
        assert self.records.take(*rollout_record((GROUP, ID), value), self.end) is None
        self.end += 1

    @property
    def state(self) -> RolloutState:
        return self.records.groups[GROUP][ID]

    # --- what happens ---

    def second(self, *, controlled: bool = True) -> None:
        """One second: the group follows its plan, answers, and a controller looks if there is one."""
        self.now_s += 1
        self._move()
        self._answer()
        if controlled and self.state.is_open:
            self._control()

    def kill(self, version: str) -> None:
        self.live[version] = 0

    def start(self, version: str) -> None:
        self.live[version] = 1 + (version == OLD)

    def take_over(self) -> None:
        """Another controller becomes the active one, with nothing but what is in Kafka."""
        self.watch, self.read = None, 0

    def wish(self, wish: Wish) -> None:
        self.append(Wished(wish=wish, by="me", at=self.now_s * 1000))

    def undo(self) -> None:
        if self.state.is_open:
            self.operator_undid = True
            self.append(Rollback(shares={OLD: 1}, why="I say so", by="me", at=self.now_s * 1000))

    # --- how ---

    def _move(self) -> None:
        plan = self.records.plan(GROUP)
        shares = {version: 1 for version, members in self.live.items() if members}
        if plan is not None and any(plan.shares.get(version, 0) for version in shares):
            shares = {version: plan.shares.get(version, 0) for version in shares}
        elif plan is None and self.live[OLD]:
            shares = {OLD: 1}  # nobody has planned anything, and the new one is not to be served by accident
        wanted = units_of(shares, self.units, self.owned) if shares else {}
        self.owned = {version: wanted.get(version, 0) for version in (OLD, NEW)}

    def _answer(self) -> None:
        for _ in range(self.rate):
            owners = [version for version in (OLD, NEW) for _ in range(self.owned[version])]
            if not owners:
                continue
            version = self.chance.choice(owners)
            if version == NEW and self.new == "silent":
                self.waiting[NEW] = self.waiting.get(NEW, 0) + 1
                continue
            status = "failed" if version == NEW and self.new == "bad" else "ok"
            self.answers.append(Answer(version, status, 200.0, 5, (self.now_s + self.clock_s) * 1000))
        if not self.owned[NEW]:
            # What has waited goes to whoever has the units now.
            self.waiting[NEW] = 0
        elif self.new != "silent":
            self.waiting[NEW] = 1  # while it answers one, it is asked the next

    def _control(self) -> None:
        if self.watch is None:
            self.watch, self.read, self.began_s = Watch(NEW), 0, self.now_s
        self.watch.follow(self.state)
        caught_up = self.now_s - self.began_s >= self.reads_s
        if caught_up:
            for answer in self.answers[self.read :]:
                self.watch.take(answer)
            self.read = len(self.answers)
        group = GroupSeen(self.units, self.owned, self.live, {}, waiting=self.waiting)
        found = steps.decide(self.state, self.watch.look(group, self.now_s * 1000, caught_up=caught_up))
        self._write(found)

    def _write(self, found: Next) -> None:
        self.said.append(found.why)
        for value in (found.rollback, found.plan, found.progress):
            if value is not None:
                self.written.append(value)
                self.append(value)
