"""`headrace contracts` and the contract part of `headrace package check`, as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kafka_members import settings_for
from packages import TAGS_SCHEMA, write_package

from headrace.consumers.contracts import FrozenContract, contract_value
from headrace.schemas.contract import Contract
from headrace.schemas.package import load_package
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

HEADRACE = [sys.executable, "-c", "from headrace.ops.cli import main; main()"]
HIGHER: dict[str, Any] = {
    **TAGS_SCHEMA,
    "properties": {**TAGS_SCHEMA["properties"], "score": {"type": "integer", "minimum": 1, "maximum": 10}},
}


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    command = [*HEADRACE, *map(str, arguments)]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, timeout=120)


def test_a_package_is_checked_against_a_file_without_a_broker(tmp_path: Path) -> None:
    first = write_package(tmp_path / "first", output=TAGS_SCHEMA)
    second = write_package(tmp_path / "second", output=HIGHER)
    file = tmp_path / "contract.json"
    file.write_bytes(contract_value(FrozenContract(Contract.of(load_package(first)), None, "a@b", 1)))

    same = run("package", "check", first, "--against", file)
    assert (same.returncode, same.stderr) == (0, "")
    assert f"the same as {file} (may shift traffic)" in same.stdout
    other = run("package", "check", second, "--against", file)
    assert (other.returncode, other.stderr) == (1, "")
    assert "output.score breaks readers of results: maximum: 10 is greater" in other.stdout
    assert '"score": 10' in other.stdout
    assert "contract = 2" in other.stdout
    told = json.loads(run("package", "check", second, "--against", file, "--json").stdout)["contract_check"]
    assert (told["same"], told["next_contract"], told["breaks"][0]["path"]) == (False, 2, "/output/score")

    alone = run("package", "check", first)
    assert alone.returncode == 0
    assert "not compared with a frozen contract: HEADRACE_BOOTSTRAP_SERVERS is not set" in alone.stdout


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": "tagger"}'])
def test_a_file_that_is_no_contract_is_said_to_be_none(tmp_path: Path, content: str) -> None:
    package = write_package(tmp_path / "first", output=TAGS_SCHEMA)
    file = tmp_path / "contract.json"
    file.write_text(content)
    refused = run("package", "check", package, "--against", file)
    assert refused.returncode == 2
    assert f"{file} is no contract" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("alias", "tagger"), "MODEL/NUMBER"),
        (("alias", "tagger", "tagger/1", "--remove"), "--remove"),
        (("alias", "tagger", "tagger"), "MODEL/NUMBER"),
        (("show", "tagger"), "MODEL/NUMBER"),
        (("freeze", "nowhere", "--override", "x"), "CONTRACT:VERSION"),
    ],
)
def test_each_mistake_is_named_before_a_broker_is_asked(arguments: tuple[str, ...], said: str) -> None:
    refused = run("contracts", *arguments)
    assert refused.returncode == 2
    assert said in refused.stderr


def test_freeze_list_alias_show_and_check(kafka_bootstrap: str, unique_prefix: str, tmp_path: Path) -> None:
    settings = settings_for(kafka_bootstrap, prefix=unique_prefix)
    names = ContractNames(unique_prefix, "tagger", 1)
    bring_in_line(settings, names, LayoutOptions(partitions=1, replication=1))
    where = {"HEADRACE_BOOTSTRAP_SERVERS": kafka_bootstrap, "HEADRACE_PREFIX": unique_prefix}
    first = write_package(tmp_path / "first", output=TAGS_SCHEMA)
    second = write_package(tmp_path / "second", output=HIGHER)

    assert "not frozen" in run("package", "check", first, **where).stdout
    frozen = run("contracts", "freeze", first, **where)
    assert (frozen.returncode, frozen.stderr) == (0, "")
    assert frozen.stdout.startswith("froze tagger/1 as sha256:")
    assert "frozen already" in run("contracts", "freeze", first, **where).stdout
    assert run("contracts", "freeze", second, **where).returncode == 2
    assert run("contracts", "alias", "tagger", "tagger/1", **where).stdout == "tagger means tagger/1\n"

    listed = run("contracts", "list", **where)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines()[1].split()[0] == "tagger/1"
    [row] = json.loads(run("contracts", "list", "--json", **where).stdout)["contracts"]
    assert (row["model"], row["number"], row["aliases"]) == ("tagger", 1, ["tagger"])

    exported = tmp_path / "tagger-1.json"
    exported.write_text(run("contracts", "show", "tagger/1", "--json", **where).stdout)
    assert json.loads(exported.read_text())["output"] == TAGS_SCHEMA
    for options, variables in ((("--against", exported), {}), ((), where)):
        assert "(may shift traffic)" in run("package", "check", first, *options, **variables).stdout
        assert run("package", "check", second, *options, **variables).returncode == 1

    worker = run(
        "worker", "run", "--package", second, "--engine", "simulated", "--metrics-port", "0", **where
    )
    assert worker.returncode == 2
    assert "output.score breaks readers of results" in worker.stderr
