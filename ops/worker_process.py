"""`headrace worker run` in a process of its own, for commands that need one beside them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings

LINES_SHOWN = 15  # of its log, where it failed


class WorkerFailed(HeadraceError):
    """A worker that was started here did not start, or did not end as it should."""

    code = "worker_failed"


class WorkerProcess:
    """Started at once; `stop()` drains it, and the end of the `with` block kills what is left.

    `options` are more of `headrace worker run`, `environment` more variables. Its log goes to `log`.
    """

    def __init__(
        self,
        settings: Settings,
        package: Path,
        *,
        engine: str,
        slot: str,
        log: Path,
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        command = [
            *(sys.executable, "-m", "headrace.ops.cli", "worker", "run"),
            *("--package", str(package), "--engine", engine, "--slot", slot, "--metrics-port", "0"),
            *("--bootstrap-servers", str(settings.bootstrap_servers), "--prefix", settings.prefix, *options),
        ]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._log_begins = output.tell()
            # In a group of its own: Ctrl-C ends whoever started it, and that ends the worker.
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env=os.environ | dict(environment or {}),
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_bytes()[self._log_begins :].decode(errors="replace")

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of one of its pages; (0, "") as long as it has none."""
        found = re.search(r"metrics on port (\d+)", self.said())
        if found is None:
            return 0, ""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float:
        """The sum of a metric over all its labels; 0 if it is not there."""
        _, page = self.get("/metrics")
        values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", page, re.MULTILINE)
        return sum(float(each) for each in values)

    def wait_ready(self, timeout_s: float) -> None:
        """Until its engine has answered a probe and it is in its group. Raises WorkerFailed."""
        deadline = time.monotonic() + timeout_s
        while self.get("/readyz")[0] != 200:
            if self.process.poll() is not None:
                raise WorkerFailed(
                    f"the worker ended with {self.process.returncode}; its log ends:\n{self._end()}"
                )
            if time.monotonic() > deadline:
                raise WorkerFailed(f"the worker was not ready after {timeout_s:.0f} s; its log: {self.log}")
            time.sleep(0.1)

    def terminate(self) -> None:
        """SIGTERM: finish what is in flight, commit, leave."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float) -> None:
        """SIGTERM, and wait for its end. Raises WorkerFailed unless it ends with 0."""
        self.terminate()
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise WorkerFailed(
                f"the worker did not end within {timeout_s:.0f} s; its log: {self.log}"
            ) from None
        if code != 0:
            raise WorkerFailed(f"the worker ended with {code}; its log ends:\n{self._end()}")

    def _end(self) -> str:
        return "\n".join(self.said().splitlines()[-LINES_SHOWN:])
