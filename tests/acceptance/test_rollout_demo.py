"""`make demo-rollout`, as a stranger runs it, in a hurry."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

QUICK = ("--partitions", "4", "--workers", "1", "--rate", "40", "--steps", "50,100", "--hold", "1")


def test_one_rollout_goes_through_the_other_comes_back_and_the_count_adds_up(kafka_bootstrap: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.ops.rollout_demo", *QUICK],
        env=os.environ | {"HEADRACE_BOOTSTRAP_SERVERS": kafka_bootstrap},
        capture_output=True,
        text=True,
        timeout=150,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    events = [tuple(found) for found in re.findall(r"^ *[\d.]+ s  (.+?)  +(version \d)", said, re.MULTILINE)]
    order = [
        ("traffic", "version 1"),
        ("rollout", "version 2"),
        ("finished", "version 2"),
        ("rollout", "version 3"),
        ("taken back", "version 3"),
        ("back", "version 2"),
        ("results redo", "version 3"),
    ]
    assert [each for each in events if each in order] == order
    assert re.search(r"taken back +version 3 +\d+ of \d+ answers failed", said)
    found = re.search(
        r"([\d,]+) sent = ([\d,]+) answered once \+ ([\d,]+) answered by version 3 \((\d+) failed\)", said
    )
    assert found is not None, said
    sent, once, again, failed = (int(each.replace(",", "")) for each in found.groups())
    assert sent == once + again
    assert 0 < failed < again
    assert "0 lost or doubled" in said
    assert said.endswith("PASS\n")
    assert done.stderr == ""


def test_without_a_real_kafka_it_says_in_one_line_what_to_set_and_exits_with_3(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment |= {"KAFKA_HOME": str(tmp_path), "HEADRACE_CACHE_DIR": str(tmp_path / "cache")}
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.ops.rollout_demo"], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 3
    assert len(ended.stderr.splitlines()) == 1
    assert "KAFKA_HOME" in ended.stderr
