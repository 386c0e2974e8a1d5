"""A kept process goes when its parent goes, however that happens, and so does what it wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from processes import process_ids_mentioning
from waiting import wait_until

from headrace.ops.kept_process import KeptProcess

# Writes a file once it runs, so that a test knows; its argument marks it in the list of processes.
SLEEPER = "import sys, time, pathlib; pathlib.Path(sys.argv[1], 'up').touch(); time.sleep(600)"
LIMIT_S = 20.0


def sleeper(place: Path) -> list[str]:
    return [sys.executable, "-c", SLEEPER, str(place)]


def place_in(tmp_path: Path) -> Path:
    place = tmp_path / "root" / "node-1"
    place.mkdir(parents=True)
    return place


class Keep(Protocol):
    def __call__(self, place: Path, *commands: list[str], grace_s: float = 0.0) -> KeptProcess: ...


@pytest.fixture
def keep() -> Iterator[Keep]:
    """Keeps the commands, else a sleeper; all is stopped at the end of the test."""
    all_kept: list[KeptProcess] = []

    def keep(place: Path, *commands: list[str], grace_s: float = 0.0) -> KeptProcess:
        kept = KeptProcess(
            commands or [sleeper(place)],
            log=place / "log",
            remove=[place],
            remove_if_empty=place.parent,
            grace_s=grace_s,
        )
        all_kept.append(kept)
        return kept

    yield keep
    for kept in all_kept:
        kept.stop()


def is_up(place: Path) -> bool:
    return (place / "up").exists()


def test_stop_ends_it_and_removes_its_directories(tmp_path: Path, keep: Keep) -> None:
    place = place_in(tmp_path)
    kept = keep(place)
    wait_until(lambda: is_up(place), LIMIT_S, "the process to run")
    assert kept.exit_status() is None
    kept.stop()
    kept.stop()
    assert process_ids_mentioning(str(place)) == set()
    assert not place.parent.exists()


def test_the_root_stays_while_another_node_has_something_in_it(tmp_path: Path, keep: Keep) -> None:
    place = place_in(tmp_path)
    (place.parent / "node-2").mkdir()
    kept = keep(place)
    kept.stop()
    assert [entry.name for entry in place.parent.iterdir()] == ["node-2"]


def test_a_command_that_fails_is_told_with_its_status_and_its_log_is_still_there(
    tmp_path: Path, keep: Keep
) -> None:
    place = place_in(tmp_path)
    fails = [sys.executable, "-c", "import sys; print('no port left'); sys.exit(7)"]
    kept = keep(place, fails, sleeper(place))
    assert wait_until(kept.exit_status, LIMIT_S, "the status") == 7
    assert kept.last_lines() == "no port left"
    assert not is_up(place), "what comes after a command that failed is not run"
    kept.stop()
    assert not place.exists()


def test_a_command_that_does_not_exist_is_told(tmp_path: Path, keep: Keep) -> None:
    place = place_in(tmp_path)
    kept = keep(place, [str(tmp_path / "no-such-command")])
    assert wait_until(kept.exit_status, LIMIT_S, "the status") == 127
    assert "no-such-command" in kept.last_lines()
    kept.stop()


def test_a_directory_that_cannot_be_made_is_told_with_the_reason(tmp_path: Path, keep: Keep) -> None:
    (tmp_path / "root").write_text("a file where a directory should be")
    kept = keep(tmp_path / "root" / "node-1")
    assert wait_until(kept.exit_status, LIMIT_S, "the status") == 127
    assert "root/node-1" in kept.last_lines()


def test_with_a_grace_it_is_asked_first(tmp_path: Path, keep: Keep) -> None:
    place, said = place_in(tmp_path), tmp_path / "said"
    ends_well = textwrap.dedent("""
        import pathlib, signal, sys, time
        def end(*_):
            pathlib.Path(sys.argv[2]).write_text("closed")
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        pathlib.Path(sys.argv[1], "up").touch()
        time.sleep(600)
    """)
    kept = keep(place, [sys.executable, "-c", ends_well, str(place), str(said)], grace_s=LIMIT_S)
    wait_until(lambda: is_up(place), LIMIT_S, "the process to run")
    kept.stop()
    assert said.read_text() == "closed"


def test_one_that_does_not_heed_the_request_is_killed_after_the_grace(tmp_path: Path, keep: Keep) -> None:
    place = place_in(tmp_path)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPER
    kept = keep(place, [sys.executable, "-c", deaf, str(place)], grace_s=0.2)
    wait_until(lambda: is_up(place), LIMIT_S, "the process to run")
    kept.stop()
    assert process_ids_mentioning(str(place)) == set()
    assert not place.exists()


PARENT = """
import os, pathlib, sys, time
from headrace.ops.kept_process import KeptProcess
place = pathlib.Path(sys.argv[1])
kept = KeptProcess([{sleeper!r}], log=place / "log", remove=[place], remove_if_empty=place.parent)
if sys.argv[2] == "fork":
    if os.fork() == 0:
        time.sleep(600)  # holds the pipe to the keeper open after its parent is gone
print("started", flush=True)
if sys.argv[2] == "raise":
    while not (place / "up").exists():
        time.sleep(0.01)
    raise RuntimeError("and nobody calls stop()")
time.sleep(600)
"""


def start_parent(place: Path, how: str = "wait") -> subprocess.Popen[str]:
    program = PARENT.format(sleeper=sleeper(place))
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(place), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout
    assert parent.stdout.readline() == "started\n"
    return parent


def leaves_nothing(place: Path) -> Callable[[], bool]:
    return lambda: not place.parent.exists() and not process_ids_mentioning(str(place))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_parent_that_is_killed_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    place = place_in(tmp_path)
    with start_parent(place) as parent:
        wait_until(lambda: is_up(place), LIMIT_S, "the process to run")
        parent.send_signal(number)
    wait_until(leaves_nothing(place), LIMIT_S, "the process and its directory to go")


def test_a_parent_that_ends_with_an_exception_leaves_nothing(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with start_parent(place, "raise"):
        pass
    wait_until(leaves_nothing(place), LIMIT_S, "the process and its directory to go")


def test_a_forked_child_that_holds_the_pipe_does_not_keep_it_alive(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with start_parent(place, "fork") as parent:
        wait_until(lambda: is_up(place), LIMIT_S, "the process to run")
        parent.kill()
        try:
            wait_until(lambda: not place.parent.exists(), LIMIT_S, "the directory to go")
            wait_until(
                lambda: len(process_ids_mentioning(str(place))) == 1, LIMIT_S, "only the fork to be left"
            )
        finally:
            for pid in process_ids_mentioning(str(place)):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent's life")
def test_a_keeper_that_is_killed_takes_its_process_along(tmp_path: Path, keep: Keep) -> None:
    place = place_in(tmp_path)
    kept = keep(place)
    wait_until(lambda: is_up(place), LIMIT_S, "the process to run")
    pid = wait_until(kept.process_id, LIMIT_S, "its id")
    assert pid is not None
    (keeper,) = process_ids_mentioning(str(place)) - {pid}
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not process_ids_mentioning(str(place)), LIMIT_S, "the process to go")
    assert kept.exit_status() == -signal.SIGKILL
    kept.stop()
