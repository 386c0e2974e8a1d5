"""Calls that wait for a worker: comments keep their streams open, and who would wait too long is told so at once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from conformance.http_parts import (
    FREE,
    READY_S,
    SOON_S,
    Instance,
    ask,
    client_of,
    says,
    write_packages,
)
from waiting import wait_until
from worker_processes import Traffic, WorkerProcess, create_topics, traffic

from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

MODEL = f"{FREE}@1"  # pinned: it is found before any worker has said that it serves it
COMMENT = ": keep-alive"
IN_FLIGHT = 2
CALL_S = 0.25  # that the worker takes for a call
CALLS = 70  # so many show a rate: more than 20, and for more than 5 seconds


class Scene:
    """A contract's topics, workers that come and go, and what lies in the queue."""

    def __init__(self, settings: Settings, place: Path, sends: Traffic, stack: ExitStack) -> None:
        self.settings = settings
        self._place = place
        self._package = write_packages(place)[0]
        self._sends = sends
        self._stack = stack
        self._started = 0

    def endpoint(self, *options: str) -> Instance:
        self._started += 1
        log = self._place / f"endpoint-{self._started}.log"
        found = self._stack.enter_context(Instance(self.settings, log=log, options=("--no-auth", *options)))
        found.wait_ready(READY_S)
        return found

    def worker(self) -> WorkerProcess:
        self._started += 1
        return self._stack.enter_context(
            WorkerProcess(
                str(self.settings.bootstrap_servers),
                self._package,
                prefix=self.settings.prefix,
                log=self._place / f"worker-{self._started}.log",
                options=("--max-in-flight", str(IN_FLIGHT)),
                HEADRACE_SIMULATED_TIME_SCALE="1",  # 10 ms for each token, which is four characters
            )
        )

    def queue(self, count: int) -> None:
        """Put so many requests before those that come now."""
        for number in range(count):
            request = {
                "id": f"queued-{uuid.uuid4().hex}-{number}",
                "prompt": "x",
                "sampling": {"max_tokens": 1},
            }
            self._sends.send(request, "interactive")
        self._sends.read()


@pytest.fixture
def scene(kafka_bootstrap: str, unique_prefix: str, tmp_path: Path) -> Iterator[Scene]:
    settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=unique_prefix)
    names = ContractNames(unique_prefix, FREE, 1)
    create_topics(kafka_bootstrap, names)
    with ExitStack() as stack, traffic(kafka_bootstrap, names) as sends:
        yield Scene(settings, tmp_path, sends, stack)


def status_of(endpoint: Instance, timeout_s: float) -> int:
    """What becomes of a call that may take so long."""
    return post(endpoint, timeout_s).status_code


def post(endpoint: Instance, timeout_s: float, **fields: Any) -> httpx.Response:
    with httpx.Client(timeout=120) as client:
        headers = {"X-Request-Timeout": f"{timeout_s:g}"}
        body = says(model=MODEL, max_tokens=3) | fields
        return client.post(f"{endpoint.url}/chat/completions", json=body, headers=headers)


def refusal(endpoint: Instance, *, least_s: int = 1) -> list[httpx.Response]:
    """What a call is told that may take a second and would have to wait at least so long; nothing if it is let in."""
    answer = post(endpoint, 1)
    assert answer.status_code in (429, 504)
    return [answer] if answer.status_code == 429 and int(answer.headers["retry-after"]) >= least_s else []


def test_a_stream_that_no_worker_takes_up_is_kept_open_until_one_does(scene: Scene) -> None:
    endpoint = scene.endpoint("--keep-alive", "0.2")
    lines: list[str] = []
    with httpx.Client(timeout=READY_S) as client:
        asked = client.stream("POST", f"{endpoint.url}/chat/completions", json=says(model=MODEL, stream=True))
        with asked as answer:
            for line in answer.iter_lines():
                lines += [line] if line else []
                if lines.count(COMMENT) == 3 and line == COMMENT:
                    scene.worker()
    assert lines[:3] == [COMMENT] * 3
    data = [line for line in lines if line != COMMENT]
    assert data[-1] == "data: [DONE]"
    assert '"role":"assistant"' in data[0]


def test_a_stream_whose_time_passes_amid_comments_ends_with_an_error_that_clients_raise(scene: Scene) -> None:
    endpoint = scene.endpoint("--keep-alive", "0.2")
    with client_of(endpoint) as client:
        create: Any = client.chat.completions.create
        stream = create(**says(model=MODEL), stream=True, extra_headers={"X-Request-Timeout": "2"})
        with pytest.raises(openai.APIError) as late:
            list(stream)
    assert not isinstance(late.value, openai.APIStatusError)  # with the first comment the status had gone out
    assert late.value.code in ("expired", "no_reply")


def test_who_would_wait_beyond_his_deadline_is_told_when_to_come_back(scene: Scene) -> None:
    endpoint, worker = scene.endpoint(), scene.worker()
    worker.wait_ready(READY_S)
    lasting = {"structured_outputs": {"regex": f"[a-z]{{{round(400 * CALL_S)}}}"}, "max_tokens": 500}
    with ThreadPoolExecutor(CALLS) as pool:
        calls = [pool.submit(post, endpoint, 100, **lasting) for _ in range(CALLS)]
        assert [call.result().status_code for call in calls] == [200] * CALLS
    worker.kill()

    # The workers are known to do about eight a second.
    scene.queue(60)
    (refused,) = wait_until(lambda: refusal(endpoint), SOON_S, "a call to be refused")
    assert refused.json()["error"]["code"] == "engine_overloaded"
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    with client_of(endpoint, max_retries=0) as client, pytest.raises(openai.RateLimitError) as told:
        ask(client, model=MODEL, extra_headers={"X-Request-Timeout": "1"})
    assert told.value.code == "engine_overloaded"

    # Who has the time is let in, and answered once there is a worker again.
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(status_of, endpoint, 90)
        second = scene.worker()
        second.wait_ready(READY_S)
        assert patient.result(90) == 200
    second.kill()

    # The official clients wait two minutes at most: they are told no more, however deep the queue is.
    # It is looked at while it grows, so that the first answers may name less.
    scene.queue(4000)
    (deep,) = wait_until(lambda: refusal(endpoint, least_s=120), SOON_S, "the deeper queue to be seen")
    assert deep.headers["retry-after"] == "120"


def test_where_no_rate_is_known_nobody_is_refused_whatever_lies_in_the_queue(scene: Scene) -> None:
    scene.queue(500)
    endpoint = scene.endpoint()
    # The queue is looked at once a second from the first call on.
    assert [status_of(endpoint, 1) for _ in range(6)] == [504] * 6
