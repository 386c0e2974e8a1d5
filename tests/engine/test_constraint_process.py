"""The process that finds out how constraints are held, on the real backends and a real tokenizer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.engine_port import Port, collect, job
from waiting import wait_until

from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.messages import OutputConstraint
from headrace.schemas.settings import Settings
from headrace.workers.constraint_checks import held_constraint
from headrace.workers.engine import TextPrompt

CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"b": {"type": "string", "maxLength": 5}, "a": {"enum": [1, 2]}},
    "required": ["b", "a"],
    "additionalProperties": False,
}


class Process:
    """The process, asked line by line."""

    def __init__(self, backend: str, tokenizer: Path, *, awaits: bool = False) -> None:
        command = [sys.executable, "-m", "headrace.workers.constraint_process", "--backend", backend]
        self.popen = subprocess.Popen(
            [*command, "--tokenizer", str(tokenizer), *(["--await-tokenizer"] if awaits else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if not awaits:
            assert self.read() == {"ready": True}

    def read(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        return json.loads(self.popen.stdout.readline())

    def ask(self, constraint: dict[str, Any], *instances: Any) -> dict[str, Any]:
        self.send({"constraint": constraint, "instances": list(instances)})
        return self.read()

    def send(self, job: dict[str, Any]) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(job).encode() + b"\n")
        self.popen.stdin.flush()

    def close(self) -> None:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        assert self.popen.wait(30) == 0, "it ends with its input"
        self.popen.stdout.close()


@pytest.fixture(scope="module")
def tokenizer(needs_vllm: None) -> Path:
    return tiny_model(Settings.from_environment().cache_dir / "models")


@pytest.fixture(scope="module", params=["guidance", "xgrammar"])
def process(request: pytest.FixtureRequest, tokenizer: Path) -> Iterator[Process]:
    process = Process(request.param, tokenizer)
    yield process
    process.close()


@pytest.fixture(scope="module")
def guidance(tokenizer: Path) -> Iterator[Process]:
    process = Process("guidance", tokenizer)
    yield process
    process.close()


def test_a_schema_is_enforced_and_its_instances_are_judged_twice(process: Process) -> None:
    good, other_order, bad = {"b": "x", "a": 1}, {"a": 1, "b": "x"}, {"b": "x", "a": 3}
    answer = process.ask({"json_schema": CLOSED}, good, other_order, bad)
    assert answer["enforcement"]["tier"] in ("enforced", "enforced_normalised")
    assert answer["instances"] == [[True, True], [True, True], [False, False]]
    assert answer["cpu_ms"] > 0


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "(mill|weir)-[0-9]{3}"},
        {"choice": ['a "quoted" one', "größer"]},
        {"grammar": 'root ::= "go " ("left" | "right")'},
        {"json_object": True},
    ],
    ids=["regex", "choice", "grammar", "json_object"],
)
def test_what_is_no_schema_is_compiled_as_it_is(process: Process, constraint: dict[str, Any]) -> None:
    assert process.ask(constraint)["enforcement"] == {"tier": "enforced", "schema": None, "narrowed": []}


@pytest.mark.parametrize(
    ("constraint", "code", "path"),
    [
        ({"json_schema": {"type": "nonsense"}}, "invalid_schema", "/json_schema/type"),
        ({"json_schema": False}, "invalid_schema", "/json_schema"),
        ({"json_schema": {"enum": list(range(5000))}}, "schema_too_complex", "/json_schema/enum"),
        ({"regex": "[a"}, "invalid_schema", "/regex"),
        ({"grammar": "start: nowhere"}, "invalid_schema", "/grammar"),
        ({}, "invalid_schema", ""),
        ({"regex": "a", "choice": ["a"]}, "invalid_schema", ""),
    ],
)
def test_what_cannot_be_held_is_refused_with_its_place(
    process: Process, constraint: dict[str, Any], code: str, path: str
) -> None:
    answer = process.ask(constraint)
    assert (answer["refused"]["code"], answer["refused"]["path"]) == (code, path)
    assert answer["lasting"]
    assert process.ask({"regex": "a"})["enforcement"], "and the next is answered"


def test_what_is_no_job_is_refused_and_the_next_is_answered(guidance: Process) -> None:
    guidance.send({"nothing": 1})
    assert guidance.read()["refused"]["code"] == "invalid_schema"
    assert guidance.ask({"regex": "a"})["enforcement"]


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
def test_begun_before_the_tokenizer_is_there_it_waits_for_it(
    tokenizer: Path, tmp_path: Path, backend: str
) -> None:
    process = Process(backend, tmp_path / "tokenizer", awaits=True)
    shutil.copytree(tokenizer, tmp_path / "tokenizer")
    process.send({"vocabulary_size": 32_100})
    assert process.read() == {"ready": True}
    assert process.ask({"json_schema": CLOSED})["enforcement"]["tier"] in ("enforced", "enforced_normalised")
    process.close()


def test_one_whose_tokenizer_never_comes_ends_with_its_input(needs_vllm: None, tmp_path: Path) -> None:
    Process("guidance", tmp_path / "none", awaits=True).close()


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "headrace.workers.constraint_process", *sys.argv[1:]],
                         stdin=sys.stdin, stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def test_it_ends_with_its_parent_though_its_input_stays_open(tokenizer: Path) -> None:
    command = [sys.executable, "-c", PARENT, "--backend", "guidance", "--tokenizer", str(tokenizer)]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert os.getpriority(os.PRIO_PROCESS, child) == 19
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not _runs(child), 30, "the process to end")
    parent.stdout.close()
    assert parent.stdin is not None
    parent.stdin.close()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_has_been_checked_is_not_checked_again_in_the_worker(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[Any] = []

    def look(params: Any, tokenizer: Any) -> None:
        looked_at.append(params)

    monkeypatch.setattr("vllm.v1.structured_output.backend_guidance.validate_guidance_grammar", look)
    checked = OutputConstraint(json_schema={"enum": ["mill", "weir"]})
    unchecked = OutputConstraint(json_schema={"enum": ["mill", "sluice"]})
    enforcement = port.run(port.engine.enforcement_of(checked))
    held = held_constraint(checked, enforcement)
    assert held is not None

    async def go(constraint: OutputConstraint) -> str:
        token_ids = await port.engine.encode(TextPrompt("The mill"))
        asked = job(token_ids, constraint=constraint.model_dump(exclude_none=True))
        return (await collect(port.engine.generate(asked))).text

    assert port.run(go(held)) in ('"mill"', '"weir"'), "and it is enforced all the same"
    assert looked_at == []
    assert port.run(go(unchecked)) in ('"mill"', '"sluice"')
    assert len(looked_at) == 1
