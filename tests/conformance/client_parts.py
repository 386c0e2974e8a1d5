"""What the tests of a client are made of: whom they ask, what answers, and how they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import date
from enum import Enum
from typing import Any, Protocol

import pytest
from pydantic import BaseModel, ConfigDict

from headrace.producers.client import Client
from headrace.producers.testing import Answer
from headrace.schemas.messages import Request, Status

STORY = "Once upon a time there was a mill, and a headrace that led to it."
ENOUGH = 30.0  # seconds that nothing here comes near unless it hangs
OVERDUE = 3.0  # seconds: a timeout short enough for its reminders to come soon


class Genre(Enum):
    DRAMA = "drama"
    COMEDY = "comedy"


class Movie(BaseModel):
    title: str
    released: date


class Tags(BaseModel):
    model_config = ConfigDict(strict=True)

    genre: Genre
    seen: date
    moods: list[str]


HEAT = Movie(title="Heat", released=date(1995, 12, 15))
TAGS = {"genre": "drama", "seen": "2024-01-31", "moods": ["tense"]}


class Fate(Protocol):
    """Whoever answers the clients of a test, and its script."""

    def client(self, **options: Any) -> Client:
        """A client, not opened yet."""
        ...

    def answer_with(self, answer: Answer) -> None: ...
    def fail_next(self, status: Status = "failed", message: str = "", *, times: int = 1) -> None: ...
    def lose_next_reply(self, *, times: int = 1) -> None: ...
    def restart_next_stream(self, *, times: int = 1) -> None: ...
    def ignore_next(self, *, times: int = 1) -> None: ...

    @property
    def generated(self) -> list[Request]:
        """The requests that led to a generation, in order."""
        ...

    @property
    def cancelled(self) -> list[str | None]:
        """The ids of the cancels that have arrived."""
        ...


class Gate:
    """Holds answers back until the test lets them go; for use on any event loop."""

    def __init__(self, answer: Any = "late") -> None:
        self.answer = answer
        self.open = False

    async def __call__(self, request: Request) -> Any:
        await until(lambda: self.open)
        return self.answer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(ENOUGH):
        while not condition():  # noqa: ASYNC110  the condition is another thread's or loop's
            await asyncio.sleep(0.005)


class ClientCase:
    """A test with a client and whoever answers it."""

    @pytest.fixture
    def fate(self) -> Fate:
        raise NotImplementedError

    def run(self, fate: Fate, work: Callable[[Client], Awaitable[None]], **options: Any) -> None:
        async def opened() -> None:
            async with fate.client(**options) as client:
                await work(client)

        asyncio.run(opened())
