"""Many streamed chats at once, from one cheap process: the callers of an endpoint under measurement.

python -m headrace.ops.bench.http_stream_clients      (reads a Calls as a JSON object; prints a Heard)

While streams run it notes when which bytes came, and nothing else; they are read when all streams have ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, cast

ENDS_WITHIN_S = 30.0  # beyond the timeout that a call has


@dataclass(frozen=True, slots=True)
class Calls:
    """What to ask: each prompt on a connection of its own."""

    host: str
    port: int
    model: str
    prompts: list[str]
    max_tokens: int
    ramp_s: float  # from the first call to the last
    timeout_s: float  # of each


@dataclass(frozen=True, slots=True)
class Stream:
    """What came of one call. Times in seconds since the first call was sent."""

    sent: float
    status: int  # of HTTP; 0: there was no answer
    text: str
    finish: str | None
    is_whole: bool  # [DONE] came, and nothing after it
    errors: list[str]
    at: list[float]  # of each event with text


@dataclass(frozen=True, slots=True)
class Heard:
    """All of them, in the order of their prompts."""

    streams: list[Stream]
    cpu_s: float  # of this process while they ran


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes as they came."""

    at: float
    data: bytes


class _Connection(asyncio.Protocol):
    """One call: sends it, notes what comes, ends with the connection."""

    def __init__(self, request: bytes, clock: Callable[[], float]) -> None:
        self._request = request
        self._clock = clock
        self.sent = 0.0
        self.reads: list[Read] = []
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sent = self._clock()
        cast("asyncio.WriteTransport", transport).write(self._request)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        self.reads.append(Read(self._clock(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None if exc is None else f"{type(exc).__name__}: {exc}")


def request_of(calls: Calls, prompt: str) -> bytes:
    """A call as it goes over the wire."""
    body = json.dumps(
        {
            "model": calls.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": calls.max_tokens,
            "stream": True,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        f"Host: {calls.host}:{calls.port}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"X-Request-Timeout: {calls.timeout_s:g}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_stream(sent: float, reads: Sequence[Read], failure: str | None = None) -> Stream:
    """What the bytes of one answer say."""
    response = _Response()
    parser: Any = import_module("httptools").HttpResponseParser(response)
    errors = [] if failure is None else [failure]
    for read in reads:
        response.at = read.at
        try:
            parser.feed_data(read.data)
        except Exception as error:  # noqa: BLE001 (whatever it was, it is no HTTP)
            errors.append(f"{type(error).__name__}: {error}")
            break
    status = int(parser.get_status_code()) if reads and not errors else 0
    if status != 200:
        errors.append(f"HTTP {status}: {b''.join(part.data for part in response.body)[:300]!r}")
        return Stream(sent, status, "", None, False, errors, [])
    return _read_events(sent, status, response.body, errors)


class _Response:
    """What the parser calls."""

    def __init__(self) -> None:
        self.at = 0.0
        self.body: list[Read] = []

    def on_body(self, body: bytes) -> None:
        self.body.append(Read(self.at, body))


def _read_events(sent: float, status: int, body: Sequence[Read], errors: list[str]) -> Stream:
    text: list[str] = []
    at: list[float] = []
    finish: str | None = None
    is_whole = False
    rest = b""
    for part in body:
        *events, rest = (rest + part.data).split(b"\n\n")
        for event in events:
            if is_whole:
                errors.append(f"after the end: {event[:100]!r}")
            if event.startswith(b":"):
                continue
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                is_whole = True
                continue
            chunk: Any = json.loads(data)
            if "error" in chunk:
                errors.append(str(chunk["error"]))
                continue
            for choice in chunk["choices"]:
                if piece := choice["delta"].get("content"):
                    text.append(piece)
                    at.append(part.at)
                finish = choice["finish_reason"] or finish
    if rest:
        errors.append(f"amid an event: {rest[:100]!r}")
    return Stream(sent, status, "".join(text), finish, is_whole, errors, at)


async def ask_all(calls: Calls) -> Heard:
    """Make the calls, evenly over `ramp_s`, and read them all to their ends."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    cpu_began = time.process_time()

    def clock() -> float:
        return time.perf_counter() - began

    async def call(number: int, prompt: str) -> tuple[_Connection | None, str | None]:
        await asyncio.sleep(calls.ramp_s * number / len(calls.prompts))
        request = request_of(calls, prompt)
        try:
            async with asyncio.timeout(calls.timeout_s + ENDS_WITHIN_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(request, clock), calls.host, calls.port
                )
                return connection, await connection.ended
        except (OSError, TimeoutError) as error:
            return None, f"{type(error).__name__}: {error}"

    found = await asyncio.gather(*(call(number, prompt) for number, prompt in enumerate(calls.prompts)))
    cpu_s = time.process_time() - cpu_began
    streams = [
        Stream(0.0, 0, "", None, False, [failure or ""], [])
        if connection is None
        else read_stream(connection.sent, connection.reads, failure)
        for connection, failure in found
    ]
    return Heard(streams, cpu_s)


def _run(calls: Calls) -> Heard:
    run: Any = import_module("uvloop").run
    return run(ask_all(calls))


def heard_from(text: str) -> Heard:
    """What such a process has printed."""
    found: Any = json.loads(text)
    return Heard([Stream(**each) for each in found["streams"]], found["cpu_s"])


if __name__ == "__main__":
    print(json.dumps(asdict(_run(Calls(**json.load(sys.stdin))))))  # noqa: T201 (its answer)
