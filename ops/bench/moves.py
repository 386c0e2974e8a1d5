"""What it costs when a worker joins, leaves or is killed: `headrace bench moves`."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ops.bench.ground import BenchFailed, Ground, page_of, wait_until
from headrace.ops.bench.move_figures import Counted, Kind, Mark, MoveFigures, marks_in, owners, sum_up
from headrace.ops.bench.recording import AnswerLog, RequestSender, SteadyTraffic
from headrace.ops.faults.fleet import Page, read_page
from headrace.workers.simulated_engine import SimulatedProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.ops.bench.ground import Say
    from headrace.ops.worker_process import WorkerProcess

MAX_TOKENS = 16  # of each request: the least that a text of the simulated engine has, so all are as long
READY_WITHIN_S = 60.0
MOVED_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 120.0
LEFT_WITHIN_S = 90.0
WARM_UP_S = 2.0  # of a steady phase, not counted: the first results come after a generation's time
GOES_ON_S = 2.0  # traffic after the last unit has moved
WATCH_S = 0.05


@dataclass(frozen=True, slots=True)
class MovesLoad:
    """What the workers are given, and how they are set."""

    workers: int = 3  # at the beginning
    rate: float = 90.0  # requests a second, over all units
    latency_s: float = 0.2  # of a generation that runs alone
    steady_s: float = 8.0  # of traffic before each change of the fleet
    session_timeout_s: float = 10.0


class Crew:
    """The workers of a run, and what those that have ended had begun."""

    def __init__(self, ground: Ground, environment: dict[str, str]) -> None:
        self._ground = ground
        self._environment = environment
        self._workers: dict[str, WorkerProcess] = {}
        self._ended: list[WorkerProcess] = []
        self._begun_by_ended = 0
        self._logs: dict[str, WorkerProcess] = {}

    @property
    def slots(self) -> list[str]:
        """Those that run."""
        return list(self._workers)

    def start(self, slot: str) -> WorkerProcess:
        """Start one; the caller waits for it, and ends it at last."""
        worker = self._ground.worker(slot, environment=self._environment)
        self._workers[slot] = self._logs[slot] = worker
        return worker

    def begun(self) -> int:
        """Generations that all of them have begun by now."""
        return self._begun_by_ended + sum(page_of(each).begun for each in self._workers.values())

    def leave(self, slot: str) -> None:
        """SIGTERM, and wait for its end; its page is read until it is gone."""
        worker = self._workers[slot]
        page = page_of(worker)
        worker.terminate()
        deadline = time.monotonic() + LEFT_WITHIN_S
        while worker.process.poll() is None:
            status, text = worker.get("/metrics")
            page = read_page(text) if status == 200 else page
            if time.monotonic() > deadline:
                raise BenchFailed(f"{slot} did not leave within {LEFT_WITHIN_S:.0f} s; its log: {worker.log}")
            time.sleep(WATCH_S)
        if worker.process.returncode != 0:
            raise BenchFailed(f"{slot} ended with {worker.process.returncode}; its log: {worker.log}")
        self._forget(slot, page)

    def kill(self, slot: str) -> int:
        """SIGKILL; how many generations it had begun and not committed a moment before."""
        worker = self._workers[slot]
        page = page_of(worker)
        worker.process.kill()
        worker.process.wait()
        self._forget(slot, page)
        return page.begun - page.answered

    def marks(self) -> Iterator[Mark]:
        """What all their logs say of units that leave."""
        for slot, worker in self._logs.items():
            yield from marks_in(worker.said(), slot)

    def _forget(self, slot: str, page: Page) -> None:
        del self._workers[slot]
        self._begun_by_ended += page.begun


def run(ground: Ground, load: MovesLoad, say: Say) -> list[MoveFigures]:
    """A worker joins, another leaves, a third is killed, each under steady traffic. Raises HeadraceError."""
    if load.workers < 2 or ground.partitions < load.workers + 1:
        raise BenchFailed("moves need two workers or more, and a unit for each and for the one that joins")
    alone_s = MAX_TOKENS * SimulatedProfile().decode_seconds_per_token
    environment = {
        "HEADRACE_SIMULATED_TIME_SCALE": str(load.latency_s / alone_s),
        "HEADRACE_SESSION_TIMEOUT_MS": str(int(load.session_timeout_s * 1000)),
    }
    with ExitStack() as ends:
        crew = Crew(ground, environment)
        slots = [f"worker-{number + 1}" for number in range(load.workers + 1)]
        workers = [ends.enter_context(crew.start(slot)) for slot in slots[:-1]]
        for each in workers:
            each.wait_ready(READY_WITHIN_S)
        answers = ends.enter_context(AnswerLog(ground))
        sender = ends.enter_context(RequestSender(ground))
        bench = _Moves(ground, load, crew, answers, sender, say)
        say(f"{load.workers} workers ready, {ground.partitions} units, {load.rate:.0f} requests/s")
        bench.settle()

        def join() -> None:
            ends.enter_context(crew.start(slots[-1]))

        return [
            bench.change("join", slots[-1], join),
            bench.change("leave", slots[0], lambda: crew.leave(slots[0])),
            bench.change("kill", slots[1], lambda: crew.kill(slots[1])),
        ]


class _Moves:
    def __init__(
        self,
        ground: Ground,
        load: MovesLoad,
        crew: Crew,
        answers: AnswerLog,
        sender: RequestSender,
        say: Say,
    ) -> None:
        self._ground = ground
        self._load = load
        self._crew = crew
        self._answers = answers
        self._sender = sender
        self._say = say
        self._counted = Counted(0, 0)

    def settle(self) -> None:
        """Traffic until each worker has answered its share: the first rebalances are over then."""
        share = self._ground.partitions // self._load.workers
        with self._traffic():
            wait_until(
                lambda: all(self._units_of(slot) >= share for slot in self._crew.slots),
                MOVED_WITHIN_S,
                "each worker has its share of the units",
            )
        self._all_answered()
        self._counted = Counted(self._crew.begun(), len(self._answers))

    def change(self, kind: Kind, slot: str, act: Callable[[], int | None]) -> MoveFigures:
        """Steady traffic, the change, and traffic until all is moved. `act` gives what was in flight at a kill."""
        before = len(self._answers)
        with self._traffic():
            time.sleep(WARM_UP_S)
            steady_from = time.time()
            time.sleep(self._load.steady_s)
            self._say(f"{kind}: {slot}")
            acted_at = time.time()
            in_flight = act()
            self._wait_until_moved(kind, slot, acted_at)
            time.sleep(GOES_ON_S)
        self._all_answered()
        total = Counted(self._crew.begun(), len(self._answers))
        counted = Counted(total.begun - self._counted.begun, total.results - self._counted.results, in_flight)
        self._counted = total
        figures = sum_up(
            kind,
            self._answers.so_far()[before:],
            list(self._crew.marks()),
            counted,
            steady_from=steady_from,
            acted_at=acted_at,
        )
        self._say(f"{kind}: {figures.moved} units moved in {figures.window_s:.1f} s")
        return figures

    def _wait_until_moved(self, kind: Kind, slot: str, acted_at: float) -> None:
        """Join: until the newcomer has answered its share. Else: until others have answered each of its units."""
        limit_s = MOVED_WITHIN_S + self._load.session_timeout_s
        if kind == "join":
            share = self._ground.partitions // len(self._crew.slots)
            wait_until(lambda: self._units_of(slot) >= share, limit_s, f"{slot} has its share of the units")
            return
        before = owners(each for each in self._answers.so_far() if each.at <= acted_at)
        its_own = {unit for unit, owner in before.items() if owner == slot}

        def answered_by_others() -> set[int]:
            since = (each for each in self._answers.so_far() if each.at > acted_at)
            return {each.unit for each in since if each.slot != slot}

        wait_until(
            lambda: its_own <= answered_by_others(), limit_s, f"others have answered the units of {slot}"
        )

    def _units_of(self, slot: str) -> int:
        return sum(owner == slot for owner in owners(self._answers.so_far()).values())

    def _traffic(self) -> SteadyTraffic:
        return SteadyTraffic(self._sender, self._ground.partitions, self._load.rate, MAX_TOKENS)

    def _all_answered(self) -> None:
        self._answers.wait_for(self._sender.sent, ANSWERED_WITHIN_S, "every request is answered")
