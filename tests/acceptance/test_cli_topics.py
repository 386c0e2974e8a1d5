"""`headrace topics` as its user runs it: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packages import write_package

HEADRACE = [sys.executable, "-c", "from headrace.ops.cli import main; main()", "topics"]
CONTRACT = ["--model", "tagger", "--contract", "1"]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return subprocess.run(
        [*HEADRACE, *arguments], env=environment | variables, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def cluster(kafka_bootstrap: str, unique_prefix: str) -> dict[str, str]:
    return {"HEADRACE_BOOTSTRAP_SERVERS": kafka_bootstrap, "HEADRACE_PREFIX": unique_prefix}


def test_apply_then_diff(cluster: dict[str, str], unique_prefix: str) -> None:
    before = run("diff", *CONTRACT, "--partitions", "2", **cluster)
    assert (before.returncode, before.stderr) == (1, "")
    assert f"create  {unique_prefix}.tagger.c1.results: 2 partitions by the request's key" in before.stdout

    applied = run("apply", *CONTRACT, "--partitions", "2", **cluster)
    assert (applied.returncode, applied.stderr) == (0, "")
    lines = applied.stdout.splitlines()
    assert len(lines) == 9
    assert all(line.startswith("created ") for line in lines[:8])
    assert lines[8] == "8 created"

    after = run("diff", *CONTRACT, **cluster)
    assert (after.returncode, after.stdout.splitlines()[-1]) == (0, "nothing to do")


def test_json_for_scripts_and_a_package_for_the_names(
    cluster: dict[str, str], unique_prefix: str, tmp_path: Path
) -> None:
    package = write_package(tmp_path / "tagger")
    options = ["--package", str(package), "--set", "dead.retention.ms=5000", "--json"]
    applied = run("apply", *options, "--partitions", "1", **cluster)
    assert applied.returncode == 0, applied.stderr
    told = json.loads(applied.stdout)
    assert told["differs"]
    dead = next(each for each in told["changes"] if each["topic"] == f"{unique_prefix}.tagger.c1.dead")
    assert (dead["change"], dead["partitions"], dead["configs"]["retention.ms"]) == ("create", 4, "5000")
    again = run("diff", *options, **cluster)
    assert again.returncode == 0
    assert {each["change"] for each in json.loads(again.stdout)["changes"]} == {"same"}


def test_a_refusal_is_one_line_that_says_what_to_do(cluster: dict[str, str]) -> None:
    assert run("apply", *CONTRACT, "--partitions", "2", **cluster).returncode == 0
    refused = run("apply", *CONTRACT, "--partitions", "1", **cluster)
    assert (refused.returncode, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: nothing was changed. ")
    assert "give --partitions 2" in line
    shown = run("diff", *CONTRACT, "--partitions", "1", **cluster)
    assert shown.returncode == 1
    assert shown.stdout.splitlines()[-1] == "4 refuse"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["apply"], "give --package DIR, or --model NAME and --contract NUMBER"),
        (["diff"], "give --package DIR, or --model NAME and --contract NUMBER"),
        (["apply", "--model", "tagger"], "give --package DIR, or --model NAME and --contract NUMBER"),
        (["apply", *CONTRACT, "--package", "."], "not both"),
        (["apply", *CONTRACT, "--set", "retention.ms"], "give TOPIC.CONFIG=VALUE"),
        (["apply", "--model", "a b", "--contract", "1"], "model name 'a b'"),
        (["apply", *CONTRACT, "--partitions", "0"], "--partitions"),
    ],
)
def test_the_callers_mistake_has_exit_code_2(arguments: list[str], said: str) -> None:
    made = run(*arguments, HEADRACE_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert made.returncode == 2
    assert said.lower() in made.stderr.lower()
    assert "Traceback" not in made.stderr


def test_trouble_is_told_from_a_difference() -> None:
    made = run("diff", *CONTRACT)
    assert made.returncode == 3
    assert "set HEADRACE_BOOTSTRAP_SERVERS" in made.stderr


@pytest.mark.parametrize("command", ["apply", "diff"])
def test_help_has_an_example(command: str) -> None:
    shown = run(command, "--help")
    assert shown.returncode == 0
    assert f"headrace topics {command} --package movie-tagger" in shown.stdout
