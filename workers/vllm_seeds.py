"""Runs where vLLM's model runs, on CPUs: a seeded request draws no number for a token that nobody gets.

Where a prompt is prefilled in parts, vLLM 0.32.0 samples a token after each part and discards all but the last. It then
takes the draw back by the generator's offset, which torch's CPU generators have not: its RuntimeError, `CPU Generator
does not use offset`, ends the engine. So such a request's generator is put aside while its token is sampled. There is
nothing to take back then, and a seed gives the same text in however many parts its prompt was prefilled.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Generator, Iterable
from typing import Any

log = logging.getLogger(__name__)


@contextlib.contextmanager
def put_aside(generators: dict[int, Any], discarded: Iterable[bool]) -> Generator[None]:
    """While this is entered, `generators` is without those whose token will be discarded.

    `generators` are by index into the batch; `discarded` has a bool for each index. The dictionary itself changes: the
    sampler has the same one.
    """
    indices = [index for index, each in enumerate(discarded) if each and index in generators]
    aside = {index: generators.pop(index) for index in indices}
    try:
        yield
    finally:
        generators.update(aside)


def draw_only_for_kept_tokens(runner: Any) -> None:
    """Let a model runner of vLLM's do so. Raises AttributeError where it lacks what 0.32.0's has.

    Sampling and taking back both happen within `sample_tokens`; what will be discarded is known before it.
    """
    sample_tokens_as_it_was = runner.sample_tokens
    _ = runner.input_batch.generators, runner.discard_request_mask.np

    def sample_tokens(grammar_output: Any) -> Any:
        batch = runner.input_batch  # vLLM makes another one when it has sized the KV cache
        with put_aside(batch.generators, runner.discard_request_mask.np[: batch.num_reqs]):
            return sample_tokens_as_it_was(grammar_output)

    runner.sample_tokens = sample_tokens


def mend_runners_on_cpus(wrapper: type[Any]) -> None:
    """Let the model runners under vLLM's WorkerWrapperBase draw so where they run on a CPU.

    A runner is there once its device is set up; to import its class any earlier takes seconds.
    """
    init_device_as_it_was = wrapper.init_device

    def init_device(self: Any) -> None:
        init_device_as_it_was(self)
        runner = self.worker.model_runner
        # vLLM's second model runner takes nothing back: it has no generators.
        if runner.device.type != "cpu" or not hasattr(runner, "_bookkeeping_sync"):
            return
        try:
            draw_only_for_kept_tokens(runner)
        except AttributeError as error:
            log.warning("a seeded request may end the engine: this vLLM samples in another way (%s)", error)

    wrapper.init_device = init_device


def keep_seeds_on_cpus() -> None:
    """The same for the installed vLLM. One that has other workers stays as it is, and the log says so."""
    try:
        module: Any = importlib.import_module("vllm.v1.worker.worker_base")
        mend_runners_on_cpus(module.WorkerWrapperBase)
    except (ImportError, AttributeError) as error:
        log.warning("a seeded request may end the engine: this vLLM has other workers (%s)", error)
