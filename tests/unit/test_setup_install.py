"""The installer behind `make`: what it decides, and that its stamps never claim more than was installed."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from headrace.ops.setup.install import (
    SETS,
    Environment,
    LockedSet,
    SetupError,
    engine_missing,
    explain,
    pins,
    stage,
    torch_is_large,
)

ROOT = Path(__file__).parents[2]
FIND_PYTHON = ROOT / "ops" / "setup" / "find-python"


@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_engine_is_there_for_linux_x86_64(minor: int) -> None:
    assert engine_missing("Linux", "x86_64", "glibc", (3, minor)) is None


@pytest.mark.parametrize(
    ("system", "machine", "libc", "python", "said"),
    [
        ("Darwin", "arm64", "", (3, 12), "Darwin"),
        ("Linux", "aarch64", "glibc", (3, 12), "aarch64"),
        ("Linux", "x86_64", "", (3, 12), "glibc"),
        ("Linux", "x86_64", "glibc", (3, 15), "3.15"),
        ("Linux", "x86_64", "glibc", (3, 10), "3.10"),
    ],
)
def test_missing_engine_names_its_reason(
    system: str, machine: str, libc: str, python: tuple[int, int], said: str
) -> None:
    assert said in (engine_missing(system, machine, libc, python) or "")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(')"
            ": /simple/rich/\nERROR: No matching distribution found for rich==15.0.0",
            "No package index could be reached",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "disk is full",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "torch==2.13.0"),
    ],
)
def test_failure_of_pip_is_explained_in_one_line(log: str, said: str) -> None:
    explanation = explain(log)
    assert explanation is not None
    assert said in explanation
    assert "\n" not in explanation


def test_unknown_failure_is_left_to_pips_own_words() -> None:
    assert explain("error: subprocess-exited-with-error") is None


def test_stage_counts_packages_then_says_unpacking() -> None:
    log = "Looking in links: /wheels\nCollecting a==1\n  Using a.whl\nRequirement already satisfied: b==2\n"
    assert stage(log, 5) == "fetching, 2 of 5"
    assert stage(log + "Installing collected packages: a\n", 5) == "unpacking"


def test_pins_reads_names_and_versions() -> None:
    assert pins("# made\nrich==15.0.0\n\ntorch==2.13.0  # why\n") == {"rich": "15.0.0", "torch": "2.13.0"}


@pytest.mark.parametrize(
    ("version", "url", "large"),
    [
        ("2.13.0+cpu", "https://example.org/torch.whl", False),
        ("2.13.0", "file:///wheels/torch.whl", False),
        ("2.13.0", "https://example.org/torch.whl", True),
    ],
)
def test_torch_with_cuda_is_told_from_a_cpu_build(version: str, url: str, large: bool) -> None:
    assert torch_is_large(version, url) is large


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """One whose python writes down its arguments and exits as the file `exit-code` says."""
    made = Environment(tmp_path / "venv")
    executable(
        made.python, f'echo "$@" >> {tmp_path}/calls; echo "pip says so"; exit $(cat {tmp_path}/exit-code)'
    )
    (made.path / "bin" / "pip").touch()
    (made.path / "pyvenv.cfg").write_text("version = 3.12.1\n")
    (tmp_path / "exit-code").write_text("0")
    (tmp_path / "calls").touch()
    return made


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LockedSet:
    monkeypatch.setattr("headrace.ops.setup.install.LOCKS", tmp_path)
    monkeypatch.setattr("headrace.ops.setup.install.ROOT", tmp_path)
    (tmp_path / "few.lock").write_text("rich==15.0.0\n")
    return LockedSet("few", "a few things", "no time")


def executable(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + script + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def calls(environment: Environment) -> list[str]:
    return (environment.path.parent / "calls").read_text().splitlines()


def test_second_run_installs_nothing(environment: Environment, chosen: LockedSet) -> None:
    environment.locked(chosen)
    environment.locked(chosen)
    assert len(calls(environment)) == 1
    assert "--no-deps" in calls(environment)[0]


def test_changed_lock_is_installed_again(environment: Environment, chosen: LockedSet) -> None:
    environment.locked(chosen)
    chosen.path.write_text("rich==15.0.1\n")
    environment.locked(chosen)
    assert len(calls(environment)) == 2


def test_failed_install_leaves_no_stamp_and_names_its_log(
    environment: Environment, chosen: LockedSet
) -> None:
    (environment.path.parent / "exit-code").write_text("1")
    with pytest.raises(SetupError, match=r"pip says so\n.*headrace-few\.log"):
        environment.locked(chosen)
    (environment.path.parent / "exit-code").write_text("0")
    environment.locked(chosen)
    assert len(calls(environment)) == 2


def test_lock_that_failed_and_was_taken_back_is_installed_again(
    environment: Environment, chosen: LockedSet
) -> None:
    """The failed run may have replaced packages: the old stamp must not vouch for them."""
    environment.locked(chosen)
    chosen.path.write_text("rich==15.0.1\n")
    (environment.path.parent / "exit-code").write_text("1")
    with pytest.raises(SetupError):
        environment.locked(chosen)
    chosen.path.write_text("rich==15.0.0\n")
    (environment.path.parent / "exit-code").write_text("0")
    environment.locked(chosen)
    assert len(calls(environment)) == 3


def test_folder_that_is_no_environment_is_not_cleared(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(SetupError, match="not a virtual environment"):
        Environment(tmp_path).make()
    assert (tmp_path / "precious").exists()


def test_environment_of_another_python_than_the_chosen_is_refused(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    (environment.path / "pyvenv.cfg").write_text("version = 3.9.1\n")
    environment.make()
    monkeypatch.setenv("HEADRACE_PYTHON", "python3")
    with pytest.raises(SetupError, match=r"made with Python 3\.9"):
        environment.make()


def find_python(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it with a PATH that has only what the test put into `tmp_path` and the system's basic tools."""
    for tool in ("sed", "dirname", "cat"):
        if not (tmp_path / tool).exists():
            found = next(
                Path(folder) / tool for folder in ("/usr/bin", "/bin") if (Path(folder) / tool).exists()
            )
            (tmp_path / tool).symlink_to(found)
    environment = {"PATH": str(tmp_path), **variables}
    return subprocess.run(["/bin/sh", FIND_PYTHON], env=environment, capture_output=True, text=True)


def python_that(path: Path, *, suits: bool) -> None:
    executable(path, f'[ "$1" = --version ] && echo "Python 3.8.1"; exit {0 if suits else 1}')


def test_python3_is_taken_where_it_suits(tmp_path: Path) -> None:
    python_that(tmp_path / "python3", suits=True)
    python_that(tmp_path / "python3.14", suits=True)
    assert find_python(tmp_path).stdout.strip() == str(tmp_path / "python3")


def test_newest_other_python_is_taken_where_python3_does_not_suit(tmp_path: Path) -> None:
    python_that(tmp_path / "python3", suits=False)
    python_that(tmp_path / "python3.11", suits=True)
    python_that(tmp_path / "python3.13", suits=True)
    python_that(tmp_path / "python3.15", suits=True)
    assert find_python(tmp_path).stdout.strip() == str(tmp_path / "python3.13")


def test_no_suitable_python_says_what_to_install(tmp_path: Path) -> None:
    python_that(tmp_path / "python3", suits=False)
    ran = find_python(tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Python 3.11 to 3.14; python3 here: Python 3.8.1" in ran.stderr
    assert "apt install" in ran.stderr


def test_chosen_python_that_does_not_suit_is_an_error(tmp_path: Path) -> None:
    python_that(tmp_path / "python3", suits=True)
    python_that(tmp_path / "old", suits=False)
    ran = find_python(tmp_path, HEADRACE_PYTHON=str(tmp_path / "old"))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Python 3.8.1" in ran.stderr


def test_make_alone_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:")).split()[1:]
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = [line.split()[1] for line in shown.stdout.splitlines() if line.startswith("  make ")]
    assert sorted(listed) == sorted(phony)


def test_ci_runs_every_check_and_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    assert "make check test" in script.read_text()


def test_every_lock_has_a_set() -> None:
    assert {path.stem for path in (ROOT / "ops" / "locks").glob("*.lock")} == set(SETS)
