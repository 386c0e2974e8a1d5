"""Callers that go away at random moments, from one process of their own.

python -m headrace.ops.bench.http_vanish_clients JSON      (a Plan as a JSON object; prints a list of Ends)
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Literal

PARTIAL = 0.05  # of the calls: the caller goes away amid its own body
PATIENT = 0.35  # stay to the end of the answer; a half of these keep the connection for the next call
STREAMED = 0.8
RESET = 0.5  # of those that go away: a reset in place of a close
ENDS_WITHIN_S = 120.0  # of a call whose caller is patient

Phase = Literal["body", "waiting", "answer", "end"]  # amid the body, before, amid and after the answer
Manner = Literal["close", "reset", "keep"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask: calls `first` to `first + count`, by so many callers at a time."""

    host: str
    port: int
    model: str
    first: int
    count: int
    callers: int
    max_tokens: int
    longest_s: float  # from sending a call, until a caller goes away that does so
    seed: str


@dataclass(frozen=True, slots=True)
class End:
    """How one call ended for its caller."""

    number: int
    phase: Phase
    manner: Manner
    at: float  # seconds since the epoch, just before the connection was closed; with `keep`: when the answer ended
    status: int  # of HTTP; 0: nothing had come
    error: str = ""


def user_of(number: int) -> str:
    """What a call says of itself, so that its request is found."""
    return f"caller-{number}"


class _Connection(asyncio.Protocol):
    """A connection, and the answer to the call that is under way on it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.closed = False
        self._parser: Any = None
        self.begin()

    def begin(self) -> None:
        self.heard = False
        self.whole = False
        self.ended = asyncio.Event()
        self._parser = import_module("httptools").HttpResponseParser(self)

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code()) if self.heard else 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard = True
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.whole = True
        self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.ended.set()

    def close(self, manner: Manner) -> float:
        """Close or reset it; when that was."""
        at = time.time()
        if manner == "reset":
            # Not to linger means that what is unsent is dropped, and the other side told of a reset.
            found: Any = self.transport.get_extra_info("socket")
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
        return at


def request_of(plan: Plan, number: int, *, stream: bool) -> bytes:
    """A call as it goes over the wire."""
    body = json.dumps(
        {
            "model": plan.model,
            "messages": [{"role": "user", "content": f"{number}: tell me of the mill."}],
            "max_tokens": plan.max_tokens,
            "stream": stream,
            "user": user_of(number),
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {plan.host}:{plan.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Caller:
    """Makes one call after the other; takes their numbers from where all callers take them."""

    def __init__(self, plan: Plan, numbers: Iterator[int]) -> None:
        self._plan = plan
        self._numbers = numbers
        self._kept: _Connection | None = None

    async def run(self) -> list[End]:
        ends: list[End] = []
        for number in self._numbers:
            try:
                ends.append(await self._call(number, random.Random(f"{self._plan.seed} {number}")))
            except OSError as error:
                ends.append(
                    End(number, "waiting", "close", time.time(), 0, f"{type(error).__name__}: {error}")
                )
        if self._kept is not None:
            self._kept.close("close")
        return ends

    async def _call(self, number: int, dice: random.Random) -> End:
        request = request_of(self._plan, number, stream=dice.random() < STREAMED)
        manner: Manner = "reset" if dice.random() < RESET else "close"
        kind = dice.random()
        connection = await self._connection()
        if kind < PARTIAL:
            connection.transport.write(request[: -dice.randrange(1, 100)])
            await self._wait(connection, dice.uniform(0, 0.1))
            return End(number, "body", manner, connection.close(manner), connection.status)
        connection.transport.write(request)
        if kind >= PARTIAL + PATIENT:
            # Squared, since most of an answer's life is its stream: more of them early, before it begins.
            await self._wait(connection, self._plan.longest_s * dice.random() ** 2)
            phase: Phase = "end" if connection.whole else "answer" if connection.heard else "waiting"
            return End(number, phase, manner, connection.close(manner), connection.status)
        await self._wait(connection, ENDS_WITHIN_S)
        error = (
            "" if connection.whole else "its connection was lost" if connection.closed else "it had no end"
        )
        if error or dice.random() < 0.5:
            return End(number, "end", manner, connection.close(manner), connection.status, error)
        self._kept = connection
        return End(number, "end", "keep", time.time(), connection.status)

    async def _connection(self) -> _Connection:
        kept, self._kept = self._kept, None
        if kept is not None and not kept.closed:
            kept.begin()
            return kept
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, self._plan.host, self._plan.port)
        return made

    async def _wait(self, connection: _Connection, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await connection.ended.wait()
        except TimeoutError:
            pass


async def call_all(plan: Plan) -> list[End]:
    """Make the calls; how they ended, in no order."""
    numbers = iter(range(plan.first, plan.first + plan.count))
    callers = [_Caller(plan, numbers).run() for _ in range(plan.callers)]
    return [end for ends in await asyncio.gather(*callers) for end in ends]


def _run(plan: Plan) -> list[End]:
    run: Any = import_module("uvloop").run
    return run(call_all(plan))


def ends_from(text: str) -> list[End]:
    """What such a process has printed."""
    return [End(**each) for each in json.loads(text)]


if __name__ == "__main__":
    answer = json.dumps([asdict(each) for each in _run(Plan(**json.loads(sys.argv[1])))])
    # Not with `print`: where PYTHONUNBUFFERED is set, it loses what a full pipe does not take at once.
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(answer.encode())
