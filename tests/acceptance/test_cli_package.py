"""`headrace init` and `headrace package check`, as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.schemas.messages import Request
from headrace.schemas.package import load_package
from headrace.schemas.prompt import prompt_of


def headrace(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from headrace.ops.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def made(tmp_path: Path) -> Path:
    directory = tmp_path / "film-tagger"
    assert headrace("init", directory).returncode == 0
    return directory


def test_what_init_writes_passes_the_check_and_its_example_is_accepted(made: Path) -> None:
    checked = headrace("package", "check", made, "--json")
    assert (checked.returncode, checked.stderr) == (0, "")
    report = json.loads(checked.stdout)
    assert report["model"] == "film-tagger"
    assert report["topics"][0] == "headrace.film-tagger.c1.requests.interactive"
    assert report["backend"] == "guidance"
    assert report["held"]["guidance"].startswith("enforced")
    assert report["sampling"]["max_tokens"] == {"value": 256, "from": "package.toml"}
    package = load_package(made)
    assert package.output is not None
    assert report["output_schema_digest"] == package.output.digest
    assert prompt_of(Request.model_validate(report["example_request"]), package)


def test_the_check_for_people_names_what_they_need(made: Path) -> None:
    checked = headrace("package", "check", made)
    assert checked.returncode == 0
    for part in (
        "variables.message",
        "max_tokens",
        "film-tagger.c1.results",
        "guidance",
        '"id": "example-1"',
    ):
        assert part in checked.stdout


def test_init_overwrites_nothing(made: Path) -> None:
    (made / "package.toml").unlink()
    before = (made / "output.schema.json").read_bytes()
    again = headrace("init", made)
    assert again.returncode == 2
    assert "overwrites nothing" in again.stderr
    assert not (made / "package.toml").exists()
    assert (made / "output.schema.json").read_bytes() == before


def test_a_directory_that_is_no_model_name_needs_one(tmp_path: Path) -> None:
    refused = headrace("init", tmp_path / "my model")
    assert refused.returncode == 2
    assert "--model" in refused.stderr
    assert headrace("init", tmp_path / "my model", "--model", "mine").returncode == 0
    assert load_package(tmp_path / "my model").model == "mine"


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("contract = 1", "contract = 0", "package.toml:6: contract: "),
        ('model = "film-tagger"', 'model = "film.tagger"', "package.toml:4: model: "),
        ('version = "1"', 'verson = "1"', "verson: is no key of a package; did you mean version?"),
        ("{{ message }}", "{{ message", "prompt.user: the template is not Jinja2"),
    ],
)
def test_a_mistake_is_one_sentence_on_standard_error_and_exit_code_2(
    made: Path, old: str, new: str, place: str
) -> None:
    file = made / "package.toml"
    file.write_text(file.read_text("utf-8").replace(old, new), encoding="utf-8")
    checked = headrace("package", "check", made)
    assert checked.returncode == 2
    assert checked.stdout == ""
    assert place in checked.stderr
    assert checked.stderr.count("\n") == 1


def test_the_models_own_generation_config_and_warnings_are_shown(made: Path) -> None:
    weights = made / "weights"
    weights.mkdir()
    (weights / "generation_config.json").write_text('{"top_p": 0.8, "temperature": 0.7}', encoding="utf-8")
    file = made / "package.toml"
    text = file.read_text("utf-8").replace('"HuggingFaceTB/SmolLM2-135M-Instruct"', '"./weights"', 1)
    file.write_text(text, encoding="utf-8")
    schema = made / "output.schema.json"
    schema.write_text('{"type": "array", "uniqueItems": true, "maxitems": 3}', encoding="utf-8")
    report = json.loads(headrace("package", "check", made, "--json").stdout)
    assert report["sampling"]["top_p"] == {"value": 0.8, "from": "generation_config.json"}
    assert report["sampling"]["temperature"] == {"value": 0.0, "from": "package.toml"}
    assert any("maxItems" in warning for warning in report["warnings"])
    assert all("headrace schema check" in how for how in report["held"].values()), (
        "uniqueItems is refused by both"
    )


@pytest.mark.parametrize("command", [["init"], ["package"], ["package", "check"]])
def test_help_has_an_example(command: list[str]) -> None:
    shown = headrace(*command, "--help")
    assert shown.returncode == 0
    assert "Example" in shown.stdout
