"""A seeded request draws no number for a token that is discarded. Needs no vLLM: its runner is played."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.workers.vllm_seeds import mend_runners_on_cpus


class Runner:
    """As vLLM's model runner: draws for every seeded request, and cannot take a draw back."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = SimpleNamespace(type=device)
        self.input_batch = SimpleNamespace(generators=dict[int, random.Random](), num_reqs=0)
        self.discard_request_mask = SimpleNamespace(np=[False] * 8)

    def batch(self, generators: dict[int, random.Random], discarded: list[bool]) -> None:
        self.input_batch = SimpleNamespace(generators=generators, num_reqs=len(discarded))
        self.discard_request_mask.np[: len(discarded)] = discarded

    def sample_tokens(self, grammar_output: Any) -> dict[int, float]:
        drawn = {index: each.random() for index, each in self.input_batch.generators.items()}
        self._bookkeeping_sync()
        return drawn

    def _bookkeeping_sync(self) -> None:
        if any(self.discard_request_mask.np[index] for index in self.input_batch.generators):
            raise RuntimeError("CPU Generator does not use offset")


class FailingRunner(Runner):
    """Its error names the generators that a step was left with."""

    def sample_tokens(self, grammar_output: Any) -> dict[int, float]:
        raise ValueError(f"only {list(self.input_batch.generators)}")


def started(runner: Any) -> Any:
    """The runner, after a class of wrappers of its own has set up its device."""

    class Wrapper:
        def __init__(self) -> None:
            self.worker = SimpleNamespace(model_runner=None)

        def init_device(self) -> None:
            self.worker.model_runner = runner

    mend_runners_on_cpus(Wrapper)
    Wrapper().init_device()
    return runner


def test_a_prompt_prefilled_in_parts_draws_what_it_draws_when_prefilled_at_once() -> None:
    runner = started(Runner())
    whole, parted = random.Random(7), random.Random(7)
    runner.batch({0: whole, 1: parted}, [False, True])
    first = runner.sample_tokens(None)[0]
    runner.discard_request_mask.np[1] = False
    assert runner.sample_tokens(None)[1] == first


def test_a_place_beyond_the_batch_says_nothing_of_this_step() -> None:
    runner = started(Runner())
    runner.batch({0: random.Random(7)}, [False])
    runner.discard_request_mask.np[1:] = [True] * 7  # left over from an earlier step
    assert list(runner.sample_tokens(None)) == [0]


def test_generators_come_back_when_sampling_fails() -> None:
    runner = FailingRunner()
    generators = {0: random.Random(0), 1: random.Random(1), 3: random.Random(3)}
    runner.batch(generators, [True, False, True, True])
    with pytest.raises(ValueError, match=r"only \[1\]"):
        started(runner).sample_tokens(None)
    assert sorted(generators) == [0, 1, 3]


def test_a_runner_on_a_gpu_stays_as_it_is() -> None:
    assert "sample_tokens" in vars(started(Runner()))
    assert "sample_tokens" not in vars(started(Runner("cuda")))


def test_a_runner_that_samples_in_another_way_stays_as_it_is_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = Runner()
    del other.discard_request_mask
    assert "sample_tokens" not in vars(started(other))
    assert "discard_request_mask" in caplog.text
