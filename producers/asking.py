"""From what a caller gives to a Request, and from a Result to what the caller asked for. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack, cast

import pydantic_core
from pydantic import BaseModel, TypeAdapter, ValidationError

from headrace.schemas.errors import (
    Cancelled,
    Expired,
    Failed,
    InvalidField,
    InvalidOutput,
    OutputDoesNotFit,
    Rejected,
    RequestFailed,
    Truncated,
    UsageError,
)
from headrace.schemas.field_errors import explain
from headrace.schemas.messages import (
    ChatMessage,
    JsonObject,
    OutputConstraint,
    Reasoning,
    Request,
    Result,
    Sampling,
    Status,
    Tool,
    ToolChoice,
)
from headrace.schemas.strict_json import pointer

T = TypeVar("T")

# A str is a prompt as it is; a pydantic model or a mapping holds the variables of the package's template; a
# list is a conversation; a Request is sent as it stands.
Given = Request | BaseModel | str | Mapping[str, Any] | Sequence[ChatMessage | Mapping[str, Any]]

FAILURES: dict[Status, type[RequestFailed]] = {
    "rejected": Rejected,
    "invalid_output": InvalidOutput,
    "truncated": Truncated,
    "failed": Failed,
    "expired": Expired,
    "cancelled": Cancelled,
}


class RequestOptions(TypedDict, total=False):
    """The fields of a Request that a caller may set beside what is asked.

    `constrain` sends the JSON Schema of `into` as the request's own output schema. Off unless asked for,
    since a contract that has an output schema accepts another one only where its own covers it.
    """

    id: str
    key: str
    sampling: Sampling | Mapping[str, Any]
    output: OutputConstraint | Mapping[str, Any]
    constrain: bool
    tools: Sequence[Tool | Mapping[str, Any]]
    tool_choice: ToolChoice | Mapping[str, Any]
    reasoning: Reasoning | Mapping[str, Any]
    attributes: Mapping[str, str]
    tenant: str
    job: str
    result_topic: str


def build_request(
    given: Given,
    *,
    into: Any = None,
    deadline: int | None = None,
    stream: bool = False,
    **options: Unpack[RequestOptions],
) -> Request:
    """The Request that asks for what was given. `deadline` in ms since the epoch; a Request's own stands.

    Raises InvalidField or UnknownField with a JSON pointer to the field; UsageError for options at odds.
    """
    if isinstance(given, Request):
        if options:
            raise UsageError(f"a Request says all itself; not to be given beside it: {', '.join(options)}")
        changes: dict[str, Any] = {"stream": stream or given.stream}
        if given.deadline is None:
            changes["deadline"] = deadline
        return given.model_copy(update=changes)
    constrain = options.get("constrain", False)
    fields: JsonObject = {name: _plain(value) for name, value in options.items() if name != "constrain"}
    fields.setdefault("id", uuid.uuid4().hex)
    fields |= {"deadline": deadline, "stream": stream, **_asked(given)}
    if constrain:
        if into is None or "output" in options:
            raise UsageError("constrain=True takes the output schema from `into`: give that, and no `output`")
        fields["output"] = {"json_schema": TypeAdapter[Any](into).json_schema()}
    try:
        return Request.model_validate(fields)
    except ValidationError as error:
        raise explain(error, fields) from None


def _asked(given: Given) -> JsonObject:
    if isinstance(given, str):
        return {"prompt": given}
    if isinstance(given, BaseModel | Mapping):
        return {"variables": _plain(given)}
    if not isinstance(cast("object", given), Iterable):  # callers without a type checker
        raise UsageError(
            f"cannot ask with a {type(given).__name__}: give variables (a dict or a pydantic model), a prompt (str), "
            "messages (a list) or a Request"
        )
    return {"messages": [_plain(message) for message in given]}


def _plain(value: Any) -> Any:
    """The value as JSON would have it: dates as strings, models and tuples as objects and arrays."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=False)
    try:
        return pydantic_core.to_jsonable_python(value)
    except (pydantic_core.PydanticSerializationError, ValueError) as error:
        raise InvalidField(f"not a JSON value: {error}") from None


def raise_for_status(result: Result) -> Result:
    """The result if it is `ok`; else raises what its status is called: Rejected, Truncated and so on."""
    failure = FAILURES.get(result.status)
    if failure is not None:
        raise failure(result)
    return result


def unpack(result: Result, into: type[T] | None) -> T | Result:
    """The first output as `into` has it, or the whole Result where `into` is None.

    `str` takes the text as it is; all else is validated by pydantic from the output's value, or from its text
    read as JSON. Raises what `raise_for_status` raises, and OutputDoesNotFit.
    """
    raise_for_status(result)
    if into is None:
        return result
    if not result.outputs:
        raise OutputDoesNotFit(result, "the result has no output")
    output = result.outputs[0]
    if into is str:
        return cast("T", output.text)
    # Always through JSON: a strict model reads an enum or a date from a JSON string, never from a Python one.
    text = output.text if output.value is None else pydantic_core.to_json(output.value)
    try:
        return TypeAdapter[T](into).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise OutputDoesNotFit(result, first["msg"], path=pointer(first["loc"])) from None
