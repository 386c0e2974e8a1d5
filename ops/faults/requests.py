"""The requests that are sent under fire, each of which has one right answer that can be computed afterwards."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.schemas.messages import LANES, Lane, OutputConstraint, Request, Sampling
from headrace.workers.engine import Generation, GenerationJob, TextPrompt
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile

LANE_WEIGHTS = (2, 5, 3)  # interactive, standard, backfill
LONG_CHARACTERS = 4_000  # a thousand tokens: 20 s of the simulated engine at a time scale of 2
SHORT_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class Mix:
    """What is sent.

    `constrained`: every request forces its text through an output constraint, so that any engine that is asked gives
    the one right answer; otherwise the simulated engine's own text for the prompt is the right one.
    """

    seed: int
    keys: int = 200  # different ones
    long_share: float = 0.0  # of requests that take a thousand tokens
    constrained: bool = False


@dataclass(frozen=True, slots=True)
class Composed:
    """A request and the lane that it goes to: a key's own, so that its requests have an order."""

    request: Request
    lane: Lane


class Composer:
    """Makes one request after the other: the same ones for the same mix."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._dice = random.Random(f"requests {mix.seed}")
        self._lanes: list[Lane] = self._dice.choices(LANES, LANE_WEIGHTS, k=mix.keys)
        self._number = 0

    def next(self) -> Composed:
        """The next one."""
        self._number += 1
        key = self._dice.randrange(self._mix.keys)
        is_long = self._dice.random() < self._mix.long_share
        nonce = f"{self._dice.getrandbits(64):016x}"
        id_ = f"r{self._number:06d}-{nonce[:6]}" + ("-long" if is_long else "")
        output = None
        if is_long:
            output = OutputConstraint(choice=[filled(f"the long answer to {nonce}", LONG_CHARACTERS)])
        elif self._mix.constrained:
            output = OutputConstraint(choice=[filled(f"the answer to {nonce}", SHORT_CHARACTERS)])
        request = Request(id=id_, key=f"key-{key}", prompt=f"What of {id_}, nonce {nonce}?", output=output)
        return Composed(request, self._lanes[key])


def filled(text: str, characters: int) -> str:
    """A text repeated up to a length."""
    return (f"{text}, " * (characters // len(text) + 1))[:characters]


async def right_answers(requests: Mapping[str, Request]) -> dict[str, str]:
    """The text of each request's one right answer: what a fresh simulated engine says, taking no time."""
    engine = SimulatedEngine(SimulatedProfile(time_scale=0))
    await engine.start()
    answers: dict[str, str] = {}
    for id_, request in requests.items():
        assert request.prompt is not None, "a composed request has a prompt"
        if request.output is not None and request.output.choice:
            answers[id_] = request.output.choice[0]
            continue
        token_ids = await engine.encode(TextPrompt(request.prompt))
        job = GenerationJob(id_, token_ids, request.sampling or Sampling())
        async for event in engine.generate(job):
            if isinstance(event, Generation):
                answers[id_] = event.choices[0].text
    return answers
