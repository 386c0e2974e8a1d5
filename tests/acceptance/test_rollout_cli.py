"""Rollouts through the command line on a real Kafka: all the way, back by itself, taken over, and refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from packages import write_package
from waiting import wait_until
from worker_processes import PARTITIONS, Traffic, WorkerProcess, create_topics, traffic, units

from headrace.consumers.control import read_control
from headrace.consumers.rollouts import RolloutState
from headrace.schemas.headers import SUPERSEDES
from headrace.topics.names import ContractNames

MODEL = "tagger"
ALWAYS_FAILS = json.dumps([{"kind": "error"}])
HANGS = json.dumps([{"kind": "hang"}])
DIES = json.dumps([{"kind": "vanish"}])
PACE_S = 0.02  # between two requests


class Stage:
    """Topics, traffic that does not end, and workers of several versions."""

    def __init__(self, bootstrap: str, prefix: str, place: Path, seen: Traffic) -> None:
        self.names = ContractNames(prefix, MODEL, 1)
        self.seen = seen
        self._bootstrap = bootstrap
        self._place = place
        self.sent: list[str] = []
        self.workers: list[WorkerProcess] = []
        self._commands: list[subprocess.Popen[str]] = []
        self._stop = threading.Event()
        self._sender = threading.Thread(target=self._send, daemon=True)

    def start(self, version: str, slot: str, **environment: Any) -> WorkerProcess:
        package = write_package(self._place / f"version-{version}", version=version)
        worker = WorkerProcess(
            self._bootstrap,
            package,
            prefix=self.names.prefix,
            slot=slot,
            log=self._place / f"{slot}.log",
            **environment,
        )
        self.workers.append(worker)
        return worker

    def keep_sending(self) -> None:
        self._sender.start()

    def _send(self) -> None:
        number = 0
        while not self._stop.wait(PACE_S):
            request_id = f"r{number}"
            self.seen.send_to(number % PARTITIONS, request_id)
            self.sent.append(request_id)
            number += 1

    def stop_sending(self) -> None:
        self._stop.set()
        if self._sender.is_alive():
            self._sender.join()

    def headrace(self, *arguments: str, group: str = "rollout") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "headrace.ops.cli", group, *arguments]
        place = ("--bootstrap-servers", self._bootstrap, "--prefix", self.names.prefix)
        process = subprocess.Popen(
            [*command, *place],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"HEADRACE_SESSION_TIMEOUT_MS": "6000"},
        )
        self._commands.append(process)
        return process

    def said(self, *arguments: str, group: str = "rollout", timeout_s: float = 120) -> tuple[int, str]:
        """Exit code and output of a command."""
        process = self.headrace(*arguments, group=group)
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            pytest.fail(f"headrace rollout {' '.join(arguments)} did not end:\n{said}")
        return process.returncode, said

    def status(self) -> dict[str, Any]:
        code, said = self.said("status", MODEL, "--json")
        assert code == 0, said
        return json.loads(said)

    def rollout(self) -> RolloutState | None:
        """The one that was begun last, as the control topic has it now."""
        states = read_control(self.seen.settings).rollouts.states(self.names.group)
        return states[-1][1] if states else None

    def is_open(self) -> bool:
        found = self.rollout()
        return found is not None and found.is_open

    def is_holding(self) -> bool:
        found = self.rollout()
        return found is not None and found.progress is not None and found.progress.state == "holding"

    def close(self) -> None:
        self.stop_sending()
        for worker in self.workers:
            worker.__exit__(None, None, None)
        for command in self._commands:
            if command.poll() is None:
                command.kill()
                command.communicate()

    def check_all_answered(self) -> Counter[str]:
        """Every request has one result; how many each version gave."""
        self.stop_sending()
        self.seen.wait_for(*self.sent)
        return Counter(result.provenance.version for result in self.seen.by_id().values())


@contextmanager
def stage(bootstrap: str, prefix: str, place: Path) -> Generator[Stage]:
    names = ContractNames(prefix, MODEL, 1)
    create_topics(bootstrap, names)
    with traffic(bootstrap, names) as seen:
        made = Stage(bootstrap, prefix, place, seen)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def two_versions(kafka_bootstrap: str, unique_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    """Version 3 serves and is sent requests."""
    with stage(kafka_bootstrap, unique_prefix, tmp_path) as made:
        made.start("3", "old").wait_ready(60)
        wait_until(lambda: units(made.workers[0]) == PARTITIONS, 60, "version 3 to have all units")
        made.keep_sending()
        yield made


def test_a_good_version_gets_everything_step_by_step_and_nothing_is_lost(two_versions: Stage) -> None:
    rollout = two_versions.headrace("start", MODEL, "--to", "4", "--steps", "25,100", "--hold", "2s")
    assert rollout.stdout is not None
    begin: list[str] = []
    for line in rollout.stdout:
        begin.append(line)
        if "no worker of version 4 is there" in line:
            break
    new = two_versions.start("4", "new")
    said, _ = rollout.communicate(timeout=120)
    said = "".join(begin) + said
    assert rollout.returncode == 0, said
    assert re.search(r"from version 3: 100 % to version 4, steps 25, 100 %", said)
    assert "no worker of version 4 is there" in said
    assert "version 4: 1 units" in said, "the step of a quarter was seen"
    wait_until(lambda: units(new) == PARTITIONS, 30, "version 4 to have all units")
    standing = two_versions.status()
    assert standing["rollout"]["stage"].startswith("finished")
    assert {row["version"]: row["units"] for row in standing["versions"]} == {"3": 0, "4": PARTITIONS}
    by_version = two_versions.check_all_answered()
    assert set(by_version) == {"3", "4"}
    code, told = two_versions.said("history", MODEL)
    assert code == 0
    assert "to version 4, finished" in told


def test_a_version_that_fails_everything_is_taken_back_by_itself(two_versions: Stage) -> None:
    two_versions.start("4", "bad", HEADRACE_SIMULATED_FAILURES=ALWAYS_FAILS)
    code, said = two_versions.said("start", MODEL, "--to", "4", "--steps", "25,100", "--hold", "60s")
    assert code == 1, said
    assert re.search(
        r"rolled back by controller: (\d+) of \1 answers failed \(100.0%\), at most 1.0% may", said
    )
    wait_until(lambda: units(two_versions.workers[0]) == PARTITIONS, 30, "version 3 to have all units again")
    two_versions.stop_sending()
    two_versions.seen.wait_for(*two_versions.sent)
    bad = [result for result in two_versions.seen.by_id().values() if result.status != "ok"]
    assert {result.provenance.version for result in bad} == {"4"}
    assert len({result.provenance.source_partition for result in bad}) == 1, "its share, and no more"
    (failed,) = [row for row in two_versions.status()["versions"] if row["version"] == "4"]
    assert (failed["answers"], failed["failed"]) == (len(bad), 1), "all that it has answered is counted"
    ask_again(two_versions, [result.id for result in bad])


def ask_again(stage: Stage, ids: list[str]) -> None:
    """`results redo`: each of what the bad version has answered is answered by the other, which says so."""
    command = ("redo", "--model", MODEL, "--model-version", "4", "--since", "1h")
    code, said = stage.said(*command, group="results")
    assert code == 0, said
    assert f"{len(ids):,} results of version 4: {len(ids):,} failed" in said
    assert "nothing was sent" in said
    code, said = stage.said(*command, "--yes", group="results")
    assert code == 0, said
    assert f"{len(ids):,} asked again" in said
    stage.seen.wait_for_results(len(stage.sent) + len(ids))
    places = {
        (record.topic, record.partition, record.offset): result for record, result in stage.seen.results
    }
    again = [
        (dict(record.headers)[SUPERSEDES], result)
        for record, result in stage.seen.results
        if SUPERSEDES in dict(record.headers)
    ]
    assert sorted(result.id for _, result in again) == sorted(ids)
    for place, result in again:
        topic, _, rest = (place or b"").decode().rpartition("-")
        partition, _, offset = rest.partition("@")
        superseded = places[topic, int(partition), int(offset)]
        assert (superseded.id, superseded.status, result.status) == (result.id, "failed", "ok")
        assert (superseded.provenance.version, result.provenance.version) == ("4", "3")
    code, said = stage.said(*command, "--yes", group="results")
    assert code == 0, said
    assert f"{len(ids):,} of them left out: they were superseded already" in said
    assert "\n0 asked again" in said


def test_a_version_that_is_asked_and_answers_nothing_is_taken_back(two_versions: Stage) -> None:
    two_versions.start("4", "mute", HEADRACE_SIMULATED_FAILURES=HANGS, HEADRACE_DRAIN_BUDGET_S="1")
    code, said = two_versions.said("start", MODEL, "--to", "4", "--steps", "25,100", "--hold", "60s")
    assert code == 1, said
    assert re.search(r"version 4 is asked and has answered nothing for (15|16|17|18|19) s", said), said
    wait_until(lambda: units(two_versions.workers[0]) == PARTITIONS, 60, "version 3 to have all units again")
    assert set(two_versions.check_all_answered()) == {"3"}, "what it was given is answered by the other"


@pytest.mark.soak  # it dies again and again, each time for a session's length
def test_a_version_whose_workers_die_of_every_request_is_taken_back(two_versions: Stage) -> None:
    worker = two_versions.start("4", "dying", HEADRACE_SIMULATED_FAILURES=DIES)
    rollout = two_versions.headrace("start", MODEL, "--to", "4", "--steps", "25,100", "--hold", "60s")

    def ended() -> bool:
        """Restart it as whatever keeps workers running does."""
        nonlocal worker
        if worker.process.poll() is not None:
            worker = two_versions.start("4", "dying", HEADRACE_SIMULATED_FAILURES=DIES)
        return rollout.poll() is not None

    wait_until(ended, 120, "the rollout to end")
    said, _ = rollout.communicate()
    assert rollout.returncode == 1, said
    assert "answered nothing for" in said
    worker.kill()
    wait_until(lambda: units(two_versions.workers[0]) == PARTITIONS, 60, "version 3 to have all units again")
    two_versions.stop_sending()
    two_versions.seen.wait_for(*two_versions.sent)


def test_another_controller_goes_on_where_a_killed_one_stood(two_versions: Stage) -> None:
    two_versions.start("4", "new").wait_ready(60)
    first = two_versions.headrace("start", MODEL, "--to", "4", "--steps", "50,100", "--hold", "8s")
    wait_until(two_versions.is_holding, 90, "the first step to be held")
    first.kill()
    first.communicate()
    second = two_versions.headrace("controller")
    try:
        wait_until(lambda: not two_versions.is_open(), 90, "the rollout to end")
    finally:
        second.terminate()
        said, _ = second.communicate(timeout=30)
    assert second.returncode == 0, said
    assert two_versions.status()["rollout"]["stage"].startswith("finished"), said
    two_versions.check_all_answered()


@pytest.mark.soak
def test_a_controller_that_was_frozen_writes_nothing_once_another_decides(two_versions: Stage) -> None:
    two_versions.start("4", "new").wait_ready(60)
    frozen = two_versions.headrace("start", MODEL, "--to", "4", "--steps", "50,100", "--hold", "8s")
    wait_until(two_versions.is_holding, 90, "the first step to be held")
    frozen.send_signal(signal.SIGSTOP)
    second = two_versions.headrace("controller")
    wait_until(lambda: not two_versions.is_open(), 90, "the rollout to end")
    ended = two_versions.rollout()
    frozen.send_signal(signal.SIGCONT)
    said, _ = frozen.communicate(timeout=60)
    assert frozen.returncode == 0, said
    second.terminate()
    second.communicate(timeout=30)
    assert two_versions.rollout() == ended, "what the second one wrote is the last word"
    two_versions.check_all_answered()


def test_an_operator_pauses_goes_on_and_takes_back(two_versions: Stage) -> None:
    two_versions.start("4", "new").wait_ready(60)
    code, said = two_versions.said(
        "start", MODEL, "--to", "4", "--steps", "50,100", "--hold", "0s", "--detach"
    )
    assert code == 0, said
    assert two_versions.said("pause", MODEL)[0] == 0
    controller = two_versions.headrace("controller")
    try:
        code, said = two_versions.said("start", MODEL, "--to", "5")
        assert code != 0
        assert "is under way" in said
        assert two_versions.said("promote", MODEL)[0] == 0
        wait_until(lambda: not two_versions.is_open(), 90, "the rollout to end")
        wait_until(lambda: units(two_versions.workers[1]) == PARTITIONS, 60, "version 4 to have all")
        code, said = two_versions.said("rollback", MODEL, "--why", "wrong language")
        assert code == 0, said
        wait_until(lambda: units(two_versions.workers[0]) == PARTITIONS, 60, "version 3 to have all again")
        code, said = two_versions.said("rollback", MODEL)
        assert code != 0
        assert "rolled back already, to version 3: 100 %: wrong language" in said
    finally:
        controller.terminate()
        controller.communicate(timeout=30)
    two_versions.check_all_answered()


def test_what_cannot_be_begun_says_why_and_what_to_do(two_versions: Stage) -> None:
    code, said = two_versions.said("start", MODEL, "--to", "4", "--steps", "6,100", "--detach")
    assert code != 0
    assert "a step of 6 % of 4 units is none: the least is" in said
    code, said = two_versions.said("start", MODEL, "--to", "3", "--steps", "100", "--detach")
    assert code != 0
    assert "nothing but version 3 serves" in said
    code, said = two_versions.said("start", "taggr", "--to", "4", "--detach")
    assert code != 0
    assert "no worker has served 'taggr' (known: tagger)" in said
    code, said = two_versions.said("pause", MODEL)
    assert code != 0
    assert "no rollout of tagger is under way" in said
