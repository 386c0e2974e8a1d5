"""The endpoint beside `vllm serve` with the same model: for each of many calls, where the answers differ, and why.

`headrace serve` has a worker of its own with vLLM, on real Kafka. Whatever differs must stand in the table of
explanations, which docs/http.md shows, and whatever stands there must differ.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest
from conformance.compared_answers import Difference, Values, differences, observed
from conformance.compared_differences import stale, unexplained
from conformance.compared_requests import COMPARED, MODEL
from conformance.http_parts import SOON_S, Instance
from packages import write_package
from waiting import wait_until
from worker_processes import WorkerProcess, create_topics

from headrace.ops.bench.tiny_model import CONTEXT, tiny_model
from headrace.ops.bench.vllm_server import VllmServer
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

READY_S = 300.0  # two engines load at once
ANSWERED_S = 60.0

ENGINE = f"""
[engine]
max_model_len = {CONTEXT}
dtype = 'float32'
enforce_eager = true
max_num_seqs = 32
"""
# The same, and what Headrace sets by itself. Cached tokens are told here always, there on demand.
SAME: dict[str, int | bool | str] = {
    "max_model_len": CONTEXT,
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 32,
    "scheduling_policy": "priority",
    "structured_outputs_config": json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "enable_prompt_tokens_details": True,
}


@dataclass
class Both:
    """What both servers answered to each call."""

    there: dict[str, Values]
    here: dict[str, Values]

    def differences(self, name: str) -> list[Difference]:
        return differences(self.there[name], self.here[name])


@pytest.fixture(scope="module")
def both(needs_vllm: None, kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    place = tmp_path_factory.mktemp("beside")
    settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=f"t{uuid.uuid4().hex[:12]}")
    create_topics(kafka_bootstrap, ContractNames(settings.prefix, MODEL, 1))
    package = write_package(
        place / "package",
        model=MODEL,
        user=None,
        extra="structured_outputs = 'xgrammar'\ntool_parser = 'hermes'",
    )
    with (package / "package.toml").open("a") as file:
        file.write(ENGINE)
    weights = tiny_model(Settings.from_environment().cache_dir / "models")
    with ExitStack() as stack:
        there = stack.enter_context(
            VllmServer(weights, MODEL, SAME, log=place / "vllm.log", scratch=place / "vllm")
        )
        worker = stack.enter_context(
            WorkerProcess(
                kafka_bootstrap,
                package,
                prefix=settings.prefix,
                log=place / "worker.log",
                engine="vllm",
                options=("--weights", str(weights)),
            )
        )
        here = stack.enter_context(Instance(settings, log=place / "endpoint.log"))
        worker.wait_ready(READY_S)
        there.wait_ready(READY_S)
        address = here.wait_ready(READY_S)
        client = stack.enter_context(httpx.Client(timeout=ANSWERED_S))
        wait_until(
            lambda: client.get(f"{address}/v1/models/{MODEL}").status_code == 200,
            SOON_S,
            "the model to be known",
        )
        # One after the other, in one order: what is cached, and what runs together, is the same in both engines.
        yield Both(
            {each.name: observed(client, there.address, each) for each in COMPARED},
            {each.name: observed(client, address, each) for each in COMPARED},
        )


@pytest.mark.parametrize("name", [each.name for each in COMPARED])
def test_an_answer_differs_from_that_of_vllm_serve_only_where_it_is_explained(both: Both, name: str) -> None:
    assert unexplained(name, both.differences(name)) == []


def test_what_is_explained_does_differ(both: Both) -> None:
    assert stale({each.name: both.differences(each.name) for each in COMPARED}) == []


def test_texts_were_compared(both: Both) -> None:
    texts = {
        value
        for values in both.here.values()
        for path, value in values.items()
        if path.endswith((".content", ".text", ".arguments")) and value
    }
    assert len(texts) > 20
