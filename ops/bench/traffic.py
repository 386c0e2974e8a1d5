"""Requests out, results in: the other side of a worker under measurement, in a process of its own.

python -m headrace.ops.bench.traffic JSON      (a Load as a JSON object; prints a Seen)
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass

from headrace.consumers.records import TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.codec import Codec
from headrace.schemas.messages import Lane, Request, Result, Sampling
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

SILENCE_S = 120.0  # without any result: something is wrong


@dataclass(frozen=True, slots=True)
class Load:
    """What to send. `prompts` are used in turn."""

    bootstrap_servers: str
    prefix: str
    model: str
    contract: int
    partitions: int
    requests: int
    prompts: list[str]
    max_tokens: int | None = None
    outstanding: int = 5_000  # requests sent and not answered, at most
    decode: bool = True  # results, for their tokens; else they are only counted
    lane: Lane = "standard"


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of it. Times in seconds since the epoch."""

    first_sent: float
    first_admitted: float  # to the engine
    last_finished: float  # its output checked
    last_result: float  # read by another service, after its commit
    results: int
    not_ok: int
    completion_tokens: int


def run(load: Load) -> Seen:
    """Send the load, bounded by what is outstanding, and read all its results."""
    names = ContractNames(load.prefix, load.model, load.contract)
    settings = Settings(bootstrap_servers=load.bootstrap_servers, prefix=load.prefix)
    partitions = [TopicPartition(names.results, number) for number in range(load.partitions)]
    reader = TailReader(settings, partitions, "end")
    producer = PlainProducer(settings)
    codec = Codec()
    sampling = Sampling(max_tokens=load.max_tokens) if load.max_tokens else None
    sent = results = not_ok = tokens = 0
    first_sent = last_result = last_finished = time.time()
    first_admitted = float("inf")
    sent_at: dict[str, float] = {}
    while results < load.requests:
        while sent < load.requests and sent - results < load.outstanding:
            request = Request(
                id=f"r{sent}-{first_sent}", prompt=load.prompts[sent % len(load.prompts)], sampling=sampling
            )
            value = codec.encode(request)
            sent_at[request.id] = time.time()
            producer.send(OutgoingRecord(names.requests(load.lane), request.id.encode(), value))
            sent += 1
        for record in reader.poll(0.5, 2_000):
            results += 1
            last_result = time.time()
            if load.decode:
                result = codec.decode(Result, record.value).message
                not_ok += result.status != "ok"
                tokens += result.usage.completion_tokens
                began = sent_at.pop(result.id)
                first_admitted = min(first_admitted, began + result.timings.queued_ms / 1000)
                last_finished = max(last_finished, began + result.timings.total_ms / 1000)
        if time.time() - last_result > SILENCE_S:
            break
    producer.close()
    reader.close()
    return Seen(
        first_sent, min(first_admitted, last_result), last_finished, last_result, results, not_ok, tokens
    )


if __name__ == "__main__":
    print(json.dumps(asdict(run(Load(**json.loads(sys.argv[1]))))))  # noqa: T201 (its answer)
