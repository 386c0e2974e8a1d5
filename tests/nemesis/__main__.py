"""`make nemesis`: faults by a seed, and a verdict. See `--help`."""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import time
from pathlib import Path

from nemesis.ground import Conditions
from nemesis.run import run
from nemesis.schedule import KINDS, Kind, Plan, schedule

from headrace.ops.broker import look_around
from headrace.ops.broker_choice import BrokerNeeds, choose
from headrace.ops.demo import writable
from headrace.ops.faults.timeline import Timeline
from headrace.schemas.errors import BrokerNotFound, HeadraceError
from headrace.schemas.settings import Settings

BREAKS = ("guard", "epochs", "done-set", "window")


def main() -> int:
    """Parse, run, report; the exit code."""
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1_000_000)
    plan = Plan(
        seed,
        arguments.minutes * 60,
        arguments.workers,
        gap_s=arguments.gap,
        may_add_partitions=arguments.order != "key",
        kinds=tuple(arguments.kinds),
    )
    if arguments.show:
        for fault in schedule(plan):
            print(f"{fault.at_s:7.1f} s  {fault.kind:<16} {fault.target:<9} {fault.hold_s or ''}")
        return 0
    conditions = Conditions(
        rate=arguments.rate,
        resent=arguments.resent,
        ordered=arguments.order == "key",
        vllm=arguments.vllm,
        broken=arguments.broken or "",
    )
    print(f"seed {seed}: {plan}, {conditions}")
    try:
        settings = Settings.from_environment(bootstrap_servers="")
        home, java = _kafka(settings)
        logs = writable(settings.cache_dir / "nemesis")
        place = logs / time.strftime(f"%Y%m%d-%H%M%S-seed{seed}")
        place.mkdir()
        timeline = Timeline(place / "timeline.txt", show=lambda event: print(event.line(), flush=True))
        report = run(plan, conditions, place=place, home=home, java=java, timeline=timeline)
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: workers and brokers were ended", file=sys.stderr)
        return 130
    for line in report.lines():
        print(line)
    return 0 if report.passed else 1


def _kafka(settings: Settings) -> tuple[Path, str]:
    """An unpacked Kafka and a Java that runs it: brokers that are killed must be ours."""
    found = look_around(settings)
    choice = choose(found, BrokerNeeds(several_workers=True, exactly_once=True), brokers=3)
    if choice.kind not in ("kafka_home", "installed") or found.java is None:
        raise BrokerNotFound(
            "the nemesis kills brokers of its own: set KAFKA_HOME to an unpacked Apache Kafka, "
            "or run `headrace broker install`"
        )
    return Path(choice.place), found.java.command


def _kinds(text: str) -> list[Kind]:
    chosen: list[Kind] = [kind for kind in KINDS if kind in text.split(",")]
    if len(chosen) != len(text.split(",")):
        raise argparse.ArgumentTypeError(f"known are {', '.join(KINDS)}")
    return chosen


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nemesis", description=__doc__)
    parser.add_argument("--seed", type=int, help="of requests and faults; the same gives the same schedule")
    parser.add_argument("--minutes", type=float, default=2.0, help="under fire (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="at the start (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second (default: %(default)s)")
    parser.add_argument(
        "--gap", type=float, default=6.0, help="seconds between faults (default: %(default)s)"
    )
    parser.add_argument(
        "--resent", type=float, default=0.02, help="share that is sent twice (default: %(default)s)"
    )
    parser.add_argument(
        "--order", choices=["", "key"], default="", help='key: order = "key", and it is checked'
    )
    parser.add_argument("--vllm", type=int, default=0, help="so many workers with real vLLM (default: 0)")
    parser.add_argument(
        "--break",
        dest="broken",
        choices=BREAKS,
        help="run the workers without this protection: it must FAIL; but for `window`, "
        "the recent ids, without which each record has an answer of its own: done-set is that, and more",
    )
    parser.add_argument("--kinds", type=_kinds, default=KINDS, help="of faults, with commas (default: all)")
    parser.add_argument("--show", action="store_true", help="print the seed's schedule and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # workers and brokers end with us
    logging.getLogger("kafka").addHandler(logging.NullHandler())
    sys.exit(main())
