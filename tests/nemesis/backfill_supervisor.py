"""Runs one backfill job until it is done, and kills or freezes its process on the way."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from backfill_processes import TAKEN, BackfillProcess
from nemesis.backfill_scene import Scene

AGAIN_AFTER_S = 1.0  # a job that has ended by itself
COMES_BACK_S = (3.0, 20.0)  # a machine that was gone
STOPS_WITHIN_S = 90.0  # one that finds its job taken


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
