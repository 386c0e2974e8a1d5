"""What a tenant may take of an instance, whatever keys it has: its places, and its calls of a minute."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from conformance.http_parts import (
    FREE,
    READY_S,
    SOON_S,
    Instance,
    ask,
    client_of,
    create_topics,
    many_letters,
    streamed,
    write_packages,
)
from waiting import wait_until
from worker_processes import WorkerProcess

from headrace.producers.http.caller import UNLIMITED, Limits
from headrace.producers.http.keys import create_key
from headrace.schemas.settings import Settings

TENANTS = {"films": "acme", "series": "acme", "other": "globex", "gateway": None}  # key: tenant
LONG = many_letters(4000)  # 10 seconds


class Scene:
    """A worker, and instances that ask for keys."""

    def __init__(self, settings: Settings, place: Path, keys: dict[str, str], file: Path) -> None:
        self._settings = settings
        self._place = place
        self._keys = keys
        self._file = file

    @contextmanager
    def endpoint(self, *options: str) -> Generator[Instance]:
        log = self._place / f"endpoint-{uuid.uuid4().hex}.log"
        given = ("--keys", str(self._file), "--trust-tenant-header", *options)
        with Instance(self._settings, log=log, options=given) as found:
            found.wait_ready(READY_S)
            with client_of(found, self._keys["films"]) as client:
                wait_until(
                    lambda: FREE in [each.id for each in client.models.list()],
                    SOON_S,
                    "the model to be known",
                )
            yield found

    def caller(self, endpoint: Instance, name: str, **options: Any) -> openai.OpenAI:
        return client_of(endpoint, self._keys[name], max_retries=0, **options)


@pytest.fixture(scope="module")
def scene(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    place = tmp_path_factory.mktemp("tenants")
    settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=f"t{uuid.uuid4().hex[:12]}")
    create_topics(settings)
    file, now_ms = place / "api_keys.json", int(time.time() * 1000)
    limits = {"series": Limits(max_concurrent=1)}
    keys = {
        name: create_key(file, name, tenant=tenant, now_ms=now_ms, limits=limits.get(name, UNLIMITED))[1]
        for name, tenant in TENANTS.items()
    }
    with ExitStack() as stack:
        worker = stack.enter_context(
            WorkerProcess(
                kafka_bootstrap,
                write_packages(place)[0],
                prefix=settings.prefix,
                log=place / "worker.log",
                HEADRACE_SIMULATED_TIME_SCALE="1",
            )
        )
        worker.wait_ready(READY_S)
        yield Scene(settings, place, keys, file)


def test_all_keys_of_a_tenant_together_have_its_places(scene: Scene) -> None:
    with (
        scene.endpoint("--tenant-max-concurrent", "2") as endpoint,
        scene.caller(endpoint, "films") as films,
        scene.caller(endpoint, "series") as series,
        scene.caller(endpoint, "other") as other,
    ):
        first, second = streamed(films, **LONG), streamed(series, **LONG)
        next(first)
        next(second)
        for client in (films, series):
            with pytest.raises(openai.RateLimitError) as refused:
                ask(client, max_tokens=3)
            assert refused.value.code == "rate_limit_exceeded"
            assert "concurrent requests" in refused.value.message
            assert refused.value.response.headers["retry-after"] == "1"
        assert ask(other, max_tokens=3).choices  # nobody else has to wait for them
        first.close()
        wait_until(lambda: _let_in(films), SOON_S, "the tenant to have a place again")
        with pytest.raises(openai.RateLimitError):  # the key's own place is taken still
            ask(series, max_tokens=3)
        second.close()


def test_a_call_of_more_requests_than_a_tenant_has_places_is_told_not_to_come_back(scene: Scene) -> None:
    with scene.endpoint("--tenant-max-concurrent", "2") as endpoint, scene.caller(endpoint, "films") as films:
        with pytest.raises(openai.RateLimitError) as refused:
            films.completions.create(model=FREE, prompt=["a", "b", "c"], max_tokens=3)
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert len(films.completions.create(model=FREE, prompt=["a", "b"], max_tokens=3).choices) == 2


def test_all_keys_of_a_tenant_together_have_its_calls_of_a_minute(scene: Scene) -> None:
    with (
        scene.endpoint("--tenant-requests-per-minute", "3") as endpoint,
        scene.caller(endpoint, "films") as films,
        scene.caller(endpoint, "series") as series,
        scene.caller(endpoint, "other") as other,
        scene.caller(endpoint, "gateway", default_headers={"X-Headrace-Tenant": "acme"}) as gateway,
    ):
        for client in (films, series, gateway):  # whoever calls for it
            assert ask(client, max_tokens=3).choices
        for client in (films, series, gateway):
            with pytest.raises(openai.RateLimitError) as refused:
                ask(client, max_tokens=3)
            assert "requests per min" in refused.value.message
            assert 1 <= int(refused.value.response.headers["retry-after"]) <= 20
            assert refused.value.response.headers["x-ratelimit-limit-requests"] == "3"
            assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
        for tenant in ("globex", "initech"):
            assert ask(gateway, max_tokens=3, extra_headers={"X-Headrace-Tenant": tenant}).choices
        assert ask(other, max_tokens=3).choices


def _let_in(client: openai.OpenAI) -> bool:
    try:
        return bool(ask(client, max_tokens=3).choices)
    except openai.RateLimitError:
        return False
