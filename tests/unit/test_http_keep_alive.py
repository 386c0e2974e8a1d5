"""Comments in a stream on which nothing else is sent, so that no proxy takes the connection for dead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from headrace.consumers.catalogue import CatalogueRecords, ServingVersion, serving_key, serving_value
from headrace.consumers.contracts import ContractId
from headrace.producers.http.app import create_app
from headrace.producers.http.service import Service, ServiceOptions
from headrace.producers.http.streams import DONE, KEEP_ALIVE
from headrace.producers.testing import InMemoryClient
from headrace.schemas.messages import Request

T = TypeVar("T")
NEVER_S = 3600.0
SOON_S = 0.01
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

JSON = [(b"content-type", b"application/json")]


class Known:
    """One model."""

    ready = True

    def asked(self, ask: Callable[[CatalogueRecords], T]) -> T:
        records = CatalogueRecords()
        one = ServingVersion("free", 1, "1", "vllm", 4_096, False, False, 5_000)
        records.take(serving_key(one), serving_value(one))
        return ask(records)


async def pieces_sent(
    *,
    keep_alive_s: float,
    answer: Callable[[Request], Awaitable[Any]],
    seen: Callable[[list[bytes]], None] = lambda _: None,
    **body: Any,
) -> list[bytes]:
    """What goes out of the answer to a call, piece by piece; `seen` is shown all of it after each."""
    client = InMemoryClient(answer, model="free")

    def connect(_: ContractId) -> InMemoryClient:
        return client

    service = Service(ServiceOptions(None, keep_alive_s=keep_alive_s), Known(), connect)
    asked = {"model": "free", "messages": [{"role": "user", "content": "Hi"}], **body}
    sent: list[bytes] = []
    coming = [{"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False}]

    async def receive() -> Any:
        if coming:
            return coming.pop()
        await asyncio.Event().wait()
        raise AssertionError("nobody leaves")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            sent.append(message["body"])
            seen(sent)

    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": PATHS["chat"], "headers": JSON, "query_string": b"",
        "http_version": "1.1", "scheme": "http", "server": ("endpoint", 80), "client": ("caller", 1),
    }  # fmt: skip
    async with asyncio.timeout(30):
        await create_app(service, version="1")(scope, receive, send)
    await service.close()
    return sent


@pytest.mark.parametrize("stream", [True, False])
def test_a_stream_that_waits_sends_comments_until_its_text_comes(stream: bool) -> None:
    async def go() -> list[bytes]:
        three_came = asyncio.Event()

        def look(sent: list[bytes]) -> None:
            if sent.count(KEEP_ALIVE) == 3:
                three_came.set()

        async def answer(_: Request) -> str:
            if stream:
                await three_came.wait()
            else:
                await asyncio.sleep(5 * SOON_S)  # an answer that comes whole has no comments
            return "of the mill"

        return await pieces_sent(keep_alive_s=SOON_S, answer=answer, seen=look, stream=stream)

    sent = asyncio.run(go())
    if stream:
        assert sent[:3] == [KEEP_ALIVE] * 3
        assert sent[-1] == DONE
        assert "of" in b"".join(sent[3:]).decode()
    else:
        assert json.loads(b"".join(sent))["choices"][0]["message"]["content"] == "of the mill"


def test_what_fails_after_a_comment_is_an_event_and_there_is_no_done() -> None:
    async def go() -> list[bytes]:
        came = asyncio.Event()

        async def answer(_: Request) -> str:
            await came.wait()
            raise ValueError("so it is")

        return await pieces_sent(keep_alive_s=SOON_S, answer=answer, seen=lambda _: came.set(), stream=True)

    sent = asyncio.run(go())
    assert sent[0] == KEEP_ALIVE
    assert "error" in json.loads(sent[-1].removeprefix(b"data: "))
    assert DONE not in sent


def test_a_stream_on_which_something_is_sent_has_no_comments() -> None:
    async def answer(_: Request) -> str:
        return "of the mill"

    sent = asyncio.run(pieces_sent(keep_alive_s=NEVER_S, answer=answer, stream=True))
    assert KEEP_ALIVE not in sent
    assert sent[-1] == DONE
