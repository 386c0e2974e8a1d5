"""`make demo`, as a stranger runs it, on the engine that every machine has."""

from __future__ import annotations

import os
import subprocess
import sys


def test_the_demo_ends_with_forty_of_forty_and_says_where_to_go_next(broker_bootstrap: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.ops.demo", "--engine", "simulated"],
        env=os.environ | {"HEADRACE_BOOTSTRAP_SERVERS": broker_bootstrap},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 sent, 40 answered (40 ok), 0 lost, 0 doubled, 0 invalid" in done.stdout
    assert "PASS" in done.stdout
    assert "next: make up" in done.stdout
    assert "The Shawshank Redemption" in done.stdout
    assert done.stderr == ""
