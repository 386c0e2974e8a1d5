"""The endpoint as other clients meet it, each in an environment of its own: `headrace serve`, a worker, and Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from client_environments import CLIENTS, node_with, python_of
from conformance.http_parts import READY_S, SOON_S, Instance, create_topics, write_packages
from waiting import wait_until
from worker_processes import WorkerProcess

from headrace.schemas.settings import Settings

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]  # the first run installs them

# The calls of each client's script whose outcome is a Mood; and those whose outcome is a text, or texts.
MOODS = {
    "instructor": {"tools", "tools_strict", "json_schema", "json", "md_json", "partial", "asynchronous"},
    "pydantic_ai": {"model", "tool", "native", "prompted", "with a tool", "stream of a model"},
    "langchain": {
        "structured", "json_schema", "function_calling", "json_mode", "strict", "bound", "asynchronous",
    },
    "llama_index": {"structured", "predict", "response_format", "stream by response_format", "asynchronous"},
}  # fmt: skip
TEXTS = {
    "instructor": {"plain"},
    "pydantic_ai": {"plain", "stream"},
    "langchain": {"plain", "after a tool", "batch", "stream", "completion"},
    "llama_index": {"plain", "complete", "stream", "completion"},
}
# These leave it to the model whether it calls the tool, and cannot be told otherwise.
REFUSED = {"llama_index": {"stream of a model": "'tool_choice' is not supported: auto"}}

NODE_MOODS = {"parse", "tool", "stream of a model"}
NODE_TEXTS = {"plain", "stream", "completion"}


class Scene:
    """The endpoint and its workers."""

    def __init__(self, endpoint: Instance, workers: list[WorkerProcess]) -> None:
        self.endpoint = endpoint
        self._workers = workers

    def running(self) -> int:
        """How many requests are in the engines."""
        return round(sum(worker.metric("headrace_in_flight") for worker in self._workers))

    def generations(self) -> int:
        """How many were begun."""
        return round(sum(worker.metric("headrace_generation_attempts_total") for worker in self._workers))


@pytest.fixture(scope="module")
def scene(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    place = tmp_path_factory.mktemp("clients")
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
                    HEADRACE_SIMULATED_TIME_SCALE="0.5",  # 5 ms for each token, which is four characters
                )
            )
            for package in write_packages(place)
        ]
        endpoint = stack.enter_context(Instance(settings, log=place / "endpoint.log"))
        for worker in workers:
            worker.wait_ready(READY_S)
        endpoint.wait_ready(READY_S)
        yield Scene(endpoint, workers)


def outcomes(*command: str | Path) -> dict[str, Any]:
    """What a client's script tells. What it writes to standard error is shown where the test fails."""
    # Nothing of this environment's, and no key of whoever runs the tests.
    hidden = ("PYTHON", "VIRTUAL_ENV", "OPENAI_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0
    return json.loads(done.stdout.splitlines()[-1])


def check_mood(mood: Any) -> None:
    assert mood.keys() == {"mood", "score", "tags"}
    assert mood["mood"] in ("bright", "dark", "calm")
    assert 1 <= mood["score"] <= 9
    assert 1 <= len(mood["tags"]) <= 3


def check_text(text: Any) -> None:
    assert all(isinstance(each, str) and each for each in (text if isinstance(text, list) else [text])), text


@pytest.mark.parametrize("client", MOODS)
def test_a_client_gets_texts_and_structured_answers(scene: Scene, client: str) -> None:
    refused_before = scene.endpoint.calls(status="400")
    found = outcomes(python_of(client), CLIENTS / f"{client}_client.py", scene.endpoint.url)
    for name in MOODS[client]:
        check_mood(found.pop(name))
    for name in TEXTS[client]:
        check_text(found.pop(name))
    for name, reason in REFUSED.get(client, {}).items():
        assert reason in found.pop(name)["error"]
    if client == "langchain":
        assert found.pop("logprobs") > 0
    assert found == {}
    assert scene.endpoint.calls(status="400") - refused_before == len(REFUSED.get(client, {}))


def test_the_client_for_node_gets_texts_and_structured_answers(scene: Scene) -> None:
    begun_before = scene.generations()
    found = outcomes(*node_with("openai_node.mjs"), scene.endpoint.url)
    for name in NODE_MOODS:
        check_mood(found.pop(name))
    for name in NODE_TEXTS:
        check_text(found.pop(name))
    assert found.pop("usage of a stream") > 0
    assert {"free", "tagged"} <= set(found.pop("models"))
    assert found.pop("refused") == {
        "kind": "BadRequestError",
        "status": 400,
        "param": "responseFormat",
        "code": "unknown_parameter",
    }
    # Told before it gives up by itself, and that it should not try again; nothing goes on for who has left.
    assert found.pop("timed out") == {"kind": "InternalServerError", "status": 504}
    assert found.pop("left") == "after the first token"
    assert found == {}
    wait_until(lambda: scene.running() == 0, SOON_S, "the engines to be idle")
    assert scene.generations() - begun_before == 9
