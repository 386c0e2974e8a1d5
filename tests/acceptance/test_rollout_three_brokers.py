"""A model's life on three real brokers, through the command line alone.

It is opened, shadowed, rolled out, taken back from a bad version, asked again, given another interface, and retired.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packages import TAGS_SCHEMA, write_package
from waiting import wait_until
from worker_processes import Traffic, WorkerProcess, traffic, units

from headrace.ops.broker import find_or_start
from headrace.ops.broker_choice import BrokerNeeds
from headrace.schemas.headers import SUPERSEDES
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

pytestmark = [pytest.mark.soak, pytest.mark.kafka, pytest.mark.timeout(900)]

MODEL = "tagger"
UNITS = 4
PACE_S = 0.03  # between two requests
FAILS = json.dumps([{"kind": "error"}])


class Operator:
    """Commands, workers and traffic of one prefix."""

    def __init__(self, bootstrap: str, prefix: str, place: Path) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self._place = place
        self._workers: list[WorkerProcess] = []

    def package(self, version: str, contract: int = 1, **more: Any) -> Path:
        """`more`: see `write_package`."""
        place = write_package(
            self._place / f"{version}-of-{contract}", version=version, output=TAGS_SCHEMA, **more
        )
        if contract != 1:
            text = (place / "package.toml").read_text()
            (place / "package.toml").write_text(text.replace("contract = 1", f"contract = {contract}"))
        return place

    def start(self, package: Path, slot: str, *options: str, **environment: Any) -> WorkerProcess:
        worker = WorkerProcess(
            self.bootstrap,
            package,
            prefix=self.prefix,
            slot=slot,
            log=self._place / f"{slot}.log",
            options=options,
            **environment,
        )
        self._workers.append(worker)
        worker.wait_ready(120)
        return worker

    def done(self, *command: str | Path, code: int = 0) -> str:
        """What a command prints, which must end with `code`."""
        ended, said = self.said(*command)
        assert ended == code, said
        return said

    def said(self, *command: str | Path) -> tuple[int, str]:
        """Exit code and output of a command."""
        ended = subprocess.run(
            [sys.executable, "-m", "headrace.ops.cli", *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ
            | {
                "HEADRACE_BOOTSTRAP_SERVERS": self.bootstrap,
                "HEADRACE_PREFIX": self.prefix,
                "HEADRACE_SESSION_TIMEOUT_MS": "6000",
                "COLUMNS": "160",
            },
            timeout=300,
            check=False,
        )
        return ended.returncode, ended.stdout

    def close(self) -> None:
        for worker in self._workers:
            worker.__exit__(None, None, None)


class Requests:
    """Traffic that does not end until it is told to."""

    def __init__(self, seen: Traffic) -> None:
        self._seen = seen
        self._stop = threading.Event()
        self.sent: list[str] = []
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        while not self._stop.wait(PACE_S):
            request_id = f"r{len(self.sent)}"
            self._seen.send_to(
                len(self.sent) % UNITS, request_id, prompt=None, variables={"title": request_id}
            )
            self.sent.append(request_id)

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join()
        return self.sent


@pytest.fixture
def operator(kafka_home: Path, unique_prefix: str, tmp_path: Path) -> Iterator[Operator]:
    settings = Settings.from_environment(bootstrap_servers="", kafka_home=str(kafka_home))
    needs = BrokerNeeds(several_workers=True, exactly_once=True)
    with find_or_start(settings, needs, brokers=3) as broker:
        made = Operator(broker.bootstrap_servers, unique_prefix, tmp_path)
        try:
            yield made
        finally:
            made.close()


def test_a_model_is_shadowed_rolled_out_taken_back_asked_again_and_replaced(operator: Operator) -> None:
    names = ContractNames(operator.prefix, MODEL, 1)
    third, fourth = operator.package("3"), operator.package("4", user="Label {{ title }}.")
    operator.done(
        "contracts", "open", third, "--alias", MODEL, "--partitions", str(UNITS), "--replication", "3"
    )
    old = operator.start(third, "old")
    with traffic(operator.bootstrap, names) as seen:
        requests = Requests(seen)
        try:
            shadowed(operator, fourth)
            rolled_out(operator, old, fourth)
            taken_back(operator)
        finally:
            sent = requests.stop()
        by_version = asked_again(operator, seen, sent)
    assert by_version.keys() == {"3", "4"}, by_version
    replaced(operator, sent)


def shadowed(operator: Operator, package: Path) -> None:
    operator.done("topics", "apply", "--package", package, "--shadow", "--replication", "3")
    shadow = operator.start(package, "shadow", "--shadow", "--sample", "50%")
    wait_until(lambda: units(shadow) == UNITS, 60, "the shadow to have all units")

    def compared() -> dict[str, Any] | None:
        code, said = operator.said("rollout", "compare", MODEL, "--shadow", "4", "--json")
        found = json.loads(said) if code == 0 else {"pairs": 0}
        return found if found["pairs"] >= 20 else None

    found: Any = wait_until(compared, 120, "answers to compare")
    assert found["fields"], "agreement by field"
    shadow.stop(60)


def rolled_out(operator: Operator, old: WorkerProcess, package: Path) -> None:
    new = operator.start(package, "new")
    said = operator.done("rollout", "start", MODEL, "--to", "4", "--steps", "25,100", "--hold", "3s")
    assert "finished" in said
    wait_until(lambda: (units(old), units(new)) == (0, UNITS), 60, "version 4 to have all units")


def taken_back(operator: Operator) -> None:
    operator.start(operator.package("5"), "bad", HEADRACE_SIMULATED_FAILURES=FAILS)
    said = operator.done("rollout", "start", MODEL, "--to", "5", "--steps", "25,100", "--hold", "60s", code=1)
    assert "rolled back by controller" in said


def asked_again(operator: Operator, seen: Traffic, sent: list[str]) -> Counter[str]:
    """Each request has an `ok`, and one alone; how many of those each version gave."""
    seen.wait_for(*sent, timeout_s=120)
    bad = [result.id for _, result in seen.results if result.status != "ok"]
    assert bad
    operator.done("results", "redo", "--model", MODEL, "--model-version", "5", "--since", "1h", "--yes")
    seen.wait_for_results(len(sent) + len(bad), 120)
    good = [(record, result) for record, result in seen.results if result.status == "ok"]
    assert Counter(result.id for _, result in good) == Counter(dict.fromkeys(sent, 1))
    again = {result.id for record, result in good if SUPERSEDES in dict(record.headers)}
    assert again == set(bad)
    return Counter(result.provenance.version for _, result in good)


def replaced(operator: Operator, sent: list[str]) -> None:
    """Another interface: a contract of its own, whose callers move; the old one goes when nobody asks it any more."""
    other = operator.package("1", contract=2, user="Tag {{ title }} of {{ year }}.")
    code, refused = operator.said("contracts", "retire", f"{MODEL}/1")
    assert code != 0
    assert "alias" in refused
    operator.done("contracts", "open", other, "--partitions", str(UNITS), "--replication", "3")
    operator.start(other, "next")
    operator.done("contracts", "alias", MODEL, f"{MODEL}/2")
    asked = operator.done(
        "send",
        "--model",
        MODEL,
        "--contract",
        "2",
        "--variables",
        '{"title": "Heat", "year": "1995"}',
        "--wait",
    )
    assert "ok" in asked
    code, refused = operator.said("contracts", "retire", f"{MODEL}/1", "--idle", "0s")
    assert code != 0
    assert "worker" in refused
    operator.close()
    wait_until(
        lambda: operator.said("contracts", "retire", f"{MODEL}/1", "--idle", "0s")[0] == 0,
        60,
        "the workers to be gone",
    )
    operator.done("contracts", "retire", f"{MODEL}/1", "--idle", "0s", "--yes")
    listed = json.loads(operator.done("contracts", "list", "--quick", "--json"))["contracts"]
    assert [(each["model"], each["number"]) for each in listed] == [(MODEL, 2)]
    kept = operator.done("results", "--model", MODEL, "--json")
    assert {json.loads(line)["id"] for line in kept.splitlines() if line.startswith("{")} == set(sent)
