"""Callers of the endpoint's application without a network: each is an ASGI connection in a test's hands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import FastAPI
from openai_parts import events_in
from serving_parts import until

from headrace.consumers.catalogue import CatalogueRecords, ServingVersion, serving_key, serving_value
from headrace.producers.http.app import create_app
from headrace.producers.http.service import Service, ServiceOptions
from headrace.producers.testing import Answer, InMemoryClient

T = TypeVar("T")

JSON = {"content-type": "application/json"}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "tagger"


class Known:
    """A catalogue that has one model. `look` is called, in whatever thread, before it says anything."""

    ready = True

    def __init__(self) -> None:
        self.look: Callable[[], None] = lambda: None
        self._records = CatalogueRecords()
        one = ServingVersion(MODEL, 1, "1", "vllm", 100, False, False, 5_000)
        self._records.take(serving_key(one), serving_value(one))

    def asked(self, ask: Callable[[CatalogueRecords], T]) -> T:
        self.look()
        return ask(self._records)


class Caller:
    """One call and its connection; nothing of the body is sent where it is None."""

    def __init__(
        self,
        app: FastAPI,
        body: dict[str, Any] | None,
        headers: dict[str, str],
        *,
        path: str,
        method: str,
        query: str,
    ) -> None:
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent: list[dict[str, Any]] = []
        if body is not None:
            self.send_body(json.dumps(body).encode())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in (JSON | headers).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {},
        }
        self.answering = asyncio.ensure_future(app(scope, self._incoming.get, self._send))

    async def _send(self, message: Any) -> None:
        self._sent.append(message)

    def send_body(self, content: bytes, *, more: bool = False) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": content, "more_body": more})

    def leave(self) -> None:
        """Close the connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def ended(self) -> Caller:
        """Once the application has done with it."""
        async with asyncio.timeout(10):
            await self.answering
        return self

    async def has(self, text: str) -> None:
        """Once so much has been sent."""
        await until(lambda: text.encode() in self.content)

    @property
    def status(self) -> int:
        return self._sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self._sent[0]["headers"]}

    @property
    def content(self) -> bytes:
        """The body so far."""
        return b"".join(each.get("body", b"") for each in self._sent[1:])

    @property
    def is_whole(self) -> bool:
        """Whether the body was sent to its end."""
        return not self._sent[-1].get("more_body", False)

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.content)["error"]

    @property
    def text(self) -> str:
        """Of the only choice."""
        return json.loads(self.content)["choices"][0]["message"]["content"]

    @property
    def events(self) -> list[Any]:
        return events_in([self.content])


class Endpoint:
    """The application over a client in memory; `options` are the service's."""

    def __init__(self, answer: Answer = "It is a mill.", **options: Any) -> None:
        self.client = InMemoryClient(answer, model=MODEL)
        self.known = Known()
        self.service = Service(ServiceOptions(keys=None, **options), self.known, lambda _: self.client)
        self.app = create_app(self.service, version="0")

    def call(
        self,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        *,
        path: str = CHAT,
        query: str = "",
        **fields: Any,
    ) -> Caller:
        """A chat of these fields, or this body."""
        said = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}
        return Caller(self.app, body or said, headers or {}, path=path, method="POST", query=query)

    def begun(self, headers: dict[str, str] | None = None) -> Caller:
        """A chat whose body has not come yet."""
        return Caller(self.app, None, headers or {}, path=CHAT, method="POST", query="")

    def get(self, path: str) -> Caller:
        return Caller(self.app, {}, {}, path=path, method="GET", query="")
