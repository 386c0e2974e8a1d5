"""A process with an engine of its own, whose end the tests watch: `engine_life.py kill|shutdown`.

Prints one JSON object: what was seen.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from conformance.engine_port import collect, wait_until

from headrace.ops.bench.tiny_model import CONTEXT, tiny_model
from headrace.schemas.errors import EngineDead
from headrace.schemas.messages import OutputConstraint, Sampling
from headrace.schemas.settings import Settings
from headrace.workers.engine import GenerationJob, TextPrompt
from headrace.workers.vllm_engine import VllmEngine


def _engine_processes() -> list[psutil.Process]:
    """Our children, without the resource tracker, which is Python's own and ends with us."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]


async def _start() -> tuple[VllmEngine, asyncio.Task[Any]]:
    arguments = {"max_model_len": CONTEXT, "enforce_eager": True, "dtype": "float32"}
    engine = VllmEngine(
        tiny_model(Settings.from_environment().cache_dir / "models"),
        engine_arguments=arguments,
        structured_outputs_backend="xgrammar",
    )
    await engine.start()
    await engine.probe()
    token_ids = await engine.encode(TextPrompt("mill"))
    schema = OutputConstraint(json_schema={"type": "object", "properties": {"a": {"enum": ["b"]}}})
    held = await collect(engine.generate(GenerationJob("held", token_ids, Sampling(max_tokens=40), schema)))
    assert json.loads(held.text) in ({}, {"a": "b"}), held
    long = Sampling(max_tokens=900)
    job = GenerationJob("long", token_ids, long, OutputConstraint(regex="[a-z]{2000}"))
    task = asyncio.create_task(collect(engine.generate(job)))
    await wait_until(lambda: engine.running_jobs == 1, "the job to begin")
    return engine, task


async def kill() -> dict[str, Any]:
    """SIGKILL the engine process under a running job."""
    engine, task = await _start()
    seen: dict[str, Any] = {}
    began = time.monotonic()
    for process in _engine_processes():
        seen["in_our_group"] = seen.get("in_our_group", False) or os.getpgid(process.pid) == os.getpgrp()
        os.kill(process.pid, signal.SIGKILL)
    try:
        await task
    except EngineDead as error:
        seen["in_flight"] = error.message
    try:
        engine.check_health()
    except EngineDead as error:
        seen["health"] = error.message
    seen["seconds"] = time.monotonic() - began
    try:
        await engine.encode(TextPrompt("mill"))
    except EngineDead as error:
        seen["afterwards"] = error.message
    await engine.abort("long")
    await engine.shutdown()
    return seen


async def shutdown() -> dict[str, Any]:
    """Shut down, twice, under a running job."""
    engine, task = await _start()
    await engine.shutdown()
    await engine.shutdown()
    generation = (await task).generation
    return {
        "finish": generation.choices[0].finish_reason,
        "left": [" ".join(child.cmdline())[:80] for child in _engine_processes()],
    }


if __name__ == "__main__":
    scenario = {"kill": kill, "shutdown": shutdown}[sys.argv[1]]
    print(json.dumps(asyncio.run(scenario())))
