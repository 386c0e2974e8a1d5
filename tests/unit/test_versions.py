"""Each version has one place: pyproject.toml asks, ops/locks answers, ops/pins.toml names the servers."""

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from headrace.ops.pins import pins as server_pins
from headrace.ops.setup.install import SETS, pins
from headrace.ops.setup.lock import LEFT_OUT, WITHOUT_DEPENDENCIES, roots

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {name: pins(chosen.path.read_text()) for name, chosen in SETS.items()}
PINNED = {name: version for lock in LOCKS.values() for name, version in lock.items()}
SUPPORTED = SpecifierSet(PYPROJECT["project"]["requires-python"])
PYTHONS = [f"3.{minor}" for minor in range(8, 20) if f"3.{minor}" in SUPPORTED]


def required_by_pyproject() -> list[tuple[str, Requirement]]:
    return [(lock, requirement) for lock, asked in roots(PYPROJECT).items() for requirement in asked]


@pytest.mark.parametrize(("lock", "requirement"), required_by_pyproject(), ids=str)
def test_lock_satisfies_pyproject(lock: str, requirement: Requirement) -> None:
    available = LOCKS["light"] | LOCKS[lock]
    version = available.get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement} is in no lock: run `make lock`"
    assert requirement.specifier.contains(version, prereleases=True)


@pytest.mark.parametrize("name", SETS)
def test_lock_is_sorted_and_names_each_package_once(name: str) -> None:
    lines = [line for line in SETS[name].path.read_text().splitlines() if not line.startswith("#")]
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(set(names))
    assert names == [canonicalize_name(each) for each in names]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][a-z0-9.]*", line) for line in lines)


def test_locks_agree_where_they_overlap() -> None:
    assert not LOCKS["light"].keys() & (LOCKS["engine-cpu"].keys() | LOCKS["dev"].keys())
    both = LOCKS["engine-cpu"].keys() & LOCKS["dev"].keys()
    assert {name: LOCKS["engine-cpu"][name] for name in both} == {name: LOCKS["dev"][name] for name in both}


def test_nothing_left_out_is_locked() -> None:
    assert not LEFT_OUT & PINNED.keys()


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("system", "machine"), [("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")]
)
def test_locks_hold_all_that_their_packages_need(python: str, system: str, machine: str) -> None:
    """Read from the packages installed here, for each Python and platform that is supported."""
    platform = {"Linux": "linux", "Darwin": "darwin"}[system]
    where = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "platform_system": system,
        "platform_machine": machine,
        "sys_platform": platform,
    }
    checked = 0
    for lock in ("light", "dev"):
        available = LOCKS["light"] | LOCKS[lock]
        for name in LOCKS[lock].keys() - WITHOUT_DEPENDENCIES:
            for line in importlib.metadata.requires(name) or []:
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({**where, "extra": ""}):
                    version = available.get(canonicalize_name(needed.name))
                    assert version is not None, f"{name} needs {needed}"
                    assert needed.specifier.contains(version, prereleases=True), f"{name} needs {needed}"
                    checked += 1
    assert checked > 50


@pytest.mark.parametrize("lock", ["light", "dev"])
def test_installed_packages_are_the_locked_ones(lock: str) -> None:
    installed = {name: importlib.metadata.version(name) for name in LOCKS[lock]}
    assert installed == LOCKS[lock]


def test_compose_runs_the_pinned_servers() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert services["kafka"]["image"] == server_pins().kafka_image
    assert services["registry"]["image"] == server_pins().registry_image


def test_kafka_image_is_the_pinned_release() -> None:
    assert server_pins().kafka_image.endswith(":" + server_pins().kafka_version)


def test_image_is_built_on_a_supported_python() -> None:
    dockerfile = (ROOT / "ops" / "deploy" / "Dockerfile").read_text()
    versions = re.findall(r"^FROM python:([0-9.]+)", dockerfile, re.M)
    assert versions
    assert all(version in SUPPORTED for version in versions)


@pytest.mark.parametrize("page", ["README.md", "ops/locks/README.md"])
def test_page_names_no_other_version(page: str) -> None:
    """Where it names a version of something that is pinned, it is the pinned one."""
    known = {**PINNED, "kafka": server_pins().kafka_version, "apache/kafka": server_pins().kafka_version}
    text = (ROOT / page).read_text()
    named = re.findall(r"(?<![\w/-])([A-Za-z][\w/-]*)(?:==|:| )v?(\d+\.\d+(?:\.\d+)+)", text)
    wrong = {f"{name} {version}" for name, version in named if known.get(name.lower(), version) != version}
    assert not wrong


def test_version_of_headrace_stands_in_pyproject_alone() -> None:
    assert importlib.metadata.version("headrace") == PYPROJECT["project"]["version"]
    folders = [
        folder for folder in PYPROJECT["tool"]["setuptools"]["package-dir"].values() if "/" not in folder
    ]
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert sources
    assert not [path for path in sources if re.search(r"^__version__\s*=", path.read_text(), re.M)]
