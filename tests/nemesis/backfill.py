"""Backfill jobs under fire: everything is killed at random, and what comes out is held against an undisturbed run.

    python -m nemesis.backfill --seed 7

Three jobs (to Parquet, to JSONL, to a directory) ask the same workers at the same time. Each job's process is killed
and run again from another directory, or frozen while another takes the job over; workers and the broker are killed and
started again on what they had. Beside it, on a broker of its own and at the same pace, the same jobs run in peace.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from backfill_outputs import (
    answered_twice,
    leftovers,
    rejects_of,
    results_of,
    rows_of,
    state_of,
    write_job,
    write_rows,
)
from backfill_processes import TAKEN, BackfillProcess
from nemesis.backfill_ground import KilledKafka, Operator, Workers

from headrace.ops.broker import look_around
from headrace.ops.broker_choice import BrokerNeeds, choose
from headrace.ops.demo import writable
from headrace.schemas.errors import BrokerNotFound, HeadraceError
from headrace.schemas.settings import Settings

OUTPUTS = ("tags.parquet", "tags.jsonl", "tags")
AGAIN_AFTER_S = 1.0  # a job that has ended by itself
COMES_BACK_S = (3.0, 20.0)  # a machine that was gone
STOPS_WITHIN_S = 90.0  # one that finds its job taken
GIVE_UP_AFTER = 12.0  # times the time that an undisturbed run is to take
BROKER_DOWN_S = (0.0, 4.0)


@dataclass(frozen=True)
class BackfillPlan:
    """What is run. `rows` of each job; `kills` of each job's process, of workers, and of the broker."""

    seed: int
    rows: int = 3_400
    rows_per_part: int = 150
    workers: int = 3
    kills: int = 10
    freezes: int = 2  # of each job's process
    over_s: float = 330.0  # in which all that befalls them
    max_in_flight: int = 8
    time_scale: float = 2.5


@dataclass(slots=True)
class JobLog:
    """What has happened to a job."""

    kills: int = 0
    frozen: int = 0
    taken: int = 0  # that came back, found the job taken and ended with 5
    asked: int = 0
    asked_again: int = 0
    ended: Counter[str] = field(default_factory=Counter[str])  # by itself before its end, by what it said
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Scene:
    """A broker, workers and jobs at one place."""

    name: str
    place: Path
    kafka: KilledKafka
    workers: Workers
    jobs: dict[str, JobLog]
    stopped: threading.Event  # whoever looks on has had enough

    def output(self, name: str) -> Path:
        """Where a job's output goes."""
        return self.place / f"out-{name}" / name

    def close(self) -> None:
        """End the workers and the broker."""
        self.workers.close()
        self.kafka.close()

    def job_file(self, name: str) -> Path:
        """Where a job is written."""
        return self.place / f"{name}.toml"


class Supervisor:
    """Runs one job until it is done, and kills it at these times."""

    def __init__(self, scene: Scene, name: str, events: list[tuple[float, str]], dice: random.Random) -> None:
        """`events`: seconds after the beginning, and `kill` or `freeze`."""
        self._scene, self._name, self._dice = scene, name, dice
        self._events = sorted(events)
        self._log = scene.jobs[name]
        self._runs = 0
        self._guests: list[threading.Thread] = []
        self._is_done = False
        self._current: BackfillProcess

    def run(self, give_up_s: float, say: Callable[[str], None]) -> None:
        """Until the job is done; JobLog says what became of it."""
        began = time.monotonic()
        current = self._start()
        try:
            while (code := current.process.poll()) != 0:
                now = time.monotonic() - began
                if now > give_up_s or self._scene.stopped.is_set():
                    self._log.problems.append(f"not done after {now:.0f} s: {current.said()}")
                    break
                if code is not None:
                    self._note_end(current, code, say)
                    time.sleep(AGAIN_AFTER_S)
                    current = self._start()
                elif self._events and now >= self._events[0][0] and self._is_ready(current):
                    current = self._befall(current, self._events.pop(0)[1], say)
                else:
                    time.sleep(0.02)
        finally:
            self._is_done = True
            self._count(current)
            current.__exit__(None, None, None)
            for guest in self._guests:
                guest.join()
        self._log.seconds = time.monotonic() - began
        say(f"{self._name}: done after {self._log.seconds:.0f} s")

    def _start(self) -> BackfillProcess:
        self._runs += 1
        place = self._scene.place / f"machine-{self._runs % 2}" / self._name
        place.mkdir(parents=True, exist_ok=True)
        self._current = BackfillProcess(
            self._scene.kafka.bootstrap,
            self._scene.workers.names.prefix,
            self._scene.job_file(self._name),
            place=place,
            log=self._scene.place / f"{self._name}-{self._runs:03}.log",
        )
        return self._current

    def _is_ready(self, current: BackfillProcess) -> bool:
        """Whether what comes next can befall it: a job that was not begun cannot be taken over."""
        return self._events[0][1] == "kill" or bool(current.looks())

    def _befall(self, current: BackfillProcess, what: str, say: Callable[[str], None]) -> BackfillProcess:
        settled = current.settled()
        if what == "kill":
            current.kill()
            self._log.kills += 1
            say(f"{self._name}: killed at {settled} rows")
            self._count(current)
            return self._start()
        current.freeze()
        self._log.frozen += 1
        say(f"{self._name}: frozen at {settled} rows")
        other = self._start()
        guest = threading.Thread(
            target=self._come_back, args=(current, self._dice.uniform(*COMES_BACK_S), say)
        )
        guest.start()
        self._guests.append(guest)
        return other

    def _come_back(self, gone: BackfillProcess, after_s: float, say: Callable[[str], None]) -> None:
        """It is to stop soon after another process has taken the job over, and may go on where none could."""
        time.sleep(after_s)
        gone.thaw()
        began, deadline = time.monotonic(), None
        while (code := gone.process.poll()) is None:
            now = time.monotonic()
            if deadline is None and self._is_taken_from(gone):
                deadline = now + STOPS_WITHIN_S
            if deadline is not None and now > deadline:
                self._log.problems.append(f"one that came back does not stop: {gone.said()}")
                gone.kill()
                break
            time.sleep(0.1)
        self._count(gone)
        self._log.taken += code == TAKEN
        if code not in (TAKEN, None) and self._is_taken_from(gone):
            self._log.problems.append(f"came back after {after_s:.0f} s and ended with {code}: {gone.said()}")
        say(
            f"{self._name}: came back after {after_s:.0f} s, ended with {code} {time.monotonic() - began:.1f} s later"
        )

    def _is_taken_from(self, gone: BackfillProcess) -> bool:
        return self._is_done or (self._current is not gone and bool(self._current.looks()))

    def _count(self, run: BackfillProcess) -> None:
        self._log.asked += run.asked()
        self._log.asked_again += run.asked_again()

    def _note_end(self, run: BackfillProcess, code: int, say: Callable[[str], None]) -> None:
        last = (run.said().splitlines() or ["it said nothing"])[-1]
        self._log.ended[f"{code}: {last[:160]}"] += 1
        say(f"{self._name}: ended by itself with {code}: {last}")
        self._count(run)


def stage(
    plan: BackfillPlan, name: str, place: Path, home: Path, java: str, stopped: threading.Event
) -> Scene:
    """A broker, workers, and the jobs' rows. Raises BrokerFailed, WorkerFailed."""
    place.mkdir(parents=True)
    kafka = KilledKafka(home, java, place / "kafka")
    try:
        workers = Workers(
            kafka.bootstrap,
            place,
            plan.workers,
            max_in_flight=plan.max_in_flight,
            simulated_time_scale=plan.time_scale,
        )
    except BaseException:
        kafka.close()
        raise
    scene = Scene(name, place, kafka, workers, {output: JobLog() for output in OUTPUTS}, stopped)
    for number, output in enumerate(OUTPUTS):
        rows = place / f"rows-{number}.jsonl"
        write_rows(rows, plan.rows, random.Random(f"{plan.seed} {output}"))
        write_job(scene.job_file(output), rows, scene.output(output), plan.rows_per_part)
    return scene


def run_jobs(
    scene: Scene, plan: BackfillPlan, say: Callable[[str], None], *, in_peace: bool
) -> dict[str, int]:
    """All jobs to their end; how often the broker and workers were killed, and transactions that hung."""
    dice = random.Random(f"{plan.seed} faults")
    supervisors: list[Supervisor] = []
    for output in OUTPUTS:
        times = [("kill", plan.kills), ("freeze", plan.freezes)] if not in_peace else []
        events = [(at, what) for what, count in times for at in _moments(plan.over_s, count, dice)]
        supervisors.append(Supervisor(scene, output, events, random.Random(dice.random())))
    faults = [
        (dice.uniform(5, plan.over_s), what) for what in ("worker", "broker") for _ in range(plan.kills)
    ]
    done, killed = threading.Event(), Counter[str]()
    operator = Operator(scene.kafka, scene.workers.names.results)
    looking = [
        threading.Thread(target=_look_on, args=(scene.workers.look_after, done)),
        threading.Thread(target=_look_on, args=(operator.look, done)),
    ]
    for each in looking:
        each.start()
    killing = threading.Thread(
        target=_kill_others, args=(scene, sorted([] if in_peace else faults), dice, done, killed, say)
    )
    killing.start()
    with ThreadPoolExecutor(len(supervisors)) as pool:
        give_up_s = GIVE_UP_AFTER * max(plan.over_s, 60.0)
        try:
            for running in [pool.submit(each.run, give_up_s, say) for each in supervisors]:
                running.result()
        except BaseException:
            scene.stopped.set()
            raise
        finally:
            done.set()
    killing.join()
    for each in looking:
        each.join()
    scene.workers.look_after()
    return dict(killed) | {"hanging": operator.ended}


def _moments(over_s: float, count: int, dice: random.Random) -> list[float]:
    """Seconds after the beginning: at random, and one in each of as many equal spans."""
    return [over_s * (number + dice.random()) / count for number in range(count)]


def _look_on(look: Callable[[], None], done: threading.Event) -> None:
    while not done.wait(1.0):
        look()


def _kill_others(
    scene: Scene,
    faults: list[tuple[float, str]],
    dice: random.Random,
    done: threading.Event,
    killed: Counter[str],
    say: Callable[[str], None],
) -> None:
    began = time.monotonic()
    for at, what in faults:
        if done.wait(max(0.0, began + at - time.monotonic())):
            return
        killed[what] += 1
        if what == "worker":
            slot = dice.randrange(len(scene.workers))
            say(f"worker {slot} is killed")
            scene.workers.kill(slot)
        else:
            say("the broker is killed")
            scene.kafka.kill()
            done.wait(dice.uniform(*BROKER_DOWN_S))
            scene.kafka.start()
            say("the broker is back")


@dataclass(slots=True)
class Verdict:
    """What came out. `lines` for people; `problems` empty where all is as it must be."""

    lines: list[str]
    problems: list[str]


def judge(plan: BackfillPlan, peace: Scene, fire: Scene, killed: dict[str, int]) -> Verdict:
    """Hold the disturbed run against the undisturbed one, row for row."""
    problems: list[str] = []
    answered = answered_in_peace = 0
    head = (
        "job",
        "rows",
        "kills",
        "frozen",
        "taken",
        "sent",
        "results",
        "twice",
        "again",
        "ended",
        "s",
        "s in peace",
    )
    lines = ["  ".join(f"{each:>12}" for each in head)]
    for name, log in fire.jobs.items():
        ours, theirs = rows_of(fire.output(name)), rows_of(peace.output(name))
        problems += [f"{name}: {each}" for each in log.problems]
        problems += [f"{name} in peace: {each}" for each in peace.jobs[name].problems]
        if len(ours) != plan.rows:
            problems.append(f"{name}: {len(ours)} rows of {plan.rows}")
        different = [n for n, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other]
        for n in different[:3]:
            problems.append(f"{name}, row {n}:\n  under fire {ours[n]}\n  in peace   {theirs[n]}")
        if different:
            problems.append(f"{name}: {len(different)} rows differ")
        if rejects_of(fire.output(name)) != rejects_of(peace.output(name)):
            problems.append(f"{name}: the rejects differ")
        if left := leftovers(fire.output(name)):
            problems.append(f"{name}: left over are {left}")
        if log.kills < plan.kills or log.frozen < plan.freezes:
            problems.append(
                f"{name}: {log.kills} kills, {log.frozen} times frozen: fewer than there were to be"
            )
        mine = results_of(fire.kafka.bootstrap, fire.workers.names, state_of(fire.output(name)).job)
        calm = results_of(peace.kafka.bootstrap, peace.workers.names, state_of(peace.output(name)).job)
        answered, answered_in_peace = answered + len(mine), answered_in_peace + len(calm)
        twice = len(answered_twice(mine))
        row = (
            name, len(ours), log.kills, log.frozen, log.taken, log.asked, len(mine), twice, log.asked_again,
            sum(log.ended.values()), round(log.seconds), round(peace.jobs[name].seconds),
        )  # fmt: skip
        lines.append("  ".join(f"{each:>12}" for each in row))
        lines += [f"    ended {count} x {said}" for said, count in log.ended.items()]
        if twice > log.asked_again:
            problems.append(f"{name}: {twice} results too many, {log.asked_again} rows were asked again")
    lines.append(
        f"killed: {killed.get('worker', 0)} workers, the broker {killed.get('broker', 0)} times; "
        f"transactions that hung and were ended as an operator does: {killed.get('hanging', 0)}"
    )
    for what in ("worker", "broker"):
        if killed.get(what, 0) < plan.kills:
            problems.append(f"{killed.get(what, 0)} kills of {what}, {plan.kills} were to be")
    begun = fire.workers.generations
    places = plan.max_in_flight * killed.get("worker", 0)
    lines.append(
        f"generations: {begun:,} begun for {answered:,} results, {begun - answered:,} more; in peace "
        f"{peace.workers.generations:,} for {answered_in_peace:,}"
    )
    # What is generated in an outage cannot be committed, and workers that end in it begin anew: no bound holds then.
    if not killed.get("broker") and begun - answered > places:
        problems.append(f"{begun - answered} generations too many; {places} may have been in flight at kills")
    least = min(log.seconds for log in peace.jobs.values())
    lines.append(f"undisturbed, the first of the jobs took {least:.0f} s")
    if peace.workers.generations != answered_in_peace:
        problems.append("the undisturbed run generated something twice")
    return Verdict(lines, problems)


def run(plan: BackfillPlan, place: Path, home: Path, java: str, say: Callable[[str], None]) -> Verdict:
    """Both runs at the same time, and what came of them. Raises BrokerFailed, WorkerFailed."""
    began = time.monotonic()

    def told(text: str) -> None:
        say(f"{time.monotonic() - began:7.1f} s  {text}")

    stopped = threading.Event()
    with contextlib.ExitStack() as stack:
        peace = stage(plan, "peace", place / "peace", home, java, stopped)
        stack.callback(peace.close)
        fire = stage(plan, "fire", place / "fire", home, java, stopped)
        stack.callback(fire.close)
        with ThreadPoolExecutor(1) as pool:
            quiet = pool.submit(run_jobs, peace, plan, lambda text: told(f"in peace, {text}"), in_peace=True)
            try:
                killed = run_jobs(fire, plan, told, in_peace=False)
                quiet.result()
            except BaseException:
                stopped.set()
                raise
        return judge(plan, peace, fire, killed)


def kafka() -> tuple[Path, str]:
    """An unpacked Kafka and a Java that runs it. Raises BrokerNotFound."""
    found = look_around(Settings.from_environment(bootstrap_servers=""))
    choice = choose(found, BrokerNeeds(several_workers=True, exactly_once=True))
    if choice.kind not in ("kafka_home", "installed") or found.java is None:
        raise BrokerNotFound(
            "a broker of our own is to be killed: set KAFKA_HOME to an unpacked Apache Kafka, or run "
            "`headrace broker install`"
        )
    return Path(choice.place), found.java.command


def main() -> int:
    """Parse, run, report; the exit code."""
    parser = argparse.ArgumentParser(prog="nemesis.backfill", description=__doc__)
    parser.add_argument("--seed", type=int, help="of rows and of what befalls them")
    parser.add_argument(
        "--rows", type=int, default=BackfillPlan.rows, help="of each job (default: %(default)s)"
    )
    parser.add_argument(
        "--kills", type=int, default=BackfillPlan.kills, help="of each part (default: %(default)s)"
    )
    parser.add_argument(
        "--freezes", type=int, default=BackfillPlan.freezes, help="of each job (default: %(default)s)"
    )
    parser.add_argument(
        "--over",
        type=float,
        default=BackfillPlan.over_s,
        help="seconds in which they fall (default: %(default)s)",
    )
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(1_000_000)
    plan = BackfillPlan(seed, rows=given.rows, kills=given.kills, freezes=given.freezes, over_s=given.over)
    print(plan)
    try:
        home, java = kafka()
        logs = writable(Settings.from_environment(bootstrap_servers="").cache_dir / "nemesis")
        place = logs / time.strftime(f"backfill-%Y%m%d-%H%M%S-seed{seed}")
        print(f"logs: {place}")
        verdict = run(plan, place, home, java, lambda text: print(text, flush=True))
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: workers, jobs and brokers were ended", file=sys.stderr)
        return 130
    print("\n".join(verdict.lines))
    print("\n".join(verdict.problems) or "PASS: every row as in the undisturbed run")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
