"""The endpoint as the official client meets it: workers on the session's vLLM, and `headrace serve`, on Kafka."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import openai
import pytest
from conformance.http_parts import (
    IN_FLIGHT,
    READY_S,
    Engine,
    Stage,
    create_topics,
    many_letters,
    says,
    text_of,
    write_package_with_tools,
    write_packages,
)
from conformance.http_parts import stage as opened
from conformance.http_port import HttpPort
from engine.told_calls import calls_as_told
from prometheus_client import REGISTRY

from headrace.ops.bench.tiny_model import CONTEXT
from headrace.schemas.enforcement import Enforcement
from headrace.schemas.messages import OutputConstraint
from headrace.schemas.package import load_package
from headrace.schemas.settings import Settings
from headrace.workers.engine import Delta, EngineIdentity, Generation, GenerationJob, Prompt
from headrace.workers.vllm_engine import VllmEngine
from headrace.workers.worker import Worker

if TYPE_CHECKING:
    from engine.conftest import LoopThread

LETTERS_A_SECOND = 220  # where nothing else runs; letters that the tokenizer has no longer tokens of
MOST_LETTERS = 880  # with their prompt they fill the model's context


def lasting(seconds: float) -> Any:
    return many_letters(min(MOST_LETTERS, round(seconds * LETTERS_A_SECOND)), "[qxy]")


class SharedEngine:
    """The session's engine, for workers that come and go: it was started before them, and outlives them."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine

    @property
    def identity(self) -> EngineIdentity:
        return self._engine.identity

    async def start(self) -> None:
        """It runs."""

    async def probe(self) -> None:
        await self._engine.probe()

    async def encode(self, prompt: Prompt) -> list[int]:
        return await self._engine.encode(prompt)

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        return await self._engine.enforcement_of(constraint)

    def generate(self, job: GenerationJob) -> AsyncIterator[Delta | Generation]:
        return self._engine.generate(job)

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    def check_health(self) -> None:
        self._engine.check_health()

    async def shutdown(self) -> None:
        """Others use it."""


@contextmanager
def worker_on(
    engine: VllmEngine, loop: LoopThread, settings: Settings, package: Path
) -> Generator[tuple[Worker, asyncio.Task[None]]]:
    """A worker on the engine's loop; not ready yet."""

    async def begin() -> tuple[Worker, asyncio.Task[None]]:
        worker = Worker(
            settings=settings, package=load_package(package), engine=SharedEngine(engine), slot="slot-1"
        )
        return worker, asyncio.create_task(worker.run())

    async def end() -> None:
        worker.stop()
        await life

    worker, life = loop.run(begin())
    try:
        yield worker, life
    finally:
        loop.run(end())


def attempts(model: str) -> int:
    """How many generations this process has begun for a model."""
    labels = {"model": model, "model_version": "1"}
    return round(REGISTRY.get_sample_value("headrace_generation_attempts_total", labels) or 0)


@pytest.fixture(scope="module")
def stage(
    kafka_bootstrap: str,
    vllm_engine: VllmEngine,
    vllm_loop: LoopThread,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    place = tmp_path_factory.mktemp("http")
    settings = Settings(
        bootstrap_servers=kafka_bootstrap,
        prefix=f"t{uuid.uuid4().hex[:12]}",
        metrics_port=0,
        max_in_flight=IN_FLIGHT,
    )
    create_topics(settings)
    packages = (*write_packages(place), write_package_with_tools(place))
    with ExitStack() as stack:
        stack.enter_context(calls_as_told(vllm_engine))
        workers = [
            stack.enter_context(worker_on(vllm_engine, vllm_loop, settings, package)) for package in packages
        ]
        engine = Engine(
            running=lambda: vllm_engine.running_jobs,
            generations=lambda: sum(attempts(each.name) for each in packages),
            lasting=lasting,
            context=CONTEXT,
            simulated=False,
        )

        def workers_are_ready() -> None:
            async def ready() -> None:
                for worker, life in workers:
                    waiting = asyncio.create_task(worker.ready.wait())
                    await asyncio.wait({waiting, life}, return_when=asyncio.FIRST_COMPLETED)
                    assert not life.done(), "the worker has ended"

            vllm_loop.run(ready(), READY_S)

        yield stack.enter_context(opened(settings, place, engine, workers_are_ready))


class TestHttpVllm(HttpPort):
    # Whose answer is there first within fractions of a second is no matter of the engine's, which wants all processors.
    test_the_answer_to_a_client_that_would_give_up_comes_before_it_does = None  # pyright: ignore[reportAssignmentType]

    def test_under_a_schema_that_decoding_does_not_hold_the_text_comes_whole_and_valid(
        self, stage: Stage
    ) -> None:
        schema: dict[str, Any] = {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 2}
        schema["uniqueItems"] = True
        held = {"name": "numbers", "schema": schema}
        asked = says(temperature=1.0, response_format={"type": "json_schema", "json_schema": held})
        outcomes = [self._outcome(stage, seed=seed, **asked) for seed in range(12)]
        texts = [outcome for outcome in outcomes if isinstance(outcome, list)]
        # What does not hold is told by the status: nothing was sent before.
        assert {outcome for outcome in outcomes if not isinstance(outcome, list)} <= {"schema_violated"}
        assert texts
        for (text,) in texts:  # in one piece
            jsonschema.validate(json.loads(text), schema)

    def _outcome(self, stage: Stage, **asked: Any) -> list[str] | str | None:
        """The pieces of a streamed answer, or the code of the error."""
        try:
            chunks = list(stage.client.chat.completions.create(**asked, stream=True))
        except openai.UnprocessableEntityError as error:
            return error.code
        return [text for chunk in chunks if (text := text_of([chunk]))]
