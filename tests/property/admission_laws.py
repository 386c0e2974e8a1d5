"""What admission promises over a backlog: shares of lanes and tenants, and that nobody starves."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from property.admission_model import a_work

from headrace.schemas.messages import LANES, Lane
from headrace.workers.admission import WEIGHTS, Admission, Room
from headrace.workers.work import Work

LARGEST = 40  # tokens of a request, but where a law says otherwise
Law = Callable[[random.Random], None]
LAWS: dict[str, Law] = {}


def law(check: Law) -> Law:
    LAWS[check.__name__] = check
    return check


def _tokens(work: Work) -> int:
    assert work.request is not None
    assert work.request.sampling is not None
    return len(work.value or b"") // 4 + (work.request.sampling.max_tokens or 0)


class _Backlog:
    """Lanes and tenants that never run out of requests. No completion is learnt: what is charged is what is asked."""

    def __init__(self, dice: random.Random, admission: Admission) -> None:
        self.dice = dice
        self.admission = admission
        self.offset = 0
        self.running: list[Work] = []

    def offer(self, lane: Lane, tenant: str | None = None, tokens: int | None = None) -> Work:
        self.offset += 1
        prompt = self.dice.randint(1, LARGEST - 1) if tokens is None else tokens - 1
        work = a_work(lane, self.offset, tenant=tenant, prompt=prompt)
        self.admission.offer(work)
        return work

    def step(self) -> list[Work]:
        """Admit all that goes in, each followed by another of its lane and tenant; then finish the oldest."""
        admitted: list[Work] = []
        while (work := self.admission.admit()) is not None:
            admitted.append(work)
            self.running.append(work)
            assert work.request is not None
            if work.request.tenant != "once":
                self.offer(work.lane, work.request.tenant)
        self.admission.finished(self.running.pop(0))
        return admitted


@law
def lanes_share_by_weight(dice: random.Random) -> None:
    """Between two admissions of a lane another gets what its weight says, give or take two requests."""
    backlog = _Backlog(dice, Admission(Room(1, None, 0), backfill_share=1.0))
    lanes = dice.sample(LANES, dice.randint(2, 3))
    for lane in lanes:
        for _ in range(2):
            backlog.offer(lane)
    since: dict[Lane, Counter[Lane]] = {lane: Counter() for lane in LANES}
    total: Counter[Lane] = Counter()
    for _ in range(150):
        for work in backlog.step():
            total[work.lane] += _tokens(work)
            for lane, seen in since[work.lane].items():
                bound = _tokens(work) * WEIGHTS[lane] / WEIGHTS[work.lane] + 2 * LARGEST
                assert seen <= bound, f"{work.lane} waited while {lane} had {seen} tokens"
            since[work.lane].clear()
            for lane in LANES:
                if lane != work.lane:
                    since[lane][work.lane] += _tokens(work)
    for lane in lanes:  # and as much as its weight says in the long run: nobody is held back below it
        share = total.total() * WEIGHTS[lane] / sum(WEIGHTS[each] for each in lanes)
        assert abs(total[lane] - share) <= 2 * LARGEST


@law
def nobody_starves_behind_small_requests(dice: random.Random) -> None:
    """A request as large as the engine goes in, although small ones of higher lanes would always fit."""
    room = Room(8, 200, 2)
    backlog = _Backlog(dice, Admission(room, backfill_share=dice.choice([0.5, 0.75, 1.0])))
    large: Lane = dice.choice(["standard", "backfill"])
    for lane in LANES:
        if LANES.index(lane) < LANES.index(large):
            for _ in range(20):
                backlog.offer(lane)
    for _ in range(dice.randint(0, 30)):
        backlog.step()
    wanted = backlog.offer(large, tenant="once", tokens=dice.randint(100, 260))
    bound = _tokens(wanted) * 20 / WEIGHTS[large] + 4 * LARGEST + 3 * 200
    seen = 0
    while wanted not in (admitted := backlog.step()):
        seen += sum(map(_tokens, admitted))
        assert seen <= bound, "it waits and waits"


@law
def interactive_starts_at_once_in_its_reserve(dice: random.Random) -> None:
    """With the lower lanes full, or one of them waiting for room, one interactive request goes in at once."""
    room = Room(dice.randint(4, 40), None, dice.randint(0, 3))
    backlog = _Backlog(dice, Admission(room))
    for lane in dice.sample(LANES[1:], dice.randint(1, 2)):
        for _ in range(60):
            backlog.offer(lane)
    for _ in range(dice.randint(1, 60)):
        backlog.step()
    while (work := backlog.admission.admit()) is not None:
        backlog.running.append(work)
    wanted = backlog.offer("interactive", tokens=dice.choice([2, 2000]))  # the larger, the later its turn
    assert backlog.admission.admit() is wanted


@law
def a_lane_that_comes_and_goes_saves_nothing_up(dice: random.Random) -> None:
    """After a long time without requests a lane has its share again, and no more."""
    backlog = _Backlog(dice, Admission(Room(1, None, 0), backfill_share=1.0))
    steady, away = sorted(dice.sample(LANES, 2), key=LANES.index)
    backlog.offer(away, "once")
    for _ in range(2):
        backlog.offer(steady)
    for _ in range(60):
        backlog.step()
    for _ in range(2):
        backlog.offer(away)
    got = Counter({steady: 0})
    while got[steady] < 8 * LARGEST:
        for work in backlog.step():
            got[work.lane] += _tokens(work)
    assert got[away] <= got[steady] * WEIGHTS[away] / WEIGHTS[steady] + 2 * LARGEST, got


@law
def backfill_that_its_share_holds_up_saves_nothing_up(dice: random.Random) -> None:
    """Backfill that could not go further for long does not shut the others out when it can."""
    backlog = _Backlog(dice, Admission(Room(4, None, 0), backfill_share=0.25))
    for lane in LANES:
        for _ in range(5):
            backlog.offer(lane)
    while not any(work.lane == "backfill" for work in backlog.running):
        backlog.step()
    stuck = next(work for work in backlog.running if work.lane == "backfill")
    for _ in range(400):  # it runs on; all others come and go
        if backlog.running[0] is stuck:
            backlog.running.append(backlog.running.pop(0))
        backlog.step()
    backlog.running.remove(stuck)
    backlog.running.insert(0, stuck)
    got: Counter[Lane] = Counter()
    for _ in range(60):
        for work in backlog.step():
            got[work.lane] += _tokens(work)
    share = got.total() * WEIGHTS["backfill"] / sum(WEIGHTS.values())
    assert got["backfill"] <= share + 3 * LARGEST, "it takes what it could not have before"


@law
def tenants_share_equally(dice: random.Random) -> None:
    """Tenants that wait differ by one request at most; one that joins is level with them, give or take one more."""
    backlog = _Backlog(dice, Admission(Room(dice.randint(1, 5), None, 0)))
    tenants: list[str | None] = [None, *"abcd"][: dice.randint(2, 5)]
    for tenant in tenants:
        for _ in range(dice.randint(6, 9)):
            backlog.offer("standard", tenant)
    got: Counter[str | None] = Counter()
    for turn in range(120):
        for work in backlog.step():
            assert work.request is not None
            got[work.request.tenant] += _tokens(work)
        spread = max(got[tenant] for tenant in tenants) - min(got[tenant] for tenant in tenants)
        assert spread <= LARGEST if turn < 60 else spread <= 2 * LARGEST, spread
        if turn == 59:
            tenants.append("newcomer")
            got.clear()  # what was before it came is nothing to it
            for _ in range(6):
                backlog.offer("standard", "newcomer")


@law
def a_tenant_that_comes_and_goes_saves_nothing_up(dice: random.Random) -> None:
    """One that was away comes back level with those that were served meanwhile."""
    backlog = _Backlog(dice, Admission(Room(1, None, 0)))
    for _ in range(3):
        backlog.offer("standard", "steady")
    backlog.offer("standard", "once")
    for _ in range(dice.randint(10, 60)):
        backlog.step()
    for _ in range(20):
        backlog.offer("standard", "once")
    got: Counter[str | None] = Counter()
    for _ in range(20):
        for work in backlog.step():
            assert work.request is not None
            got[work.request.tenant] += _tokens(work)
    assert abs(got["once"] - got["steady"]) <= 2 * LARGEST, got


@law
def an_old_tenant_is_not_kept_waiting_by_new_ones(dice: random.Random) -> None:
    """Tenants never seen before come all the time; one with a queue still has its turn, and they are forgotten."""
    admission = Admission(Room(1, None, 0))
    backlog = _Backlog(dice, admission)
    for _ in range(5):
        backlog.offer("standard", "old")
    crowd = dice.randint(1, 8)
    since = 0
    for number in range(150):
        if number < crowd:
            backlog.offset += 1
            admission.offer(a_work("standard", backlog.offset, tenant=f"new-{number}", prompt=LARGEST - 1))
        work = admission.admit()
        assert work is not None
        assert work.request is not None
        admission.finished(work)
        if work.request.tenant == "old":
            since = 0
            backlog.offer("standard", "old", tokens=LARGEST)
        else:
            since += 1
            backlog.offset += 1
            tenant = f"new-{crowd + number}"
            admission.offer(a_work("standard", backlog.offset, tenant=tenant, prompt=LARGEST - 1))
        assert since <= 3 * (crowd + 2), "the old tenant waits behind an endless stream"
    assert len(admission._queues[1]._accounts) <= 6 * (crowd + 2), "tenants that are gone are kept for ever"


@law
def what_was_taken_beyond_the_estimate_is_charged(dice: random.Random) -> None:
    """A tenant whose completions run long gets fewer of them than one whose are short."""
    admission = Admission(Room(1, None, 0))
    for offset in range(160):
        admission.offer(a_work("standard", offset, tenant="long" if offset % 2 else "short", max_tokens=1000))
    got: Counter[str] = Counter()
    for _ in range(80):
        work = admission.admit()
        assert work is not None
        assert work.request is not None
        tenant = work.request.tenant or ""
        tokens = dice.randint(800, 1000) if tenant == "long" else dice.randint(1, 20)
        admission.finished(work, tokens)
        got[tenant] += 1
    assert got["short"] >= 1.5 * got["long"], got
