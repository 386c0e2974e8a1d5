"""What a test run says at its end, and that in CI a skipped test fails it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

MIXED = """
import pytest

@pytest.mark.kafka
def test_on_kafka(): pass

@pytest.mark.vllm
def test_on_vllm(): pass

def test_on_nothing(): pass

@pytest.mark.registry
def test_skipped(): pytest.skip("no registry here")
"""


def run_of(tmp_path: Path, program: str, *options: str, ci: bool) -> tuple[int, str]:
    (tmp_path / "test_it.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "run_summary",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
    ]
    ended = subprocess.run(
        [*command, "-p", "no:cacheprovider", *options, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS), "CI": "true" if ci else ""},
        capture_output=True,
        text=True,
    )
    return ended.returncode, ended.stdout


def test_it_counts_what_ran_on_the_real_things_and_says_how_to_run_the_rest(tmp_path: Path) -> None:
    status, printed = run_of(tmp_path, MIXED, ci=False)
    assert "passed 3, on real Kafka 1, on real vLLM 1, skipped 1" in printed
    assert "to run the skipped: set HEADRACE_TEST_REGISTRY" in printed
    assert "KAFKA_HOME" not in printed, "no Kafka test was skipped"
    assert status == pytest.ExitCode.OK


def test_in_ci_a_skipped_test_fails_the_run_and_it_says_so(tmp_path: Path) -> None:
    status, printed = run_of(tmp_path, MIXED, ci=True)
    assert "CI=true: a skipped test fails the run" in printed
    assert status == pytest.ExitCode.TESTS_FAILED


def test_in_ci_a_module_that_is_skipped_as_a_whole_fails_the_run_too(tmp_path: Path) -> None:
    status, printed = run_of(
        tmp_path, "import pytest\npytest.skip('all of it', allow_module_level=True)\n", ci=True
    )
    assert "skipped 1" in printed
    assert status not in (pytest.ExitCode.OK, None)


def test_in_ci_a_run_without_skips_passes(tmp_path: Path) -> None:
    status, printed = run_of(tmp_path, "def test_it(): pass\n", ci=True)
    assert "passed 1, on real Kafka 0, on real vLLM 0, skipped 0" in printed
    assert status == pytest.ExitCode.OK


ON_A_BROKER = """
import pytest
from run_summary import tell_the_broker_is_kafka

@pytest.mark.broker
@pytest.mark.parametrize("number", range(3))
def test_on_a_broker(number, request): tell_the_broker_is_kafka(request.config)

@pytest.mark.kafka
def test_skipped(): pytest.skip("no Kafka here")
"""


def test_with_two_processes_it_counts_the_same_and_a_skip_fails_too(tmp_path: Path) -> None:
    status, printed = run_of(tmp_path, ON_A_BROKER, "--numprocesses", "2", ci=True)
    assert "passed 3, on real Kafka 3, on real vLLM 0, skipped 1" in printed
    assert status == pytest.ExitCode.TESTS_FAILED
