"""A contract's whole life through the command line on a real Kafka: opened, asked, refused to be retired, retired."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kafka_members import create_topics, settings_for
from packages import TAGS_SCHEMA, write_package
from waiting import wait_until
from worker_processes import WorkerProcess

from headrace.consumers.control import read_control
from headrace.consumers.results import ResultReader
from headrace.consumers.rollouts import Limits, Planned, Rollout
from headrace.ops import retiring
from headrace.ops.retirement import Forget, RemoveTopics, Step, hindrances, removal
from headrace.producers.control import RolloutWriter
from headrace.producers.kafka import PlainProducer
from headrace.schemas.messages import Result
from headrace.schemas.settings import Settings
from headrace.topics.admin import open_admin
from headrace.topics.names import ContractNames

HEADRACE = [sys.executable, "-c", "from headrace.ops.cli import main; main()"]
NAME = "tagger/1"


class Operator:
    """Runs commands on one prefix of one cluster."""

    def __init__(self, bootstrap: str, prefix: str, place: Path) -> None:
        self.names = ContractNames(prefix, "tagger", 1)
        self.settings: Settings = settings_for(bootstrap, prefix=prefix)
        self.package = write_package(place / "package", output=TAGS_SCHEMA)
        self.place = place
        self._bootstrap = bootstrap

    def run(self, *arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        environment |= {"HEADRACE_BOOTSTRAP_SERVERS": self._bootstrap, "HEADRACE_PREFIX": self.names.prefix}
        command = [*HEADRACE, *map(str, arguments)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, input=given
        )

    def contracts(self, *arguments: str | Path) -> str:
        """What a command prints that must succeed."""
        done = self.run("contracts", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, *arguments: str | Path) -> str:
        """What a command says that must not succeed."""
        done = self.run("contracts", *arguments)
        assert done.returncode in (1, 2), done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    def open(self) -> str:
        return self.contracts("open", self.package, "--partitions", "4", "--replication", "1")

    def listed(self) -> list[dict[str, Any]]:
        listed = json.loads(self.contracts("list", "--json"))
        assert listed["no_traffic"] is None
        return listed["contracts"]

    def topics(self) -> set[str]:
        """Those of the contract, without its name's beginning."""
        with open_admin(self.settings, "listing the topics") as admin:
            found: list[str] = admin.list_topics()
        base = f"{self.names.base}."
        return {topic.removeprefix(base) for topic in found if topic.startswith(base)}

    def groups(self) -> set[str]:
        with open_admin(self.settings, "listing the groups") as admin:
            found = admin.list_groups()
        return {each["group_id"] for each in found} & {self.names.group}

    def send(self, *ids: str) -> None:
        lines = [
            json.dumps(
                {"id": each, "variables": {"title": each}, "tenant": "search", "attributes": {"user": "anna"}}
            )
            for each in ids
        ]
        sent = self.run("send", "--model", "tagger", "-", given="\n".join(lines))
        assert sent.returncode == 0, sent.stderr

    def worker(self, slot: str) -> WorkerProcess:
        log = self.place / f"{slot}.log"
        return WorkerProcess(self._bootstrap, self.package, prefix=self.names.prefix, slot=slot, log=log)

    def answered(self) -> Counter[str]:
        """How often each id was answered; results are typed, so that their schemas have to be found."""
        with ResultReader(self.settings, self.names) as reader:
            found = [each.result for each in reader if each is not None]
        assert all(isinstance(each, Result) for each in found), found
        return Counter(each.id for each in found if isinstance(each, Result))

    def wait_for(self, *ids: str) -> None:
        wait_until(lambda: set(ids) <= self.answered().keys(), 60, "results")

    def serve(self, *ids: str) -> None:
        """A worker answers these and ends."""
        with self.worker(f"for-{ids[-1]}") as worker:
            self.wait_for(*ids)
            worker.process.terminate()
            assert worker.exit_code() == 0

    def rollout(self) -> None:
        """Write a rollout that nobody carries out."""
        begun = Rollout(
            model="tagger",
            contract=1,
            to="2",
            before={"1": 1},
            steps=[100],
            hold_s=0,
            limits=Limits(),
            by="a@b",
            at=1,
        )
        producer = PlainProducer(self.settings)
        try:
            writer = RolloutWriter(producer, prefix=self.names.prefix)
            writer.write((self.names.group, "2.x"), begun, Planned(shares={"1": 1}, step=0, at=1))
        finally:
            producer.close()


@pytest.fixture
def operator(kafka_bootstrap: str, unique_prefix: str, tmp_path: Path) -> Operator:
    return Operator(kafka_bootstrap, unique_prefix, tmp_path)


def test_a_contract_is_opened_asked_kept_while_it_is_asked_and_retired(operator: Operator) -> None:
    said = operator.open()
    assert f"froze   {NAME} as sha256:" in said
    assert f"created {operator.names.requests('standard')}: 4 partitions" in said
    assert f"headrace worker run --package {operator.package}" in said
    again = operator.open()
    assert "created" not in again
    assert "8 topics are there already" in again
    assert f"{NAME} is frozen already" in again
    [row] = operator.listed()
    assert (row["traffic"]["requests"], row["traffic"]["not_done"], row["traffic"]["last_request"]) == (
        0,
        0,
        None,
    )

    operator.send("one", "two", "three")
    [row] = operator.listed()
    assert (row["traffic"]["requests"], row["traffic"]["not_done"], row["traffic"]["workers"]) == (3, 3, {})
    last = row["traffic"]["last_request"]
    assert last["id"] in ("one", "two", "three"), "of several partitions, appended in the same millisecond"
    assert (last["tenant"], last["attributes"]) == ("search", {"user": "anna"})
    table = operator.contracts("list")
    assert "tenant search, user anna" in table
    assert "tenant search" not in operator.contracts("list", "--quick")

    operator.contracts("alias", "films", NAME)
    said = operator.refused("retire", NAME, "--yes")
    assert "the alias films means it" in said
    assert "not done: 3 requests" in said
    assert "3 requests came within 1 h" in said
    operator.contracts("alias", "films", "--remove")
    operator.rollout()
    with operator.worker("live") as worker:
        operator.wait_for("one", "two", "three")
        said = operator.refused("retire", NAME, "--idle", "0s", "--yes")
        assert "live: 1 worker (1 of version 1)" in said
        assert "rollout 2.x is under way" in said
        assert "came within" not in said, "--idle 0s"
        assert operator.listed()[0]["traffic"]["workers"] == {"1": 1}
        worker.process.terminate()
        assert worker.exit_code() == 0
    assert operator.run("rollout", "rollback", "tagger", "--contract", "1").returncode == 0
    assert "requests.standard" in operator.topics(), "nothing was removed while it was refused"

    shadow = f"{operator.names.base}.shadow.5.results"
    create_topics(operator.settings.bootstrap_servers or "", **{shadow: 1})
    said = operator.contracts("retire", NAME, "--idle", "0s")
    assert "nothing was removed" in said
    assert f"topic   {shadow}: 1 partition, 0 records" in said
    assert f"topic   {operator.names.requests('standard')}: 4 partitions, 3 records, " in said
    assert f"kept    {operator.names.results}: 4 partitions, " in said
    assert operator.groups() == {operator.names.group}
    said = operator.contracts("retire", NAME, "--idle", "0s", "--yes")
    assert said.endswith(f"retired {NAME}\n")
    assert operator.listed() == []
    assert "no contract is frozen" in operator.contracts("list")
    assert operator.topics() == {"results", "dead"}
    assert operator.groups() == set()
    control = read_control(operator.settings)
    assert (control.known, control.rollouts.plan(operator.names.group)) == (set(), None)
    assert operator.answered().keys() == {"one", "two", "three"}, (
        "what it takes to read the kept results is kept"
    )
    assert "was retired already" in operator.contracts("retire", NAME, "--yes")


def test_a_retired_contract_is_opened_again_and_everything_goes(operator: Operator) -> None:
    operator.open()
    operator.send("one")
    operator.serve("one")
    operator.contracts("retire", NAME, "--idle", "0s", "--yes")
    said = operator.open()
    assert "created" in said
    assert f"froze   {NAME}" in said
    operator.send("two")
    operator.serve("two")
    assert operator.answered() == {"one": 1, "two": 1}
    said = operator.contracts("retire", NAME, "--idle", "0s", "--results-too", "--yes")
    assert "nothing of it is left" in said
    assert operator.topics() == set()
    assert f"there is nothing of contract {NAME}" in operator.refused("retire", NAME)


class Cut(Exception):
    """What the test ends a removal with."""


def test_a_removal_that_is_cut_off_after_every_step_is_seen_and_gets_to_its_end(operator: Operator) -> None:
    operator.open()
    operator.send("one")
    operator.serve("one")
    cuts: list[str] = []
    for _ in range(20):
        standing = retiring.look(operator.settings, ("tagger", 1), 0)
        assert hindrances(standing, results_too=True) == []
        assert standing.is_half_removed == bool(cuts)
        steps = removal(standing, results_too=True, by="a@b", at_ms=1)
        told: list[str] = []

        def cut(step: Step, told: list[str] = told) -> None:
            told.append(type(step).__name__)
            if len(told) == (2 if cuts else 1) and not isinstance(step, Forget):
                raise Cut

        try:
            retiring.retire(operator.settings, standing, steps, results_too=True, tell=cut)
        except Cut:
            cuts.append(told[-1])
        else:
            break
    assert cuts == ["Note", "TakeBack", "RemoveTopics", "RemoveGroup", "TakeBack"]
    assert operator.listed() == []
    assert operator.topics() == set()
    assert operator.groups() == set()
    assert read_control(operator.settings).known == set()


def test_a_contract_that_is_half_removed_is_neither_served_nor_opened(operator: Operator) -> None:
    operator.open()
    standing = retiring.look(operator.settings, ("tagger", 1), 0)
    steps = removal(standing, results_too=False, by="a@b", at_ms=1)

    def cut(step: Step) -> None:
        if isinstance(step, RemoveTopics):
            raise Cut

    with pytest.raises(Cut):
        retiring.retire(operator.settings, standing, steps, results_too=False, tell=cut)
    [row] = operator.listed()
    assert row["retiring"] == {"by": "a@b", "at": 1}
    assert "is being retired by a@b" in operator.refused("open", operator.package)
    worker = operator.run("worker", "run", "--package", operator.package, "--engine", "simulated")
    assert worker.returncode == 2
    assert "is being retired by a@b" in worker.stderr
    said = operator.contracts("retire", NAME, "--idle", "0s", "--yes")
    assert f"the removal of {NAME} was begun before; what is left:" in said
    assert operator.listed() == []
    assert operator.topics() == {"results", "dead"}


def test_a_removal_that_a_request_overtakes_removes_nothing(operator: Operator) -> None:
    operator.open()
    standing = retiring.look(operator.settings, ("tagger", 1), 0)
    steps = removal(standing, results_too=False, by="a@b", at_ms=1)
    operator.send("one")
    told: list[Step] = []
    found = retiring.retire(operator.settings, standing, steps, results_too=False, tell=told.append)
    assert [each.why for each in found] == ["not done: 1 request", "asked just now: 1 request"]
    assert told == []
    [row] = operator.listed()
    assert (row["retiring"], row["traffic"]["not_done"]) == (None, 1)


def test_a_removal_that_was_cut_off_before_it_removed_anything_is_taken_back_where_the_contract_is_asked(
    operator: Operator,
) -> None:
    operator.open()
    standing = retiring.look(operator.settings, ("tagger", 1), 0)
    steps = removal(standing, results_too=False, by="a@b", at_ms=1)

    def cut(step: Step) -> None:
        raise Cut

    with pytest.raises(Cut):
        retiring.retire(operator.settings, standing, steps, results_too=False, tell=cut)
    operator.send("one")
    said = operator.refused("retire", NAME, "--idle", "0s")
    assert "not done: 1 request" in said
    assert operator.listed()[0]["retiring"] is not None, "without --yes nothing is changed"
    assert "nothing was removed yet: that was taken back" in operator.refused("retire", NAME, "--yes")
    assert operator.listed()[0]["retiring"] is None
    operator.serve("one")
