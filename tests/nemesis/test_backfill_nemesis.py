"""Ten kills of each part of backfill jobs that take five minutes: the output is that of an undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest
from nemesis.backfill import run
from nemesis.backfill_scene import BackfillPlan

from headrace.ops.java import find_java

SEED = 7


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets of clients whose broker was killed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whatever_is_killed_the_output_is_that_of_an_undisturbed_run_row_for_row(
    kafka_home: Path, tmp_path: Path
) -> None:
    java = find_java()
    assert java is not None, "the fixture has seen to it"
    verdict = run(
        BackfillPlan(SEED), tmp_path / "run", kafka_home, java.command, lambda text: print(text, flush=True)
    )
    print("\n".join(verdict.lines))
    assert not verdict.problems, "\n".join(verdict.problems)
