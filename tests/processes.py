"""What runs on this machine, for tests that look for orphans."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def process_ids_mentioning(text: str) -> set[int]:
    """Of all processes but this one that have `text` in their command line; zombies have none."""
    return {pid for pid, command in _commands().items() if text in command and pid != os.getpid()}


def _commands() -> dict[int, str]:
    if Path("/proc/self/cmdline").exists():
        found: dict[int, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                found[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue  # it ended while we looked
        return found
    listed = subprocess.run(
        ["ps", "-axww", "-o", "pid=,command="], capture_output=True, text=True, check=True
    )
    lines = [line.split(None, 1) for line in listed.stdout.splitlines()]
    return {int(line[0]): line[1] for line in lines if len(line) == 2}


def descendants(pid: int) -> dict[int, str]:
    """The processes below `pid`, with their names (Linux)."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "status").read_text()
            name = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if not fields["State"].startswith("Z"):
            parents[int(entry.name)] = int(fields["PPid"]), name
    found: dict[int, str] = {}
    grew = True
    while grew:
        below = {
            each: name
            for each, (parent, name) in parents.items()
            if (parent == pid or parent in found) and each not in found
        }
        found |= below
        grew = bool(below)
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def processes_of_sessions(sessions: set[int]) -> dict[int, str]:
    """The processes that are left of these sessions, with their commands (Linux)."""
    found: dict[int, str] = {}
    for pid, command in _commands().items():
        try:
            state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue  # it ended while we looked
        if state != "Z" and int(session) in sessions:
            found[pid] = command
    return found
