"""A fleet of worker processes and its supervisor, which starts again what ends by itself."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.schemas.errors import SlotTaken

if TYPE_CHECKING:
    from headrace.ops.faults.timeline import Timeline
    from headrace.ops.worker_process import WorkerProcess

WATCH_S = 0.3
PAGE_TIMEOUT_S = 1.0
RESTART_AFTER_S = 1.0  # of a worker that ended by itself: a supervisor does not spin
STOP_WITHIN_S = 90.0

State = Literal["starting", "ready", "frozen", "leaving", "ended"]
Launch = Callable[[str, int], "WorkerProcess"]  # slot, and the how-manieth life of it

MEANINGS = {
    4: "the engine died",
    SlotTaken.exit_code: "another process has its slot",
    70: "a transaction hung",
}


@dataclass(frozen=True, slots=True)
class Page:
    """What a worker's page says of it."""

    in_flight: int = 0
    begun: int = 0  # generations
    answered: int = 0  # requests, with whatever status
    partitions: int = 0  # of all lanes
    unread: int = 0  # records of its partitions behind the log's end


_SUMS = {
    "in_flight": "headrace_in_flight",
    "begun": "headrace_generation_attempts_total",
    "answered": "headrace_requests_total",
    "partitions": "headrace_partitions",
    "unread": "headrace_lag_records",
}
_LINE = re.compile(rf"^({'|'.join(_SUMS.values())})(?:{{[^}}]*}})? ([0-9.e+-]+)$", re.MULTILINE)


def read_page(text: str) -> Page:
    """Sums over all labels of Prometheus' text format."""
    sums = dict.fromkeys(_SUMS.values(), 0.0)
    for name, value in _LINE.findall(text):
        sums[name] += float(value)
    return Page(**{field: int(sums[name]) for field, name in _SUMS.items()})


class Member:
    """One slot: its present process, and what its earlier ones had done."""

    def __init__(self, slot: str) -> None:
        self.slot = slot
        self.life = 0
        self.state: State = "ended"
        self.page = Page()
        self.begun_before = 0  # generations of earlier lives
        self.answered_before = 0
        self.started_at = 0.0  # time.monotonic()
        self.exit_codes: list[int] = []
        self.ended_by_itself: list[int] = []  # those of them that nobody had asked for
        self.wanted = False  # to be started again when it ends
        self._port: int | None = None
        self._worker: WorkerProcess | None = None

    @property
    def worker(self) -> WorkerProcess:
        """Its present or last process."""
        assert self._worker is not None, "it has been started"
        return self._worker

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._worker is not None and self._worker.process.poll() is None

    def begin(self, worker: WorkerProcess) -> None:
        """A new life."""
        self._worker, self._port = worker, None
        self.state = "starting"
        self.started_at = time.monotonic()

    def look(self) -> bool:
        """Read its page; whether it has one."""
        found = self._get("/metrics")
        if found is None:
            return False
        self.page = read_page(found)
        return True

    def is_ready(self) -> bool:
        """Whether it says so."""
        return self._get("/readyz") is not None

    def end(self, code: int) -> None:
        """Its process is gone."""
        self.exit_codes.append(code)
        self.begun_before += self.page.begun
        self.answered_before += self.page.answered
        self.page = Page()
        self.state = "ended"

    def _get(self, path: str) -> str | None:
        if self._port is None:
            found = re.search(r"metrics on port (\d+)", self.worker.said())
            if found is None:
                return None
            self._port = int(found[1])
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}{path}", timeout=PAGE_TIMEOUT_S
            ) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return None
        except (OSError, ValueError):
            return None


class Fleet:
    """The members by slot. From any thread; a slot is for one caller at a time."""

    def __init__(self, launch: Launch, timeline: Timeline) -> None:
        self._launch = launch
        self._timeline = timeline
        self._lock = threading.RLock()
        self._over = threading.Event()
        self.members: dict[str, Member] = {}
        self.sessions: set[int] = set()  # process sessions of all workers that there ever were
        self._watch = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._watch.start()

    # --- what is done to one ---

    def start(self, slot: str) -> None:
        """Start a worker in a slot, new or left."""
        with self._lock:
            member = self.members.setdefault(slot, Member(slot))
            assert not member.running, f"{slot} runs"
            member.life += 1
            member.wanted = True
            member.begin(self._launch(slot, member.life))
            self.sessions.add(member.worker.process.pid)

    def kill(self, slot: str) -> None:
        """SIGKILL, and nothing is started in its place."""
        member = self.members[slot]
        with self._lock:
            member.wanted = False
            if member.running and member.state != "frozen":
                member.look()
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.worker.process.pid, signal.SIGKILL)
        self._bury(member)

    def leave(self, slot: str, timeout_s: float = STOP_WITHIN_S) -> int:
        """SIGTERM, and wait for its end: the exit code. One that does not end is killed: -9."""
        member = self.members[slot]
        with self._lock:
            member.wanted = False
            member.state = "leaving"
        with contextlib.suppress(ProcessLookupError):
            member.worker.terminate()
        try:
            member.worker.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            member.worker.process.kill()
        return self._bury(member)

    def freeze(self, slot: str) -> None:
        """SIGSTOP."""
        member = self.members[slot]
        with self._lock:
            member.state = "frozen"
            member.worker.process.send_signal(signal.SIGSTOP)

    def thaw(self, slot: str) -> None:
        """SIGCONT."""
        member = self.members[slot]
        with self._lock:
            member.worker.process.send_signal(signal.SIGCONT)
            member.state = "starting"

    def wait_ready(self, slot: str, timeout_s: float) -> float | None:
        """Until it is ready, whatever life it is in by then: after how many seconds; None: not in time."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < timeout_s:
            member = self.members[slot]
            if member.running and member.state != "frozen" and member.is_ready():
                return waited
            time.sleep(0.1)
        return None

    # --- all of them ---

    @property
    def slots(self) -> list[str]:
        """Those with a process."""
        with self._lock:
            return [slot for slot, member in self.members.items() if member.running]

    def in_flight(self, slots: list[str] | None = None) -> int:
        """Requests in the engines of these, or of all, as their pages say now."""
        with self._lock:
            chosen = [self.members[slot] for slot in (self.slots if slots is None else slots)]
        count = 0
        for member in chosen:
            if member.running and member.state != "frozen" and member.look():
                count += member.page.in_flight
        return count

    @property
    def begun(self) -> int:
        """Generations that all lives of all slots have begun."""
        with self._lock:
            return sum(member.begun_before + member.page.begun for member in self.members.values())

    @property
    def unread(self) -> int:
        """Records behind the log's end, as the workers say."""
        with self._lock:
            return sum(member.page.unread for member in self.members.values())

    def stop_all(self, timeout_s: float = STOP_WITHIN_S) -> dict[str, int]:
        """SIGTERM all at once and wait for them: their exit codes. Nothing is started again."""
        slots = self.slots
        codes: dict[str, int] = {}

        def leave(slot: str) -> None:
            codes[slot] = self.leave(slot, timeout_s)

        threads = [threading.Thread(target=leave, args=(slot,)) for slot in slots]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return codes

    def close(self) -> None:
        """Kill what is left, frozen or not."""
        self._over.set()
        self._watch.join()
        for slot in self.slots:
            self.kill(slot)

    def _bury(self, member: Member) -> int:
        code = member.worker.process.wait()
        with self._lock:
            if member.state != "ended":
                member.end(code)
        return code

    # --- the supervisor ---

    def _run(self) -> None:
        while not self._over.wait(WATCH_S):
            for member in list(self.members.values()):
                with self._lock:
                    self._supervise(member)

    def _supervise(self, member: Member) -> None:
        if member.running:
            if member.state in ("starting", "ready"):
                member.look()
                if member.state == "starting" and member.is_ready():
                    member.state = "ready"
            return
        if not member.wanted:
            return
        if member.state != "ended":
            code = member.worker.process.wait()
            member.end(code)
            member.ended_by_itself.append(code)
            self._timeline.note(
                "ended by itself", member.slot, f"exit code {code} ({MEANINGS.get(code, 'see its log')})"
            )
        if time.monotonic() - member.started_at > RESTART_AFTER_S:
            self.start(member.slot)
