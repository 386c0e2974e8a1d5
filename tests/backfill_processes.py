"""A backfill job in a process of its own, for tests that kill it: run again and again, from here and from elsewhere.

    python backfill_processes.py JOB.toml

prints a line of JSON for each look at the job, and ends as `headrace backfill run` does.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.producers.backfill.job import load_job
from headrace.producers.backfill.job_process import JobProcess, Tellers
from headrace.producers.backfill.progress import JobView
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings

TAKEN = 5  # the exit code of a process whose job another one has taken over


class BackfillProcess:
    """Started at once; the end of the `with` block kills what is left. Its words go to `log`.

    `place` is its working directory and has its temporary directory: another one stands for another machine.
    """

    def __init__(self, bootstrap: str, prefix: str, job: Path, *, place: Path, log: Path) -> None:
        self.log = log
        temporary = place / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        environment = {
            "HEADRACE_BOOTSTRAP_SERVERS": bootstrap,
            "HEADRACE_PREFIX": prefix,
            "TMPDIR": str(temporary),
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(job)],
                stdout=output,
                stderr=output,
                cwd=place,
                env=os.environ | environment,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(20)

    def freeze(self) -> None:
        """SIGSTOP: a machine that is gone, and may come back."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def exit_code(self, timeout_s: float) -> int:
        """Wait for its end; fails where there is none, with what it said."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the job has not ended in {timeout_s:g} s; it said\n{self.said()}"
            ) from None

    def said(self) -> str:
        """Its words, without its looks at the job."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("{"))[-4000:]

    def looks(self) -> list[dict[str, Any]]:
        """`JobView`s, in order; of a killed process the last may be half."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def settled(self) -> int:
        """Rows that were settled when it looked last."""
        looks = self.looks()
        return looks[-1]["settled"] if looks else 0

    def asked(self) -> int:
        """Requests that it had sent when it looked last."""
        looks = self.looks()
        return looks[-1]["asked"] if looks else 0

    def asked_again(self) -> int:
        """Rows whose answers were not to be had any more."""
        return len(re.findall("is asked again$", self.log.read_text(errors="replace"), re.MULTILINE))


def main(job: str) -> int:
    """Run the job; the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    def look(view: JobView) -> None:
        print(json.dumps(asdict(view)), flush=True)

    try:
        spec = load_job(Path(job))
        end = JobProcess(Settings.from_environment(), spec, Tellers(say=print, look=look)).run()
    except HeadraceError as error:
        print(f"error: {error.code}: {error}", flush=True)
        return error.exit_code
    if end.error is not None:
        print(f"error: {end.error.code}: {end.error}", flush=True)
        return end.error.exit_code
    print("nothing to do" if end.nothing_to_do else f"done: {end.state.statuses}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
