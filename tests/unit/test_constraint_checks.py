"""The parent's side of constraint checks, on a stand-in for the process: queue, cache, restart, and giving up."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from waiting import wait_until

from headrace.schemas.enforcement import Enforcement
from headrace.schemas.errors import EngineDead, EngineUnavailable, InvalidSchema, SchemaTooComplex
from headrace.schemas.messages import OutputConstraint
from headrace.workers import constraint_checks
from headrace.workers.constraint_checks import ConstraintChecks, ConstraintProcess, held_constraint

T = TypeVar("T")

# Speaks the protocol, writes down each job, and does what the schema's title says.
STAND_IN = """
import json, os, sys, time
log = open(sys.argv[1], "a")
if "--await-tokenizer" in sys.argv:
    log.write("awaits\\n"); log.flush()
    log.write("filled " + str(json.loads(sys.stdin.readline())["vocabulary_size"]) + "\\n"); log.flush()
if "--vocabulary-size" in sys.argv:
    log.write("size " + sys.argv[sys.argv.index("--vocabulary-size") + 1] + "\\n")
print(json.dumps({"ready": True}), flush=True)
log.write("start" + (" nicely" if "--load-nicely" in sys.argv else "") + "\\n"); log.flush()
for line in sys.stdin:
    constraint = json.loads(line)["constraint"]
    schema = constraint.get("json_schema")
    title = schema.get("title", "") if isinstance(schema, dict) else ""
    log.write("job " + title + "\\n"); log.flush()
    answer = {"enforcement": {"tier": "enforced", "schema": schema, "narrowed": ["a"]}, "cpu_ms": 1.0}
    if title == "die":
        os._exit(9)
    if title == "die once" and not os.path.exists(sys.argv[1] + ".died"):
        open(sys.argv[1] + ".died", "w").close()
        os._exit(9)
    if title == "wait":
        while not os.path.exists(sys.argv[1] + ".go"):
            time.sleep(0.005)
    if title == "bad":
        answer = {"refused": {"code": "invalid_schema", "message": "no", "path": "/json_schema/type"}, "lasting": True}
    if title == "clock":
        answer = {"refused": {"code": "schema_too_complex", "message": "slow", "path": ""}, "lasting": False}
    if title == "relaxed":
        answer["enforcement"] = {"tier": "relaxed:not", "schema": {"type": "string"}, "narrowed": []}
    if title == "where":
        answer["enforcement"]["narrowed"] = [str(os.getpgrp() == os.getpid()), str(os.getsid(0))]
    if title == "babble":
        print("babble", flush=True)
        continue
    print(json.dumps(answer), flush=True)
"""


class Ground:
    """A place for the stand-in and its log."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "log"
        program = directory / "stand_in.py"
        program.write_text(STAND_IN)
        self.process = ConstraintProcess("guidance", directory, program=(str(program), str(self.log)))

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def jobs(self) -> list[str]:
        return [line.removeprefix("job ") for line in self.lines() if line.startswith("job")]

    def go(self) -> None:
        Path(f"{self.log}.go").touch()


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def run(ground: Ground, body: Callable[[ConstraintChecks], Awaitable[T]]) -> T:
    async def go() -> T:
        checks = ConstraintChecks(ground.process)
        await checks.start()
        try:
            return await asyncio.wait_for(body(checks), 30)
        finally:
            await checks.close()

    return asyncio.run(go())


def titled(title: str, **more: Any) -> OutputConstraint:
    return OutputConstraint(json_schema={"title": title, **more})


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition, 10, "the stand-in to get its job")


def test_what_was_begun_waits_for_the_tokenizer_and_one_that_is_started_anew_does_not(ground: Ground) -> None:
    async def go() -> None:
        checks = ConstraintChecks(ground.process)
        await checks.begin()
        try:
            await until(lambda: ground.lines() == ["awaits"])
            await checks.start(32_000)
            await checks.enforcement_of(titled("die once"))
        finally:
            await checks.close()

    asyncio.run(asyncio.wait_for(go(), 30))
    assert ground.lines() == [
        *("awaits", "filled 32000", "start", "job die once"),
        *("size 32000", "start nicely", "job die once"),
    ]


def test_one_that_ended_while_it_waited_is_said(ground: Ground, tmp_path: Path) -> None:
    program = tmp_path / "ends.py"
    program.write_text("")

    async def go() -> None:
        process = ConstraintProcess("guidance", tmp_path, program=(str(program),))
        checks = ConstraintChecks(process)
        await checks.begin()
        assert process._process is not None
        await process._process.wait()
        try:
            with pytest.raises(EngineUnavailable, match="does not start"):
                await checks.start(32_000)
        finally:
            await checks.close()

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ('print(\'{"failed": "no such backend"}\')', "no such backend"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "it ended"),
    ],
)
def test_why_one_that_was_begun_has_ended_is_said(tmp_path: Path, program: str, said: str) -> None:
    file = tmp_path / "ends.py"
    file.write_text(program)

    async def go() -> None:
        process = ConstraintProcess("guidance", tmp_path, program=(str(file),))
        await process.begin()
        assert process._process is not None
        await process._process.wait()
        with pytest.raises(EngineUnavailable, match=said):
            await process.start(32_000)

    asyncio.run(asyncio.wait_for(go(), 30))


def test_one_that_was_killed_while_the_engine_loaded_is_started_anew(ground: Ground) -> None:
    async def go() -> None:
        checks = ConstraintChecks(ground.process)
        await checks.begin()
        try:
            await until(lambda: ground.lines() == ["awaits"])
            assert ground.process._process is not None
            ground.process._process.kill()
            await ground.process._process.wait()
            await checks.start(32_000)
            await checks.enforcement_of(titled("x"))
        finally:
            await checks.close()

    asyncio.run(asyncio.wait_for(go(), 30))
    assert ground.lines() == ["awaits", "size 32000", "start", "job x"]


def test_where_it_cannot_be_started_again_requests_fail_and_are_not_rejected(
    ground: Ground, tmp_path: Path
) -> None:
    """It says nothing of their schemas; and another time it may start."""

    async def body(checks: ConstraintChecks) -> None:
        program = tmp_path / "stand_in.py"
        assert ground.process._process is not None
        ground.process._process.kill()
        program.rename(tmp_path / "away")
        with pytest.raises(EngineUnavailable, match="does not start"):
            await checks.enforcement_of(titled("x"))
        (tmp_path / "away").rename(program)
        await checks.enforcement_of(titled("x"))

    run(ground, body)
    assert ground.jobs() == ["x"]


def test_a_tokenizer_that_was_tidied_away_is_written_again(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    process = ConstraintProcess("guidance", tokenizer, program=(str(program), str(tmp_path / "log")))
    process.write_tokenizer = lambda directory: (Path(directory) / "tokenizer.json").write_text("anew")

    async def go() -> None:
        checks = ConstraintChecks(process)
        await checks.start()
        try:
            assert (tokenizer / "tokenizer.json").read_text() == "{}"
            assert process._process is not None
            process._process.kill()
            (tokenizer / "tokenizer.json").unlink()
            tokenizer.rmdir()
            await checks.enforcement_of(titled("x"))
        finally:
            await checks.close()

    asyncio.run(asyncio.wait_for(go(), 30))
    assert (tokenizer / "tokenizer.json").read_text() == "anew"


def test_an_answer_comes_once_and_is_kept(ground: Ground) -> None:
    async def body(checks: ConstraintChecks) -> list[Enforcement]:
        together = await asyncio.gather(*(checks.enforcement_of(titled("x")) for _ in range(5)))
        return [*together, await checks.enforcement_of(titled("x"))]

    found = run(ground, body)
    assert found == [Enforcement("enforced", {"title": "x"}, ("a",))] * 6
    assert ground.jobs() == ["x"]


def test_the_order_of_properties_counts(ground: Ground) -> None:
    async def body(checks: ConstraintChecks) -> None:
        await checks.enforcement_of(titled("x", properties={"a": {}, "b": {}}))
        await checks.enforcement_of(titled("x", properties={"b": {}, "a": {}}))

    run(ground, body)
    assert ground.jobs() == ["x", "x"]


def test_a_refusal_has_its_path_in_the_request_and_is_kept(ground: Ground) -> None:
    async def body(checks: ConstraintChecks) -> None:
        for _ in range(2):
            with pytest.raises(InvalidSchema, match="no") as caught:
                await checks.enforcement_of(titled("bad"))
            assert caught.value.path == "/output/json_schema/type"
            assert not isinstance(caught.value, SchemaTooComplex)

    run(ground, body)
    assert ground.jobs() == ["bad"]


def test_a_verdict_by_the_clock_is_not_kept(ground: Ground) -> None:
    async def body(checks: ConstraintChecks) -> None:
        for _ in range(2):
            with pytest.raises(SchemaTooComplex):
                await checks.enforcement_of(titled("clock"))

    run(ground, body)
    assert ground.jobs() == ["clock", "clock"]


def test_the_process_hears_no_ctrl_c_and_stays_in_the_session_within_which_its_niceness_counts(
    ground: Ground,
) -> None:
    async def body(checks: ConstraintChecks) -> Enforcement:
        return await checks.enforcement_of(titled("where"))

    assert run(ground, body).narrowed == ("True", str(os.getsid(0)))


def test_a_process_that_ends_is_started_anew_and_gives_way_while_it_loads(ground: Ground) -> None:
    async def body(checks: ConstraintChecks) -> Enforcement:
        return await checks.enforcement_of(titled("die once"))

    assert run(ground, body).tier == "enforced"
    assert ground.lines() == ["start", "job die once", "start nicely", "job die once"]


@pytest.mark.parametrize("title", ["die", "babble"])
def test_a_constraint_that_ends_the_process_twice_is_refused_and_the_next_is_answered(
    ground: Ground, title: str
) -> None:
    async def body(checks: ConstraintChecks) -> Enforcement:
        with pytest.raises(SchemaTooComplex, match="could not be looked at"):
            await checks.enforcement_of(titled(title))
        return await checks.enforcement_of(titled("x"))

    assert run(ground, body).tier == "enforced"
    assert ground.jobs() == [title, title, "x"]


def test_what_nobody_waits_for_any_more_is_not_looked_at(ground: Ground) -> None:
    async def body(checks: ConstraintChecks) -> None:
        first = asyncio.create_task(checks.enforcement_of(titled("wait")))
        await until(lambda: ground.jobs() == ["wait"])
        given_up = asyncio.create_task(checks.enforcement_of(titled("given up")))
        last = asyncio.create_task(checks.enforcement_of(titled("last")))
        await asyncio.sleep(0)
        given_up.cancel()
        ground.go()
        await asyncio.gather(first, last)

    run(ground, body)
    assert ground.jobs() == ["wait", "last"]


def test_giving_up_in_mid_answer_does_not_mix_up_the_answers(ground: Ground) -> None:
    async def body(checks: ConstraintChecks) -> Enforcement:
        first = asyncio.create_task(checks.enforcement_of(titled("wait")))
        await until(lambda: ground.jobs() == ["wait"])
        first.cancel()
        next_one = asyncio.create_task(checks.enforcement_of(titled("x")))
        await asyncio.sleep(0)
        ground.go()
        return await next_one

    assert run(ground, body).schema == {"title": "x"}


def test_whoever_waits_at_the_end_is_told(ground: Ground) -> None:
    async def body(checks: ConstraintChecks) -> None:
        waiting = [
            asyncio.create_task(checks.enforcement_of(titled("wait"))),
            asyncio.create_task(checks.enforcement_of(titled("x"))),
        ]
        await until(lambda: ground.jobs() == ["wait"])
        await checks.close()
        for each in waiting:
            with pytest.raises(EngineDead):
                await each
        with pytest.raises(EngineDead):
            await checks.enforcement_of(titled("y"))

    run(ground, body)


def test_the_cache_is_bounded(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_checks, "CACHED_BYTES", 450)

    async def body(checks: ConstraintChecks) -> None:
        for title in ("a", "b", "a", "c" * 200, "a", "b"):
            await checks.enforcement_of(titled(title))

    run(ground, body)
    assert ground.jobs() == ["a", "b", "c" * 200, "b"], "what was used last stays"


def test_what_is_known_to_compile_is_what_was_given_back(ground: Ground) -> None:
    async def body(checks: ConstraintChecks) -> None:
        asked = titled("relaxed")
        assert not checks.is_known_to_compile(asked)
        held = held_constraint(asked, await checks.enforcement_of(asked))
        assert held is not None
        assert held.json_schema == {"type": "string"}
        assert checks.is_known_to_compile(held)
        assert not checks.is_known_to_compile(asked)

    run(ground, body)


def test_nothing_is_given_to_the_backend_where_all_is_left_to_validation() -> None:
    schema = OutputConstraint(json_schema={"not": {}})
    regex = OutputConstraint(regex="a")
    assert held_constraint(schema, Enforcement("validated_only", None)) is None
    assert held_constraint(regex, Enforcement("enforced", None)) == regex
    assert held_constraint(schema, Enforcement("enforced", True)) == OutputConstraint(json_schema=True)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit(3)", "it ended"),
        ("print('hello')", "does not start"),
        (f"print({json.dumps(json.dumps({'failed': 'no tokenizer'}))})", "no tokenizer"),
    ],
    ids=["ends", "babbles", "says why"],
)
def test_a_process_that_does_not_start_says_why(tmp_path: Path, program: str, said: str) -> None:
    file = tmp_path / "program.py"
    file.write_text(program)
    checks = ConstraintChecks(ConstraintProcess("guidance", tmp_path, program=(str(file),)))

    async def go() -> None:
        with pytest.raises(EngineUnavailable, match=said):
            await checks.start()
        await checks.close()

    asyncio.run(go())
