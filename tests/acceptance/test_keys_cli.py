"""`headrace keys`, as processes: what several do at once to one file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from headrace.producers.http.key_file import read_keys
from headrace.producers.http.keys import KeyRing

HEADRACE = [sys.executable, "-c", "from headrace.ops.cli import main; main()"]
# Begins to change the file, says so, and never ends.
STUCK = """
import sys, time
from pathlib import Path
from headrace.producers.http.key_file import change_keys
change_keys(Path(sys.argv[1]), lambda keys: (print("inside", flush=True), time.sleep(600), keys)[2])
"""


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return subprocess.Popen(
        [*HEADRACE, "keys", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return printed.strip()


def test_keys_that_are_made_and_revoked_at_once_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "new" / "api_keys.json"
    old = [end(start("create", f"old-{number}", "--file", file)) for number in range(2)]
    making = [start("create", f"new-{number}", "--file", file) for number in range(6)]
    revoking = [start("revoke", key, "--file", file) for key in old]
    new = [end(each) for each in making]
    for each in revoking:
        end(each)
    kept = {each.name: each.revoked is not None for each in read_keys(file).keys}
    assert kept == {"old-0": True, "old-1": True} | {f"new-{number}": False for number in range(6)}
    ring = KeyRing(file)
    for number, key in enumerate(new):
        assert ring.authenticate(f"Bearer {key}").name == f"new-{number}"
    assert sorted(each.name for each in file.parent.iterdir()) == ["api_keys.json", "api_keys.json.lock"]


def test_a_command_that_is_killed_while_it_changes_the_file_holds_up_no_other(tmp_path: Path) -> None:
    file = tmp_path / "api_keys.json"
    end(start("create", "first", "--file", file))
    stuck = subprocess.Popen([sys.executable, "-c", STUCK, str(file)], stdout=subprocess.PIPE, text=True)
    assert stuck.stdout is not None
    assert stuck.stdout.readline() == "inside\n"
    second = start("create", "second", "--file", file)  # it waits for the lock, or comes after it is let go
    stuck.send_signal(signal.SIGKILL)
    stuck.communicate(timeout=60)
    end(second)
    assert [each.name for each in read_keys(file).keys] == ["first", "second"]


def test_a_mistake_is_one_line_and_its_exit_code(tmp_path: Path) -> None:
    process = start("revoke", "abcdefghij", "--file", tmp_path / "none.json")
    printed, said = process.communicate(timeout=120)
    assert (process.returncode, printed) == (1, "")
    assert said.startswith("error: no API key has the id abcdefghij")
    assert len(said.splitlines()) == 1
