"""Pages of other origins: none may call, unless `--cors-origin` names theirs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from conformance.http_parts import READY_S, Instance, create_topics, says

from headrace.ops.cli.serve import serve
from headrace.schemas.settings import Settings

OURS, THEIRS = "https://app.example", "https://elsewhere.example"
ALLOWS = "access-control-allow-origin"
# What the official client sends from a page, beside what any page may send.
HEADERS = "authorization,content-type,x-stainless-lang,x-stainless-retry-count,x-stainless-timeout"


@pytest.fixture(scope="module")
def instances(
    kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Instance]]:
    """By what their `--cors-origin` is; no worker: who may call is decided before."""
    place = tmp_path_factory.mktemp("cors")
    settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=f"t{uuid.uuid4().hex[:12]}")
    create_topics(settings)
    with ExitStack() as stack:
        found: dict[str, Instance] = {}
        for name, origins in {"none": (), "ours": (OURS,), "all": ("*",)}.items():
            options = ("--no-auth", *(part for origin in origins for part in ("--cors-origin", origin)))
            found[name] = stack.enter_context(Instance(settings, log=place / f"{name}.log", options=options))
        for each in found.values():
            each.wait_ready(READY_S)
        yield found


def preflight(instance: Instance, origin: str) -> httpx.Response:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": HEADERS,
    }
    with httpx.Client() as client:
        return client.options(f"{instance.url}/chat/completions", headers=headers)


def calls(instance: Instance, origin: str) -> list[httpx.Response]:
    """An answer, and two errors, each told to a page of that origin, with a cookie of it."""
    headers = {"Origin": origin, "Cookie": "session=1"}
    wrong: Any = says(temperature=-1)
    with httpx.Client(headers=headers) as client:
        return [
            client.get(f"{instance.url}/models"),
            client.get(f"{instance.url}/nowhere"),
            client.post(f"{instance.url}/chat/completions", json=wrong),
        ]


def allowed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("access-control-")}


def test_by_default_no_page_may_call(instances: dict[str, Instance]) -> None:
    asked = preflight(instances["none"], OURS)
    assert asked.status_code == 405
    for answer in [asked, *calls(instances["none"], OURS)]:
        assert allowed(answer.headers) == {}


def test_the_origin_that_is_named_may_call_and_reads_its_errors_too(instances: dict[str, Instance]) -> None:
    asked = preflight(instances["ours"], OURS)
    assert (asked.status_code, asked.headers[ALLOWS]) == (200, OURS)
    assert set(HEADERS.split(",")) <= set(asked.headers["access-control-allow-headers"].split(","))
    answers = calls(instances["ours"], OURS)
    assert [answer.status_code for answer in answers] == [200, 404, 404]
    for answer in answers:
        assert answer.headers[ALLOWS] == OURS
        assert "Origin" in answer.headers["vary"]  # a cache must not show one origin's answer to another


def test_another_origin_may_not(instances: dict[str, Instance]) -> None:
    for origin in (THEIRS, f"{OURS}.evil.example", "null", OURS.upper()):
        asked = preflight(instances["ours"], origin)
        assert asked.status_code == 400
        for answer in [asked, *calls(instances["ours"], origin)]:
            assert ALLOWS not in answer.headers


def test_a_page_may_never_call_with_what_its_browser_knows_of_the_user(
    instances: dict[str, Instance],
) -> None:
    for name, origin in (("ours", OURS), ("all", THEIRS)):
        for answer in [preflight(instances[name], origin), *calls(instances[name], origin)]:
            assert answer.headers[ALLOWS] == ("*" if name == "all" else OURS)
            assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin", [f"{OURS}/", f"{OURS}/page", "app.example", OURS.upper(), "https://me@app.example", ""]
)
def test_what_no_browser_would_send_as_an_origin_is_refused_at_once(origin: str) -> None:
    ended = CliRunner().invoke(serve, ["--no-auth", "--cors-origin", origin])
    assert ended.exit_code == 2
    assert "https://app.example, without a path" in ended.output
