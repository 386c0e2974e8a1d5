"""What a schema costs while text is generated: `headrace bench constrained`. One engine, no Kafka."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from headrace.ops.bench.ground import BenchFailed
from headrace.schemas.messages import OutputConstraint, Sampling
from headrace.workers.constraint_checks import held_constraint
from headrace.workers.engine import Engine, Generation, GenerationJob, TextPrompt

# Longer than any output may get, so that both sides generate as many tokens; of kinds that real schemas are made of.
SCHEMA = {
    "type": "array",
    "minItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "kind": {"enum": ["drama", "comedy", "documentary", "western"]},
            "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "maxItems": 3},
        },
        "required": ["name", "kind", "year", "tags"],
        "additionalProperties": False,
    },
}
# Of max_tokens, on either side: outputs that end early would make the rates speak of something else. The tiny model's
# weights are random: without a schema, one token in 2,048 ends an output.
LEAST_LENGTH = 0.95


@dataclass(frozen=True, slots=True)
class ConstrainedPair:
    """One alternation: output tokens a second without a schema, and with one."""

    free: float
    constrained: float

    @property
    def ratio(self) -> float:
        """With a schema, over without."""
        return self.constrained / self.free


async def compare(
    engine: Engine,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    concurrent: int,
    pairs: int,
    on_progress: Callable[[str], None],
) -> list[ConstrainedPair]:
    """Alternate both on a running engine, `concurrent` requests at a time. Which is first alternates too.

    Raises BenchFailed where outputs end before `max_tokens`.
    """
    bench = _Bench(engine, max_tokens, concurrent)
    # As a worker does it: asked for once, and what was compiled beside the engine is not checked again on the loop.
    asked = OutputConstraint(json_schema=SCHEMA)
    constraint = held_constraint(asked, await engine.enforcement_of(asked))
    if constraint is None:
        raise BenchFailed("the engine cannot hold outputs to the schema of this comparison")
    await bench.rate(prompts[:concurrent], None)
    await bench.rate(prompts[:concurrent], constraint)
    found: list[ConstrainedPair] = []
    for number in range(pairs):
        order = (None, constraint) if number % 2 == 0 else (constraint, None)
        rates = {each is not None: await bench.rate(prompts, each) for each in order}
        found.append(ConstrainedPair(free=rates[False], constrained=rates[True]))
        on_progress(
            f"pair {number + 1} of {pairs}: {rates[False]:.0f} tok/s free, {rates[True]:.0f} under a schema"
        )
    return found


class _Bench:
    def __init__(self, engine: Engine, max_tokens: int, concurrent: int) -> None:
        self._engine = engine
        self._max_tokens = max_tokens
        self._concurrent = concurrent
        self._numbers = count()

    async def rate(self, prompts: Sequence[str], constraint: OutputConstraint | None) -> float:
        """Output tokens a second."""
        places = asyncio.Semaphore(self._concurrent)

        async def generate(prompt: str) -> int:
            async with places:
                return await self._tokens(prompt, constraint)

        began = time.perf_counter()
        tokens = sum(await asyncio.gather(*(generate(prompt) for prompt in prompts)))
        took_s = time.perf_counter() - began
        if tokens < LEAST_LENGTH * self._max_tokens * len(prompts):
            raise BenchFailed(
                f"outputs end early: {tokens} tokens, where {self._max_tokens * len(prompts)} were to come; "
                "take a model that does not end by itself, or fewer --max-tokens"
            )
        return tokens / took_s

    async def _tokens(self, prompt: str, constraint: OutputConstraint | None) -> int:
        token_ids = await self._engine.encode(TextPrompt(prompt))
        job = GenerationJob(
            f"constrained-{next(self._numbers)}",
            token_ids,
            Sampling(max_tokens=self._max_tokens, temperature=1.0),
            constraint,
        )
        async for event in self._engine.generate(job):
            if isinstance(event, Generation):
                return sum(choice.completion_tokens for choice in event.choices)
        raise BenchFailed("the engine ended a generation without a word")


def median_and_spread(pairs: Sequence[ConstrainedPair]) -> tuple[float, float, float]:
    """Median, least and greatest of the ratios."""
    ratios = [pair.ratio for pair in pairs]
    return statistics.median(ratios), min(ratios), max(ratios)
