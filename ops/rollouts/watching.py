"""Results and looks at the group, added up to what a rollout is decided by. Pure.

Nothing of it is kept anywhere: a controller that takes over reads the results again, from the time of the rollout's
record.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.consumers.rollouts import RolloutState
from headrace.ops.rollouts.evidence import Tally, total
from headrace.ops.rollouts.steps import GroupSeen, Seen


@dataclass(frozen=True, slots=True)
class Answer:
    """What counts of a result. `at_ms`: when it was appended, since the epoch; `generation_ms`: from its admission."""

    version: str
    status: str
    generation_ms: float
    tokens: int
    at_ms: int
    unit: int = -1  # the partition of its request; -1: not said


class Watch:
    """Of one rollout. The step under way is the one that was planned last."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._step: int | None = None
        self._since_ms = 0  # the step's plan
        self.by_version: dict[str, Tally] = {}  # since the rollout began
        self.in_step: dict[str, Tally] = {}
        # By the clock of the looks alone: workers, whose time an answer bears, have clocks of their own.
        self._asked_since_ms: int | None = None
        self._answered = False  # since the last look, as are the others
        self._others_answered = False
        self._early: list[
            Answer
        ] = []  # those of the new version, by which a step that is heard of late is made up for

    def follow(self, state: RolloutState) -> None:
        """Count for the step that the records say is under way."""
        planned = state.planned
        if planned is None or (planned.step == self._step and planned.at == self._since_ms):
            return
        self._step, self._since_ms = planned.step, planned.at
        self.in_step = {}
        self._asked_since_ms = None
        early, self._early = self._early, []
        for answer in early:
            self._count_in_step(answer)

    def take(self, answer: Answer) -> None:
        """Count an answer."""
        _add(self.by_version, answer)
        self._count_in_step(answer)
        if answer.version == self._to:
            self._answered = True
        else:
            self._others_answered = True

    def _count_in_step(self, answer: Answer) -> None:
        if self._step is not None and answer.at_ms >= self._since_ms:
            _add(self.in_step, answer)
        elif self._step is None:
            self._early.append(answer)

    def lose_sight(self) -> None:
        """A look has failed: for how long nothing has been answered is not known, and is counted from the next one."""
        self._asked_since_ms = None

    def look(self, group: GroupSeen, now_ms: int, *, caught_up: bool) -> Seen:
        """What is seen now; to be called every second or so.

        `caught_up`: all has been taken that was answered. Before that, a version that says nothing may have said it.
        """
        lives = group.live.get(self._to, 0) > 0
        asked = group.waiting.get(self._to, 0) > 0
        if not lives:
            asked = self._others_answered or sum(group.waiting.values()) > 0
        if not asked or self._step is None or not caught_up:
            self._asked_since_ms = None
        elif self._asked_since_ms is None or self._answered:
            self._asked_since_ms = now_ms
        self._answered = self._others_answered = False
        return Seen(
            now_ms,
            group,
            self.in_step.get(self._to, Tally()),
            total(tally for version, tally in self.by_version.items() if version != self._to),
            self._asked_since_ms,
        )


def _add(tallies: dict[str, Tally], answer: Answer) -> None:
    tallies.setdefault(answer.version, Tally()).add(
        answer.status, generation_ms=answer.generation_ms, tokens=answer.tokens, at_ms=answer.at_ms
    )
