"""A group and its coordinator on the broker, with processes that run `UnitAssignor`: any history of them.

`Handover` checks itself as it goes. A rebalance is taken apart: any member may die, restart or be expelled after
it has joined, after the leader has assigned, and before or after it has got its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from headrace.consumers.assignor import LOOK_AGAIN_S, UnitAssignor
from headrace.consumers.claims import decode_told
from headrace.consumers.sharing import Plan

TOPIC = "requests"
SLOTS = "abcde"
VERSIONS = "1123"
SHARES = ({"1": 1}, {"1": 50, "2": 50}, {"1": 99, "2": 25, "3": 1}, {"2": 1, "9": 99}, {"1": 0}, {}, {"3": 7})
FOREIGN = (None, b"", b"no json", b"[1]", b'{"f":2,"own":"?"}', b'{"f":1,"slot":7}', b"[" * 5000)
SETTLES_WITHIN = 6  # rounds
# What can happen, as often as it is named; each is a method of the model that takes two numbers.
HAPPENINGS = (
    *("start", "start", "start", "die", "expel", "learn", "plan", "plan", "leave", "garble", "poll", "poll"),
    *("release", "release", "release", "release", "release", "join", "join", "join_all", "join_all"),
    *(
        "lead",
        "lead",
        "answer",
        "answer_all",
        "rebalance",
        "rebalance",
        "rebalance",
        "rebalance",
        "rebalance",
    ),
)
HAPPENING = st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 9), st.integers(0, 511))
HISTORIES = st.integers(0, 80).flatmap(lambda length: st.lists(HAPPENING, min_size=length, max_size=length))


@dataclass(eq=False)
class Process:
    """One incarnation of a slot."""

    slot: str
    version: str
    reads: int
    incarnation: str
    member_id: str
    assignor: UnitAssignor
    alive: bool = True
    wants_to_join: bool = True
    leaving: bool = False
    foreign: bytes | None = None  # what it says instead of what its assignor says
    # as of its last join
    said_leaving: bool = False
    is_understood: bool = True

    def metadata(self) -> Any:
        self.said_leaving, self.is_understood = self.leaving, self.foreign is None
        said = self.assignor.metadata([TOPIC])
        if self.foreign is not None:
            said.user_data = self.foreign
        return said

    @property
    def units(self) -> frozenset[int]:
        return self.assignor.units if self.alive else frozenset()


class Handover:
    """A group that reads one topic of `units` partitions."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.now = 0.0
        self.lives = 0
        self.revision = 0
        self.generation = 0
        self.phase = "stable"  # or joining, or leading: all have joined
        self.members: dict[str, Process] = {}  # by slot
        self.outcasts: list[Process] = []  # alive, and no members, though they do not know it
        self.joined: dict[str, Any] = {}  # what they said, by slot
        self.leader: Process | None = None  # as the broker sees it
        self.led_last: Process | None = None
        self.given: dict[str, Any] = {}  # assignments of the generation, by slot
        self.unanswered: set[str] = set()  # slots whose member has not applied its assignment
        self.start(0, 0)

    def play(self, history: Sequence[tuple[str, int, int]]) -> None:
        for happening, who, what in history:
            if self.members or happening in ("start", "learn"):
                getattr(self, happening)(who, what)
                self.nobody_serves_what_another_serves()

    # --- what happens to processes ---

    def start(self, who: int, what: int) -> None:
        """A process starts in a slot. One that had it, dead or alive, is replaced, and the leader is not told."""
        slot, version, reads = SLOTS[who % 5], VERSIONS[what % 4], 1 + what // 4 % 3
        self.lives += 1
        assignor = UnitAssignor(
            slot=slot,
            incarnation=str(self.lives),
            version=version,
            capacity=4,
            reads_offset_format=reads,
            clock=lambda: self.now,
        )
        process = Process(slot, version, reads, str(self.lives), f"{slot}#{self.lives}", assignor)
        before = self.members.get(slot)
        self.members[slot] = process
        if before is None:
            self._rebalance()
            self._join(process)
            return
        self.outcasts += [before] if before.alive else []
        self.unanswered.discard(slot)
        if self.leader is before:
            self.leader = process
        if self.phase == "stable" and slot in self.given:
            process.metadata()
            process.wants_to_join = False
            self._apply(process)
            self._poll(process)
        else:
            self._rebalance()
            self._join(process)

    def die(self, who: int, _: int = 0) -> None:
        self._pick(who).alive = False

    def expel(self, who: int, _: int = 0) -> None:
        """The broker has not heard of a member for the session's length, or it was removed."""
        process = self._pick(who)
        del self.members[process.slot]
        self.joined.pop(process.slot, None)
        self.unanswered.discard(process.slot)
        self.outcasts += [process] if process.alive else []
        if self.leader is process:
            self.leader = None
        self._rebalance()

    def learn(self, who: int, _: int = 0) -> None:
        """A process learns that it is no member any more; it ends if its slot is taken, else it joins again."""
        if not self.outcasts:
            return
        process = self.outcasts.pop(who % len(self.outcasts))
        if process.slot in self.members:
            process.alive = False
            return
        process.assignor.lost()
        assert not process.units
        self.lives += 1
        process.member_id = f"{process.slot}#{self.lives}"
        self.members[process.slot] = process
        self._rebalance()
        self._join(process)

    def plan(self, who: int, what: int) -> None:
        self.revision += 1
        shares = SHARES[what % len(SHARES)]
        self._pick(who).assignor.offer_plan(Plan(self.revision, "r", shares))

    def leave(self, who: int, _: int = 0) -> None:
        process = self._pick(who)
        process.leaving = process.wants_to_join = True
        process.assignor.leave()

    def garble(self, who: int, what: int) -> None:
        self._pick(who).foreign = FOREIGN[what % len(FOREIGN)]

    def release(self, who: int, which: int) -> None:
        """Some of what is to be drained is."""
        if drainers := sorted(slot for slot, each in self.members.items() if each.assignor.draining):
            process = self.members[drainers[who % len(drainers)]]
            self._release(process, {unit for unit in process.assignor.draining if which >> unit & 1})

    # --- what happens in the group ---

    def poll(self, who: int, what: int) -> None:
        self.now += what % 2 * LOOK_AGAIN_S
        self._poll(self._pick(who))

    def join(self, who: int, _: int = 0) -> None:
        """A member joins if it wants to or has to. An answer that it had not got yet never comes."""
        process = self._pick(who)
        if process.alive and (process.wants_to_join or self.phase == "joining"):
            self._rebalance()
            self._join(process)

    def join_all(self, who: int = 0, what: int = 0) -> None:
        """All that are alive join, but for one perhaps."""
        if self.phase != "joining":
            return
        late = self._pick(who) if what % 4 == 3 else None
        for slot, process in self.members.items():
            if process is not late and process.alive and slot not in self.joined:
                self._join(process)
        self._all_have_joined()

    def lead(self, who: int = 0, what: int = 0) -> None:
        """The leader assigns, if it is alive. It may not have heard of the topic yet; and somebody may have
        drained something since it joined."""
        if what & 8:
            self.release(who, what)
        if self.phase != "leading" or self.leader is None or not self.leader.alive:
            return
        knows_topic = what % 4 < 3
        cluster = SimpleNamespace(
            partitions_for_topic=lambda topic: set(range(self.units)) if knows_topic else None  # type: ignore[misc]
        )
        joining = [
            SimpleNamespace(member_id=self.members[slot].member_id, group_instance_id=slot, metadata=metadata)
            for slot, metadata in self.joined.items()
        ]
        by_member = self.leader.assignor.assign(cluster, joining)
        self.led_last = self.leader
        self.given = {slot: by_member[self.members[slot].member_id] for slot in self.joined}
        self._check_round(knows_topic)
        self.phase = "stable"
        self.joined.clear()
        self.unanswered = set(self.members)

    def answer(self, who: int, _: int = 0) -> None:
        """A member gets its assignment, unless it has died. It may be late, if it has not joined again."""
        if not self.unanswered:
            return
        slot = sorted(self.unanswered)[who % len(self.unanswered)]
        self.unanswered.discard(slot)
        if self.members[slot].alive and self.phase != "leading":
            self._apply(self.members[slot])

    def rebalance(self, who: int = 0, what: int = 0) -> None:
        """The sessions of the dead end, and whoever wants to join does: a whole round, in which nothing happens."""
        for slot in [slot for slot, process in self.members.items() if not process.alive]:
            self.expel(sorted(self.members).index(slot))
        self.answer_all()
        for process in self.members.values():
            self._poll(process)
        if self.phase == "stable" and self._anybody_wants_to_join():
            self._rebalance()
        self.join_all()
        self.lead(who, what - what % 4)
        self.answer_all(who)

    def answer_all(self, who: int = 0, _: int = 0) -> None:
        for _ in range(len(self.unanswered)):
            self.answer(who)
            self.nobody_serves_what_another_serves()

    # --- how ---

    def _pick(self, who: int) -> Process:
        return self.members[sorted(self.members)[who % len(self.members)]]

    def _anybody_wants_to_join(self) -> bool:
        return any(process.wants_to_join for process in self.members.values())

    def _rebalance(self) -> None:
        if self.phase != "joining":
            self.phase = "joining"
            self.joined.clear()
        if not self.members:
            self.phase, self.leader = "stable", None
            self.given.clear()

    def _join(self, process: Process) -> None:
        self.unanswered.discard(process.slot)
        process.wants_to_join = False
        self.joined[process.slot] = process.metadata()

    def _all_have_joined(self) -> None:
        if self.phase == "joining" and set(self.joined) == set(self.members):
            self.generation += 1
            self.phase = "leading"
            self.unanswered.clear()
            if self.leader is None:
                self.leader = self.members[min(self.members)]

    def _release(self, process: Process, units: set[int]) -> None:
        if process.alive and units:
            process.assignor.release(units)
            process.wants_to_join = True
            assert not process.units & units

    def _poll(self, process: Process) -> None:
        if process.alive and process.assignor.take_rejoin_wish():
            process.wants_to_join = True

    def _apply(self, process: Process) -> None:
        """A member gets what it was given in the last round."""
        had, told = process.assignor.units, decode_told(self.given[process.slot].user_data)
        was_given = {tp.partition for tp in self.given[process.slot].partitions()}
        process.assignor.on_assignment(self.given[process.slot], self.generation)
        reopened = process.assignor.take_reopened()
        units, draining = process.assignor.units, process.assignor.draining
        assert units >= had & was_given, "what was served and stays is served on"
        assert not reopened & had, "what was served all along is not opened anew"
        assert reopened <= units <= was_given
        # What was released meanwhile waits for the next round, and only if that is to take it away.
        assert was_given - units <= told.drain
        assert process.wants_to_join or units == was_given
        assert draining <= told.drain, "absent means cancelled"
        if told.incarnation == process.incarnation:
            assert draining == told.drain & units

    def _check_round(self, knows_topic: bool) -> None:
        claims = ((slot, topic) for slot, said in self.joined.items() for topic in said.owned_partitions)
        claimed = {partition: slot for slot, topic in claims for partition in topic.partitions}
        given = {
            (slot, tp.partition) for slot, assignment in self.given.items() for tp in assignment.partitions()
        }
        units = [unit for _, unit in given]
        assert len(units) == len(set(units)), "two members were given one unit"
        for unit, slot in claimed.items():
            assert (slot, unit) in given, "a unit was taken from a member that claims it"
        understood = [self.members[slot] for slot in self.joined if self.members[slot].is_understood]
        for process in understood:
            told = decode_told(self.given[process.slot].user_data)
            mine = {unit for slot, unit in given if slot == process.slot}
            assert told.drain <= mine
            assert told.lowest_offset_format <= process.reads
            if process.said_leaving:
                assert told.drain == mine == {unit for unit, slot in claimed.items() if slot == process.slot}
            for unit, slot in told.predecessors.items():
                assert unit in mine - set(claimed)
                assert slot not in self.members
        if knows_topic and not all(process.said_leaving for process in understood):
            assert len(units) == self.units, "a unit was left to nobody"

    # --- what must hold ---

    def nobody_serves_what_another_serves(self) -> None:
        """Outcasts are fenced: the broker takes nothing from them."""
        owned = [unit for process in self.members.values() for unit in process.units]
        assert len(owned) == len(set(owned)), "two members serve one unit"

    def settle(self) -> None:
        """From here on nothing happens any more, but that everybody does what is due."""
        if not any(process.alive and not process.leaving for process in self.members.values()):
            self.start(4, 0)
        for process in (*self.members.values(), *self.outcasts):
            process.wants_to_join |= not process.is_understood
            process.foreign = None
        for _ in range(SETTLES_WITHIN):
            self._round()
            if self.phase == "stable" and not self._anybody_wants_to_join():
                break
        else:
            raise AssertionError("the group does not come to rest")
        self._check_settled()
        before = {slot: process.units for slot, process in self.members.items()}
        self._pick(0).wants_to_join = True
        self._round()
        assert before == {slot: process.units for slot, process in self.members.items()}, "units move at rest"
        assert not self._anybody_wants_to_join()

    def _round(self) -> None:
        while self.outcasts:
            self.learn(0)
        self.now += LOOK_AGAIN_S
        self.rebalance()
        self.nobody_serves_what_another_serves()
        for process in self.members.values():
            self._poll(process)
            self._release(process, set(process.assignor.draining))

    def _check_settled(self) -> None:
        members = self.members.values()
        staying = [process for process in members if not process.leaving]
        assert self.leader is self.led_last, "somebody leads"
        owned = sorted(unit for process in members for unit in process.units)
        assert owned == list(range(self.units)), "every unit has one owner"
        assert not any(process.assignor.draining for process in members)
        assert not any(process.units for process in members if process.leaving)
        assert {process.assignor.lowest_offset_format for process in members} == {
            min(process.reads for process in members)
        }
        plans = [process.assignor.plan for process in members]
        assert all(plan == plans[0] for plan in plans), "all know the newest plan"
        shares = plans[0].shares if plans[0] is not None else {}
        weights = {process.version: shares.get(process.version, 0) for process in staying}
        crews = {
            version: [process for process in staying if process.version == version] for version in weights
        }
        if not any(weights.values()):
            crews, weights = {"": staying}, {"": 1}
        for version, crew in crews.items():
            counts = [len(process.units) for process in crew]
            assert max(counts) - min(counts) <= 1
            exact = self.units * weights[version] / sum(weights.values())
            assert abs(sum(counts) - exact) < 1, "the version has its planned share"
