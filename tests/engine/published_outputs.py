"""Schemas and a real engine: what is published as `ok` under each, judged from the bytes by two validators.

    python tests/engine/published_outputs.py SCHEMAS.jsonl --bootstrap HOST:PORT --backend guidance

A worker with the tiny model, at temperature 1, generates several times under each schema of the file; one JSON object
tells what came of it. The model is random and would hardly ever end a string: its logits are pushed towards tokens
that close something.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
from worker_processes import create_topics

from headrace.consumers.kafka import TailReader
from headrace.consumers.records import TopicPartition
from headrace.ops.bench.tiny_model import tiny_model
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.errors import InvalidSchema, OutputError
from headrace.schemas.output_schema import OutputSchema
from headrace.schemas.package import load_package
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.workers.vllm_engine import VllmEngine
from headrace.workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.workers.engine import GenerationJob

PARTITIONS = 4
CLOSING_BIAS = 8.0  # against logits near 0: a closing token is then about as likely as all others together
MAX_TOKENS = 300
SILENCE_S = 300.0
ONE_JUDGEMENT_S = 5  # jsonschema has no bound of its own on patterns


class ClosingEngine(VllmEngine):
    """vLLM, with a bias towards tokens that close a string, an object, an array, or the output."""

    _closing: dict[int, float] | None = None

    def _sampling_params(self, job: GenerationJob) -> Any:
        params = super()._sampling_params(job)
        params.logit_bias = self._bias()
        return params

    def _bias(self) -> dict[int, float]:
        if self._closing is None:
            tokenizer: Any = self._llm.get_tokenizer() if hasattr(self._llm, "get_tokenizer") else None
            if asyncio.iscoroutine(tokenizer) or tokenizer is None:
                if tokenizer is not None:
                    tokenizer.close()
                tokenizer = self._llm.renderer.tokenizer
            self._closing = {
                token: CLOSING_BIAS
                for token in range(len(tokenizer))
                if (text := tokenizer.decode([token]).strip()) and set(text) <= set('"}],')
            }
            self._closing[tokenizer.eos_token_id] = CLOSING_BIAS
        return self._closing


@dataclass
class Report:
    """What came of all schemas. Names are those of the file."""

    schemas: int = 0
    generations: int = 0
    statuses: Counter[str] = field(default_factory=Counter[str])
    codes: Counter[str] = field(default_factory=Counter[str])
    tiers: Counter[str] = field(default_factory=Counter[str])  # of schemas
    with_an_ok: int = 0  # schemas
    without_an_ok: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # and what came instead
    wrong: list[str] = field(
        default_factory=list[str]
    )  # published as ok, and our own validator does not accept it
    doubted: list[str] = field(default_factory=list[str])  # the same of jsonschema


@contextmanager
def limited() -> Iterator[None]:
    def over(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, over)
    signal.alarm(ONE_JUDGEMENT_S)
    try:
        yield
    finally:
        signal.alarm(0)


def judge(report: Report, real: dict[str, Any], text: str) -> None:
    """Hold a published output against its schema, with both validators."""
    name, schema = real["name"], real["schema"]
    try:
        OutputSchema.parse(schema).check(text)
    except (OutputError, InvalidSchema) as error:
        report.wrong.append(f"{name}: {error}: {text[:200]}")
    try:
        with limited():
            validator = jsonschema.validators.validator_for(schema)
            validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))
    except TimeoutError:
        pass
    except Exception as error:  # noqa: BLE001  (whatever it has against the text or the schema)
        report.doubted.append(f"{name}: {type(error).__name__}: {str(error)[:200]}: {text[:200]}")


async def run(
    schemas: Sequence[dict[str, Any]], bootstrap: str, backend: Any, generations: int
) -> list[dict[str, Any]]:
    """The results, as their bytes say them."""
    settings = Settings(
        bootstrap_servers=bootstrap, prefix=f"published-{uuid.uuid4().hex[:8]}", metrics_port=0
    )
    names = ContractNames(settings.prefix, "published", 1)
    create_topics(bootstrap, names)
    arguments = {"max_model_len": 1024, "enforce_eager": True, "dtype": "float32", "max_num_seqs": 64}
    engine = ClosingEngine(
        tiny_model(settings.cache_dir / "models"),
        engine_arguments=arguments,
        structured_outputs_backend=backend,
    )
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "package.toml").write_text(
            'model = "published"\nversion = "1"\ncontract = 1\nweights = "none/none"\n'
        )
        package = load_package(Path(directory))
    worker = Worker(settings=settings, package=package, engine=engine, slot="slot-1")
    running = asyncio.create_task(worker.run())
    ready = asyncio.create_task(worker.ready.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running
    try:
        return await asyncio.to_thread(ask, schemas, settings, names, generations)
    finally:
        worker.stop()
        await running


def ask(
    schemas: Sequence[dict[str, Any]], settings: Settings, names: ContractNames, generations: int
) -> list[dict[str, Any]]:
    producer = PlainProducer(settings)
    tail = TailReader(settings, [TopicPartition(names.results, n) for n in range(PARTITIONS)], "beginning")
    wanted, results = len(schemas) * generations, list[dict[str, Any]]()
    try:
        for round_ in range(generations):
            for number, real in enumerate(schemas):
                value = {
                    "id": f"{number}/{round_}",
                    "prompt": f"An example of {real['name']}, number {round_}:",
                    "output": {"json_schema": real["schema"]},
                    "sampling": {"temperature": 1.0, "max_tokens": MAX_TOKENS},
                }
                record = OutgoingRecord(
                    names.requests("standard"),
                    value["id"].encode(),
                    json.dumps(value).encode(),
                    partition=number % PARTITIONS,
                )
                producer.send(record)
        deadline = time.monotonic() + SILENCE_S
        while len(results) < wanted:
            records = tail.poll(1.0)
            if records:
                deadline = time.monotonic() + SILENCE_S
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(results)} of {wanted} results in {SILENCE_S:.0f} s of silence")
            results += [json.loads(record.value or b"") for record in records]
    finally:
        tail.close()
        producer.close()
    return results


def report_of(schemas: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> Report:
    """In the main thread: only there a judgement can be cut short."""
    report = Report(schemas=len(schemas), generations=len(results))
    outcomes: dict[int, Counter[str]] = defaultdict(Counter)
    for result in results:
        take(report, outcomes, schemas, result)
    for number, real in enumerate(schemas):
        if outcomes[number]["ok"]:
            report.with_an_ok += 1
        else:
            report.without_an_ok[real["name"]] = [
                f"{what}: {times}" for what, times in outcomes[number].items()
            ]
    return report


def take(
    report: Report,
    outcomes: dict[int, Counter[str]],
    schemas: Sequence[dict[str, Any]],
    result: dict[str, Any],
) -> None:
    number, round_ = (int(part) for part in result["id"].split("/"))
    status = result["status"]
    report.statuses[status] += 1
    if (error := result.get("error")) is not None:
        report.codes[error["code"]] += 1
    outcomes[number][
        "ok" if status == "ok" else f"{status}: {(result.get('error') or {}).get('message', '')[:160]}"
    ] += 1
    if round_ == 0:
        report.tiers[str(result["provenance"].get("tier"))] += 1
    if status == "ok":
        judge(report, schemas[number], result["outputs"][0]["text"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("schemas", type=Path)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--backend", choices=["guidance", "xgrammar"], default="guidance")
    parser.add_argument("--generations", type=int, default=10)
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    schemas = [json.loads(line) for line in given.schemas.read_text("utf-8").splitlines()]
    results = asyncio.run(run(schemas, given.bootstrap, given.backend, given.generations))
    report = report_of(schemas, results)
    with suppress(BrokenPipeError):
        json.dump(vars(report), sys.stdout)


if __name__ == "__main__":
    main()
