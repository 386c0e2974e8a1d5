"""`make demo-rollout`: watch partitions move from one version to the next, and back from one that is bad.

    python -m headrace.ops.rollout_demo [--partitions N] [--workers N] [--rate N] [--steps 25,50,100] [--hold S]

Version 1 serves. A rollout to version 2 goes through; one to version 3, which fails a third of its requests, is taken
back by itself, and what version 3 has answered is asked again. At the end the topics are read back and counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.consumers.group_members import look_at_group
from headrace.consumers.rollouts import Limits, RolloutState, shown_shares
from headrace.ops.broker import find_or_start
from headrace.ops.broker_choice import BrokerNeeds
from headrace.ops.chaos import SESSION_MS, SESSION_OF_A_GIVEN_BROKER_MS
from headrace.ops.demo import writable
from headrace.ops.faults.fleet import Fleet
from headrace.ops.faults.reading import read_answers, read_asked, read_lag
from headrace.ops.faults.requests import Composer, Mix, right_answers
from headrace.ops.faults.timeline import Timeline
from headrace.ops.faults.traffic import Sender
from headrace.ops.faults.verdict import details, judge
from headrace.ops.redo import Answered, Redo
from headrace.ops.rollout_demo_count import DemoCount, count_up, slot_of, version_of
from headrace.ops.rollout_demo_view import Owner, Picture, RolloutView, Strips, view_for
from headrace.ops.rollouts import orders, view
from headrace.ops.rollouts.controller import Controller, Looked
from headrace.ops.rollouts.last_rollout import LastRollout
from headrace.ops.rollouts.reading import AnswerReader
from headrace.ops.rollouts.watching import Watch
from headrace.ops.worker_process import WorkerFailed, WorkerProcess
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

if TYPE_CHECKING:
    from headrace.consumers.group_members import GroupMembers
    from headrace.ops.broker import RunningBroker

MODEL = "watched"
FIRST, GOOD, BAD = "1", "2", "3"
# Prompts end with 16 hexadecimal digits and a question mark: five of the last digit's sixteen values are about a third.
FAILS_A_THIRD = json.dumps([{"kind": "error", "prompt_contains": f"{digit}?"} for digit in "01234"])
READY_WITHIN_S = 60.0
ROLLOUT_WITHIN_S = 120.0
BACK_WITHIN_S = 30.0
ANSWERED_WITHIN_S = 60.0
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class DemoLoad:
    """What is shown."""

    partitions: int = 8
    workers: int = 2  # of each version
    rate: float = 50.0  # requests a second
    steps: tuple[int, ...] = (25, 50, 100)
    hold_s: float = 4.0
    quiet_s: float = 3.0  # before the first rollout, and after the second


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended."""

    count: DemoCount
    passed: bool
    seconds: float
    details: list[str]


class _Scene:
    """What is there while it goes on, and the picture of it."""

    def __init__(
        self,
        settings: Settings,
        names: ContractNames,
        load: DemoLoad,
        fleet: Fleet,
        timeline: Timeline,
        shown: RolloutView,
        ends: ExitStack,
    ) -> None:
        self.settings, self.names, self.load = settings, names, load
        self.fleet, self.timeline = fleet, timeline
        self._shown = shown
        self.sender = Sender(settings, names, Composer(Mix(seed=1)), rate=load.rate)
        self._began = time.time()
        self._watch = Watch("")
        self._strips = Strips()
        self._reader = AnswerReader(settings, names, int(1000 * self._began))
        ends.callback(self._reader.close)
        self._looker = ends.enter_context(look_at_group(settings, names))
        self.last = ends.enter_context(LastRollout(settings, names))
        self._noted = ""
        self._why = ""
        self._group: GroupMembers | None = None
        self._head = f"version {FIRST} serves"
        self._failed: list[BaseException] = []
        self._controller = Controller(settings, self._looked)
        self._thread = threading.Thread(target=self._control, name="rollout controller", daemon=True)
        self._thread.start()
        ends.callback(self._end_controller)

    def _looked(self, looked: Looked) -> None:
        self._why = looked.why

    def _control(self) -> None:
        try:
            self._controller.run()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._failed.append(error)

    def _end_controller(self) -> None:
        self._controller.stop()
        self._thread.join()

    @property
    def results(self) -> int:
        """Read so far, of whatever status."""
        return sum(tally.answers + tally.other for tally in self._watch.by_version.values())

    def units_of(self, version: str) -> int:
        """That it has, by the last look at the group."""
        return 0 if self._group is None else self._group.owned().get(version, 0)

    def until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Go on showing it. Raises WorkerFailed where the condition does not come about."""
        deadline = time.monotonic() + within_s
        while not condition():
            if self._failed:
                raise self._failed[0]
            if time.monotonic() > deadline:
                raise WorkerFailed(f"{what}: not within {within_s:.0f} s")
            self.look()
            time.sleep(LOOK_S)
        self.look()

    def for_a_while(self, seconds: float) -> None:
        """Go on showing it."""
        over = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= over, seconds + 1, "time passes")

    def look(self, head: str | None = None) -> None:
        """Read what is new, and show it."""
        for answer in self._reader.take():
            self._watch.take(answer)
            self._strips.take(answer)
        id_, state = self.last.look()
        self._note_changes(state)
        if head is not None:
            self._head = head
        elif id_:
            self._head = view.head_of(id_, state)
        found = self._looker.look()
        # While a rebalance is under way its coordinator says nothing of who has what.
        if found.is_stable or self._group is None:
            self._group = found
        group = self._group
        shares = dict(state.shares or {})
        self._shown.show(
            Picture(
                self._head,
                self._why if state.rollback is None else state.rollback.why,
                self.load.partitions,
                self.sender.sent,
                self.results,
                {
                    unit: Owner(member.version, member.slot)
                    for member in group.members
                    for unit in member.units
                },
                found.waiting,
                view.rows_of(shares, group, self._watch.by_version, time.time() - self._began),
                view.warnings_of(shares, group),
                self._strips,
                time.time(),
            )
        )

    def _note_changes(self, state: RolloutState) -> None:
        if state.rollout is None:
            return
        progress, to = state.progress, f"version {state.rollout.to}"
        if state.rollback is not None:
            self._note("taken back", to, state.rollback.why)
        elif progress is None:
            self._note("rollout", to, f"steps {', '.join(map(str, state.rollout.steps))} %")
        elif progress.state == "moving" and state.planned is not None:
            self._note("planned", to, shown_shares(state.planned.shares))
        elif progress.state == "holding":
            self._note("held", to, f"{progress.why}: watched for {state.rollout.hold_s:g} s")
        elif progress.state == "finished":
            self._note("finished", to, progress.why)

    def _note(self, what: str, target: str, text: str) -> None:
        if (line := f"{what} {target} {text}") != self._noted:
            self._noted = line
            self.timeline.note(what, target, text)

    # --- what is done ---

    def begin(self, to: str) -> None:
        """Begin a rollout, and then its workers: the first step waits for one."""
        steps, limits = self.load.steps, Limits()
        orders.start(self.settings, self.names, to, steps, self.load.hold_s, limits)
        self.look()
        for number in range(self.load.workers):
            self.fleet.start(slot_of(to, number + 1))

    def leave(self, version: str) -> list[threading.Thread]:
        """Its workers are told to leave; the threads that wait for it."""
        self.timeline.note("SIGTERM", f"version {version}", "its workers have nothing to do any more")
        slots = [slot for slot in self.fleet.slots if version_of(slot) == version]
        threads = [threading.Thread(target=self.fleet.leave, args=(slot,)) for slot in slots]
        for each in threads:
            each.start()
        return threads


def run(load: DemoLoad, shown: RolloutView) -> Outcome:
    """The whole of it. Raises HeadraceError where it cannot go on."""
    began = time.monotonic()
    settings = Settings.from_environment()
    logs = writable(settings.cache_dir / "logs")
    shown.says("looking for a real Kafka")
    needs = BrokerNeeds(several_workers=True, exactly_once=True)
    with ExitStack() as ends:
        broker = ends.enter_context(find_or_start(settings, needs, on_progress=shown.says))
        place = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="headrace-rollout-")))
        # A prefix of its own: a second run on a broker that stays must not find the first one's results.
        prefix = f"rollout-{int(time.time())}"
        settings = Settings.from_environment(bootstrap_servers=broker.bootstrap_servers, prefix=prefix)
        names = ContractNames(prefix, MODEL, 1)
        bring_in_line(settings, names, LayoutOptions(partitions=load.partitions))
        shown.says(f"{broker.kind} broker at {broker.bootstrap_servers}; starting version {FIRST}")
        timeline = Timeline(logs / f"{prefix}-timeline.txt", show=shown.event)

        def launch(slot: str, life: int) -> WorkerProcess:
            return _worker(settings, place, broker, slot, logs / f"{prefix}-{slot}-{life}.log")

        fleet = Fleet(launch, timeline)
        ends.callback(fleet.close)
        first = [slot_of(FIRST, number + 1) for number in range(load.workers)]
        for slot in first:
            fleet.start(slot)
        for slot in first:
            if fleet.wait_ready(slot, READY_WITHIN_S) is None:
                raise WorkerFailed(f"{slot} was not ready within {READY_WITHIN_S:.0f} s; logs: {logs}")
        scene = _Scene(settings, names, load, fleet, timeline, shown, ends)
        with shown.live():
            again = _play(scene)
        return _count(scene, again, time.monotonic() - began)


def _worker(settings: Settings, place: Path, broker: RunningBroker, slot: str, log: Path) -> WorkerProcess:
    version = version_of(slot)
    package = place / f"version-{version}"
    package.mkdir(exist_ok=True)
    (package / "package.toml").write_text(
        f'model = "{MODEL}"\nversion = "{version}"\ncontract = 1\nweights = "none/none"\n'
    )
    session_ms = SESSION_OF_A_GIVEN_BROKER_MS if broker.kind == "given" else SESSION_MS
    environment = {"HEADRACE_SESSION_TIMEOUT_MS": str(session_ms)}
    if version == BAD:
        environment["HEADRACE_SIMULATED_FAILURES"] = FAILS_A_THIRD
    return WorkerProcess(settings, package, engine="simulated", slot=slot, log=log, environment=environment)


def _play(scene: _Scene) -> int:
    """Both rollouts, and the asking again: how many were."""
    load, timeline, last = scene.load, scene.timeline, scene.last
    timeline.begin()
    timeline.note("traffic", f"version {FIRST}", f"{load.rate:g} requests/s to {load.partitions} partitions")
    scene.sender.start()
    scene.for_a_while(load.quiet_s)

    scene.begin(GOOD)
    scene.until(lambda: not last.state().is_open, ROLLOUT_WITHIN_S, f"the rollout to version {GOOD} ends")
    leaving = scene.leave(FIRST)

    scene.begin(BAD)
    scene.until(lambda: not last.state().is_open, ROLLOUT_WITHIN_S, f"the rollout to version {BAD} ends")
    all_back = f"version {GOOD} has all partitions again"
    scene.until(lambda: scene.units_of(GOOD) == load.partitions, BACK_WITHIN_S, all_back)
    timeline.note("back", f"version {GOOD}", all_back)
    scene.for_a_while(load.quiet_s)
    scene.sender.stop()
    scene.until(lambda: scene.results >= scene.sender.sent, ANSWERED_WITHIN_S, "every request is answered")

    again = _ask_again(scene)
    scene.until(
        lambda: scene.results >= scene.sender.sent + again, ANSWERED_WITHIN_S, "all is answered again"
    )
    for each in leaving:
        each.join()
    scene.look("stopping the workers, and reading everything back")
    return again


def _ask_again(scene: _Scene) -> int:
    """As `headrace results redo --model-version 3 --yes` does."""
    redo = Redo(scene.settings, scene.names, Answered(frozenset({BAD})))
    redo.look()
    redo.send()
    by_status = ", ".join(f"{count} {status}" for status, count in redo.found.most_common())
    scene.timeline.note("results redo", f"version {BAD}", f"{by_status}: asked again of version {GOOD}")
    return redo.tally.acknowledged


def _count(scene: _Scene, again: int, seconds: float) -> Outcome:
    settings, names, sender = scene.settings, scene.names, scene.sender
    good, bad = _states(scene)
    scene.fleet.stop_all()
    asked, answers = read_asked(settings, names), read_answers(settings, names)
    verdict = judge(
        asked,
        answers,
        expected=asyncio.run(right_answers(sender.requests)),
        acknowledged=sender.acknowledged,
        tolerated=lambda answer: version_of(answer.slot) == BAD,
        each_record=True,  # what is asked again lies there once more, and is answered once more
        lag=read_lag(settings, names),
    )
    count = count_up(asked, answers, BAD)
    through = good.progress is not None and good.progress.state == "finished" and good.rollback is None
    taken_back = bad.rollback is not None and bad.rollback.by == "controller"
    passed = (
        verdict.passed
        and through
        and taken_back
        and count.adds_up
        and (count.sent, count.asked_again) == (sender.sent, again)
    )
    return Outcome(count, passed, seconds, details(verdict, asked, answers))


def _states(scene: _Scene) -> tuple[RolloutState, RolloutState]:
    """Of the rollout that was to go through, and of the other one."""
    control, _ = orders.read_all(scene.settings)
    states = [state for _, state in control.rollouts.states(scene.names.group) if state.rollout is not None]
    return states[0], states[-1]


def _steps(_: click.Context, __: click.Parameter, given: str) -> Sequence[int]:
    try:
        return tuple(int(each) for each in given.split(","))
    except ValueError:
        raise click.BadParameter(f"{given!r}: whole percents, as 25,50,100") from None


@click.command(
    epilog="Example: make demo-rollout",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--partitions", type=click.IntRange(2), default=8, show_default=True, help="Of each lane.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Of each version.")
@click.option("--rate", type=click.FloatRange(1), default=50.0, show_default=True, help="Requests a second.")
@click.option(
    "--steps", default="25,50,100", show_default=True, callback=_steps, help="A new version's percents."
)
@click.option(
    "--hold", type=click.FloatRange(0), default=4.0, show_default=True, help="Seconds that a step is watched."
)
def main(partitions: int, workers: int, rate: float, steps: tuple[int, ...], hold: float) -> None:
    """Watch traffic move between versions. Exits with 1 if anything was lost or doubled; 3 without a Kafka."""
    # The client logs every lost connection: here workers come and go.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    shown = view_for(sys.stdout)
    try:
        outcome = run(DemoLoad(partitions, workers, rate, steps, hold), shown)
    except HeadraceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("interrupted: workers and broker were ended", err=True)
        sys.exit(130)
    shown.line("")
    for line in outcome.count.lines(outcome.seconds):
        shown.line(line)
    for each in outcome.details:
        shown.line(each)
    shown.line("PASS" if outcome.passed else "FAIL")
    sys.exit(0 if outcome.passed else 1)


if __name__ == "__main__":
    main()
