"""An engine's death and its shutdown, each in a process of its own: the shared engine must survive the
tests. What a worker makes of both is in `test_worker_vllm_death.py` and `test_worker_vllm.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.usefixtures("needs_vllm"), pytest.mark.soak]


def _live(scenario: str) -> tuple[dict[str, Any], str]:
    script = Path(__file__).parent / "engine_life.py"
    ended = subprocess.run(
        [sys.executable, str(script), scenario], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


def test_a_killed_engine_process_is_told_to_all_who_ask_with_its_cause() -> None:
    seen, _ = _live("kill")
    assert "SIGKILL" in seen["in_flight"]
    assert "SIGKILL" in seen["health"]
    assert "SIGKILL" in seen["afterwards"]
    assert not seen["in_our_group"], "a Ctrl-C in the terminal is its worker's to answer"


def test_shutdown_aborts_what_runs_and_leaves_no_process() -> None:
    seen, errors = _live("shutdown")
    assert seen == {"finish": "abort", "left": []}
    assert "Traceback" not in errors
