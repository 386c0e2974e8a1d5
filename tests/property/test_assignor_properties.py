"""Over any history of a group: a unit never has two owners, soon has one, and stays there."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings
from property_examples import EXAMPLES

from headrace.consumers.assignor import Claim, assign_units


@dataclass
class Worker:
    """A process: what it believes to own, since which generation."""

    slot: str
    generation: int = -1
    owned: frozenset[int] = frozenset()
    fenced: bool = (
        False  # it was expelled meanwhile: the broker refuses its commits until it has a new assignment
    )

    @property
    def claim(self) -> Claim:
        return Claim(self.slot, "1", 4, self.generation, self.owned)


@dataclass
class Group:
    """A group of workers that rejoin in rounds."""

    units: int
    generation: int = 0
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    away: dict[str, Worker] = field(default_factory=dict[str, Worker])  # expelled, and does not know it
    lives: int = 0

    def join(self, slot: str) -> None:
        self.lives += 1
        self.workers[f"{slot}#{self.lives}"] = Worker(slot)

    def round(self, missing: frozenset[int] = frozenset()) -> dict[str, list[int]]:
        """One rebalance; the members at the indices in `missing` do not get its answer."""
        self.generation += 1
        before = {member: worker.owned for member, worker in self.workers.items()}
        claimed = {unit for owned in before.values() for unit in owned}
        newest = {
            unit: max(worker.generation for worker in self.workers.values() if unit in worker.owned)
            for unit in claimed
        }
        given = assign_units({member: worker.claim for member, worker in self.workers.items()}, self.units)
        assert set(given) == set(self.workers)
        for member, units in given.items():
            for unit in units:
                holds = unit in before[member] and self.workers[member].generation == newest[unit]
                assert holds or unit not in claimed, "moved from a live claimant"
        for index, (member, worker) in enumerate(sorted(self.workers.items())):
            if index not in missing:
                worker.owned, worker.generation, worker.fenced = (
                    frozenset(given[member]),
                    self.generation,
                    False,
                )
        flat = [unit for units in given.values() for unit in units]
        assert len(flat) == len(set(flat)), "two members were given one unit"
        held = [unit for worker in self.workers.values() if not worker.fenced for unit in worker.owned]
        assert len(held) == len(set(held)), "two members that may commit hold one unit"
        return given


SLOTS = st.sampled_from("abcde")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), SLOTS),
        st.tuples(st.just("die"), st.integers(0, 9)),
        st.tuples(st.just("restart"), st.integers(0, 9)),
        st.tuples(st.just("expel"), st.integers(0, 9)),
        st.tuples(st.just("return"), st.integers(0, 9)),
        st.tuples(st.just("round"), st.frozensets(st.integers(0, 4), max_size=2)),
    ),
    max_size=25,
)


def play(group: Group, events: list[tuple[str, object]]) -> None:
    for kind, what in events:
        members = sorted(group.workers)
        if kind == "join" and len(members) < 8:
            assert isinstance(what, str)
            group.join(what)
        elif kind == "round":
            assert isinstance(what, frozenset)
            group.round(what)
        elif kind == "return" and group.away:
            member = sorted(group.away)[what % len(group.away)]  # type: ignore[operator]
            group.workers[member] = group.away.pop(member)
            group.workers[member].fenced = True
        elif members and kind in ("die", "restart", "expel"):
            member = members[what % len(members)]  # type: ignore[operator]
            worker = group.workers.pop(member)
            if kind == "restart":
                group.join(worker.slot)
            elif kind == "expel":
                group.away[member] = worker


@settings(max_examples=EXAMPLES, deadline=None)
@given(units=st.integers(0, 20), events=EVENTS)
def test_a_unit_soon_has_exactly_one_owner_and_stays_there(
    units: int, events: list[tuple[str, object]]
) -> None:
    group = Group(units)
    group.join("a")
    play(group, events)
    if not group.workers:
        group.join("z")
    for _ in range(3):  # one to let the claims of past lives go, one to let surplus go, one to give it away
        group.round()
    settled = group.round()
    assert sorted(unit for given in settled.values() for unit in given) == list(range(units))
    shares = [len(given) for given in settled.values()]
    assert max(shares) - min(shares) <= 1
    assert group.round() == settled, "units move though nothing has changed"


@settings(max_examples=EXAMPLES, deadline=None)
@given(units=st.integers(1, 20), count=st.integers(1, 6), joining=st.integers(0, 3))
def test_no_more_units_move_than_equal_shares_ask_for(units: int, count: int, joining: int) -> None:
    group = Group(units)
    for index in range(count):
        group.join(f"s{index}")
    for _ in range(3):
        group.round()
    before = {unit: member for member, worker in group.workers.items() for unit in worker.owned}
    for index in range(joining):
        group.join(f"n{index}")
    for _ in range(3):
        group.round()
    after = {unit: member for member, worker in group.workers.items() for unit in worker.owned}
    moved = sum(before[unit] != after[unit] for unit in range(units))
    least = sum(len(worker.owned) for member, worker in group.workers.items() if worker.slot.startswith("n"))
    assert moved == least


@settings(max_examples=EXAMPLES, deadline=None)
@given(units=st.integers(0, 20), events=EVENTS, data=st.data())
def test_the_order_in_which_the_broker_lists_the_members_does_not_matter(
    units: int, events: list[tuple[str, object]], data: st.DataObject
) -> None:
    group = Group(units)
    play(group, events)
    claims = [(member, worker.claim) for member, worker in group.workers.items()]
    shuffled = data.draw(st.permutations(claims))
    assert assign_units(dict(claims), units) == assign_units(dict(shuffled), units)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    owners=st.lists(st.sampled_from("abcd"), max_size=16),
    members=st.sets(st.sampled_from("abcd"), min_size=1),
)
def test_every_member_keeps_as_much_as_equal_shares_allow(owners: list[str], members: set[str]) -> None:
    """Whoever holds more than the smaller share is the first to get a larger one."""
    held = {
        member: frozenset(unit for unit, owner in enumerate(owners) if owner == member) for member in members
    }
    given = assign_units({name: Claim(name, "1", 4, 1, owned) for name, owned in held.items()}, len(owners))
    smaller, larger = divmod(len(owners), len(members))
    most = sum(min(len(owned), smaller) for owned in held.values())
    most += min(larger, sum(len(owned) > smaller for owned in held.values()))
    assert sum(len(held[member] & set(units)) for member, units in given.items()) == most
