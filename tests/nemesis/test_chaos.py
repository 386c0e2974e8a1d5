"""The parts of `make chaos` that need no broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headrace.ops.chaos import NEWCOMER, WORKERS, plan
from headrace.ops.faults.fleet import Page, read_page
from headrace.ops.faults.requests import Composer, Mix


def test_the_plan_kills_two_lets_one_leave_and_one_join_and_is_the_seeds() -> None:
    for seed in range(50):
        steps = plan(seed, 24)
        assert [step.kind for step in steps] == ["kill -9", "kill -9", "SIGTERM", "join"]
        assert sorted(step.slot for step in steps) == sorted([*WORKERS, NEWCOMER])
        assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
        assert steps == plan(seed, 24)
    assert len({str(plan(seed, 24)) for seed in range(50)}) == 50


def test_the_same_mix_gives_the_same_requests_and_each_prompt_is_its_own() -> None:
    mix = Mix(seed=3, long_share=0.1)
    first, second = Composer(mix), Composer(mix)
    requests = [first.next() for _ in range(200)]
    assert requests == [second.next() for _ in range(200)]
    assert len({each.request.prompt for each in requests}) == 200
    lanes: dict[str | None, set[str]] = {}
    for each in requests:
        lanes.setdefault(each.request.key, set()).add(each.lane)
    assert all(len(several) == 1 for several in lanes.values()), "a key stays in its lane"


def test_a_page_is_summed_over_its_labels() -> None:
    page = "\n".join(
        [
            "# HELP headrace_in_flight Requests that the engine has been given.",
            'headrace_in_flight{model="m"} 3.0',
            'headrace_requests_total{lane="standard",status="ok"} 4.0',
            'headrace_requests_total{lane="backfill",status="ok"} 1.2e+03',
            'headrace_requests_created{lane="standard",status="ok"} 1.7e+09',
        ]
    )
    assert read_page(page) == Page(in_flight=3, answered=1204)


def test_chaos_without_a_real_kafka_says_in_one_line_what_to_set_and_exits_with_3(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment |= {"KAFKA_HOME": str(tmp_path), "HEADRACE_CACHE_DIR": str(tmp_path / "cache")}
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.ops.chaos"], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 3
    assert len(ended.stderr.splitlines()) == 1
    assert "KAFKA_HOME" in ended.stderr
