"""`headrace serve` in a process of its own, for commands that need the endpoint beside them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings

LINES_SHOWN = 15  # of its log, where it failed


class EndpointFailed(HeadraceError):
    """An endpoint that was started here did not start."""

    code = "endpoint_failed"


class EndpointProcess:
    """Started at once, without asking for keys unless `options` say so; the end of the `with` block ends it."""

    def __init__(
        self, settings: Settings, *, log: Path, port: int = 0, options: tuple[str, ...] = ("--no-auth",)
    ) -> None:
        """`port` 0: any free one. `options` are more of `headrace serve`."""
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "headrace.ops.cli", "serve", "--port", str(port)),
            *("--bootstrap-servers", str(settings.bootstrap_servers), "--prefix", settings.prefix, *options),
        ]
        with log.open("ab") as output:
            self._log_begins = output.tell()
            # In a group of its own: Ctrl-C ends whoever started it, and that ends the endpoint.
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_bytes()[self._log_begins :].decode(errors="replace")

    @property
    def address(self) -> str | None:
        """`http://127.0.0.1:8000`; None before it listens."""
        found = re.search(r"^serving (\S+)/v1 ", self.said(), re.MULTILINE)
        return None if found is None else found[1]

    def wait_ready(self, timeout_s: float) -> str:
        """Until it knows what is served; its address. Raises EndpointFailed."""
        deadline = time.monotonic() + timeout_s
        while not self._is_ready():
            if self.process.poll() is not None:
                end = "\n".join(self.said().splitlines()[-LINES_SHOWN:])
                raise EndpointFailed(f"the endpoint ended with {self.process.returncode}:\n{end}")
            if time.monotonic() > deadline:
                raise EndpointFailed(
                    f"the endpoint was not ready after {timeout_s:.0f} s; its log: {self.log}"
                )
            time.sleep(0.05)
        address = self.address
        assert address is not None, "it is ready"
        return address

    def _is_ready(self) -> bool:
        address = self.address
        if address is None:
            return False
        try:
            with urllib.request.urlopen(f"{address}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False
