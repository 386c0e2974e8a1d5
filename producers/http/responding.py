"""What goes out: an answer whole or event by event, for as long as somebody is there to read it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from headrace.producers.http.answers import encode_json
from headrace.producers.http.calls import REQUEST_ID, Call, events, whole
from headrace.producers.http.streams import KEEP_ALIVE
from headrace.producers.http.wanted import ApiError
from headrace.schemas import metrics

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

log = logging.getLogger(__name__)

GONE = 499  # nobody reads it: for the metrics, by the name that nginx gave it
_JSON = (b"content-type", b"application/json")
_EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would gather events
)


def error_response(error: ApiError, request_id: str | None = None) -> Response:
    """An error before anything was sent."""
    # A failed result says its own id; of a call with several prompts that is one of several.
    headers = (
        {REQUEST_ID: uuid.uuid4().hex} | error.headers | ({REQUEST_ID: request_id} if request_id else {})
    )
    return Response(encode_json(error.as_json()), error.status, headers, media_type="application/json")


class Answer(Response):
    """The answer to a call that came in. A caller that goes away gives its requests up."""

    def __init__(self, call: Call, *, keep_alive_s: float) -> None:
        """`keep_alive_s`: of silence in a stream, then a comment is sent."""
        super().__init__()
        self._call = call
        self._keep_alive_s = keep_alive_s
        self._endpoint = call.wanted.endpoint
        self._headers = {REQUEST_ID: call.request_id} | call.lease.headers
        self._started = False
        self._sent_at = time.monotonic()
        self._status = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, as ASGI has it."""
        running = metrics.child(metrics.HTTP_RUNNING, self._endpoint)
        running.inc()
        answer = self._events if self._call.wanted.stream else self._whole
        answering = asyncio.create_task(answer(scope, receive, send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self._status = GONE
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait([answering, leaving])
            self._call.lease.give_back()  # where the answering never began; else it has done so
            running.dec()
            metrics.child(metrics.HTTP_CALLS, self._endpoint, str(self._status)).inc()
            metrics.child(metrics.HTTP_SECONDS, self._endpoint).observe(time.monotonic() - self._call.began)
        if not answering.cancelled() and (error := answering.exception()) is not None:
            raise error

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body, headers = await whole(self._call)
        except ApiError as error:
            await self._fail(error, scope, receive, send)
            return
        headers = self._headers | headers | {REQUEST_ID: self._call.request_id}
        await Response(encode_json(body), headers=headers, media_type="application/json")(
            scope, receive, send
        )

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        beat = asyncio.create_task(self._keep_alive(send))
        try:
            async with contextlib.aclosing(events(self._call, self._note)) as chunks:
                async for chunk in chunks:
                    if chunk:
                        await self._send(chunk, send)
            beat.cancel()  # nothing may follow the end
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ApiError as error:
            beat.cancel()
            if not self._started:
                await self._fail(error, scope, receive, send)
                return
            await self._send(b"data: " + encode_json(error.as_json()) + b"\n\n", send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beat

    async def _keep_alive(self, send: Send) -> None:
        rest_s = self._keep_alive_s
        while True:
            await asyncio.sleep(rest_s)
            rest_s = self._sent_at + self._keep_alive_s - time.monotonic()
            if rest_s <= 0:
                await self._send(KEEP_ALIVE, send)
                rest_s = self._keep_alive_s

    async def _send(self, chunk: bytes, send: Send) -> None:
        self._sent_at = time.monotonic()
        if not self._started:
            self._started = True
            given = [(name.encode(), value.encode("latin-1")) for name, value in self._headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": [*_EVENTS, *given]})
        await send({"type": "http.response.body", "body": chunk, "more_body": True})

    def _note(self, error: ApiError) -> None:
        self._status = error.status

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        self._status = error.status
        response = error_response(error, self._call.request_id)
        await response(scope, receive, send)


async def _until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    """Returns when the caller has closed the connection; its body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
