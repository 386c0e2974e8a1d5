"""How each kind of fault is done and undone, and what came of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from nemesis.brokers import BROKERS
from nemesis.ground import Ground
from nemesis.schedule import Fault, Kind
from processes import descendants

from headrace.ops.faults.traffic import Sender, Watcher
from headrace.schemas.messages import OutputConstraint, Request

READY_WITHIN_S = 60.0
VLLM_READY_WITHIN_S = 240.0
WHOLE_WITHIN_S = 40.0
DIES_WITHIN_S = 30.0
ANSWERS_WITHIN_S = 30.0


class Faults:
    """Carries faults out. Each method blocks until the fault is undone, and returns what came of it."""

    def __init__(self, ground: Ground, sender: Sender, watcher: Watcher) -> None:
        self._ground = ground
        self._fleet = ground.fleet
        self._sender = sender
        self._watcher = watcher
        self._kinds: dict[Kind, Callable[[Fault], str]] = {
            "kill worker": self._kill_worker,
            "stop worker": self._stop_worker,
            "freeze long": self._freeze,
            "freeze short": self._freeze,
            "kill broker": self._kill_broker,
            "broker away": self._kill_broker,
            "restart broker": self._restart_broker,
            "cut one": self._disturb_links,
            "stall one": self._disturb_links,
            "cut all": self._disturb_links,
            "stall all": self._disturb_links,
            "add partition": self._add_partition,
            "add worker": self._add_worker,
            "remove worker": self._remove_worker,
            "kill engine": self._kill_engine,
        }

    def carry_out(self, fault: Fault) -> str:
        """Do it, hold it, undo it; what came of it."""
        return self._kinds[fault.kind](fault)

    def in_flight(self, fault: Fault) -> int:
        """Requests that are being worked on at the target: all of them, where that is a broker or the topics."""
        slot = fault.slot
        if slot is None or fault.kind == "add worker":
            return self._fleet.in_flight()
        return self._fleet.in_flight([slot]) if slot in self._fleet.members else 0

    def _kill_worker(self, fault: Fault) -> str:
        self._fleet.kill(fault.target)
        self._fleet.start(fault.target)
        return self._until_ready(fault.target)

    def _stop_worker(self, fault: Fault) -> str:
        began = time.monotonic()
        code = self._fleet.leave(fault.target)
        took = time.monotonic() - began
        self._fleet.start(fault.target)
        return f"exit code {code} after {took:.1f} s; {self._until_ready(fault.target)}"

    def _freeze(self, fault: Fault) -> str:
        self._fleet.freeze(fault.target)
        time.sleep(fault.hold_s)
        self._fleet.thaw(fault.target)
        return f"went on after {fault.hold_s:.1f} s; {self._until_answering(fault.target)}"

    def _kill_broker(self, fault: Fault) -> str:
        broker = int(fault.target[1:])
        self._ground.brokers.kill(broker)
        time.sleep(fault.hold_s)
        self._ground.brokers.start(broker)
        return f"down for {fault.hold_s:.1f} s; {self._until_whole()}"

    def _restart_broker(self, fault: Fault) -> str:
        broker = int(fault.target[1:])
        self._ground.brokers.stop(broker)
        self._ground.brokers.start(broker)
        return self._until_whole()

    def _disturb_links(self, fault: Fault) -> str:
        slot, _, broker = fault.target.partition("/")
        position = self._ground.positions[slot]
        number = int(broker[1:]) if broker else None
        self._ground.brokers.set_links(position, number, "cut" if fault.kind.startswith("cut") else "stalled")
        time.sleep(fault.hold_s)
        self._ground.brokers.set_links(position, number, "open")
        return f"healed after {fault.hold_s:.1f} s; {self._until_answering(slot)}"

    def _add_partition(self, _: Fault) -> str:
        self._ground.add_partition()
        self._watcher.grow(self._ground.partitions)
        return f"{self._ground.partitions} in each lane now"

    def _add_worker(self, fault: Fault) -> str:
        self._fleet.start(fault.target)
        return self._until_ready(fault.target)

    def _remove_worker(self, fault: Fault) -> str:
        began = time.monotonic()
        code = self._fleet.leave(fault.target)
        self._ground.leave_seat(fault.target)
        return f"exit code {code} after {time.monotonic() - began:.1f} s"

    def _kill_engine(self, fault: Fault) -> str:
        member = self._fleet.members[fault.target]
        life = member.life
        if self._ground.runs_vllm(fault.target):
            cores = [
                pid for pid, name in descendants(member.worker.process.pid).items() if "EngineCore" in name
            ]
            for each in cores:
                os.kill(each, signal.SIGKILL)
        else:
            self._plant(fault, life)
        deadline = time.monotonic() + DIES_WITHIN_S
        while member.life == life and time.monotonic() < deadline:
            time.sleep(0.1)
        if member.life == life:
            return "it did not die: it had none of the units with the request that kills it"
        return f"exit code {member.exit_codes[-1]}; {self._until_ready(fault.target)}"

    def _plant(self, fault: Fault, life: int) -> None:
        """One request for each unit: the one that this worker owns kills its engine, the others are answered."""
        marker = self._ground.marker(fault.target, life)
        for partition in range(self._ground.partitions):
            id_ = f"dies{fault.number}-{fault.target}.{life}-{partition}"
            # One right answer, whichever engine is asked.
            output = OutputConstraint(choice=[f"the answer to {id_}"])
            request = Request(id=id_, key=id_, prompt=f"{id_}: {marker}", output=output)
            self._sender.send(request, "standard", partition)

    def _until_ready(self, slot: str) -> str:
        timeout_s = VLLM_READY_WITHIN_S if self._ground.runs_vllm(slot) else READY_WITHIN_S
        waited = self._fleet.wait_ready(slot, timeout_s)
        return f"not ready within {timeout_s:.0f} s" if waited is None else f"ready {waited:.1f} s later"

    def _until_answering(self, slot: str) -> str:
        """Until it has answered something, or has ended and its successor is ready. Ready it says it is throughout."""
        member = self._fleet.members[slot]
        life, began = member.life, time.monotonic()
        answered: int | None = None
        while time.monotonic() - began < ANSWERS_WITHIN_S:
            if member.life != life:
                return f"it ended with {member.exit_codes[-1]}; {self._until_ready(slot)}"
            if member.running and member.look():
                answered = member.page.answered if answered is None else answered
                if member.page.answered > answered:
                    return f"answers again {time.monotonic() - began:.1f} s later"
            time.sleep(0.1)
        return f"it had nothing to answer within {ANSWERS_WITHIN_S:.0f} s"

    def _until_whole(self) -> str:
        topics = [*self._ground.names.request_topics, self._ground.names.results]
        waited = self._ground.brokers.wait_whole(self._ground.settings, topics, WHOLE_WITHIN_S)
        if waited is None:
            return f"the cluster is not whole after {WHOLE_WITHIN_S:.0f} s"
        return f"all {BROKERS} in sync {waited:.1f} s later"
