"""What each step of a request costs by itself, in microseconds of one core."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import CommitPoint
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.messages import Output, Provenance, Request, Result, Sampling
from headrace.schemas.output_schema import OutputSchema
from headrace.workers.engine import GenerationJob, TextPrompt
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile

ROUNDS = 2_000

SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["bright", "dark", "calm"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
        "score": {"type": "integer", "minimum": 1, "maximum": 10},
    },
    "required": ["mood", "tags", "score"],
    "additionalProperties": False,
}


def measure() -> dict[str, float]:
    """Microseconds for each step."""
    codec = Codec()
    text = json.dumps({"mood": "dark", "tags": ["revenge", "night", "city"], "score": 8})
    request = Request(id="film-17", variables={"title": "Heat", "year": "1995", "director": "Michael Mann"})
    result = Result(
        id="film-17",
        status="ok",
        outputs=[Output(text=text, finish_reason="stop", value=json.loads(text))],
        provenance=Provenance(
            model="tagger",
            version="1",
            contract=1,
            engine="simulated",
            engine_version="1",
            slot="s",
            source_topic="headrace.tagger.c1.requests.standard",
            source_partition=3,
            source_offset=1_000,
        ),
    )
    schema = OutputSchema.parse(SCHEMA)
    found: dict[str, float] = {}
    for encoding in (Encoding.SINGLE_OBJECT, Encoding.JSON):
        data = codec.encode(request, encoding)
        name = "JSON" if encoding is Encoding.JSON else "Avro"
        found[f"decode a request, {name}"] = _cost(lambda data=data: codec.decode(Request, data))
        found[f"encode a result, {name}"] = _cost(lambda encoding=encoding: codec.encode(result, encoding))
    found["parse and validate an output"] = _cost(lambda: schema.check(text))
    found["track and commit an offset"] = _offsets()
    found["the simulated engine itself"] = asyncio.run(_simulated())
    return found


def _cost(step: Callable[[], object]) -> float:
    step()
    began = time.perf_counter()
    for _ in range(ROUNDS):
        step()
    return (time.perf_counter() - began) / ROUNDS * 1e6


async def _simulated() -> float:
    """What the front end's figure contains that is not the front end's: a free text of the simulated engine."""
    engine = SimulatedEngine(SimulatedProfile(time_scale=0))
    await engine.start()
    sampling = Sampling(max_tokens=16)
    began = time.perf_counter()
    for number in range(ROUNDS):
        token_ids = await engine.encode(
            TextPrompt(f"Tell me about number {number % 100}, in a few words, please.")
        )
        async for _ in engine.generate(GenerationJob(f"stage-{number}", token_ids, sampling)):
            pass
    return (time.perf_counter() - began) / ROUNDS * 1e6


def _offsets() -> float:
    """With a commit for every fifty: nothing may be started that is not below a committed mark."""
    offsets = PartitionOffsets(CommitPoint(0, ""), epoch=1, beginning=0, end=0)
    began = time.perf_counter()
    for offset in range(ROUNDS):
        if offset % 50 == 0:
            offsets.committed(offsets.commit_point())
        offsets.polled(offset)
        offsets.start(offset)
        offsets.done(offset, 1)
    return (time.perf_counter() - began) / ROUNDS * 1e6
