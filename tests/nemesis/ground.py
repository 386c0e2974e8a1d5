"""What the faults act on: brokers, topics, workers, and the traffic between them."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nemesis.brokers import Brokers
from nemesis.links import Network
from packages import write_package

from headrace.ops.bench.tiny_model import tiny_model
from headrace.ops.faults.fleet import Fleet
from headrace.ops.faults.timeline import Timeline
from headrace.ops.worker_process import WorkerProcess
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

if TYPE_CHECKING:
    from nemesis.schedule import Plan

MODEL = "nemesis"
PARTITIONS = 8  # two units for each of four workers: one more has work too
TIME_SCALE = 2.0  # of the simulated engine: a request takes 0.3 to 1.3 s
DRAIN_BUDGET_S = 30
BROKEN = Path(__file__).with_name("broken")
VLLM = (
    "\n[engine]\nmax_model_len = 512\ndtype = 'float32'\nenforce_eager = true\n[sampling]\nmax_tokens = 200\n"
)


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a run is set up, beyond its plan."""

    rate: float = 20.0  # requests a second
    resent: float = 0.02  # the share that is sent twice
    long_share: float = 0.003  # the share that takes 20 s
    ordered: bool = False  # order = "key"
    vllm: int = 0  # of the workers, those with real vLLM
    broken: str = ""  # which protection the workers run without

    @property
    def windowless(self) -> bool:
        """Without the window of recent ids: it also covers for a done set that is ignored."""
        return self.broken in ("window", "done-set")


@dataclass(slots=True)
class Ground:
    """All that there is; `close()` ends it."""

    plan: Plan
    conditions: Conditions
    place: Path  # timeline, logs, the brokers' data
    brokers: Brokers
    network: Network
    settings: Settings  # straight to the brokers
    names: ContractNames
    timeline: Timeline
    package: Path
    partitions: int = PARTITIONS
    positions: dict[str, int] = field(default_factory=dict[str, int])  # of each slot
    fleet: Fleet = field(init=False)
    _seats: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.fleet = Fleet(self._launch, self.timeline)

    @classmethod
    def prepare(
        cls, plan: Plan, conditions: Conditions, place: Path, home: Path, java: str, timeline: Timeline
    ) -> Ground:
        """Start the brokers, make the topics and the package. Raises HeadraceError."""
        network = Network()
        try:
            brokers = Brokers(home, java, place / "brokers", network, plan.positions)
        except BaseException:
            network.close()
            raise
        try:
            prefix = f"n{plan.seed}"
            settings = Settings(bootstrap_servers=brokers.bootstrap_servers, prefix=prefix)
            names = ContractNames(prefix, MODEL, 1)
            bring_in_line(settings, names, LayoutOptions(partitions=PARTITIONS))
            extra = 'order = "key"' if conditions.ordered else ""
            package = write_package(place / "package", model=MODEL, user=None, extra=extra)
            if conditions.vllm:
                with (package / "package.toml").open("a") as file:
                    file.write(VLLM)
        except BaseException:
            brokers.close()
            network.close()
            raise
        return cls(plan, conditions, place, brokers, network, settings, names, timeline, package)

    def take_seat(self, slot: str) -> None:
        """Give a slot links of its own; waits until some are free."""
        with self._seats:
            if slot in self.positions:
                return
            free = self._seats.wait_for(self._free_seats, timeout=120)
            assert free, "more workers than places"
            self.positions[slot] = free[0]

    def leave_seat(self, slot: str) -> None:
        """Its links may go to another slot."""
        with self._seats:
            del self.positions[slot]
            self._seats.notify_all()

    def _free_seats(self) -> list[int]:
        return [each for each in range(self.plan.positions) if each not in self.positions.values()]

    def runs_vllm(self, slot: str) -> bool:
        """Whether this slot's engine is the real one: the first ones are."""
        return int(slot[1:]) <= self.conditions.vllm

    def add_partition(self) -> None:
        """One more to each lane, and to what is partitioned like them."""
        options = LayoutOptions(partitions=self.partitions + 1, accept_reorder=True)
        bring_in_line(self.settings, self.names, options)
        self.partitions += 1

    def marker(self, slot: str, life: int) -> str:
        """What in a prompt kills the engine of this life, and no other."""
        return f"[{slot} life {life} dies of this]"

    def _launch(self, slot: str, life: int) -> WorkerProcess:
        self.take_seat(slot)
        vllm = self.runs_vllm(slot)
        options = ("--drain-budget", str(DRAIN_BUDGET_S), "--max-in-flight", "64")
        if vllm:
            options += ("--weights", str(tiny_model(Settings.from_environment().cache_dir / "models")))
        dying = [{"kind": "die", "prompt_contains": self.marker(slot, life), "times": 1}]
        environment = {
            "HEADRACE_SESSION_TIMEOUT_MS": str(int(self.plan.session_s * 1000)),
            "HEADRACE_HEARTBEAT_INTERVAL_MS": "500",
            "HEADRACE_TRANSACTION_TIMEOUT_MS": str(int(self.plan.transaction_s * 1000)),
            "HEADRACE_SIMULATED_TIME_SCALE": str(TIME_SCALE),
            "HEADRACE_SIMULATED_FAILURES": json.dumps(dying),
        }
        if self.conditions.windowless:
            environment["HEADRACE_DEDUPE_WINDOW"] = "0"
        if self.conditions.broken:
            environment["NEMESIS_BREAK"] = self.conditions.broken
            environment["PYTHONPATH"] = os.pathsep.join(
                filter(None, [str(BROKEN), os.environ.get("PYTHONPATH")])
            )
        return WorkerProcess(
            self.settings.model_copy(
                update={"bootstrap_servers": self.brokers.bootstrap_of(self.positions[slot])}
            ),
            self.package,
            engine="vllm" if vllm else "simulated",
            slot=slot,
            log=self.place / f"{slot}.log",
            options=options,
            environment=environment,
        )

    def close(self) -> None:
        """Kill what is left of it."""
        self.fleet.close()
        self.brokers.close()
        self.network.close()
