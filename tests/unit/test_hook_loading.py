"""Where a package's hooks come from, and those that cannot work."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packages import a_package, write_package

from headrace.schemas.errors import PackageError
from headrace.schemas.package import load_package
from headrace.workers.hooks import Hooks, load_hooks


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("class Other: pass", "has no attribute 'Own'"),
        ("class Own: pass", "has neither before(request) nor after(result)"),
        ("class Own:\n    def befor(self, request): ...", "did you mean that with befor"),
        (
            "class Own:\n    def before(self, r): ...\n    def aftr(self, r): ...",
            "has aftr; did you mean after",
        ),
        ("class Own:\n    before = 3", "own:Own.before is no method"),
        ("class Own:\n    async def after(self, result): ...", "must be a plain method"),
        ("class Own:\n    def before(self): ...", "must take one argument"),
        ("class Own:\n    def __init__(self, a): ...", "cannot be made: TypeError"),
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("class Own", "SyntaxError"),
        ("raise SystemExit(1)", "SystemExit: 1"),
    ],
)
def test_hooks_that_cannot_work_are_refused_when_they_are_loaded(tmp_path: Path, code: str, why: str) -> None:
    (tmp_path / "own.py").write_text(code)
    package = a_package(tmp_path, extra='hooks = "own:Own"')
    with pytest.raises(PackageError) as error:
        load_hooks(package)
    assert why in error.value.message
    assert error.value.key == "hooks"


def test_a_module_that_is_nowhere_is_named_with_the_place_where_it_was_looked_for(tmp_path: Path) -> None:
    package = a_package(tmp_path, extra='hooks = "nowhere.own:Own"')
    with pytest.raises(
        PackageError, match=re.escape(f"there is no {tmp_path}/nowhere/own.py, and no module")
    ):
        load_hooks(package)


@pytest.fixture
def importable(tmp_path: Path) -> Iterator[Path]:
    """A directory that modules are imported from."""
    directory = tmp_path / "importable"
    directory.mkdir()
    sys.path.insert(0, str(directory))
    known = set(sys.modules)
    yield directory
    sys.path.remove(str(directory))
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_the_module_beside_the_package_comes_before_one_that_can_be_imported(
    tmp_path: Path, importable: Path
) -> None:
    (importable / "own_hooks.py").write_text("class Own:\n    def before(self, request): ...")
    a_directory = write_package(tmp_path / "package", extra='hooks = "own_hooks:Own"')
    imported = load_hooks(load_package(a_directory))
    assert imported is not None
    assert (imported.before is None, imported.after is None) == (False, True)
    assert "own_hooks" in sys.modules
    del sys.modules["own_hooks"]
    (a_directory / "own_hooks.py").write_text("class Own:\n    def after(self, result): ...")
    beside = load_hooks(load_package(a_directory))
    assert beside is not None
    assert (beside.before is None, beside.after is None) == (True, False)
    assert "own_hooks" not in sys.modules
    assert str(a_directory) not in sys.path


def test_two_packages_with_modules_of_one_name_have_each_its_own(tmp_path: Path) -> None:
    texts: list[Any] = []
    for name in ("a", "b"):
        directory = write_package(tmp_path / name, extra='hooks = "own:Own"')
        (directory / "own.py").write_text(f"class Own:\n    def before(self, request): return {name!r}")
        methods = load_hooks(load_package(directory))
        assert methods is not None
        assert methods.before is not None
        texts.append(methods.before(None))
    assert texts == ["a", "b"]


def test_a_package_without_hooks_has_none(tmp_path: Path) -> None:
    package = a_package(tmp_path)
    assert load_hooks(package) is None
    assert Hooks.of(None, package, lambda work, served: pytest.fail("nobody asks")) is None
