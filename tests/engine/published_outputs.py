"""Schemas and a real engine: what is published as `ok` under each, judged from the bytes by two validators.

    python tests/engine/published_outputs.py SCHEMAS.jsonl ... --bootstrap HOST:PORT --backend guidance

A worker with the tiny model, at temperature 1 and pushed towards closing what it opened, generates several times
under each schema of the files; one JSON object tells what came of it. Needs `tests` on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.closing_bias import closing_bias
from engine.published_report import report_of
from packages import a_package
from worker_processes import PARTITIONS, create_topics

from headrace.consumers.records import TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.ops.bench.tiny_model import tiny_model
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.enforcement import Backend
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.workers.engine import Engine
from headrace.workers.vllm_engine import VllmEngine
from headrace.workers.worker import Worker


@dataclass(frozen=True)
class Questions:
    """What a worker is asked: each schema so many times."""

    schemas: Sequence[dict[str, Any]]  # each {"name", "schema"}
    generations: int = 10  # of each schema
    max_tokens: int = 300  # of each generation
    silence_s: float = 300.0  # so long without a result is too long

    def requests(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each with its partition; its id is `<index of schema>/<round>`."""
        for round_ in range(self.generations):
            for number, named in enumerate(self.schemas):
                value = {
                    "id": f"{number}/{round_}",
                    "prompt": f"An example of {named['name']}, number {round_}:",
                    "output": {"json_schema": named["schema"]},
                    "sampling": {"temperature": 1.0, "max_tokens": self.max_tokens},
                }
                yield number % PARTITIONS, value


def schemas_of(*files: Path) -> list[dict[str, Any]]:
    """Of JSON lines, each `{"name", "schema", "tests": [{"valid", "data"}]}`."""
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


async def published(engine: Engine, questions: Questions, bootstrap: str) -> list[dict[str, Any]]:
    """What a worker with this engine publishes, as the bytes say it. It ends the engine."""
    prefix = f"published-{uuid.uuid4().hex[:8]}"
    settings = Settings.from_environment(bootstrap_servers=bootstrap, prefix=prefix, metrics_port=0)
    names = ContractNames(prefix, "published", 1)
    await asyncio.to_thread(create_topics, bootstrap, names)
    with tempfile.TemporaryDirectory() as directory:
        package = a_package(Path(directory), model=names.model, user=None)
    worker = Worker(settings=settings, package=package, engine=engine, slot="slot-1")
    ended = threading.Event()
    running = asyncio.create_task(worker.run())
    running.add_done_callback(lambda _: ended.set())
    ready = asyncio.create_task(worker.ready.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    try:
        return await asyncio.to_thread(_ask, questions, settings, names, ended)
    finally:
        ready.cancel()
        worker.stop()
        await running  # raises what ended it


def _ask(
    questions: Questions, settings: Settings, names: ContractNames, ended: threading.Event
) -> list[dict[str, Any]]:
    """Send all, and read until each has its result or the worker has `ended`."""
    producer = PlainProducer(settings)
    tail = TailReader(settings, [TopicPartition(names.results, n) for n in range(PARTITIONS)], "beginning")
    wanted, results = len(questions.schemas) * questions.generations, list[dict[str, Any]]()
    try:
        for partition, value in questions.requests():
            key, text = value["id"].encode(), json.dumps(value).encode()
            producer.send(OutgoingRecord(names.requests("standard"), key, text, partition=partition))
        deadline = time.monotonic() + questions.silence_s
        while len(results) < wanted and not ended.is_set():
            if records := tail.poll(1.0):
                deadline = time.monotonic() + questions.silence_s
            if time.monotonic() > deadline:
                seconds = f"{questions.silence_s:.0f} s of silence"
                raise TimeoutError(f"{len(results)} of {wanted} results, then {seconds}")
            results += [json.loads(record.value or b"") for record in records]
    finally:
        tail.close()
        producer.close()
    return results


async def _run(questions: Questions, bootstrap: str, backend: Backend) -> list[dict[str, Any]]:
    arguments = {"max_model_len": 1024, "enforce_eager": True, "dtype": "float32", "max_num_seqs": 64}
    engine = VllmEngine(
        tiny_model(Settings.from_environment().cache_dir / "models"),
        engine_arguments=arguments,
        structured_outputs_backend=backend,
    )
    with closing_bias(engine):
        return await published(engine, questions, bootstrap)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("schemas", type=Path, nargs="+")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--backend", choices=["guidance", "xgrammar"], default="guidance")
    parser.add_argument("--generations", type=int, default=Questions.generations)
    parser.add_argument("--max-tokens", type=int, default=Questions.max_tokens)
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    questions = Questions(schemas_of(*given.schemas), given.generations, given.max_tokens)
    results = asyncio.run(_run(questions, given.bootstrap, given.backend))
    with suppress(BrokenPipeError):
        json.dump(vars(report_of(questions.schemas, results)), sys.stdout)


if __name__ == "__main__":
    main()
