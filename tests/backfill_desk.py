"""`headrace backfill` where a contract's topics are, by the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until
from worker_processes import Scene

from headrace.consumers.backfill_jobs import KnownJob, read_backfills
from headrace.ops.cli import main

MODEL = "tagger"


class Desk:
    """Runs `headrace backfill` where a contract's topics are."""

    def __init__(self, stage: Scene, place: Path, captured: pytest.CaptureFixture[str]) -> None:
        self.stage = stage
        self.place = place
        self._captured = captured
        self._where = ("--bootstrap-servers", stage.bootstrap, "--prefix", stage.names.prefix)
        self._running: list[subprocess.Popen[str]] = []

    def films(self, name: str, titles: list[str | None]) -> str:
        """An input of a row for each title."""
        path = self.place / name
        path.write_text(
            "".join(json.dumps({"title": title, "number": n}) + "\n" for n, title in enumerate(titles))
        )
        return str(path)

    def path(self, name: str) -> str:
        """In this test's folder."""
        return str(self.place / name)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A command in a process of its own."""
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.ops.cli", "backfill", *arguments, *self._where],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.place,
            env=os.environ | {"HEADRACE_SESSION_TIMEOUT_MS": "6000"},
        )
        self._running.append(process)
        return process

    def said(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Standard output and standard error of a command that ends with this code; it runs in this process."""
        with pytest.raises(SystemExit) as ended:
            main(["backfill", *arguments, *self._where])
        out, err = self._captured.readouterr()
        assert ended.value.code == code, f"{ended.value.code}:\n{out}\n{err}"
        return out, err

    def ended(self, process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
        """The same, of one that was started."""
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, f"{process.returncode}:\n{out}\n{err}"
        return out, err

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """A job to its end, as JSON."""
        found: dict[str, Any] = json.loads(self.said("run", *arguments, "--json", "--quiet", code=code)[0])
        assert sum(found["statuses"].values()) + found["no_answer"] == found["rows"]
        return found

    def of(self, name: str) -> KnownJob | None:
        """What the control topic has of the job of this name."""
        return next(iter(read_backfills(self.stage.seen.settings).of(f"{name}-")), None)

    def wait_for(self, name: str, status: str) -> KnownJob:
        """Until the job's process has said so."""

        def there() -> KnownJob | None:
            known = self.of(name)
            return known if known is not None and known.running and known.running.status == status else None

        found = wait_until(there, 30, f"{name} to be {status}")
        assert found is not None
        return found

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.communicate()


def titles(count: int, begin: str = "Film") -> list[str | None]:
    return [f"{begin} {number}" for number in range(count)]


def lines_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
