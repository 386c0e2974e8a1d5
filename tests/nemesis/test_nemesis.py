"""A short nemesis: two minutes of faults under one seed, on three real brokers: `make test-nemesis`."""

from __future__ import annotations

from pathlib import Path

import pytest
from nemesis.ground import Conditions
from nemesis.run import run
from nemesis.schedule import Plan

from headrace.ops.faults.timeline import Timeline
from headrace.ops.java import find_java

SEED = 7
SECONDS = 110.0


@pytest.mark.nemesis
@pytest.mark.timeout(420)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets of clients whose broker was killed
def test_every_request_is_answered_once_whatever_is_killed_cut_or_frozen(
    kafka_home: Path, tmp_path: Path
) -> None:
    java = find_java()
    assert java is not None, "the fixture has seen to it"
    timeline = Timeline(tmp_path / "timeline.txt", show=lambda event: print(event.line(), flush=True))
    report = run(
        Plan(SEED, SECONDS, workers=4),
        Conditions(rate=15.0, long_share=0.002),
        place=tmp_path,
        home=kafka_home,
        java=java.command,
        timeline=timeline,
        settle_s=60.0,
    )
    said = "\n".join(report.lines())
    print(said)
    assert report.passed, said
    assert sum(report.counted.values()) >= 12, said
    assert len(+report.counted) >= 6, said
