"""One run: traffic, faults, calm, and the verdict over what lies in the topics."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from nemesis.faults import Faults
from nemesis.ground import Conditions, Ground
from nemesis.schedule import KINDS, Fault, Plan, first_slots, schedule
from processes import processes_of_sessions

from headrace.consumers.records import TopicPartition
from headrace.ops.faults.reading import read_answers, read_asked, read_lag
from headrace.ops.faults.requests import Composer, Mix, right_answers
from headrace.ops.faults.timeline import Timeline
from headrace.ops.faults.traffic import Sender, Watcher
from headrace.ops.faults.verdict import Answer, Verdict, details, judge
from headrace.schemas.errors import HeadraceError, SlotTaken

AT_ONCE = 6  # faults
READY_WITHIN_S = 300.0  # all workers at the start; vLLM loads
RESTARTED_WITHIN_S = 60.0
GONE_WITHIN_S = 10.0  # what a worker started, after the worker's end
IN_FLIGHT_WITHIN_S = 4.0  # waited for before a fault
# A request in flight at the deaths of several workers, and then alone at two more, may be taken for what kills them.
MAY_FAIL_WITH = frozenset({"poison_request"})


@dataclass(slots=True)
class Report:
    """What a run ends with."""

    plan: Plan
    conditions: Conditions
    place: Path
    verdict: Verdict
    injected: Counter[str]
    counted: Counter[str]  # of them, those with a request in flight on the target
    problems: list[str] = field(default_factory=list[str])  # of workers, brokers and the harness
    details: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    regenerated: int = 0
    ended: Counter[int] = field(default_factory=Counter[int])  # workers that nobody told to, by exit code

    @property
    def passed(self) -> bool:
        """Nothing lost, doubled, wrong or left over."""
        return self.verdict.passed and not self.problems

    def lines(self) -> list[str]:
        """The table, and on a failure everything that is known of it."""
        lines = ["", f"{'fault':<18}{'injected':>9}{'with a request in flight on the target':>42}"]
        for kind in KINDS:
            if self.injected[kind]:
                lines.append(f"{kind:<18}{self.injected[kind]:>9}{self.counted[kind]:>42}")
        lines.append(f"{'in all':<18}{sum(self.injected.values()):>9}{sum(self.counted.values()):>42}")
        verdict = self.verdict
        lines += [
            "",
            f"{verdict.asked} requests, {verdict.resent} of them sent again; {verdict.answered} answered; "
            f"{self.regenerated} generations more than answers",
            ", ".join(f"{count} {name}" for name, count in verdict.findings()),
            f"apart: {len(verdict.straddling)} answered in two units (partitions were added between), "
            f"{len(verdict.tolerated)} taken for what kills engines",
            "workers that ended by themselves: "
            + (", ".join(f"{n} with {code}" for code, n in sorted(self.ended.items())) or "none"),
            *(f"problem: {each}" for each in self.problems),
            *self.details,
            f"timeline and logs: {self.place}",
            f"{'PASS' if self.passed else 'FAIL'}  seed {self.plan.seed}, {self.seconds:.0f} s in all",
        ]
        return lines


class Run:
    """One run from beginning to end."""

    def __init__(self, ground: Ground, settle_s: float) -> None:
        self._ground = ground
        self._fleet = ground.fleet
        self._timeline = ground.timeline
        self._settle_s = settle_s
        self._over = threading.Event()
        self._locks: dict[str, threading.Lock] = {}
        self._injected: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()
        self._problems: list[str] = []
        self._tally = threading.Lock()
        self._lag: dict[TopicPartition, int] = {}
        self._begun = 0
        mix = Mix(
            ground.plan.seed,
            long_share=0.0 if ground.conditions.vllm else ground.conditions.long_share,
            constrained=ground.conditions.vllm > 0,
        )
        self._sender = Sender(
            ground.settings,
            ground.names,
            Composer(mix),
            rate=ground.conditions.rate,
            resent=ground.conditions.resent,
        )
        self._watcher = Watcher(ground.settings, ground.names, ground.partitions)
        self._faults = Faults(ground, self._sender, self._watcher)

    def execute(self) -> Report:
        """Everything. Raises HeadraceError where it cannot go on."""
        began = time.monotonic()
        try:
            self._start_workers()
            self._timeline.begin()
            self._timeline.note("traffic", "", f"{self._ground.conditions.rate:g} requests a second")
            self._sender.start()
            self._inject(schedule(self._ground.plan))
            self._calm_down()
        finally:
            self._watcher.stop()
        return self._judge(time.monotonic() - began)

    def _start_workers(self) -> None:
        slots = first_slots(self._ground.plan.workers)
        for slot in slots:
            self._fleet.start(slot)
        for slot in slots:
            if self._fleet.wait_ready(slot, READY_WITHIN_S) is None:
                raise HeadraceError(f"{slot} was not ready in time; logs: {self._ground.place}")

    # --- under fire ---

    def _inject(self, faults: list[Fault]) -> None:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fault") as pool:
            began = time.monotonic()
            pending: list[Future[None]] = []
            try:
                for fault in faults:
                    time.sleep(max(0.0, began + fault.at_s - time.monotonic()))
                    if not self._lock("brokers").locked():
                        self._ground.brokers.check()
                    pending.append(pool.submit(self._one, fault))
                time.sleep(max(0.0, began + self._ground.plan.seconds - time.monotonic()))
            finally:
                self._over.set()  # what has not begun is left out
            for each in pending:
                each.result()

    def _one(self, fault: Fault) -> None:
        """One fault, once nothing else is being done to its target."""
        name = f"#{fault.number} {fault.kind}"
        with self._lock(fault.slot or "brokers"):
            if self._over.is_set():
                self._timeline.note(name, fault.target, "left out: the time is up")
                return
            if fault.slot and fault.kind != "add worker" and fault.slot not in self._fleet.slots:
                self._timeline.note(name, fault.target, "left out: it does not run")
                return
            in_flight = self._wait_for_work(fault)
            held = f"for {fault.hold_s:.1f} s" if fault.hold_s else ""
            self._timeline.note(name, fault.target, held, in_flight=in_flight)
            with self._tally:
                self._injected[fault.kind] += 1
                self._counted[fault.kind] += in_flight > 0
            try:
                outcome = self._faults.carry_out(fault)
            except Exception as error:  # noqa: BLE001 (a fault that cannot be done is a problem of the run)
                outcome = f"could not be done: {type(error).__name__}: {error}"
                self._problems.append(f"{name} on {fault.target} {outcome}")
            self._timeline.note(f"#{fault.number} over", fault.target, outcome)

    def _lock(self, what: str) -> threading.Lock:
        with self._tally:
            return self._locks.setdefault(what, threading.Lock())

    def _wait_for_work(self, fault: Fault) -> int:
        deadline = time.monotonic() + IN_FLIGHT_WITHIN_S
        while (found := self._faults.in_flight(fault)) == 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    # --- the end ---

    def _calm_down(self) -> None:
        self._ground.brokers.open_all()
        self._sender.stop()
        unsent = len(self._sender.requests) - len(self._sender.acknowledged)
        self._timeline.note("calm", "", f"{self._sender.sent} sent, {unsent} of them not acknowledged")
        deadline = time.monotonic() + self._settle_s
        while self._unanswered() and time.monotonic() < deadline:
            time.sleep(0.2)
        self._timeline.note("answered", "", f"{self._unanswered()} requests are still without an answer")
        self._lag = self._wait_for_no_lag(deadline + 10.0)
        self._begun = self._fleet.begun
        for slot in self._fleet.slots:  # one that was hit late still starts
            self._fleet.wait_ready(slot, RESTARTED_WITHIN_S)
        for slot, code in self._fleet.stop_all().items():
            if code != 0:
                self._problems.append(f"{slot} ended with {code} when it was told to stop")
        self._timeline.note("stopped", "", "all workers")
        for member in self._fleet.members.values():
            if SlotTaken.exit_code in member.exit_codes:
                self._problems.append(f"{member.slot} ended with 5, though no other process had its slot")
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := processes_of_sessions(self._fleet.sessions)) and time.monotonic() < deadline:
            time.sleep(0.2)
        self._problems += [f"left behind: process {pid} {command}" for pid, command in left.items()]

    def _unanswered(self) -> int:
        return len(self._sender.requests.keys() - self._watcher.answered)

    def _wait_for_no_lag(self, deadline: float) -> dict[TopicPartition, int]:
        while True:
            lag = read_lag(self._ground.settings, self._ground.names)
            if not any(lag.values()) or time.monotonic() > deadline:
                return lag
            time.sleep(0.5)

    def _judge(self, seconds: float) -> Report:
        ground = self._ground
        asked = read_asked(ground.settings, ground.names)
        answers = read_answers(ground.settings, ground.names)
        verdict = judge(
            asked,
            answers,
            expected=asyncio.run(right_answers(self._sender.requests)),
            acknowledged=self._sender.acknowledged,
            in_order=ground.conditions.ordered,
            tolerated=_may_fail,
            each_record=ground.conditions.windowless,
            lag=self._lag,
        )
        return Report(
            ground.plan,
            ground.conditions,
            ground.place,
            verdict,
            self._injected,
            self._counted,
            self._problems,
            [] if verdict.passed else details(verdict, asked, answers),
            seconds,
            self._begun - len(answers),
            Counter(code for member in self._fleet.members.values() for code in member.ended_by_itself),
        )


def _may_fail(answer: Answer) -> bool:
    return answer.status == "failed" and answer.code in MAY_FAIL_WITH


def run(
    plan: Plan,
    conditions: Conditions,
    *,
    place: Path,
    home: Path,
    java: str,
    timeline: Timeline,
    settle_s: float = 120.0,
) -> Report:
    """Set up, run, take down. `settle_s`: how long after the last fault everything must be answered."""
    with ExitStack() as ends:
        ground = Ground.prepare(plan, conditions, place, home, java, timeline)
        ends.callback(ground.close)
        report = Run(ground, settle_s).execute()
    for line in report.lines():
        with (place / "report.txt").open("a") as file:
            file.write(line + "\n")
    return report
