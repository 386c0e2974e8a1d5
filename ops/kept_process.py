"""A background process that never outlives us, nor leaves files behind: our side of `process_keeper`."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEEPER = Path(__file__).with_name("process_keeper.py")
STOP_MARGIN_S = 20.0  # beyond the grace: for SIGKILL to be carried out and the directories to be removed


def new_temporary_directory(purpose: str) -> Path:
    """A path that nothing has yet; a kept process makes the directory, and removes it."""
    return Path(tempfile.gettempdir()) / f"headrace-{purpose}-{secrets.token_hex(8)}"


class KeptProcess:
    """Runs `commands` in order (the last is the one that stays) until `stop()` or the end of this process.

    They have a session of their own: a Ctrl-C in the terminal does not reach them, who started them decides.
    The directory of `log` is made and `files` are written before the first of them. At the end `remove` and
    then, when nothing is left in it, `remove_if_empty` are deleted.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        log: Path,
        files: Mapping[Path, str] | None = None,
        remove: Sequence[Path] = (),
        remove_if_empty: Path | None = None,
        grace_s: float = 0.0,
    ) -> None:
        self.log = log
        self._grace_s = grace_s
        self._told = ""
        job = {
            "commands": [list(command) for command in commands],
            "log": str(log),
            "files": {str(path): text for path, text in (files or {}).items()},
            "remove": [str(directory) for directory in remove],
            "remove_if_empty": str(remove_if_empty) if remove_if_empty else None,
            "parent": os.getpid(),
            "grace_s": grace_s,
        }
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._keeper.stdout:
            os.set_blocking(self._keeper.stdout.fileno(), False)

    def exit_status(self) -> int | None:
        """The status that a command failed with or the last one ended with; None while it runs."""
        ended = self._told_of("exited")
        if (kept := self._keeper.poll()) is not None:
            return kept
        return int(ended[0]) if ended else None

    def process_id(self) -> int | None:
        """Of the command that was started last; None before the first."""
        started = self._told_of("started")
        return int(started[-1]) if started else None

    def last_lines(self, count: int = 15) -> str:
        """The end of the log; or why there is none."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        lines += self._told_of("failed")
        return "\n".join(lines[-count:])

    def ask_to_stop(self) -> None:
        """Begin to stop, without waiting for the end: several processes can so stop at the same time."""
        if self._keeper.stdin and not self._keeper.stdin.closed:
            with contextlib.suppress(OSError):
                self._keeper.stdin.write(b"stop\n")  # closing is not enough where a fork holds the pipe too
            with contextlib.suppress(OSError):
                self._keeper.stdin.close()

    def stop(self) -> None:
        """End the process and wait until it is gone and its directories are removed. May be called again."""
        self.ask_to_stop()
        try:
            self._keeper.wait(self._grace_s + STOP_MARGIN_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._keeper.pid, signal.SIGKILL)
            self._keeper.wait()
        if self._keeper.stdout:
            self._keeper.stdout.close()

    def _told_of(self, what: str) -> list[str]:
        """What follows that word in the whole lines that the keeper has printed."""
        self._read_what_was_told()
        lines = self._told.split("\n")[:-1]
        return [line.removeprefix(f"{what} ") for line in lines if line.startswith(f"{what} ")]

    def _read_what_was_told(self) -> None:
        pipe = self._keeper.stdout
        with contextlib.suppress(BlockingIOError):  # nothing new
            while pipe and not pipe.closed and (told := os.read(pipe.fileno(), 4096)):
                self._told += told.decode()
