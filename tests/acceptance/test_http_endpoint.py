"""The endpoint as the official client meets it: a worker process for each model, and `headrace serve`, on Kafka."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from conformance.http_parts import (
    BADLY,
    IN_FLIGHT,
    READY_S,
    Engine,
    Stage,
    ask,
    create_topics,
    many_letters,
    write_package_with_tools,
    write_packages,
)
from conformance.http_parts import stage as opened
from conformance.http_port import HttpPort
from worker_processes import WorkerProcess

from headrace.schemas.settings import Settings

SPOILT = json.dumps([{"kind": "invalid_output", "prompt_contains": BADLY}])
TIME_SCALE = 0.1  # 1 ms for each token, which is four characters
LETTERS_A_SECOND = 4 / (0.01 * TIME_SCALE)


def lasting(seconds: float) -> Any:
    return many_letters(round(seconds * LETTERS_A_SECOND))


@pytest.fixture(scope="module")
def stage(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    place = tmp_path_factory.mktemp("http")
    settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=f"t{uuid.uuid4().hex[:12]}")
    create_topics(settings)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                WorkerProcess(
                    kafka_bootstrap,
                    package,
                    prefix=settings.prefix,
                    log=place / f"{package.name}.log",
                    options=("--max-in-flight", str(IN_FLIGHT)),
                    HEADRACE_SIMULATED_TIME_SCALE=str(TIME_SCALE),
                    HEADRACE_SIMULATED_FAILURES=SPOILT,
                )
            )
            for package in (*write_packages(place), write_package_with_tools(place))
        ]

        def total(metric: str) -> int:
            return round(sum(worker.metric(metric) for worker in workers))

        engine = Engine(
            running=lambda: total("headrace_in_flight"),
            generations=lambda: total("headrace_generation_attempts_total"),
            lasting=lasting,
            context=8192,
            simulated=True,
        )

        def workers_are_ready() -> None:
            for worker in workers:
                worker.wait_ready(READY_S)

        yield stack.enter_context(opened(settings, place, engine, workers_are_ready))


class TestHttpEndpoint(HttpPort):
    def test_a_contract_without_topics_is_not_found_however_many_ask_for_it(self, stage: Stage) -> None:
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(ask, stage.client, model="nobody@7") for _ in range(8)]
        for each in asking:
            missing = each.exception()
            assert isinstance(missing, openai.NotFoundError)
            assert (missing.code, missing.param) == ("model_not_found", "model")
        assert time.monotonic() - began < 10  # they wait together: one after the other it would be 16 s
