"""Runs commands for a parent process; ends them, and removes what they wrote, when the parent ends.

A script of its own (`kept_process.py` runs it): the parent may be killed with SIGKILL, and then only another
process can clean up. It uses the standard library alone, so that it starts fast, and it has one thread, so
that `preexec_fn` is safe here, as it would not be in the parent.

Its one argument is a JSON object:
    commands         lists of arguments, run one after the other; the last is the one that stays
    log              file that gets what they print; its directory is made
    files            paths and the text that is written there before the first command
    remove           directories that are removed at the end
    remove_if_empty  directory that is removed after them, when nothing is left in it
    parent           process id; when it is no longer ours, the parent is gone
    grace_s          seconds between SIGTERM and SIGKILL; 0: SIGKILL at once

It prints `started PID` for each command, `exited STATUS` when one fails or the last one ends, and `failed WHY`
when the files could not be written. It ends when its standard input does, or on SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PARENT_CHECK_S = (
    1.0  # a forked child of the parent may hold our pipe open after it: so its id is looked at too
)
CANNOT_RUN = 127  # the status of a command that cannot be run, as shells have it
PR_SET_PDEATHSIG = 1  # Linux, <sys/prctl.h>


def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only there to wake the wait below
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer

    def parent_wants_more() -> bool:
        """Wait until something happened; False when it is time to end."""
        readable, _, _ = select.select([sys.stdin, wake], [], [], PARENT_CHECK_S)
        if wake in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 512)
        return not stopped and sys.stdin not in readable and os.getppid() == job["parent"]

    try:
        try:
            write_files(job)
            ended = run_commands(job, parent_wants_more)
        except OSError as error:  # the disk is full, or not ours to write on
            tell(f"failed {error}")
            tell(f"exited {CANNOT_RUN}")
            ended = True
        while ended and parent_wants_more():
            pass
    finally:
        for directory in job["remove"]:
            shutil.rmtree(directory, ignore_errors=True)
        if job["remove_if_empty"]:
            with contextlib.suppress(OSError):
                os.rmdir(job["remove_if_empty"])


def write_files(job: dict[str, Any]) -> None:
    """Made here and not by the parent: so there is never a directory without a keeper to remove it."""
    os.umask(0o077)
    os.makedirs(os.path.dirname(job["log"]), exist_ok=True)
    for path, text in job["files"].items():
        with open(path, "w") as file:
            file.write(text)


def run_commands(job: dict[str, Any], parent_wants_more: Callable[[], bool]) -> bool:
    """Run them in order; False when the parent went before they ended."""
    status = 0
    with open(job["log"], "ab") as log:
        for command in job["commands"]:
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=die_with_parent(),  # noqa: PLW1509 - there is one thread here
                )
            except OSError as error:
                log.write(f"{error}\n".encode())
                status = CANNOT_RUN
                break
            tell(f"started {child.pid}")
            while (status := child.poll()) is None:
                if not parent_wants_more():
                    end(child, job["grace_s"])
                    return False
            if status != 0:
                break
    tell(f"exited {status}")
    return True


def die_with_parent() -> Callable[[], object] | None:
    """Makes a child get SIGKILL when this keeper is itself killed; None where the system cannot."""
    if sys.platform != "linux":
        return None
    import ctypes

    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    if grace_s > 0:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    child.kill()
    child.wait()


def tell(line: str) -> None:
    # Without a reader there is nobody left to tell; the wait notices that by itself.
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
