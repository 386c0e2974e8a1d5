"""What is installed is what the project has: no package and no data file is forgotten in pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SETUPTOOLS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]
TOP_LEVEL = [folder for folder in FOLDERS.values() if "/" not in folder]
# For those who have the clone: set-up, deployment, what an operator reads.
NOT_INSTALLED = {"ops/setup", "ops/locks", "ops/deploy", "ops/dashboards", "ops/runbooks"}


def installed_folder(path: Path) -> bool:
    inside = path.relative_to(ROOT)
    return "__pycache__" not in inside.parts and "/".join(inside.parts[:2]) not in NOT_INSTALLED


def test_every_folder_with_modules_is_a_listed_package() -> None:
    modules = [
        path for folder in TOP_LEVEL for path in (ROOT / folder).rglob("*.py") if installed_folder(path)
    ]
    folders = {str(path.parent.relative_to(ROOT)) for path in modules}
    assert folders == set(FOLDERS.values())
    assert set(SETUPTOOLS["packages"]) == set(FOLDERS)
    assert {"headrace." + folder.replace("/", ".") for folder in folders} == set(FOLDERS)


def test_every_data_file_is_shipped() -> None:
    shipped = {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in (ROOT / FOLDERS[package]).glob(pattern)
    }
    data = {
        path
        for folder in TOP_LEVEL
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc"} and installed_folder(path)
    }
    assert {str(path.relative_to(ROOT)) for path in data - shipped} == set()
