"""What the comparison of free and constrained generation counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from headrace.ops.bench.constrained import ConstrainedPair, compare, median_and_spread
from headrace.ops.bench.ground import BenchFailed
from headrace.schemas.enforcement import Enforcement
from headrace.schemas.messages import OutputConstraint
from headrace.schemas.output_schema import OutputSchema
from headrace.workers.engine import GeneratedChoice, Generation, GenerationJob, Prompt


class Counted:
    """An engine that notes what it was asked, and gives as many tokens as it is told to."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self.asked: list[bool] = []  # whether with a schema
        self.running = self.most_running = 0

    async def encode(self, prompt: Prompt) -> list[int]:
        return [1]

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        return Enforcement("enforced", constraint.json_schema)

    async def generate(self, job: GenerationJob) -> AsyncIterator[Generation]:
        self.asked.append(job.constraint is not None)
        if job.constraint is not None:
            OutputSchema.parse(cast("Any", job.constraint.json_schema))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        yield Generation([GeneratedChoice("x", "length", self._tokens)], prompt_tokens=1)


def compared(engine: Counted, pairs: int = 2) -> list[ConstrainedPair]:
    prompts = [str(number) for number in range(6)]
    return asyncio.run(
        compare(
            cast("Any", engine), prompts, max_tokens=8, concurrent=3, pairs=pairs, on_progress=lambda _: None
        )
    )


def test_both_sides_are_asked_the_same_in_turn_and_no_more_than_so_many_at_a_time() -> None:
    engine = Counted(tokens=8)
    assert len(compared(engine)) == 2
    warm, measured = engine.asked[:6], engine.asked[6:]
    assert warm == [False] * 3 + [True] * 3
    assert measured == [False] * 6 + [True] * 12 + [False] * 6
    assert engine.most_running == 3


def test_outputs_that_end_early_are_no_measurement() -> None:
    with pytest.raises(BenchFailed, match="outputs end early: 21 tokens"):
        compared(Counted(tokens=7))


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    pairs = [ConstrainedPair(100, 90), ConstrainedPair(200, 100), ConstrainedPair(10, 11)]
    assert median_and_spread(pairs) == (0.9, 0.5, 1.1)
