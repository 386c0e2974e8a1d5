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
from pathlib import Path

from nemesis.backfill_ground import Operator
from nemesis.backfill_scene import OUTPUTS, BackfillPlan, Scene, stage
from nemesis.backfill_supervisor import Supervisor
from nemesis.backfill_verdict import Verdict, judge

from headrace.ops.broker import look_around
from headrace.ops.broker_choice import BrokerNeeds, choose
from headrace.ops.demo import writable
from headrace.schemas.errors import BrokerNotFound, HeadraceError
from headrace.schemas.settings import Settings

GIVE_UP_AFTER = 12.0  # times the time that an undisturbed run is to take
BROKER_DOWN_S = (0.0, 4.0)


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
