"""What `headrace up` tells its reader to paste is accepted by the package that it serves."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from packages import a_package

from headrace.ops import demo_model
from headrace.ops.cli.up import announcement, demo_weights, up
from headrace.schemas.errors import EngineUnavailable, UsageError
from headrace.schemas.messages import Request
from headrace.schemas.package import Package, load_package
from headrace.schemas.prompt import prompt_of
from headrace.topics.names import ContractNames

EXAMPLE = Path(__file__).parents[2] / "examples" / "movie-tagger"


def announced(package: Package, *, prefix: str = "headrace", contract: int = 1) -> str:
    return announcement("localhost:9092", ContractNames(prefix, package.model, contract), package)


def line_with(text: str, part: str) -> str:
    return next(line for line in text.splitlines() if part in line)


def test_the_request_for_kcat_is_one_that_the_package_accepts() -> None:
    package = load_package(EXAMPLE)
    _, request, *_ = shlex.split(line_with(announced(package), "kcat -P"))
    assert prompt_of(Request.model_validate_json(request), package)


def test_the_python_sample_is_a_program_and_its_variables_are_accepted() -> None:
    package = load_package(EXAMPLE)
    text = announced(package)
    program = text[text.index("from headrace") : text.index("# kcat")]
    compile(program, "pasted", "exec")
    given = ast.literal_eval(line_with(text, "client.ask")[len("    print(client.ask(") : -2])
    assert prompt_of(Request(id="x", variables=given), package)


def test_the_command_line_sample_has_the_same_variables() -> None:
    command = shlex.split(line_with(announced(load_package(EXAMPLE)), "headrace send"))
    assert json.loads(command[command.index("--variables") + 1])["title"] == "Heat"


def test_without_a_prompt_template_a_prompt_is_sent(tmp_path: Path) -> None:
    text = announced(a_package(tmp_path, user=None))
    assert "--prompt Hello!" in text
    assert "client.ask('Hello!')" in text


def test_a_prefix_and_a_contract_of_ones_own_are_in_every_sample() -> None:
    text = announced(load_package(EXAMPLE), prefix="ours", contract=2)
    assert "HEADRACE_PREFIX=ours" in text
    assert "SyncClient.connect('movie-tagger', 2, bootstrap_servers='localhost:9092')" in text
    assert "--contract 2" in line_with(text, "headrace send")
    assert "ours.movie-tagger.c2.results" in line_with(text, "kcat -C")


def test_a_port_and_a_given_broker_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="--port"):
        CliRunner().invoke(
            up,
            ["--package", str(EXAMPLE), "--port", "9092", "--bootstrap-servers", "localhost:9092"],
            catch_exceptions=False,
        )


def test_the_demos_model_needs_no_hub_and_any_other_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepared(cache_dir: Path, _: object) -> Path:
        return cache_dir / "copy"

    monkeypatch.setattr(demo_model, "prepare_demo_model", prepared)
    assert demo_weights(load_package(EXAMPLE), tmp_path) == tmp_path / "copy"
    assert demo_weights(a_package(tmp_path / "other", weights="some/model"), tmp_path) is None
    pinned = a_package(tmp_path / "pinned", weights=demo_model.HUB_ID, extra='revision = "abc"')
    assert demo_weights(pinned, tmp_path) is None


def test_without_the_demos_package_its_model_is_left_to_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> Path:
        raise EngineUnavailable("not installed")

    monkeypatch.setattr(demo_model, "prepare_demo_model", missing)
    assert demo_weights(load_package(EXAMPLE), tmp_path) is None


def test_the_openai_sample_is_a_program_and_is_there_only_with_an_endpoint() -> None:
    package = load_package(EXAMPLE)
    names = ContractNames("headrace", package.model, 2)
    text = announcement("localhost:9092", names, package, "http://127.0.0.1:8000")
    program = text[text.index("from openai") : text.index("curl")]
    compile(program, "pasted", "exec")
    command = shlex.split(line_with(text, "curl http"))
    assert command[1] == "http://127.0.0.1:8000/v1/chat/completions"
    assert json.loads(command[-1])["model"] == "movie-tagger@2"
    assert "openai" not in announced(package)
