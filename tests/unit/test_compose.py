"""docker-compose.yml and the image: well-formed, and in agreement with us. No container engine is needed."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from headrace.ops.cli import cli
from headrace.schemas.settings import KafkaSecurity, Settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "ops" / "deploy" / "Dockerfile"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]


def check_against_schema(path: Path) -> subprocess.CompletedProcess[str]:
    """With the Compose Specification's own schema, which check-jsonschema carries: nothing is fetched."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True)


def test_compose_file_obeys_the_compose_specification() -> None:
    checked = check_against_schema(COMPOSE)
    assert checked.returncode == 0, checked.stdout


def test_misspelt_key_of_a_compose_file_is_found(tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(COMPOSE.read_text().replace("healthcheck:", "health_check:", 1))
    checked = check_against_schema(broken)
    assert checked.returncode == 1
    assert "health_check" in checked.stdout


def test_services_wait_only_for_services_that_can_be_waited_for() -> None:
    waited = [
        (name, on, how["condition"])
        for name, s in SERVICES.items()
        for on, how in s.get("depends_on", {}).items()
    ]
    assert waited
    for name, on, condition in waited:
        assert on in SERVICES, f"{name} waits for {on}"
        assert condition != "service_healthy" or "healthcheck" in SERVICES[on]


def default(text: str) -> str:
    """`${NAME:-value}` with no such variable set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.mark.parametrize("service", OURS)
def test_command_of_a_service_is_one_of_ours(service: str, tmp_path: Path) -> None:
    words = [default(word) for word in SERVICES[service]["command"]]
    mounted = [
        volume.split(":")[-2]
        for volume in map(default, SERVICES[service]["volumes"])
        if volume.endswith(":ro")
    ]
    arguments = [str(tmp_path) if word in mounted else word for word in words]
    assert ("--package" in words) == (arguments != words)
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments[0])
        assert found is not None, arguments
        command, arguments = found, arguments[1:]
        context = click.Context(command, parent=context)
    command.make_context(command.name, arguments)


@pytest.mark.parametrize("service", OURS)
def test_variables_of_a_service_are_settings(service: str) -> None:
    known = {f"HEADRACE_{name.upper()}" for name in Settings.model_fields}
    known |= {f"HEADRACE_KAFKA_{name.upper()}" for name in KafkaSecurity.model_fields}
    assert SERVICES[service]["environment"].keys() <= known


@pytest.mark.parametrize("service", OURS)
def test_services_use_the_listener_that_kafka_advertises_to_containers(service: str) -> None:
    kafka = SERVICES["kafka"]["environment"]
    advertised = dict(each.split("://") for each in kafka["KAFKA_ADVERTISED_LISTENERS"].split(","))
    assert SERVICES[service]["environment"]["HEADRACE_BOOTSTRAP_SERVERS"] == advertised["INTERNAL"]
    assert "127.0.0.1:9092:9092" in SERVICES["kafka"]["ports"]
    assert advertised["HOST"] == "localhost:9092"


def test_worker_may_finish_what_is_in_flight_before_it_is_killed() -> None:
    grace_s = int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > Settings.model_fields["drain_budget_s"].default


def test_worker_publishes_its_metrics() -> None:
    port = Settings.model_fields["metrics_port"].default
    assert any(published.endswith(f":{port}") for published in SERVICES["worker"]["ports"])
    assert f"EXPOSE {port}" in DOCKERFILE.read_text()


def test_dockerfile_passes_its_linter() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    checked = subprocess.run([linter, "--no-color", DOCKERFILE], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_image_gets_every_package_and_the_build_context_lets_them_through() -> None:
    copied = set(re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE.read_text(), re.M))
    sources = {source for line in copied for source in line.split()}
    assert all((ROOT / source).exists() for source in sources)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert {folder.split("/")[0] for folder in project["package-dir"].values()} <= sources
    let_through = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert {source.split("/")[0] for source in sources} <= let_through
