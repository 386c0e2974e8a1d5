"""What tests of the OpenAI-compatible endpoint's answers are made of: results, calls, and the official client."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx
import openai

from headrace.producers.http.answers import encode_json
from headrace.producers.http.wanted import ApiError, Wanted
from headrace.schemas.messages import ErrorDetail, Output, Provenance, Result, Status, Timings, Usage

CREATED = 1_767_225_600  # seconds since the epoch
PROVENANCE = Provenance(
    model="tagger",
    version="3",
    contract=1,
    engine="vllm",
    engine_version="0.32.0",
    weights_digest="sha256:aa",
    slot="slot-1",
    source_topic="headrace.tagger.c1.requests.interactive",
    source_partition=5,
    source_offset=17,
)


def an_output(text: str = "Hello", **fields: Any) -> Output:
    return Output(text=text, **{"finish_reason": "stop", **fields})


def a_result(*outputs: Output, id: str = "r-1", **fields: Any) -> Result:  # noqa: A002
    """An `ok` result of these outputs, or of one."""
    whole: dict[str, Any] = {
        "status": "ok",
        "outputs": list(outputs or (an_output(),)),
        "usage": Usage(prompt_tokens=12, cached_tokens=8, completion_tokens=5),
        "timings": Timings(queued_ms=7, first_token_ms=20, total_ms=90),
        "provenance": PROVENANCE,
    }
    return Result(id=id, **{**whole, **fields})


def a_failed_result(status: Status, code: str, message: str = "so it is", path: str | None = None) -> Result:
    return a_result(status=status, outputs=[], error=ErrorDetail(code=code, message=message, path=path))


def a_chat(**fields: Any) -> Wanted:
    asked = ({"messages": [{"role": "user", "content": "Hi"}]},)
    return Wanted(**{"endpoint": "chat", "model": "tagger", "fields": {}, "asked": asked, **fields})


def a_completion(*prompts: str, **fields: Any) -> Wanted:
    asked = tuple({"prompt": prompt} for prompt in prompts or ("Hi",))
    return Wanted(**{"endpoint": "completions", "model": "tagger", "fields": {}, "asked": asked, **fields})


def events_in(sent: Iterable[bytes]) -> list[Any]:
    """The data of server-sent events; `[DONE]` as it is. Comments are left out."""
    blocks = b"".join(sent).split(b"\n\n")
    assert blocks.pop() == b"", "an event ends with a blank line"
    lines = [block for block in blocks if not block.startswith(b":")]
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines)
    data = [line.removeprefix(b"data: ").decode() for line in lines]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


class Endpoint:
    """Answers every call of the official client with the same response; `calls` are the bodies that came."""

    def __init__(self, status: int, content: bytes | list[bytes], headers: dict[str, str]) -> None:
        self.calls: list[Any] = []
        self._status = status
        self._content = content
        self._headers = headers

    def client(self, **options: Any) -> openai.OpenAI:
        """To be closed: it is a context manager."""
        transport = httpx.Client(transport=httpx.MockTransport(self._handle))
        return openai.OpenAI(api_key="k", base_url="http://endpoint/v1", http_client=transport, **options)  # type: ignore[arg-type]

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(json.loads(request.content))
        # A list is sent as it comes: as so many pieces of the body.
        content = self._content if isinstance(self._content, bytes) else iter(self._content)
        return httpx.Response(self._status, content=content, headers=self._headers)


def answering(body: dict[str, Any], headers: dict[str, str] | None = None) -> Endpoint:
    return Endpoint(200, encode_json(body), {"content-type": "application/json", **(headers or {})})


def failing(error: ApiError) -> Endpoint:
    return Endpoint(
        error.status, encode_json(error.as_json()), {"content-type": "application/json", **error.headers}
    )


def streaming(pieces: list[bytes]) -> Endpoint:
    return Endpoint(200, pieces, {"content-type": "text/event-stream"})
