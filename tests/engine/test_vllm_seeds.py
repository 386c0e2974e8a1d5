"""Seeds on vLLM for CPUs: prompts prefilled in parts neither end the engine nor change what a seed gives."""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conformance.engine_port import Port, collect

from headrace.schemas.messages import Sampling
from headrace.workers.engine import GenerationJob, TextPrompt
from headrace.workers.vllm_engine import VllmEngine

pytestmark = pytest.mark.usefixtures("needs_vllm")

TOKENS = 12
PROMPTS = [f"{number} winter rivers " + "and the mill turns " * 70 for number in range(32)]


def test_a_crowd_of_seeded_prompts_prefilled_in_parts_gives_the_texts_that_each_gives_alone(
    port: Port, vllm_engine: VllmEngine
) -> None:
    async def text(job: GenerationJob) -> str:
        return (await collect(port.engine.generate(job))).generation.choices[0].text

    async def go() -> None:
        encoded = [await port.engine.encode(TextPrompt(each)) for each in PROMPTS]
        engine: Any = vllm_engine
        step = engine._llm.vllm_config.scheduler_config.max_num_batched_tokens
        assert sum(map(len, encoded)) > 3 * step, "some are cut at a step's end"
        jobs = [
            GenerationJob(f"seeded-{number}", ids, Sampling(max_tokens=TOKENS, seed=number, temperature=0.8))
            for number, ids in enumerate(encoded)
        ]
        crowd = await asyncio.gather(*map(text, jobs))
        alone = [await text(replace(job, request_id=f"{job.request_id}-alone")) for job in jobs]
        assert crowd == alone

    port.run(go())


def source_of(module: str, *names: str) -> str:
    """The source of a class or method of vLLM's: to import these modules takes seconds, and changes torch."""
    package = importlib.util.find_spec("vllm")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / f"{module}.py"
    text = path.read_text()
    node: Any = ast.parse(text)
    for name in names:
        (node,) = [each for each in node.body if getattr(each, "name", None) == name]
    return ast.get_source_segment(text, node) or "" if names else text


def test_this_vllm_takes_a_draw_back_where_it_is_mended() -> None:
    """When another version fails here, read its model runner again: the cure may be in the way, or needless."""
    runner = "v1/worker/gpu_model_runner"
    assert source_of(runner).count("set_offset") == 1
    taking_back = source_of(runner, "GPUModelRunner", "_bookkeeping_sync")
    assert "self.discard_request_mask.np[:num_reqs]" in taking_back
    assert "gen.set_offset(gen.get_offset() - 4)" in taking_back
    sampling = source_of(runner, "GPUModelRunner", "sample_tokens")
    assert sampling.index("self._sample(") < sampling.index("self._bookkeeping_sync(")
    assert "discard_request_mask.np" not in sampling, "it is set before"
    assert "sample_tokens" not in source_of("v1/worker/cpu_model_runner"), "it is inherited"


def test_this_vllms_sampler_has_the_batchs_own_dictionary_of_generators() -> None:
    batch = "v1/worker/gpu_input_batch"
    assert source_of(batch).count("self.generators: dict[int, torch.Generator] = {}") == 1
    assert source_of(batch).count("self.generators =") == 0
    assert "generators=self.generators," in source_of(batch, "InputBatch", "_make_sampling_metadata")


def test_this_vllms_workers_have_their_runner_once_the_device_is_set_up() -> None:
    assert "self.worker.init_device()" in source_of(
        "v1/worker/worker_base", "WorkerWrapperBase", "init_device"
    )
    assert "self.model_runner = CPUModelRunner(" in source_of(
        "v1/worker/cpu_worker", "CPUWorker", "init_device"
    )


def test_torchs_generators_still_have_no_offset_on_cpus() -> None:
    torch: Any = importlib.import_module("torch")
    with pytest.raises(RuntimeError, match="does not use offset"):
        torch.Generator(device="cpu").get_offset()
