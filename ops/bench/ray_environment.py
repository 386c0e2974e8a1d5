"""An environment for Ray beside the one that has vLLM: torch and vLLM are not installed twice."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

from headrace.ops.bench.ground import BenchFailed

# Its extra `llm` asks for vLLM 0.29. With 0.32 all works that the job needs; the engine's metrics want `ray[serve]`.
RAY = "ray[data]==2.60.0"
PIP_WITHIN_S = 900.0


def ray_environment(cache_dir: Path, say: Callable[[str], None]) -> Path:
    """The interpreter of it, made in `cache_dir` on first use. Raises BenchFailed where it cannot be made."""
    engine = sysconfig.get_path("purelib")
    digest = hashlib.sha256(f"{RAY}\0{sys.version}\0{engine}".encode()).hexdigest()[:16]
    place = cache_dir / f"bench-ray-{digest}"
    python = place / "bin" / "python"
    made = place / "made"  # written last
    if made.exists():
        return python
    say(f"installing {RAY} in {place}")
    venv.create(place, with_pip=True, clear=True)
    library = sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)})
    # After its own packages, those of this environment; their `.pth` files, and so Headrace, are not read.
    (Path(library) / "engine.pth").write_text(f"{engine}\n")
    try:
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", RAY],
            check=True,
            capture_output=True,
            text=True,
            timeout=PIP_WITHIN_S,
        )
    except subprocess.CalledProcessError as error:
        said = [*str(error.stderr).strip().splitlines(), "nothing was printed"]
        raise BenchFailed(f"{RAY} could not be installed: {said[-2] if len(said) > 1 else said[0]}") from None
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{RAY} could not be installed within {PIP_WITHIN_S:.0f} s") from None
    made.write_text(f"{RAY}\n")
    return python
