"""How `rollout start` ends: by its own rollout, whatever else was begun meanwhile."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, cast

import pytest

from headrace.consumers.control import ControlRecords
from headrace.consumers.rollouts import Limits, Progress, Rollback, Rollout, Value, rollout_record
from headrace.ops.rollouts import following
from headrace.ops.rollouts.following import FINISHED, ROLLED_BACK, Standing, follow_to_the_end
from headrace.schemas.errors import UsageError
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

SETTINGS = Settings(prefix="p")
NAMES = ContractNames("p", "tagger", 1)
MINE, OTHER = "4.now", "5.now"
DONE = Progress(step=0, state="finished", since=3)
UNDONE = Rollback(shares={"3": 1}, why="bad", by="controller", at=3)


def rollout(to: str, by: str) -> Rollout:
    return Rollout(
        model="tagger",
        contract=1,
        to=to,
        before={"3": 1},
        steps=[100],
        hold_s=0,
        limits=Limits(),
        by=by,
        at=1,
    )


@dataclass
class Control:
    """The control topic as it is read; every look at it reads some records more, as long as there are any."""

    coming: list[tuple[str, Value]]
    at_once: int
    records: ControlRecords = field(default_factory=ControlRecords)
    read: int = 0

    def asked(self, ask: Callable[[ControlRecords], Any]) -> Any:
        for id_, value in self.coming[self.read : self.read + self.at_once]:
            assert self.records.take(*rollout_record((NAMES.group, id_), value), self.read) is None
            self.read += 1
        return ask(self.records)


class IdleController:
    """Another one decides."""

    def __init__(self, *_: object) -> None:
        pass

    def run(self) -> None:
        pass

    def stop(self) -> None:
        pass


def ending(monkeypatch: pytest.MonkeyPatch, *coming: tuple[str, Value], at_once: int = 1) -> int:
    """What the command of whoever began MINE ends with; `at_once`: records that are read between two looks."""
    control = Control([(MINE, rollout("4", "me")), *coming], at_once)

    class Seen(Standing):
        def __init__(self, *_: object) -> None:
            self._names = NAMES
            self._control = cast("Any", control)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def watch(self, why: Callable[[], str] = str, until: Callable[[], bool] = bool) -> None:
            while not until():
                assert control.read < len(coming) + 1, "it would be watched for ever"

    monkeypatch.setattr(following, "Controller", IdleController)
    monkeypatch.setattr(following, "Standing", Seen)
    return follow_to_the_end(SETTINGS, NAMES, (NAMES.group, MINE))


def test_it_ends_as_its_rollout_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ending(monkeypatch, (MINE, DONE)) == FINISHED
    assert ending(monkeypatch, (MINE, UNDONE)) == ROLLED_BACK


def test_where_another_was_begun_meanwhile_it_does_not_pass_for_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match=r"5\.now to version 5 was begun by somebody"):
        ending(monkeypatch, (OTHER, rollout("5", "somebody")))


def test_one_that_had_ended_before_another_was_begun_ends_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    coming = [(MINE, DONE), (OTHER, rollout("5", "somebody")), (OTHER, UNDONE)]
    assert ending(monkeypatch, *coming, at_once=4) == FINISHED
