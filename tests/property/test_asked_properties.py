"""Sent twice, in whatever lane, with whatever between: one generation, and whoever asked is told the truth."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from property.asked_mutants import BUGS
from property_examples import EXAMPLES

from headrace.consumers.records import AnsweredId, TopicPartition
from headrace.schemas.messages import Location
from headrace.workers.asked import Asked, AskedIds
from headrace.workers.work import Replay, ReplyAddress

UNIT = 3
LANES = [TopicPartition(f"requests.{lane}", UNIT) for lane in ("interactive", "standard", "backfill")]
RESULTS, TENANT = "results", "tenant.results"
IDS = st.sampled_from("abcdef")  # more than a window holds
LANE = st.sampled_from(LANES)
OK = st.sampled_from([True, True, False])
REPLAYS: st.SearchStrategy[Replay] = st.sampled_from(["no", "no", "no", "unless_ok", "unless_ok", "again"])
Sent = tuple[str, Replay]  # an id, and whether it is a replay

Place = tuple[TopicPartition, int]  # where a request lies


@dataclass(frozen=True)
class Done:
    """A request whose completion waits for its transaction; `result`: whether it has one, or is a duplicate."""

    request_id: str
    at: Place
    result: bool
    ok: bool = True
    elsewhere: bool = False  # its result goes to a topic of its own


class UnitAndWorkers(RuleBasedStateMachine):
    """A unit's lanes and its results in a broker, and the worker that has it: what it knows, and what it runs."""

    @initialize(window=st.sampled_from([0, 1, 2, 3, 4]))
    def begin(self, window: int) -> None:
        self.window = window
        self.requests: dict[TopicPartition, list[Sent]] = {lane: [] for lane in LANES}
        self.done: set[Place] = set()
        # By offset in the results' partition; "" is a transaction marker.
        self.results: list[tuple[str, bool]] = []
        self.callers = 0
        self.new_worker()

    def new_worker(self) -> None:
        self.known = AskedIds(self.window)
        self.positions = dict.fromkeys(LANES, 0)
        self.running: dict[str, Place] = {}
        self.waiting: dict[str, list[ReplyAddress]] = {}  # for what runs, in the order of asking
        # Of each id's results that this worker knows or could know, and of those that are `ok`.
        self.latest: dict[str, Location] = {}
        self.latest_ok: dict[str, Location] = {}
        # Ids of results of this unit, in order, as far as this worker can know them, and whether they are `ok`.
        self.answers: list[tuple[str, bool]] = []
        self.pending: list[Done] = []
        self.batch: list[Done] = []
        ids = [AnsweredId(each, offset, ok) for offset, (each, ok) in enumerate(self.results) if each]
        recent = ids[len(ids) - self.window :] if self.window < len(ids) else ids
        self.known.remember(recent, RESULTS, UNIT)
        for request_id, offset, ok in recent:
            self.note_answer(request_id, Location(topic=RESULTS, partition=UNIT, offset=offset), ok)

    def note_answer(self, request_id: str, location: Location, ok: bool) -> None:
        self.answers.append((request_id, ok))
        self.latest[request_id] = location
        if ok:
            self.latest_ok[request_id] = location

    # --- what callers do ---

    @rule(lane=LANE, request_id=IDS, replay=REPLAYS)
    def sends(self, lane: TopicPartition, request_id: str, replay: Replay) -> None:
        self.requests[lane].append((request_id, replay))

    # --- what the worker does ---

    def in_hand(self, place: Place) -> bool:
        return place in self.running.values() or any(each.at == place for each in self.pending + self.batch)

    def read(self, lane: TopicPartition, *, refused: bool, elsewhere: bool) -> None:
        offset = self.positions[lane]
        if offset >= len(self.requests[lane]):
            return
        self.positions[lane] += 1
        at = (lane, offset)
        if at in self.done or self.in_hand(at):
            return
        request_id, replay = self.requests[lane][offset]
        if refused:
            self.pending.append(Done(request_id, at, result=True, ok=False, elsewhere=elsewhere))
            return
        self.callers += 1
        caller = ReplyAddress("replies", 0, str(self.callers))
        seen = self.known.ask(request_id, lane, offset, caller, replay)
        self.check_seen(request_id, replay, seen)
        if seen is None:
            self.running[request_id] = at
            self.waiting[request_id] = []
            return
        if not seen.answered:
            self.waiting[request_id].append(caller)
        self.pending.append(Done(request_id, at, result=False))

    def check_seen(self, request_id: str, replay: Replay, seen: Asked | None) -> None:
        recent = self.answers[max(0, len(self.answers) - self.window) :]
        if request_id in self.running:
            assert seen is not None, "a second generation of what runs"
            assert not seen.answered, "it runs, and its answer is to come"
        elif replay == "again" or (replay == "unless_ok" and request_id not in self.latest_ok):
            assert seen is None, "a replay that is not run, and no `ok` is known"
        elif (request_id, True) in recent:
            assert seen is not None, "a second generation within the window, of what is ok"
            assert seen.answered, "it runs no more"
            assert seen.location == self.latest_ok[request_id]
        elif replay == "no" and (request_id, False) in recent:
            assert seen is not None, "a second generation within the window"
            self.check_known(request_id, seen)
        elif seen is not None:
            assert self.window, "without a window only what runs is known"
            self.check_known(request_id, seen)

    def check_known(self, request_id: str, seen: Asked) -> None:
        assert seen.answered, "it runs no more"
        # An `ok` that has left the window may be known still, and is told rather than what came after it.
        assert seen.location in (self.latest[request_id], self.latest_ok.get(request_id))

    @rule(lane=LANE, refused=st.sampled_from([False, False, False, True]), elsewhere=st.booleans())
    def reads_a_request(self, lane: TopicPartition, refused: bool, elsewhere: bool) -> None:
        self.read(lane, refused=refused, elsewhere=elsewhere)

    @rule(data=st.data())
    @precondition(lambda self: self.running)
    def reads_again_what_runs(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        lane, offset = self.running[request_id]
        caller = ReplyAddress("replies", 0, "the first again")
        assert self.known.ask(request_id, lane, offset, caller) is None, "it is no duplicate of itself"

    @rule(data=st.data(), ok=OK, elsewhere=st.booleans())
    @precondition(lambda self: self.generating())
    def finishes(self, data: st.DataObject, ok: bool, elsewhere: bool) -> None:
        request_id = data.draw(st.sampled_from(self.generating()))
        at = self.running[request_id]
        self.pending.append(Done(request_id, at, result=True, ok=ok, elsewhere=elsewhere))

    @rule(sent=st.lists(st.tuples(st.tuples(IDS, REPLAYS), st.booleans(), OK), min_size=1, max_size=6))
    @precondition(lambda self: not self.batch)
    def answers_all(self, sent: list[tuple[Sent, bool, bool]]) -> None:
        """All that there is, and then some more of one lane, each in a transaction of its own."""
        self.finish_all()
        lane = LANES[0]
        for each, refused, ok in sent:
            self.requests[lane].append(each)
            while self.positions[lane] < len(self.requests[lane]):
                self.read(lane, refused=refused, elsewhere=False)
            self.finish_all(ok=ok)

    def finish_all(self, *, ok: bool = True) -> None:
        self.pending += [Done(each, self.running[each], result=True, ok=ok) for each in self.generating()]
        self.batch, self.pending = self.batch + self.pending, []
        self.commits()

    def generating(self) -> list[str]:
        finished = {each.at for each in self.pending + self.batch}
        return sorted(each for each, at in self.running.items() if at not in finished)

    @rule(count=st.integers(1, 4))
    @precondition(lambda self: self.pending and not self.batch)
    def hands_over_a_batch(self, count: int) -> None:
        self.batch, self.pending = self.pending[:count], self.pending[count:]

    @rule()
    @precondition(lambda self: self.batch)
    def commits(self) -> None:
        locations = self.broker_commits()
        for each, location in zip(self.batch, locations, strict=True):
            if location is None:
                continue
            status = "ok" if each.ok else "failed"
            waiting = self.known.answered(each.request_id, *each.at, location, status)
            if self.running.get(each.request_id) == each.at:
                del self.running[each.request_id]
                assert list(waiting) == self.waiting.pop(each.request_id)
                self.note_answer(each.request_id, location, each.ok)
            else:
                assert waiting == (), "this was refused, and what others wait for is to come"
                if each.request_id not in self.running:
                    self.note_answer(each.request_id, location, each.ok)
        self.batch = []

    def broker_commits(self) -> list[Location | None]:
        locations: list[Location | None] = []
        for each in self.batch:
            self.done.add(each.at)
            if not each.result:
                locations.append(None)
            elif each.elsewhere:
                locations.append(Location(topic=TENANT, partition=0, offset=len(self.results)))
            else:
                locations.append(Location(topic=RESULTS, partition=UNIT, offset=len(self.results)))
                self.results.append((each.request_id, each.ok))
        self.results.append(("", False))
        return locations

    @rule()
    @precondition(lambda self: self.batch)
    def is_refused(self) -> None:
        self.pending, self.batch = self.batch + self.pending, []

    @rule(lane=LANE, committed=st.booleans(), resent=st.none() | st.tuples(LANE, st.tuples(IDS, REPLAYS)))
    def loses_a_lane_and_gets_it_back(
        self, lane: TopicPartition, committed: bool, resent: tuple[TopicPartition, Sent] | None
    ) -> None:
        """`resent`: what arrives in another lane while a transaction of the lost one is under way."""
        in_transaction = {each.at[1] for each in self.batch if each.at[0] == lane}
        self.drop(lane, in_transaction)
        self.known.forget(lane, in_transaction)
        self.what_runs_is_known_to_run_and_nothing_else()
        if resent and resent[0] != lane:
            self.requests[resent[0]].append(resent[1])
            while self.positions[resent[0]] < len(self.requests[resent[0]]):
                self.read(resent[0], refused=False, elsewhere=False)
        if in_transaction and committed:
            self.commits()
        elif in_transaction:
            self.batch = [each for each in self.batch if each.at[0] != lane]
            self.is_refused()
            self.drop(lane, set())
            self.known.forget(lane)
        self.positions[lane] = 0

    def drop(self, lane: TopicPartition, but: set[int]) -> None:
        self.pending = [each for each in self.pending if each.at[0] != lane]
        for request_id, (source, offset) in list(self.running.items()):
            if source == lane and offset not in but:
                del self.running[request_id], self.waiting[request_id]

    @rule(committed=st.booleans())
    def dies(self, committed: bool) -> None:
        if self.batch and committed:
            self.broker_commits()
        self.new_worker()

    @invariant()
    def what_runs_is_known_to_run_and_nothing_else(self) -> None:
        if hasattr(self, "known"):
            assert set(self.known._running) == set(self.running)

    def teardown(self) -> None:
        """Let it run to its end: every request is done, and every id has its answer."""
        if not hasattr(self, "known"):
            return
        for worker in (self.known, None):
            if worker is None:
                self.new_worker()
            for lane in LANES:
                while self.positions[lane] < len(self.requests[lane]):
                    self.read(lane, refused=False, elsewhere=False)
            self.finish_all()
            assert not self.running
        assert self.done == {(lane, offset) for lane in LANES for offset in range(len(self.requests[lane]))}


UnitAndWorkers.TestCase.settings = settings(max_examples=EXAMPLES, deadline=None, stateful_step_count=40)
TestUnitAndWorkers = UnitAndWorkers.TestCase

# --- the model bites: each deliberate bug breaks it ---

FEW = settings(
    max_examples=2000,
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.soak
@pytest.mark.parametrize("name", BUGS)
def test_the_model_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(UnitAndWorkers, settings=FEW)
