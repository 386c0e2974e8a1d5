"""`make demo-backfill`, as a stranger runs it, with fewer films."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

parquet: Any = import_module("pyarrow.parquet")  # its stubs are partly unknown
ROWS = 300  # the last ones: the film without a title is among them

OPTIONS = ("--rows", str(ROWS), "--kill-at", "0.3")


def test_the_films_are_tagged_once_each_though_the_process_dies_on_the_way(
    broker_bootstrap: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.ops.backfill_demo", *OPTIONS, "--folder", str(tmp_path)],
        env=os.environ | {"HEADRACE_BOOTSTRAP_SERVERS": broker_bootstrap},
        capture_output=True,
        text=True,
        timeout=150,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert done.stderr == ""
    assert said.count("$ headrace backfill run") == 2
    assert re.search(r"kill -9, with \d+ of 300 rows answered", said)
    assert "300 rows in = 300 rows out = 299 ok + 1 rejected (1 missing_variable)" in said
    assert "299 requests, 299 results in Kafka" in said
    assert "generated again: none" in said
    assert said.endswith("PASS\n")
    (reject,) = map(json.loads, (tmp_path / "tags.parquet.rejects.jsonl").read_text().splitlines())
    assert reject["input"]["Title"] is None
    assert "the column 'Title' is null" in reject["reason"]
    assert parquet.read_metadata(tmp_path / "tags.parquet").num_rows == ROWS
