"""What a call to the endpoint wants, in Headrace's terms; and what it is told where that cannot be had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import JsonObject, Lane

Endpoint = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class ForcedTool:
    """A call of a tool that the caller demands: the output is held to a JSON Schema and read as that call.

    With `name` the output's text is the arguments of that function; without, it is an object of `name` and
    `arguments`, and any of the caller's tools may be named.
    """

    name: str | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call, translated.

    `model` is as the caller named it. `fields` are a Request's, without `id`, `deadline`, `tenant` and `stream`, and
    without what is asked: that is one of `asked` for each request to be made (a chat has one; a list of prompts has
    as many as prompts), each with `messages` or `prompt`.
    """

    endpoint: Endpoint
    model: str
    fields: JsonObject
    asked: tuple[JsonObject, ...]
    lane: Lane = "interactive"
    stream: bool = False
    include_usage: bool = False  # a last chunk with the usage, in a stream
    tool: ForcedTool | None = None
    choices: int = 1  # of each request
    logprobs: bool = False
    top_logprobs: int = 0
    recorded: tuple[str, ...] = field(default=())  # the parameters that went into `attributes`
    constraint_param: str | None = None  # the parameter that says what the output is held to
    parallel_tool_calls: bool = True  # where False, an answer has its first call alone


class ApiError(HeadraceError):
    """What the caller is told in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

    code = "api_error"

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str | None = None,
        param: str | None = None,
        kind: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """`status` of HTTP; `reason` is OpenAI's `code`, `kind` its `type`."""
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.param = param
        self.kind = kind or _kind_of(status)
        self.headers = headers or {}

    def as_json(self) -> JsonObject:
        """The response's body, and an event's data."""
        return {
            "error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.reason}
        }


def _kind_of(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
