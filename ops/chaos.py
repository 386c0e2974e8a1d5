"""`make chaos`: half a minute of faults, and whether every request was answered exactly once.

    python -m headrace.ops.chaos [--seed N] [--seconds N] [--rate N]

Three workers answer thousands of requests through a real Kafka while two are killed, one leaves and one joins. At the
end the topics are read back as any other team would read them.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from headrace.ops.broker import RunningBroker, find_or_start
from headrace.ops.broker_choice import BrokerNeeds
from headrace.ops.chaos_view import ChaosView, Snapshot, view_for
from headrace.ops.demo import writable
from headrace.ops.faults.fleet import Fleet
from headrace.ops.faults.reading import read_answers, read_asked, read_lag
from headrace.ops.faults.requests import Composer, Mix, right_answers
from headrace.ops.faults.timeline import Timeline
from headrace.ops.faults.traffic import Sender, Watcher
from headrace.ops.faults.verdict import Verdict, details, judge
from headrace.ops.worker_process import WorkerFailed, WorkerProcess
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

MODEL = "chaos"
PACKAGE = f'model = "{MODEL}"\nversion = "1"\ncontract = 1\nweights = "none/none"\n'
PARTITIONS = 6
WORKERS = ("worker-1", "worker-2", "worker-3")
NEWCOMER = "worker-4"
READY_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 60.0
JOINS_WITHIN_S = 20.0  # traffic goes on until the fourth worker has answered something, so long at most
BUSY_WITHIN_S = 2.0  # waited for before a kill: an idle worker's death would show nothing
LOOK_S = 0.25
# A broker of ours lets a session be this short; one that is given has a least of 6 s unless it says otherwise.
SESSION_MS, SESSION_OF_A_GIVEN_BROKER_MS = 3_000, 6_000

Kind = Literal["kill -9", "SIGTERM", "join"]


@dataclass(frozen=True, slots=True)
class Step:
    """What is done to whom, so many seconds after the first request."""

    at_s: float
    kind: Kind
    slot: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the end says beyond the verdict."""

    verdict: Verdict
    regenerated: int  # generations begun beyond one for each result
    seconds: float
    exit_codes: dict[str, int]  # of the workers that were told to stop
    details: list[str]

    @property
    def passed(self) -> bool:
        """Exactly one right answer each, and every worker that was told to leave did so in order."""
        return self.verdict.passed and not any(self.exit_codes.values())


def plan(seed: int, seconds: float) -> list[Step]:
    """Two kills, a leave, a join. The same for the same seed."""
    dice = random.Random(f"chaos {seed}")
    first, second, leaver = dice.sample(WORKERS, 3)
    at = [seconds * (share + dice.uniform(-0.04, 0.04)) for share in (0.2, 0.42, 0.62, 0.78)]
    return [
        Step(at[0], "kill -9", first),
        Step(at[1], "kill -9", second),
        Step(at[2], "SIGTERM", leaver),
        Step(at[3], "join", NEWCOMER),
    ]


def run(seed: int, seconds: float, rate: float, view: ChaosView) -> Outcome:
    """The whole of it. Raises HeadraceError where it cannot go on."""
    settings = Settings.from_environment()
    logs = writable(settings.cache_dir / "logs")
    view.says("looking for a real Kafka")
    needs = BrokerNeeds(several_workers=True, exactly_once=True)
    with ExitStack() as ends:
        broker = ends.enter_context(find_or_start(settings, needs, on_progress=view.says))
        place = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="headrace-chaos-")))
        (place / "package.toml").write_text(PACKAGE)
        # A prefix of its own: a second run on a broker that stays must not find the first one's results.
        prefix = f"chaos-{int(time.time())}"
        settings = Settings.from_environment(bootstrap_servers=broker.bootstrap_servers, prefix=prefix)
        names = ContractNames(prefix, MODEL, 1)
        bring_in_line(settings, names, LayoutOptions(partitions=PARTITIONS))
        view.says(f"{broker.kind} broker at {broker.bootstrap_servers}; starting {len(WORKERS)} workers")
        timeline = Timeline(logs / f"{prefix}-timeline.txt", show=view.event)

        def launch(slot: str, life: int) -> WorkerProcess:
            return _worker(settings, place, broker, slot, logs / f"{prefix}-{slot}-{life}.log")

        fleet = Fleet(launch, timeline)
        ends.callback(fleet.close)
        for slot in WORKERS:
            fleet.start(slot)
        for slot in WORKERS:
            if fleet.wait_ready(slot, READY_WITHIN_S) is None:
                raise WorkerFailed(f"{slot} was not ready within {READY_WITHIN_S:.0f} s; logs: {logs}")
        sender = Sender(settings, names, Composer(Mix(seed)), rate=rate)
        return _under_fire(settings, names, fleet, sender, timeline, plan(seed, seconds), seconds, view)


def _worker(settings: Settings, package: Path, broker: RunningBroker, slot: str, log: Path) -> WorkerProcess:
    session_ms = SESSION_OF_A_GIVEN_BROKER_MS if broker.kind == "given" else SESSION_MS
    return WorkerProcess(
        settings,
        package,
        engine="simulated",
        slot=slot,
        log=log,
        environment={
            "HEADRACE_SESSION_TIMEOUT_MS": str(session_ms),
            "HEADRACE_HEARTBEAT_INTERVAL_MS": "500",
        },
    )


def _under_fire(
    settings: Settings,
    names: ContractNames,
    fleet: Fleet,
    sender: Sender,
    timeline: Timeline,
    steps: list[Step],
    seconds: float,
    view: ChaosView,
) -> Outcome:
    watcher = Watcher(settings, names, PARTITIONS)
    codes: dict[str, int] = {}
    leaving: list[threading.Thread] = []
    began = time.monotonic()
    timeline.begin()

    def elapsed() -> float:
        return time.monotonic() - began

    def show(phase: str) -> None:
        view.show(Snapshot(phase, elapsed(), sender.sent, len(watcher.answered), fleet))

    try:
        with view.live():
            sender.start()
            for step in steps:
                while elapsed() < step.at_s:
                    show("under fire")
                    time.sleep(LOOK_S)
                leaving += _do(step, fleet, timeline, codes)
            while elapsed() < seconds or (
                fleet.members[NEWCOMER].page.answered == 0 and elapsed() < seconds + JOINS_WITHIN_S
            ):
                show("under fire")
                time.sleep(LOOK_S)
            sender.stop()
            timeline.note("calm", "", f"{sender.sent} sent; waiting for the rest")
            deadline = elapsed() + ANSWERED_WITHIN_S
            while len(watcher.answered) < sender.sent and elapsed() < deadline:
                show("waiting for the rest")
                time.sleep(LOOK_S)
            answered_after = elapsed()
            regenerated_base = fleet.begun
            show("stopping the workers")
            for each in leaving:
                each.join()
            for slot in fleet.slots:  # one that was killed late still starts
                fleet.wait_ready(slot, READY_WITHIN_S)
            codes |= fleet.stop_all()
            show("reading back")
    finally:
        watcher.stop()
    asked, answers = read_asked(settings, names), read_answers(settings, names)
    verdict = judge(
        asked,
        answers,
        expected=asyncio.run(right_answers(sender.requests)),
        acknowledged=sender.acknowledged,
        lag=read_lag(settings, names),
    )
    regenerated = max(0, regenerated_base - len(answers))
    return Outcome(verdict, regenerated, answered_after, codes, details(verdict, asked, answers))


def _do(step: Step, fleet: Fleet, timeline: Timeline, codes: dict[str, int]) -> list[threading.Thread]:
    """Do it; the threads that wait for its end."""
    if step.kind == "join":
        timeline.note("join", step.slot, "a fourth worker")
        fleet.start(step.slot)
        return []
    in_flight = _when_busy(fleet, step.slot)
    if step.kind == "kill -9":
        timeline.note("kill -9", step.slot, "restarted in the same slot", in_flight=in_flight)
        fleet.kill(step.slot)
        fleet.start(step.slot)
        return []

    def leave() -> None:
        codes[step.slot] = fleet.leave(step.slot)
        timeline.note("left", step.slot, f"exit code {codes[step.slot]}")

    timeline.note("SIGTERM", step.slot, "finishes what it has and leaves", in_flight=in_flight)
    thread = threading.Thread(target=leave, name=f"{step.slot} leaves")
    thread.start()
    return [thread]


def _when_busy(fleet: Fleet, slot: str) -> int:
    """How many requests it has in flight, once that is any."""
    deadline = time.monotonic() + BUSY_WITHIN_S
    while (found := fleet.in_flight([slot])) == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@click.command(
    epilog="Example: make chaos SEED=7",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the requests and of the faults.")
@click.option("--seconds", type=click.FloatRange(8), default=24.0, show_default=True, help="Of traffic.")
@click.option("--rate", type=click.FloatRange(1), default=150.0, show_default=True, help="Requests a second.")
def main(seed: int, seconds: float, rate: float) -> None:
    """Kill workers under load and count. Exits with 1 if anything was lost, doubled or wrong; 3 without a Kafka."""
    view = view_for(sys.stdout)
    try:
        outcome = run(seed, seconds, rate, view)
    except HeadraceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("interrupted: workers and broker were ended", err=True)
        sys.exit(130)
    view.finish(outcome.verdict, outcome.regenerated, outcome.seconds, outcome.exit_codes, outcome.details)
    view.line("PASS" if outcome.passed else "FAIL")
    sys.exit(0 if outcome.passed else 1)


if __name__ == "__main__":
    main()
