"""What only the simulated engine has: its script, its clock, its places."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import jsonschema_rs
import pytest
from conformance.engine_port import Seen, collect, job, wait_until

from headrace.schemas.errors import EngineDead, EngineRejected, EngineUnavailable, SettingsError
from headrace.schemas.messages import OutputConstraint
from headrace.workers.engine import TextPrompt
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile
from headrace.workers.simulated_failures import FAILURES, Failure, Script

T = TypeVar("T")
AT_ONCE = SimulatedProfile(time_scale=0)
MOVIE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"enum": list("abcdefghijklmnop")}, "minItems": 2, "maxItems": 4},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
        "at": {"type": "string", "format": "date-time"},
        "pitch": {"type": "string", "minLength": 30},
    },
    "required": ["tags", "year", "at", "pitch"],
}


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def started(profile: SimulatedProfile = AT_ONCE, script: Script | None = None) -> SimulatedEngine:
    engine = SimulatedEngine(profile, script)
    await engine.start()
    return engine


async def ask(engine: SimulatedEngine, prompt: str = "a mill", **fields: Any) -> Seen:
    return await collect(engine.generate(job(await engine.encode(TextPrompt(prompt)), **fields)))


def test_forty_prompts_give_many_different_valid_outputs() -> None:
    async def go() -> list[str]:
        engine = await started()
        held = {"sampling": {"max_tokens": 200}, "constraint": {"json_schema": MOVIE}}
        return [(await ask(engine, f"movie {number}", **held)).text for number in range(40)]

    outputs = [json.loads(text) for text in run(go())]
    validator = jsonschema_rs.validator_for(MOVIE, validate_formats=True)
    assert all(validator.is_valid(output) for output in outputs)
    assert len({tuple(output["tags"]) for output in outputs}) >= 30


@pytest.mark.parametrize(
    "constraint",
    [
        {"json_schema": {"type": "number"}},
        {"json_schema": {"type": "string", "minLength": 200}},
        {"json_schema": {"type": "object", "additionalProperties": {"type": "array"}, "minProperties": 3}},
        {
            "json_schema": {
                "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
                "$ref": "#/$defs/t",
            }
        },
        {"json_schema": {"enum": ["é", "\u4e2d", "\U0001f600"]}},
        {"json_object": True},
    ],
    ids=["number", "long", "object", "recursive", "utf8", "json_object"],
)
def test_every_seed_comes_to_an_end_that_holds(constraint: dict[str, Any]) -> None:
    schema = OutputConstraint(**constraint).json_schema or {"type": "object"}
    validator = jsonschema_rs.validator_for(schema)

    async def go() -> None:
        engine = await started()
        for seed in range(60):
            asked: dict[str, Any] = {"max_tokens": 1500, "seed": seed}
            seen = await ask(engine, sampling=asked, constraint=constraint)
            assert seen.generation.choices[0].finish_reason == "stop"
            assert validator.is_valid(json.loads(seen.text)), seen.text

    run(go())


def test_it_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import asyncio, sys; sys.path.insert(0, 'tests')\n"
        "from test_simulated_engine import *\n"
        "async def go(): await ask(await started(), constraint={'json_object': True})\n"
        "run(go()); assert 'llguidance' in sys.modules\n"
        "print([name for name in ('torch', 'numpy', 'vllm') if name in sys.modules])"
    )
    here = str(__file__).rsplit("/", 1)[0]
    environment = {"PYTHONPATH": f"{here}:{here}/.."}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.stdout.strip() == "[]", ended.stderr


@pytest.mark.parametrize("type_", ["string", "number", "array", "object"])
def test_what_has_no_bound_stays_short(type_: str) -> None:
    async def go() -> list[int]:
        engine = await started()
        held: dict[str, Any] = {"json_schema": {"type": type_}}
        asked: dict[str, Any] = {"max_tokens": 500}
        return [
            len((await ask(engine, f"{seed}", sampling=asked, constraint=held)).text) for seed in range(50)
        ]

    assert max(run(go())) < 120


# --- the script ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "finish"),
    [("error", "error"), ("abort", "abort"), ("truncated", "length"), ("invalid_output", "stop")],
)
def test_a_scripted_end_comes_once_and_the_next_job_is_whole(failure: Failure, finish: str) -> None:
    async def go() -> list[Seen]:
        engine = await started()
        engine.script.fail_next(failure)
        held: dict[str, Any] = {"sampling": {"max_tokens": 200}, "constraint": {"json_schema": MOVIE}}
        return [await ask(engine, **held), await ask(engine, **held)]

    failed, whole = (seen.generation.choices[0] for seen in run(go()))
    assert failed.finish_reason == finish
    validator = jsonschema_rs.validator_for(MOVIE)
    assert validator.is_valid(json.loads(whole.text))
    if failure == "invalid_output":
        assert not validator.is_valid(json.loads(failed.text))
    else:
        with pytest.raises(ValueError, match="line 1"):
            json.loads(failed.text)


@pytest.mark.parametrize("types", [["object"], ["null", "array"], ["null", "array", "string"]])
def test_invalid_output_violates_the_schema_whatever_it_takes(types: list[str]) -> None:
    async def go() -> Seen:
        engine = await started()
        engine.script.fail_next("invalid_output")
        return await ask(engine, constraint={"json_schema": {"type": types}})

    assert not jsonschema_rs.validator_for({"type": types}).is_valid(json.loads(run(go()).text))


def test_a_death_reaches_all_that_run_and_all_that_come() -> None:
    async def go() -> None:
        engine = await started(SimulatedProfile(decode_seconds_per_token=30))
        running = [asyncio.create_task(ask(engine, f"innocent {number}")) for number in range(3)]
        await wait_until(lambda: engine.running_jobs == 3, "the others to run")
        engine.script.fail("die", prompt_contains="poison")
        with pytest.raises(EngineDead, match="port-"):
            await ask(engine, "this is poison for it")
        for task in running:
            with pytest.raises(EngineDead):
                await task
        with pytest.raises(EngineDead):
            engine.check_health()
        with pytest.raises(EngineDead):
            await ask(engine)
        assert engine.running_jobs == 0

    run(go())


def test_poison_without_a_count_kills_every_engine_that_has_the_script() -> None:
    async def go() -> None:
        script = Script.from_json('[{"kind": "die", "prompt_contains": "poison"}]')
        for _ in range(3):
            engine = await started(script=script)
            assert (await ask(engine, "harmless")).text
            with pytest.raises(EngineDead):
                await ask(engine, "poison")

    run(go())


def test_one_that_kills_after_a_while_lets_others_finish_before_and_may_be_aborted_in_time() -> None:
    async def go() -> None:
        engine = await started(SimulatedProfile(decode_seconds_per_token=0))
        engine.script.fail("die", prompt_contains="poison", after_s=30)
        guilty = asyncio.create_task(ask(engine, "slow poison", request_id="guilty"))
        await wait_until(lambda: engine.running_jobs == 1, "it to run")
        assert (await ask(engine, "harmless")).text
        await engine.abort("guilty")
        assert (await guilty).generation.choices[0].finish_reason == "abort"
        engine.check_health()
        engine.script.fail("die", prompt_contains="quick", after_s=0.01)
        with pytest.raises(EngineDead):
            await ask(engine, "quick")

    run(go())


def test_one_that_vanishes_takes_its_process_along_without_a_word() -> None:
    program = """
import asyncio
from headrace.schemas.messages import Sampling
from headrace.workers.engine import GenerationJob
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile
from headrace.workers.simulated_failures import Script

async def main():
    script = Script.from_json('[{"kind": "vanish", "request_id": "guilty", "after_s": 0.01}]')
    engine = SimulatedEngine(SimulatedProfile(), script)
    await engine.start()
    for request_id in ("innocent", "guilty"):
        print(request_id, flush=True)
        async for _ in engine.generate(GenerationJob(request_id, [1], Sampling(max_tokens=1), None, 0, False)):
            pass
        print("done", flush=True)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert ended.stdout.split() == ["innocent", "done", "guilty"]


def test_a_refusal_by_request_id_hits_that_request_alone() -> None:
    async def go() -> None:
        engine = await started()
        engine.script.fail("reject", request_id="r2")
        assert (await ask(engine, request_id="r1")).text
        with pytest.raises(EngineRejected):
            await ask(engine, request_id="r2")
        with pytest.raises(EngineRejected):
            await ask(engine, request_id="r2")

    run(go())


def test_what_hangs_goes_on_when_released_and_can_be_aborted() -> None:
    async def go() -> list[str]:
        engine = await started()
        engine.script.fail_next("hang", times=2)
        first = asyncio.create_task(ask(engine, request_id="first"))
        second = asyncio.create_task(ask(engine, request_id="second"))
        await wait_until(lambda: engine.running_jobs == 2, "both to hang")
        await ask(engine)  # others go by
        assert engine.running_jobs == 2
        await engine.abort("first")
        aborted = await first
        assert not second.done()
        engine.release()
        return [seen.generation.choices[0].finish_reason for seen in (aborted, await second)]

    assert run(go()) == ["abort", "stop"]


@pytest.mark.parametrize(
    "text", ["{", '[{"kind": "explode"}]', '[{"kind": "die", "when": 1}]', '[{"times": 1}]', "3"]
)
def test_a_script_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        Script.from_json(text)


def test_a_script_from_json_knows_every_failure() -> None:
    script = Script.from_json(json.dumps([{"kind": kind, "times": 1} for kind in FAILURES]))
    taken = [script.take("id", "prompt") for _ in FAILURES]
    assert [fate and fate.kind for fate in taken] == list(FAILURES)
    assert script.empty


# --- time and places ----------------------------------------------------------------------------------------


def test_places_go_to_the_lowest_priority_then_to_who_came_first() -> None:
    async def go() -> list[str]:
        engine = await started(SimulatedProfile(max_running=1, time_scale=0))
        engine.script.fail("hang", request_id="holder", times=1)
        ended: list[str] = []

        async def one(name: str, priority: int) -> None:
            await ask(engine, request_id=name, priority=priority)
            ended.append(name)

        tasks = [asyncio.create_task(one("holder", 0))]
        await wait_until(lambda: engine.running_jobs == 1, "the holder to run")
        for name, priority in [("low 1", 20), ("low 2", 20), ("high", 0), ("gone", 0)]:
            tasks.append(asyncio.create_task(one(name, priority)))
        await wait_until(lambda: engine.running_jobs == 5, "all to wait")
        tasks[-1].cancel()
        await asyncio.wait(tasks[-1:])
        engine.release()
        await asyncio.gather(*tasks[:-1])
        assert engine.running_jobs == 0
        assert (await ask(engine)).text, "the place of the cancelled one is free"
        return ended

    assert run(go()) == ["holder", "high", "low 1", "low 2"]


def test_without_a_time_scale_nothing_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        engine = await started(SimulatedProfile(time_scale=0, load_seconds=9, decode_seconds_per_token=9))
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", None)
        await collect(engine.generate(job([1, 2, 3], stream=True)))
        monkeypatch.undo()

    run(go())


def test_before_it_is_started_and_after_it_is_shut_down_nothing_is_answered() -> None:
    async def go() -> None:
        engine = SimulatedEngine(AT_ONCE)
        with pytest.raises(EngineUnavailable):
            await ask(engine)
        await engine.start()
        engine.script.fail_next("hang")
        hanging = asyncio.create_task(ask(engine))
        await wait_until(lambda: engine.running_jobs == 1, "it to hang")
        await engine.shutdown()
        await engine.shutdown()
        assert (await hanging).generation.choices[0].finish_reason == "abort"
        with pytest.raises(EngineDead, match="shut down"):
            await ask(engine)

    run(go())


def test_the_identity_says_what_the_profile_has_room_for() -> None:
    identity = SimulatedEngine(SimulatedProfile(max_running=7, kv_tokens=900)).identity
    assert (identity.max_sequences, identity.kv_tokens) == (7, 900)
