"""A choice in which the model may have called tools, held against them."""

from __future__ import annotations

from headrace.schemas.errors import OutputError, OutputNotJson
from headrace.schemas.messages import ErrorDetail, FunctionCall, Output, Status, ToolCall
from headrace.schemas.tool_calls import ToolCallCheck
from headrace.workers.answers import detail
from headrace.workers.engine import GeneratedChoice

_CUT_OFF = "the output ran into max_tokens amid a call of a tool; raise sampling.max_tokens"


def judged_calls(
    choice: GeneratedChoice, output: Output, tools: ToolCallCheck
) -> tuple[Output, Status, ErrorDetail | None]:
    """A choice's output, status, and what is wrong with it; `output` is the choice as it was generated.

    Calls are published where each of them holds, and with them what is said beside. Else the output keeps its text as
    the model wrote it, so that whoever looks into it sees the call that is wrong. A text without a call is an answer,
    `length` or not. One that ends with `length` after its last call would perhaps have had more of them.
    """
    parted = choice.parted
    assert parted is not None, "the job was told that there may be calls"
    if not (parted.calls or parted.unread):
        return output.model_copy(update={"text": parted.content}), "ok", None
    if choice.finish_reason == "length":
        cut_off = ErrorDetail(code="truncated", message=_CUT_OFF, path="/sampling/max_tokens")
        return output, "truncated", cut_off
    try:
        if parted.unread:
            place = f"/tool_calls/{len(parted.calls)}"
            raise OutputNotJson("a call of a tool was begun that the tool parser cannot read", path=place)
        tools.check(parted.calls)
    except OutputError as error:
        return output, "invalid_output", detail(error)
    calls = [
        ToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
        for call in parted.calls
    ]
    called = {"text": parted.content, "tool_calls": calls, "finish_reason": "tool_calls"}
    return output.model_copy(update=called), "ok", None
