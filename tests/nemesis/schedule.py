"""Which fault hits whom, and when: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "kill worker",  # SIGKILL; started again in the same slot
    "stop worker",  # SIGTERM; started again in the same slot
    "freeze long",  # SIGSTOP for longer than the session timeout, then SIGCONT
    "freeze short",  # the same, for less than it
    "kill broker",  # SIGKILL; started again at once
    "broker away",  # the same, but down for longer than the transaction timeout
    "restart broker",  # SIGTERM, and started again
    "cut one",  # a worker from one broker: connections closed, none taken
    "stall one",  # connections are taken, and nothing goes through
    "cut all",  # a worker from all brokers
    "stall all",
    "add partition",  # to each request lane
    "add worker",  # in a new slot
    "remove worker",  # SIGTERM, for good
    "kill engine",  # under a worker
]
KINDS: tuple[Kind, ...] = get_args(Kind)

BROKERS = 3
FIRST_S = 5.0  # the first fault: by then there is something in flight
LAST_S = 12.0  # before the end, the last one


@dataclass(frozen=True, slots=True)
class Plan:
    """What a schedule is made for."""

    seed: int
    seconds: float
    workers: int
    gap_s: float = 6.0  # between two faults, on average
    session_s: float = 4.0
    transaction_s: float = 5.0
    may_add_partitions: bool = True
    kinds: tuple[Kind, ...] = KINDS  # to draw from

    @property
    def positions(self) -> int:
        """Places for workers: one more than at the start, and two of which one still drains."""
        return self.workers + 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `hold_s`: how long it lasts, where it lasts."""

    number: int
    at_s: float
    kind: Kind
    target: str  # a slot, b1 to b3, a slot and a broker (w2/b1), or what it is about
    hold_s: float = 0.0

    @property
    def slot(self) -> str | None:
        """Whom it hits, where that is a worker."""
        name = self.target.partition("/")[0]
        return name if name.startswith("w") else None


def first_slots(workers: int) -> list[str]:
    """The slots that there are at the start."""
    return [f"w{number}" for number in range(1, workers + 1)]


def schedule(plan: Plan) -> list[Fault]:
    """The faults in order of time.

    Kinds are dealt from a shuffled pack that has each once, so that all come about as often; workers come and go so
    that there are always one less, as many, or one more than at the start.
    """
    dice = random.Random(f"nemesis {plan.seed}")
    kinds: list[Kind] = [kind for kind in plan.kinds if plan.may_add_partitions or kind != "add partition"]
    pack: list[Kind] = []
    slots = first_slots(plan.workers)
    made = plan.workers
    recent: list[str] = []  # slots hit lately: another is chosen, so that faults overlap
    faults: list[Fault] = []
    at = FIRST_S
    while at < plan.seconds - LAST_S:
        if not pack:
            pack = dice.sample(kinds, len(kinds))
        kind = _possible(pack.pop(), len(slots) - plan.workers)
        if kind == "add worker":
            made += 1
            slot = f"w{made}"
            slots.append(slot)
            target = slot
        elif kind in ("kill broker", "broker away", "restart broker"):
            target = f"b{dice.randint(1, BROKERS)}"
        elif kind == "add partition":
            target = "requests"
        else:
            target = slot = _other_than(recent, slots, dice)
            recent = [*recent, slot][-2:]
            if kind == "remove worker":
                slots.remove(slot)
            if kind in ("cut one", "stall one"):
                target = f"{slot}/b{dice.randint(1, BROKERS)}"
        faults.append(Fault(len(faults) + 1, round(at, 1), kind, target, round(_hold(kind, plan, dice), 1)))
        at += plan.gap_s * dice.uniform(0.6, 1.4)
    return faults


def _possible(kind: Kind, surplus: int) -> Kind:
    """Workers come and go in turn when there is one too many or too few."""
    if kind in ("add worker", "remove worker") and surplus:
        return "remove worker" if surplus > 0 else "add worker"
    return kind


def _other_than(recent: Sequence[str], slots: Sequence[str], dice: random.Random) -> str:
    return dice.choice([slot for slot in slots if slot not in recent] or list(slots))


def _hold(kind: Kind, plan: Plan, dice: random.Random) -> float:
    if kind == "freeze long":
        return plan.session_s + dice.uniform(1, 4)
    if kind == "freeze short":
        return plan.session_s * dice.uniform(0.1, 0.5)
    if kind == "kill broker":
        return dice.uniform(0, 1)
    if kind == "broker away":
        return plan.transaction_s + dice.uniform(2, 5)
    if kind in ("cut one", "stall one", "cut all", "stall all"):
        return plan.transaction_s + dice.uniform(2, 5)  # the broker looks for timed-out ones each second
    return 0.0
