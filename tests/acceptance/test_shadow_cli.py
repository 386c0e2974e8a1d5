"""A version in the shadow of another, through the command line on a real Kafka: nobody hears of it but the operator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packages import TAGS_SCHEMA, write_package
from waiting import wait_until
from worker_processes import PARTITIONS, Callers, Traffic, WorkerProcess, create_topics, traffic, units

from headrace.consumers.records import TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.schemas import headers as header
from headrace.schemas.codec import Codec
from headrace.schemas.messages import LANES, Reply
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, ShadowNames, replies_topic
from headrace.workers.shadow import is_sampled

MODEL = "tagger"
SHARE = 0.5
SCHEMA: dict[str, Any] = TAGS_SCHEMA | {
    "properties": {"kind": {"const": "film"}, **TAGS_SCHEMA["properties"]},
    "required": ["kind", *TAGS_SCHEMA["required"]],
}


class Stage:
    """A live version 3, and version 4 with another prompt, which is to be its shadow."""

    def __init__(self, bootstrap: str, prefix: str, place: Path) -> None:
        self.names = ContractNames(prefix, MODEL, 1)
        self.shadow_names = ShadowNames.of(self.names, "4")
        self.bootstrap = bootstrap
        self._place = place
        self._started: list[WorkerProcess] = []
        self.live = write_package(place / "version-3", version="3", output=SCHEMA, user="Tag {{ title }}.")
        self.candidate = write_package(
            place / "version-4", version="4", output=SCHEMA, user="Label {{ title }}."
        )

    def start(self, package: Path, name: str, *options: str, slowly: bool = False) -> WorkerProcess:
        """All in one slot: a shadow's is no other worker's."""
        worker = WorkerProcess(
            self.bootstrap,
            package,
            prefix=self.names.prefix,
            slot="slot-1",
            log=self._place / f"{name}.log",
            # All at once they would be answered together: there would be no middle to be killed in.
            options=(*options, "--max-in-flight", "8") if slowly else options,
            HEADRACE_SIMULATED_TIME_SCALE="0.3" if slowly else "0",
        )
        self._started.append(worker)
        return worker

    def start_shadow(self, name: str, *, slowly: bool = False) -> WorkerProcess:
        worker = self.start(self.candidate, name, "--shadow", "--sample", f"{SHARE:.0%}", slowly=slowly)
        wait_until(lambda: units(worker) == PARTITIONS, 60, "the shadow to have all units")
        return worker

    def said(self, *command: str) -> tuple[int, str]:
        """Exit code and output of a command."""
        place = ("--bootstrap-servers", self.bootstrap, "--prefix", self.names.prefix)
        done = subprocess.run(
            [sys.executable, "-m", "headrace.ops.cli", *command, *place],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "160"},
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout

    def done(self, *command: str) -> str:
        """Output of a command that must succeed."""
        code, said = self.said(*command)
        assert code == 0, said
        return said

    def close(self) -> None:
        for worker in self._started:
            worker.__exit__(None, None, None)


@pytest.fixture
def stage(kafka_bootstrap: str, unique_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(kafka_bootstrap, unique_prefix, tmp_path)
    create_topics(kafka_bootstrap, made.names)
    try:
        yield made
    finally:
        made.close()


def test_a_shadow_answers_its_sample_once_through_a_kill_and_nobody_downstream_sees_it(
    stage: Stage, kafka_bootstrap: str
) -> None:
    refused = stage.start(stage.candidate, "too-early", "--shadow")
    assert refused.exit_code() == 1
    assert f"topics apply --package {stage.candidate} --shadow" in refused.log.read_text()
    assert "2 created" in stage.done("topics", "apply", "--package", str(stage.candidate), "--shadow")
    with (
        traffic(kafka_bootstrap, stage.names) as seen,
        traffic(kafka_bootstrap, stage.shadow_names) as aside,
    ):
        live = stage.start(stage.live, "live")
        wait_until(lambda: units(live) == PARTITIONS, 60, "version 3 to have all units")
        before = [f"before-{number}" for number in range(40)]
        seen.send_many(before)
        seen.wait_for(*before)
        shadow = stage.start_shadow("shadow", slowly=True)
        callers = Callers(kafka_bootstrap, stage.names)
        alike = [f"alike-{number}" for number in range(60)]
        for number, each in enumerate(alike):
            lane = LANES[number % len(LANES)]
            seen.send_to(number % PARTITIONS, each, lane, callers.headers(each), stream=True)
        unlike = [f"unlike-{number}" for number in range(300)]
        seen.send_many(unlike)
        aside.wait_for_results(20)
        shadow.kill()
        aside.read()
        sampled = {each for each in (*alike, *unlike) if is_sampled(each, SHARE)}
        assert 20 <= len(aside.results) < len(sampled), "it was killed in the middle"
        stage.start_shadow("shadow-again")
        seen.wait_for(*alike, *unlike)
        aside.wait_for(*sampled)
        last = [f"last-{number}" for number in range(PARTITIONS)]
        for unit, each in enumerate(last):
            seen.send_to(unit, each)
        seen.wait_for(*last)
        aside.wait_for(*(each for each in last if is_sampled(each, SHARE)))
        callers.close()
        sampled |= {each for each in last if is_sampled(each, SHARE)}
        check_results(stage, seen, aside, asked={*before, *alike, *unlike, *last}, sampled=sampled)
        check_replies(stage, alike)
    assert {row["version"] for row in status(stage)} == {"3"}, "the shadow is in no plan and no count"
    check_comparison(stage, sampled)


def status(stage: Stage) -> list[dict[str, Any]]:
    return json.loads(stage.done("rollout", "status", MODEL, "--json"))["versions"]


def check_results(stage: Stage, seen: Traffic, aside: Traffic, *, asked: set[str], sampled: set[str]) -> None:
    """Callers have one result of each request, of version 3; the shadow has one of each in its sample."""
    assert set(seen.by_id()) == asked
    assert {result.provenance.version for _, result in seen.results} == {"3"}
    assert not any(header.SHADOW in dict(record.headers) for record, _ in seen.results)
    assert set(aside.by_id()) == sampled
    assert abs(len(sampled) - SHARE * 364) < 50, "near the share"
    for record, result in aside.results:
        assert dict(record.headers)[header.SHADOW] == b"4"
        assert result.provenance.version == "4"
        assert record.partition == result.provenance.source_partition
    assert not seen.dead
    assert not aside.dead


def check_replies(stage: Stage, asked: list[str]) -> None:
    """Each caller was told one result, of version 3, and heard nothing of another."""
    settings = Settings(bootstrap_servers=stage.bootstrap, prefix=stage.names.prefix)
    partitions = [TopicPartition(replies_topic(stage.names.prefix), number) for number in range(PARTITIONS)]
    reader = TailReader(settings, partitions, "beginning")
    replies: list[tuple[str, Reply]] = []
    try:
        for record in iter_all(reader):
            assert record.key is not None
            replies.append((record.key.decode(), Codec().decode(Reply, record.value).message))
    finally:
        reader.close()
    finals = [(to, reply) for to, reply in replies if reply.kind == "final"]
    assert sorted(to for to, _ in finals) == sorted(asked)
    assert {reply.result.provenance.version for _, reply in finals if reply.result} == {"3"}
    for each in asked:
        deltas = "".join(reply.delta or "" for to, reply in replies if to == each and reply.kind == "delta")
        (final,) = [reply.result for to, reply in finals if to == each]
        assert final is not None
        assert deltas in ("", final.outputs[0].text), "no delta of another version is among them"


def iter_all(reader: TailReader) -> Iterator[Any]:
    ends = reader.end_offsets()
    while any((reader.position(tp) or 0) < end for tp, end in ends.items()):
        yield from reader.poll(0.2)


def check_comparison(stage: Stage, sampled: set[str]) -> None:
    """Where both were given one prompt they agree; else in what the schema leaves no choice, and not in the rest."""
    told = json.loads(stage.done("rollout", "compare", MODEL, "--shadow", "4", "--json"))
    assert (told["model"], told["contract"], told["version"]) == (MODEL, 1, "4")
    alike = sum(each.startswith(("alike", "last")) for each in sampled)
    assert (told["shadow_answers"], told["pairs"], told["without_partner"]) == (len(sampled),) * 2 + (0,)
    assert (told["live"]["versions"], told["shadow"]["versions"]) == (
        {"3": len(sampled)},
        {"4": len(sampled)},
    )
    assert told["same_status"] == 1
    assert told["live"]["valid"] == told["shadow"]["valid"] == 1
    assert min(told["live"]["tokens"], told["shadow"]["tokens"]) > 1
    fields = {each["field"]: each for each in told["fields"]}
    assert set(fields) == {"/kind", "/mood", "/score", "/tags"}
    assert fields["/kind"]["part"] == 1
    assert alike < fields["/mood"]["equal"] < len(sampled)
    assert alike <= fields["/tags"]["equal"] < fields["/mood"]["equal"]
    for each in fields["/mood"]["examples"]:
        assert each["id"] in sampled
        assert each["id"].startswith("unlike")
        assert json.loads(each["live"]) != json.loads(each["shadow"])
    assert len(fields["/mood"]["examples"]) == 3
    shown = stage.done("rollout", "compare", MODEL, "--shadow", "4")
    assert f"{len(sampled):,} of {len(sampled):,} answers of the shadow have a partner" in shown
    assert "/mood" in shown
    code, said = stage.said("rollout", "compare", MODEL, "--shadow", "5")
    assert code == 1
    assert "version 5 has never run as a shadow" in said


def test_a_shadow_of_another_contract_is_refused(stage: Stage) -> None:
    stage.done("contracts", "freeze", str(stage.live))
    other = write_package(
        stage.live.parent / "version-5", version="5", output={"type": "string", "maxLength": 9}
    )
    stage.done("topics", "apply", "--package", str(other), "--shadow")
    refused = stage.start(other, "other-contract", "--shadow")
    assert refused.exit_code() == 2
    assert "does not speak the frozen contract 1 of tagger" in refused.log.read_text()
