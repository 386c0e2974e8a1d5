"""What a command says that needs what is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = """
import sys
sys.modules[sys.argv[1]] = None  # importing it fails as if it were not installed
from headrace.ops.cli import main
main(sys.argv[2:])
"""
TABLES = ["backfill", "run", "--model", "m", "--input", "a.parquet", "--output", "b.parquet"]


def run(missing: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", RUN, missing, *arguments], capture_output=True, text=True)


def test_who_has_no_pyarrow_is_told_which_extra_brings_it() -> None:
    found = run("pyarrow", *TABLES)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "error: pyarrow is needed: pip install 'headrace[backfill]'\n"


@pytest.mark.parametrize("command", [["backfill", "run", "--help"], ["backfill", "list", "--help"]])
def test_help_needs_no_extra(command: list[str]) -> None:
    found = run("pyarrow", *command)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("Usage: headrace backfill")


def test_what_is_always_there_and_is_missing_is_a_defect_and_is_shown_whole() -> None:
    found = run("headrace.schemas.settings", *TABLES)
    assert found.returncode == 1
    assert "ModuleNotFoundError" in found.stderr
