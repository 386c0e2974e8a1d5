"""`headrace schemas` as people run it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fastavro
import pytest

from headrace.schemas.avro_schema import shipped, shipped_text
from headrace.schemas.codec import SCHEMA_NAMES

NAMES = sorted(SCHEMA_NAMES.values())


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    command = [sys.executable, "-c", "from headrace.ops.cli import main; main()", "schemas", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=clean | environment, timeout=60
    )


def test_export_writes_every_schema_complete_in_itself(tmp_path: Path) -> None:
    done = run("export", "--dir", str(tmp_path / "made" / "here"))
    assert (done.returncode, done.stderr) == (0, "")
    files = sorted((tmp_path / "made" / "here").iterdir())
    assert [file.name for file in files] == [f"{name}.avsc" for name in NAMES]
    for file in files:
        assert file.read_text() == shipped_text(file.stem)
        fastavro.parse_schema(json.loads(file.read_text()))
        assert f"wrote     {file}" in done.stdout


def test_export_again_changes_nothing_and_says_so(tmp_path: Path) -> None:
    run("export", cwd=tmp_path)
    (tmp_path / "headrace-schemas" / "cancel.avsc").write_bytes(b"\xff changed")
    done = run("export", "--json", cwd=tmp_path)
    report = {Path(entry["file"]).stem: entry for entry in json.loads(done.stdout)}
    assert sorted(report) == NAMES
    assert {name for name, entry in report.items() if entry["action"] == "wrote"} == {"cancel"}
    assert report["request"]["fingerprint"] == shipped("request").fingerprint[::-1].hex()


def test_export_to_a_place_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("export", "--dir", str(tmp_path / "file" / "inside"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_register_without_a_registry_says_what_to_set() -> None:
    done = run("register", "--model", "m", "--contract", "1")
    assert done.returncode == 2
    assert (
        done.stderr == "error: no schema registry: give --registry URL, or set HEADRACE_SCHEMA_REGISTRY_URL\n"
    )


@pytest.mark.parametrize("given", ["option", "variable"])
def test_register_with_nobody_there_fails_with_one_sentence(given: str) -> None:
    url = "http://127.0.0.1:1"
    arguments = ["register", "--model", "m", "--contract", "1"]
    done = (
        run(*arguments, "--registry", url)
        if given == "option"
        else run(*arguments, HEADRACE_SCHEMA_REGISTRY_URL=url)
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: the schema registry at {url} does not answer")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "no/slash", "--contract", "1"], "model name"),
        (["--model", "m", "--contract", "0"], "--contract"),
        (["--model", "m", "--contract", "1", "--prefix", "a b"], "HEADRACE_PREFIX"),
        (["--contract", "1"], "--model"),
    ],
)
def test_wrong_arguments_are_the_callers_mistake(arguments: list[str], said: str) -> None:
    done = run("register", "--registry", "http://127.0.0.1:1", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [[], ["export"], ["register"]])
def test_help_has_an_example(command: list[str]) -> None:
    done = run(*command, "--help")
    assert done.returncode == 0
    assert "headrace schemas" in done.stdout.partition("Example:")[2]


def test_help_imports_no_http_client() -> None:
    code = (
        "import sys; from headrace.ops.cli import cli\n"
        "cli.main(['schemas', 'register', '--help'], standalone_mode=False)\n"
        "assert 'httpx' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
