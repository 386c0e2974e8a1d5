"""A command as a user would type it, with its processes' memory, and when it printed what. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from headrace.ops.bench.ground import BenchFailed

LOOK_EVERY_S = 0.5
LOOKS_PER_PSS = 10  # the kernel walks all pages for it: 20 ms of an engine
READ_BYTES = 65_536
ENDS_WITHIN_S = 5.0
PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes


class WatchedProcess:
    """Started at once, in a session of its own. The end of the `with` block ends whatever of it still runs."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, directory: Path
    ) -> None:
        self.lines: list[tuple[float, str]] = []  # seconds since the start, and what was printed
        self.peak_rss = 0  # bytes, of all its processes together
        self.peak_pss = 0
        self.log = log
        self.began = time.time()
        self.began_monotonic = time.monotonic()
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
        self._seen: dict[int, int] = {self.process.pid: 0}  # process id to the time of its start
        self._over = threading.Event()
        assert self.process.stdout is not None
        self._output = self.process.stdout
        self._reader = threading.Thread(target=self._read, args=(self._output,), daemon=True)
        self._looker = threading.Thread(target=self._look, daemon=True)
        self._reader.start()
        self._looker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def seconds(self) -> float:
        """Since its start."""
        return time.monotonic() - self.began_monotonic

    def wait(self, within_s: float) -> int:
        """Its exit code. Raises BenchFailed when it does not end."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise BenchFailed(f"not ended after {within_s:.0f} s: {self._ending()}") from None

    def kill(self) -> None:
        """SIGKILL to the process, then to those that it has started and that do not go with it."""
        self._over.set()
        self._looker.join()
        self._remember(_processes())
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        now = _processes()
        for pid, started in self._seen.items():
            if pid != self.process.pid and pid in now and now[pid][1] == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._reader.join(ENDS_WITHIN_S)  # it ends with the last process that could print
        if not self._reader.is_alive():
            self._output.close()

    def last_lines(self, count: int = 15) -> list[str]:
        """The end of what it has printed, without empty lines."""
        return [line for _, line in self.lines if line.strip()][-count:]

    def _ending(self) -> str:
        return "\n".join([f"its log is {self.log}, and ends:", *self.last_lines()])

    def _read(self, stream: IO[bytes]) -> None:
        rest = b""
        with self.log.open("ab") as log:
            while chunk := os.read(stream.fileno(), READ_BYTES):
                log.write(chunk)
                log.flush()
                *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                now = self.seconds
                self.lines += [(now, line.decode(errors="replace")) for line in whole]
        if rest:
            self.lines.append((self.seconds, rest.decode(errors="replace")))

    def _look(self) -> None:
        looks = 0
        while not self._over.wait(LOOK_EVERY_S) and self.process.poll() is None:
            mine = self._remember(_processes())
            self.peak_rss = max(self.peak_rss, sum(_rss(pid) for pid in mine))
            if looks % LOOKS_PER_PSS == 0:
                self.peak_pss = max(self.peak_pss, sum(_pss(pid) for pid in mine))
            looks += 1

    def _remember(self, processes: Mapping[int, tuple[int, int]]) -> list[int]:
        """Its processes now: descendants, and those that were once and have lost their parent since."""
        if self.process.pid in processes:
            self._seen[self.process.pid] = processes[self.process.pid][1]
        grown = True
        while grown:
            found = {
                pid: started
                for pid, (parent, started) in processes.items()
                if pid not in self._seen and parent in self._seen
            }
            self._seen |= found
            grown = bool(found)
        return [
            pid for pid, started in self._seen.items() if pid in processes and processes[pid][1] == started
        ]


def _processes() -> dict[int, tuple[int, int]]:
    """Of each process of the machine that is no zombie: its parent, and the time of its start in clock ticks."""
    found: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    found[int(name)] = (int(fields[1]), int(fields[19]))
    return found


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):  # it has just ended
        return 0


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
