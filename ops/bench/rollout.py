"""A whole rollout under load, and one that is taken back: `headrace bench rollout`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from headrace.ops.bench.ground import MODEL, PACKAGE, BenchFailed, wait_until
from headrace.ops.bench.move_figures import Mark, marks_in, owners
from headrace.ops.bench.moves import ANSWERED_WITHIN_S, GOES_ON_S, MAX_TOKENS, MOVED_WITHIN_S, READY_WITHIN_S
from headrace.ops.bench.recording import AnswerLog, RequestSender, SteadyTraffic
from headrace.ops.bench.rollout_figures import (
    LEAST_WINDOW_S,
    RollbackFigures,
    RolloutFigures,
    StepFigures,
    answered_again,
    owners_by_version,
    sum_up_rollback,
    sum_up_step,
)
from headrace.ops.faults.reading import read_answers, read_asked
from headrace.ops.faults.verdict import judge
from headrace.ops.rollouts.last_rollout import LastRollout
from headrace.ops.rollouts.orders import wish
from headrace.ops.rollouts.steps import units_of
from headrace.workers.simulated_engine import SimulatedProfile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from headrace.ops.bench.ground import Ground, Say
    from headrace.ops.worker_process import WorkerProcess

OLD, NEW = "1", "2"
ALWAYS_FAILS = json.dumps([{"kind": "error"}])
STEADY_S = 5.0  # of traffic before the rollout, to compare its first step with
DRAINS_WITHIN_S = 10.0  # a worker drains after a plan; else the kill comes anyway
STEP_WITHIN_S = 120.0
ENDS_WITHIN_S = 60.0  # after its last step's hold
ROLLED_BACK_WITHIN_S = 120.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class RolloutLoad:
    """What the workers are given, and how they are set."""

    workers: int = 2  # of each version
    rate: float = 90.0  # requests a second, over all units
    latency_s: float = 0.2  # of a generation that runs alone
    steps: tuple[int, ...] = (6, 25, 50, 100)
    hold_s: float = 5.0
    session_timeout_s: float = 10.0


class VersionedCrew:
    """Workers of several versions in one group, by slot."""

    def __init__(self, ground: Ground, environment: Mapping[str, str]) -> None:
        self._ground = ground
        self._environment = environment
        self._ends = ExitStack()
        self._lives: list[tuple[str, WorkerProcess]] = []  # slot, each process that it has had
        self._begin: dict[str, Callable[[], WorkerProcess]] = {}
        self.workers: dict[str, WorkerProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def start(self, version: str, number: int, failures: str = "") -> str:
        """Start one; its slot."""
        slot = f"version-{version}-{number}"
        package = self._ground.package / f"version-{version}"
        package.mkdir(exist_ok=True)
        (package / "package.toml").write_text(PACKAGE.replace('version = "1"', f'version = "{version}"'))
        ground = replace(self._ground, package=package)
        environment = dict(self._environment) | (
            {"HEADRACE_SIMULATED_FAILURES": failures} if failures else {}
        )
        self._begin[slot] = lambda: ground.worker(slot, environment=environment)
        self._launch(slot)
        return slot

    def _launch(self, slot: str) -> None:
        worker = self._ends.enter_context(self._begin[slot]())
        self.workers[slot] = worker
        self._lives.append((slot, worker))

    def wait_ready(self) -> None:
        """Raises WorkerFailed."""
        for each in self.workers.values():
            each.wait_ready(READY_WITHIN_S)

    def kill(self, slot: str) -> None:
        """SIGKILL, and its slot is started again at once, as a supervisor does."""
        worker = self.workers[slot]
        worker.process.kill()
        worker.process.wait()
        self._launch(slot)

    def marks(self) -> Iterator[Mark]:
        """What all their logs say of units that leave."""
        for slot, worker in self._lives:
            yield from marks_in(worker.said(), slot)


class RolloutCommand:
    """`headrace rollout start` as a process of its own; what is left of it at the end of `with` is killed."""

    def __init__(self, ground: Ground, to: str, load: RolloutLoad, hold_s: float) -> None:
        self.log = ground.logs / f"{ground.settings.prefix}-rollout.log"
        command = [
            *(sys.executable, "-m", "headrace.ops.cli", "rollout", "start", MODEL, "--contract", "1"),
            *("--to", to, "--steps", ",".join(map(str, load.steps)), "--hold", f"{hold_s:g}s"),
            *("--bootstrap-servers", str(ground.settings.bootstrap_servers)),
            *("--prefix", ground.settings.prefix),
        ]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=os.environ, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def check(self) -> None:
        """Raises BenchFailed where it has ended."""
        if (code := self.process.poll()) is not None:
            raise BenchFailed(f"the rollout has ended with {code}; its log: {self.log}")

    def wait(self) -> int:
        """Its exit code. Raises BenchFailed where it does not end."""
        try:
            return self.process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise BenchFailed(f"the rollout does not end; its log: {self.log}") from None


@dataclass(frozen=True, slots=True)
class _Stage:
    """What a run has."""

    ground: Ground
    load: RolloutLoad
    crew: VersionedCrew
    answers: AnswerLog
    sender: RequestSender
    control: LastRollout
    say: Say

    def traffic(self) -> SteadyTraffic:
        return SteadyTraffic(self.sender, self.ground.partitions, self.load.rate, MAX_TOKENS)

    def wait_until_shared(self) -> None:
        """The old version's workers have answered a share each: the first rebalances are over."""
        share = self.ground.partitions // self.load.workers

        def is_shared() -> bool:
            slots = list(owners(self.answers.so_far()).values())
            return all(slots.count(slot) >= share for slot in self.crew.workers)

        wait_until(is_shared, MOVED_WITHIN_S, "each worker has its share of the units")

    def lost_and_doubled(self) -> tuple[int, int]:
        """Once all is answered that will be: as any other reader finds it in the topics."""
        ids = {f"r{number}" for number in range(self.sender.sent)}
        wait_until(
            lambda: len({each.id for each in self.answers.so_far()}) >= len(ids),
            ANSWERED_WITHIN_S,
            "every request is answered",
        )
        settings, names = self.ground.settings, self.ground.names
        verdict = judge(
            read_asked(settings, names), read_answers(settings, names), expected={}, acknowledged=ids
        )
        return len(verdict.lost), len(verdict.duplicated)


def _stage(ends: ExitStack, ground: Ground, load: RolloutLoad, say: Say, *, only_ok: bool) -> _Stage:
    alone_s = MAX_TOKENS * SimulatedProfile().decode_seconds_per_token
    environment = {
        "HEADRACE_SIMULATED_TIME_SCALE": str(load.latency_s / alone_s),
        "HEADRACE_SESSION_TIMEOUT_MS": str(int(load.session_timeout_s * 1000)),
    }
    crew = ends.enter_context(VersionedCrew(ground, environment))
    for number in range(load.workers):
        crew.start(OLD, number + 1)
    crew.wait_ready()
    return _Stage(
        ground,
        load,
        crew,
        ends.enter_context(AnswerLog(ground, only_ok=only_ok)),
        ends.enter_context(RequestSender(ground)),
        ends.enter_context(LastRollout(ground.settings, ground.names)),
        say,
    )


def _check(load: RolloutLoad, ground: Ground) -> None:
    if load.hold_s < LEAST_WINDOW_S:
        raise BenchFailed(f"a step must be held for {LEAST_WINDOW_S:g} s: so long is its throughput counted")
    if ground.partitions < 2 * load.workers:
        raise BenchFailed("a rollout needs a unit for each worker of both versions")


def run(ground: Ground, load: RolloutLoad, say: Say, *, kill: bool = False) -> RolloutFigures:
    """From version 1 to version 2 under steady traffic. Raises HeadraceError.

    `kill`: a worker in the middle of each step, by turns one of the old version, which drains, and one of the new.
    """
    _check(load, ground)
    with ExitStack() as ends:
        stage = _stage(ends, ground, load, say, only_ok=True)
        steps: list[StepFigures] = []
        with stage.traffic():
            stage.wait_until_shared()
            command = _begin(ends, stage, NEW, load.hold_s)
            steady_from = time.time() - STEADY_S
            for index in range(len(load.steps)):
                figures = _step(stage, command, index, steady_from, kill=kill)
                steady_from = time.time()
                steps.append(figures)
                say(f"{figures.percent} %: {figures.moved} units moved in {figures.took_s:.1f} s")
            finished = command.wait() == 0
            time.sleep(GOES_ON_S)
        lost, doubled = stage.lost_and_doubled()
        return RolloutFigures(steps, stage.sender.sent, lost, doubled, finished)


def _begin(ends: ExitStack, stage: _Stage, to: str, hold_s: float, failures: str = "") -> RolloutCommand:
    """The rollout is begun, which keeps all with the old version; then the new version's workers come, and then
    there is steady traffic to compare with."""
    command = ends.enter_context(RolloutCommand(stage.ground, to, stage.load, hold_s))

    def is_begun() -> bool:
        command.check()
        return stage.control.state().planned is not None

    wait_until(is_begun, ENDS_WITHIN_S, "the rollout is begun")
    # Paused until all of them are there: a process that starts is no part of a step.
    settings, names = stage.ground.settings, stage.ground.names
    wish(settings, names, "pause")
    for number in range(stage.load.workers):
        stage.crew.start(to, number + 1, failures)
    stage.crew.wait_ready()
    time.sleep(STEADY_S)
    wish(settings, names, "go_on")
    return command


def _step(
    stage: _Stage, command: RolloutCommand, index: int, steady_from: float, *, kill: bool
) -> StepFigures:
    """Wait for a step's plan, kill one in its middle if that is wanted, and wait until it is held."""

    def planned() -> bool:
        command.check()
        state = stage.control.state()
        return (
            state.planned is not None and state.planned.step == index and bool(state.planned.shares.get(NEW))
        )

    wait_until(planned, STEP_WITHIN_S, f"step {index + 1} is planned")
    plan = stage.control.state().planned
    assert plan is not None
    planned_at = plan.at / 1000
    killed = _kill_one(stage, index, planned_at) if kill else None

    def held() -> bool:
        progress = stage.control.state().progress
        return progress is not None and (progress.step > index or progress.state in ("holding", "finished"))

    wait_until(held, STEP_WITHIN_S, f"step {index + 1} is held")
    wanted = units_of(plan.shares, stage.ground.partitions, {})[NEW]

    def all_answer() -> bool:
        after = owners_by_version(stage.answers.so_far(), time.time())
        return sum(version == NEW for version in after.values()) >= wanted

    wait_until(all_answer, STEP_WITHIN_S, f"all units of step {index + 1} have answered at their new owners")
    time.sleep(
        max(0.0, planned_at + LEAST_WINDOW_S - time.time())
    )  # what is compared must have been recorded
    return sum_up_step(
        stage.answers.so_far(),
        list(stage.crew.marks()),
        to=NEW,
        percent=stage.load.steps[index],
        steady_from=steady_from,
        planned_at=planned_at,
        until=time.time(),
        killed=killed,
    )


def _kill_one(stage: _Stage, index: int, planned_at: float) -> str:
    """Once a worker drains: that one, or one of the new version."""
    deadline = time.monotonic() + DRAINS_WITHIN_S
    draining: list[str] = []
    while not draining and time.monotonic() < deadline:
        draining = [mark.slot for mark in stage.crew.marks() if mark.at >= planned_at]
        time.sleep(LOOK_S)
    slot = draining[0] if draining and index % 2 == 0 else f"version-{NEW}-1"
    stage.say(f"kill -9 {slot}")
    stage.crew.kill(slot)
    return slot


def take_back(ground: Ground, load: RolloutLoad, say: Say) -> RollbackFigures:
    """To a version that fails every request, at the first step. Raises HeadraceError."""
    _check(load, ground)
    with ExitStack() as ends:
        stage = _stage(ends, ground, load, say, only_ok=False)
        with stage.traffic():
            stage.wait_until_shared()
            command = _begin(ends, stage, NEW, ROLLED_BACK_WITHIN_S, ALWAYS_FAILS)
            planned: dict[str, Any] = {}

            def rolled_back() -> bool:
                state = stage.control.state()
                if state.planned is not None and state.planned.shares.get(NEW):
                    planned.setdefault("at", state.planned.at / 1000)
                    planned.setdefault("units", units_of(state.planned.shares, ground.partitions, {})[NEW])
                return state.rollback is not None

            wait_until(rolled_back, ROLLED_BACK_WITHIN_S, "the version is taken back")
            rollback = stage.control.state().rollback
            assert rollback is not None
            rolled_back_at = rollback.at / 1000
            say(rollback.why)
            its_units = {each.unit for each in stage.answers.so_far() if each.version == NEW}

            def is_back() -> bool:
                now = owners_by_version(stage.answers.so_far(), time.time())
                return all(now[unit] == OLD for unit in its_units)

            wait_until(is_back, MOVED_WITHIN_S, "all units are back")
            command.wait()
            time.sleep(GOES_ON_S)
        stage.lost_and_doubled()
        answered = stage.answers.so_far()
        return sum_up_rollback(
            answered,
            bad=NEW,
            percent=load.steps[0],
            units=ground.partitions,
            share_units=planned["units"],
            planned_at=planned["at"],
            rolled_back_at=rolled_back_at,
            back_at=max(answered_again(answered, NEW, OLD).values()),
            why=rollback.why,
        )
