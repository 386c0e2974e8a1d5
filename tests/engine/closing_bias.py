"""Has a random model close what it opened.

It would hardly ever end a string: all its logits are near 0.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from headrace.workers.engine import GenerationJob
from headrace.workers.vllm_engine import VllmEngine

# Against logits near 0 and some 2,000 tokens: a quote is then likelier than all else together. The end of an array is
# not, which competes with few others: with 8 as well, hardly any array had items.
QUOTE_BIAS = 8.0
BRACKET_BIAS = 2.0
CLOSERS = frozenset('"}],:')  # what a token that closes something consists of


@contextmanager
def closing_bias(engine: VllmEngine) -> Generator[None]:
    """Push an engine's logits towards tokens that close a string, an object, an array, or the output."""
    sampling_params: Any = vars(VllmEngine)["_sampling_params"]

    @functools.cache
    def bias() -> dict[int, float]:
        tokenizer: Any = vars(engine)["_llm"].get_tokenizer()
        texts = {token: tokenizer.decode([token]).strip() for token in range(len(tokenizer))}
        closing = {token: text for token, text in texts.items() if text and CLOSERS.issuperset(text)}
        biases = {token: QUOTE_BIAS if text[0] == '"' else BRACKET_BIAS for token, text in closing.items()}
        return biases | {tokenizer.eos_token_id: QUOTE_BIAS}

    def biased(job: GenerationJob) -> Any:
        params = sampling_params(engine, job)
        params.logit_bias = bias()
        return params

    with mock.patch.object(engine, "_sampling_params", biased):
        yield
