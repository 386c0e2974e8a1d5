"""`containment` in a process of its own that is ended past its limits. Past them the verdict is unknown.

    python -m headrace.schemas.containment_process    {"outer": ..., "inner": ...} on standard input

It writes a line of JSON for each difference that it finds, and one for the verdict, as soon as it knows them: what was
found before it was ended counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from headrace.schemas.containment import Containment, Difference, differences, proved
from headrace.schemas.digest import digest_of
from headrace.schemas.errors import InvalidSchema
from headrace.schemas.messages import JsonObject

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one comparison: CPU seconds of the proof, wall-clock seconds and MiB of memory of it all."""

    cpu_s: int = 2
    clock_s: float = 10.0
    memory_mib: int = 1024


def bounded_containment(
    outer: JsonObject | bool, inner: JsonObject | bool, limits: Limits | None = None
) -> Containment:
    """Whether `outer` accepts all that `inner` accepts, within limits. Takes half a second where they differ.

    Raises nothing for its schemas: what cannot be compared is unknown, and the reason says why.
    """
    if digest_of(outer) == digest_of(inner):
        return Containment("yes")
    limits = limits or Limits()
    job = json.dumps({"outer": outer, "inner": inner, "cpu_s": limits.cpu_s, "memory_mib": limits.memory_mib})
    # -P: a file of the current folder must not pass for a module of Python's.
    command = [sys.executable, "-P", "-m", __name__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            out, errors = process.communicate(job.encode(), timeout=limits.clock_s)
            ended = _why_ended(process.returncode, errors.decode(errors="replace"), limits)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            ended = f"the comparison took longer than {limits.clock_s:g} s"
        except BaseException:
            process.kill()
            raise
    return _read(out.decode(errors="replace"), ended)


def _why_ended(status: int, errors: str, limits: Limits) -> str:
    if status == -signal.SIGXCPU:
        return f"the comparison took more than {limits.cpu_s} s of CPU time"
    if "memory allocation" in errors or "MemoryError" in errors:
        return f"the comparison took more than {limits.memory_mib:,} MiB of memory"
    last = errors.strip().splitlines()[-1:] or ["it said nothing"]
    cause = f"signal {-status}" if status < 0 else f"exit code {status}"
    return f"the comparison's process ended early, with {cause}: {last[0]}"


def _read(out: str, ended: str) -> Containment:
    """What the process wrote; its last line is whole only where it ended by itself."""
    found: list[Difference] = []
    for line in out.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        read: dict[str, Any] = json.loads(line)
        if "verdict" in read:
            last = tuple(Difference(**each) for each in read["differences"])
            return Containment(read["verdict"], read["reason"], last)
        found.append(Difference(**read))
    if found:
        return Containment("no", "", tuple(found))
    return Containment("unknown", ended, (Difference("", "", ended),))


# --- in the process itself ----------------------------------------------------------------------------------------


def main() -> None:
    """Read the job, compare within the limits that it names, write what is found."""
    job = cast("dict[str, Any]", json.load(sys.stdin))
    outer, inner = job["outer"], job["inner"]
    _limit_memory(job["memory_mib"])
    _limit_cpu(job["cpu_s"])
    found = False
    try:
        for each in differences(outer, inner):
            found = True
            _write(asdict(each))
        if not found:
            _limit_cpu(job["cpu_s"])  # the search has had its own time
            _write(asdict(proved(outer, inner)))
    except InvalidSchema as error:
        _write(asdict(Containment("unknown", f"one of the schemas cannot be held: {error}")))


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _limit_cpu(more_s: int) -> None:
    import resource

    # A core dump of a gibibyte serves nobody.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + more_s
    with contextlib.suppress(ValueError):  # a lower one is set already
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _limit_memory(more_mib: int) -> None:
    import resource

    used = 0
    with contextlib.suppress(OSError):  # not on Linux: the limit then holds for it all
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(ValueError, OSError):  # macOS has the limit and does not let it be set
        limit = used + more_mib * MEBIBYTE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
