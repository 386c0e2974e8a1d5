"""What only vLLM has: the model's own defaults, a grammar that does not compile, its identity."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from conformance.engine_port import Port, Seen, collect

from headrace.schemas.errors import EngineDead, EngineRejected, EngineUnavailable, PackageError
from headrace.schemas.messages import OutputConstraint, Sampling
from headrace.workers.engine import GenerationJob, TextPrompt
from headrace.workers.vllm_engine import VllmEngine


def _ask(port: Port, sampling: Sampling, constraint: OutputConstraint | None = None) -> Seen:
    async def go() -> Seen:
        token_ids = await port.engine.encode(TextPrompt("The mill stands by the river."))
        return await collect(port.engine.generate(GenerationJob("own", token_ids, sampling, constraint)))

    return port.run(go())


def test_max_tokens_comes_from_the_models_generation_config(port: Port) -> None:
    assert port.engine.identity.default_max_tokens == 24
    choice = _ask(port, Sampling(seed=1), OutputConstraint(regex="[a-z]{400}")).generation.choices[0]
    assert (choice.finish_reason, choice.completion_tokens) == ("length", 24)


def test_the_identity_pins_versions_and_weights(port: Port) -> None:
    identity = port.engine.identity
    assert identity.engine == "vllm"
    assert identity.engine_version.startswith("0.32.")
    assert identity.weights_digest is not None
    assert identity.weights_digest.startswith("sha256-sampled:")
    assert set(identity.extra) == {"distribution", "torch", "xgrammar", "llguidance"}


def test_the_identity_says_what_the_engine_has_room_for(port: Port, vllm_engine: VllmEngine) -> None:
    identity = port.engine.identity
    assert identity.max_sequences == 32  # as the fixture asks
    cache: Any = vllm_engine._llm.vllm_config.cache_config
    assert identity.kv_tokens is not None
    assert identity.kv_tokens >= identity.max_model_len
    # This model has attention of one kind: vLLM's figure is that of its blocks.
    assert abs(identity.kv_tokens - cache.num_gpu_blocks * cache.block_size) <= cache.block_size


def test_vllm_looks_up_its_environment_once(port: Port) -> None:
    del port  # an engine is up
    envs: Any = importlib.import_module("vllm.envs")
    assert hasattr(envs.__getattr__, "cache_info")


def test_a_prompt_seen_before_counts_as_cached(port: Port) -> None:
    async def go() -> Seen:
        token_ids = await port.engine.encode(TextPrompt("cached words of the miller " * 60))
        assert len(token_ids) > 256  # whole blocks of 128 tokens can be found again
        job = GenerationJob("cached", token_ids, Sampling(max_tokens=1))
        await collect(port.engine.generate(job))
        return await collect(port.engine.generate(job))

    assert port.run(go()).generation.cached_tokens >= 128


@pytest.mark.usefixtures("needs_vllm")
def test_an_engine_argument_that_vllm_does_not_know_is_named_with_a_proposal(port: Port) -> None:
    engine = VllmEngine("anything", engine_arguments={"max_modle_len": 3})
    with pytest.raises(PackageError, match=r"engine\.max_modle_len: .*did you mean max_model_len"):
        port.run(engine.start())


@pytest.mark.usefixtures("needs_vllm")
def test_a_model_that_cannot_be_loaded_says_why(port: Port, tmp_path: Any) -> None:
    engine = VllmEngine(tmp_path)
    with pytest.raises(EngineUnavailable, match="could not load"):
        port.run(engine.start())
    port.run(engine.shutdown())


def test_before_it_is_started_and_after_it_is_shut_down_nothing_is_answered(port: Port) -> None:
    engine = VllmEngine("anything")
    with pytest.raises(EngineUnavailable, match="not been started"):
        engine.check_health()
    port.run(engine.shutdown())
    port.run(engine.shutdown())
    with pytest.raises(EngineDead, match="shut down"):
        engine.check_health()


def test_a_bias_makes_a_token_certain_and_one_for_a_token_that_is_not_there_is_refused(port: Port) -> None:
    async def go(token: str) -> Seen:
        token_ids = await port.engine.encode(TextPrompt("Once"))
        sampling = Sampling(max_tokens=5, logprobs=0, logit_bias={token: 100.0})
        job = GenerationJob(f"bias-{token}", token_ids, sampling)
        return await collect(port.engine.generate(job))

    certain = port.run(go("77")).generation.choices[0].logprobs
    assert certain is not None
    assert len({each.token for each in certain}) == 1
    with pytest.raises(EngineRejected, match="999999"):
        port.run(go("999999"))
