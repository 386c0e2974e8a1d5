"""What each client here asks for, and how its script tells what it got: one JSON object, a member for each call."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MODEL = "free"
TAGGED = "tagged"  # all outputs of this one's contract are held to the schema of a Mood
QUESTION = "Tell me of the mill."


class Mood(BaseModel):
    """What a film feels like."""

    model_config = ConfigDict(extra="forbid")

    mood: Literal["bright", "dark", "calm"]
    score: int = Field(ge=1, le=9)
    tags: list[Annotated[str, Field(pattern="^[a-z]{2,8}$")]] = Field(min_length=1, max_length=3)


class Outcomes:
    """Of each call a text, the members of a Mood, or what was raised."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def call(self, name: str, ask: Callable[[], Any]) -> None:
        """Note what a call gives."""
        try:
            answer = ask()
        except Exception as error:  # noqa: BLE001 (whatever it is, the test is to show it)
            traceback.print_exc()
            self._found[name] = {"error": f"{type(error).__name__}: {error}"}
        else:
            self._note(name, answer)

    async def await_call(self, name: str, ask: Callable[[], Awaitable[Any]]) -> None:
        """The same of an asynchronous one."""
        try:
            answer = await ask()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            self._found[name] = {"error": f"{type(error).__name__}: {error}"}
        else:
            self._note(name, answer)

    def _note(self, name: str, answer: Any) -> None:
        self._found[name] = answer.model_dump() if isinstance(answer, BaseModel) else answer

    def print(self) -> None:
        """All of them, to standard output."""
        json.dump(self._found, sys.stdout)


def base_url() -> str:
    """The endpoint's, as a client takes it."""
    return sys.argv[1]
