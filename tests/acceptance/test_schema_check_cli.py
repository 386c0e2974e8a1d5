"""`headrace schema check` in a subprocess, with the real guidance backend."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.settings import Settings

LINES: list[bytes] = [
    b'{"name": "closed", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],'
    b' "additionalProperties": false}, "tests": [{"valid": true, "data": {"a": 1}}, {"valid": false, "data": {}}]}',
    b"",
    b'{"schema": {"type": "nonsense"}, "tests": [{"valid": true, "data": 1}]}',
    b'{"schema": {"enum": [' + b",".join(b"%d" % number for number in range(3000)) + b"]}}",
    b'{"schema": [1]}',
    b'{"schema": {}',
    b'{"schema": {}, "tests": {}}',
    b'{"name": "\xff", "schema": {}}',
    b'{"schema": {"const": 1e999}}',
    b'{"name": 3, "schema": {}}',
    b'["schema"]',
    b'{"schema": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"schema": {"not": {"type": "string"}}, "tests": [{"valid": false, "data": "x"}]}',
]
VERDICTS = [
    (1, "closed", "enforced", None),
    (3, None, "invalid_schema", "/type"),
    (4, None, "schema_too_complex", "/enum"),
    (5, None, "invalid_schema", ""),
    *((line, name, "malformed_line", None) for line, name in ((6, None), (7, None), (8, None), (9, None))),
    *((line, None, "malformed_line", None) for line in (10, 11, 12)),
]


@pytest.fixture(scope="module")
def tokenizer() -> Path:
    if importlib.util.find_spec("vllm") is None:
        reason = "vLLM is not installed (`pip install -e '.[worker-cpu]'`)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return tiny_model(Settings.from_environment().cache_dir / "models")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.ops.cli", "schema", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_line_gets_its_verdict_and_the_run_goes_on(tmp_path: Path, tokenizer: Path) -> None:
    file = tmp_path / "schemas.jsonl"
    file.write_bytes(b"\n".join(LINES))
    done = run("check", str(file), "--tokenizer", str(tokenizer), "--json")
    assert done.returncode == 0, done.stderr
    found = rows(done)
    assert [(row["line"], row["name"], row["verdict"], row["pointer"]) for row in found[:-1]] == VERDICTS
    assert found[0]["instances"] == [
        {"label": True, "validator": True, "grammar": True},
        {"label": False, "validator": False, "grammar": False},
    ]
    assert found[0]["compile_ms"] > 0
    assert found[1]["keyword"] == "type"
    assert found[1]["instances"] == [{"label": True, "validator": None, "grammar": None}]
    assert found[-1]["instances"][0]["validator"] is False, (
        "whatever the tier, the validator has looked at it"
    )
    assert "12 schemas in" in done.stderr


def test_a_label_that_the_validator_denies_is_named_and_fails_the_run(
    tmp_path: Path, tokenizer: Path
) -> None:
    file = tmp_path / "schemas.jsonl"
    file.write_text(
        '{"name": "mislabelled", "schema": {"type": "string"}, "tests": [{"valid": true, "data": 1}]}\n'
        '{"name": "odd", "schema": {"type": "nonsense"}}\n'
    )
    done = run("check", str(file), "--tokenizer", str(tokenizer))
    assert done.returncode == 1, done.stderr
    assert "mislabelled: the validator says otherwise than the label of tests [0]" in done.stdout
    assert "odd: invalid_schema at /type" in done.stdout
    assert "valid instances that the validator takes" in done.stdout


def test_a_tokenizer_that_is_none_is_said_at_once(tmp_path: Path, tokenizer: Path) -> None:
    file = tmp_path / "schemas.jsonl"
    file.write_text('{"schema": {}}\n')
    done = run("check", str(file), "--tokenizer", str(tmp_path))
    assert done.returncode == 3
    assert done.stderr.startswith("error: output constraints cannot be checked")
    assert done.stderr.count("\n") == 1


def test_help_has_examples() -> None:
    done = run("check", "--help")
    assert done.returncode == 0
    assert "headrace schema check schemas.jsonl --backend both --json" in done.stdout
