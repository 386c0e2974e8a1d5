"""Every way in which a call can fail, as the caller is told. Pure.

A row for each code of `schemas/errors.py` says the status of HTTP, and whether the same call again can help: OpenAI's
clients send what failed with 408, 409, 429 or 5xx three times in all, unless a header says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace.producers.http.answers import response_headers
from headrace.producers.http.wanted import ApiError, Wanted
from headrace.schemas.errors import (
    HeadraceError,
    KafkaFailed,
    MessageError,
    NoReply,
    OutputDoesNotFit,
    RequestFailed,
    TopicMissing,
    TopicsError,
)
from headrace.schemas.messages import ErrorDetail, Reply, Request, Result, Status

RETRY_AFTER_S: Final = 5  # of what passes by itself: a broker's restart, a worker's
NO_RETRY: Final = {"x-should-retry": "false"}
CLOSE: Final = {"connection": "close"}

# Google's APIs and nginx have it for what was given up before it was done. A real status would mislead: clients send
# 408, 409 and 5xx again, and what somebody cancelled on purpose must not come back.
CANCELLED: Final = 499


@dataclass(frozen=True, slots=True)
class _Row:
    """How one kind of failure is told.

    `reason` is OpenAI's word for it, where it has one; else ours goes out. `says` stands in for the error's own
    message where that is for the operator, who finds it in the log. `again`: the same call may well succeed
    (`Retry-After`), must not be tried (`x-should-retry: false`), or (None) may be, if the client likes.
    """

    status: int
    reason: str | None = None
    says: str | None = None
    again: bool | None = None


_OUT_OF_STEP = "the endpoint and the model's workers do not understand each other's messages"
_QUEUE = "the queue cannot be reached just now; try again"
_SET_UP_WRONG = "the endpoint is not set up right; its log says how"
_INTERNAL = "something went wrong in the endpoint; its log says what"
_ENDING = "this instance of the endpoint is being shut down; send it again"
_REUSED = (
    "a call with this Idempotency-Key was answered before, and it asked for something else: "
    "a call that differs needs a key of its own"
)
_GONE = (
    "a call with this Idempotency-Key was answered before, and its answer is not kept any more: "
    "to have it generated anew, send it under another key"
)

ROWS: Final[dict[str, _Row]] = {
    # --- the request
    "bad_message": _Row(400),
    "unknown_field": _Row(400, "unknown_parameter"),
    "invalid_field": _Row(400, "invalid_value"),
    "unsupported_field": _Row(400, "unsupported_parameter"),
    "missing_variable": _Row(400),
    "template_failed": _Row(400),
    "prompt_too_long": _Row(400, "context_length_exceeded"),
    "invalid_schema": _Row(400),
    "schema_too_complex": _Row(400),
    "engine_rejected": _Row(400),
    "rejected": _Row(400),
    "usage": _Row(400),
    # --- the output: the caller asked for something that did not come about
    "invalid_output": _Row(422),
    "not_json": _Row(422),
    "schema_violated": _Row(422),
    "output_does_not_fit": _Row(422),
    "truncated": _Row(422),
    "constraint_error": _Row(422),
    "result_too_large": _Row(422),
    # --- carried out, and it went wrong
    "failed": _Row(500),
    "request_failed": _Row(500),
    "internal_error": _Row(500),  # of a worker
    "hook_failed": _Row(500),
    "engine_error": _Row(500),
    "poison_request": _Row(500, again=False),  # each time it was tried, an engine died
    "aborted": _Row(503, again=True),
    "engine_dead": _Row(503, again=True),
    "engine_unavailable": _Row(503, again=True),
    "expired": _Row(504, again=False),
    "no_reply": _Row(504, says="no answer came within the time that was allowed", again=False),
    "cancelled": _Row(CANCELLED, again=False),
    "client_closed": _Row(503, "server_shutting_down", _ENDING, again=True),
    "request_id_reused": _Row(422, "idempotency_key_reused", _REUSED, again=False),
    "result_gone": _Row(410, "idempotent_answer_gone", _GONE, again=False),
    "stream_restarted": _Row(502),
    # --- Kafka and what goes through it
    "kafka": _Row(503, says=_QUEUE, again=True),
    "kafka_unavailable": _Row(503, says=_QUEUE, again=True),
    "topic_missing": _Row(503, says=_QUEUE, again=True),
    "topics": _Row(503, says=_QUEUE, again=True),
    "broker_not_found": _Row(503, says=_QUEUE, again=True),
    "registry": _Row(503, says=_QUEUE, again=True),
    "side_task_died": _Row(503, says=_QUEUE, again=True),
    "undecodable": _Row(502, says=_OUT_OF_STEP, again=False),
    "unknown_writer_schema": _Row(502, says=_OUT_OF_STEP, again=False),
    "schema_incompatible": _Row(500, says=_SET_UP_WRONG, again=False),
    "topic_not_allowed": _Row(500, says=_SET_UP_WRONG, again=False),
    # --- of a worker's or an operator's life: no call ends so
    "stale_generation": _Row(503, says=_QUEUE, again=True),
    "slot_taken": _Row(503, says=_QUEUE, again=True),
    "transaction_hung": _Row(503, says=_QUEUE, again=True),
    "unreadable_offsets": _Row(500, says=_INTERNAL),
    "offsets_too_long": _Row(500, says=_INTERNAL),
    "bad_setting": _Row(500, says=_SET_UP_WRONG, again=False),
    "bad_package": _Row(500, says=_SET_UP_WRONG, again=False),
    "broker_failed": _Row(500, says=_INTERNAL),
    "broker_install_failed": _Row(500, says=_INTERNAL),
    "error": _Row(500, "internal_error", _INTERNAL),
}

# What is told of a result whose code has no row: a package's hook has codes of its own.
_BY_STATUS: Final[dict[Status, _Row]] = {
    "ok": ROWS["error"],  # no failure: whoever asks is mistaken
    "rejected": ROWS["rejected"],
    "invalid_output": ROWS["invalid_output"],
    "truncated": ROWS["truncated"],
    "failed": ROWS["failed"],
    "expired": ROWS["expired"],
    "cancelled": ROWS["cancelled"],
}

_KINDS: Final = {
    422: "output_error",
    CANCELLED: "cancelled_error",
}  # OpenAI's `type`; ApiError knows the others

_IDEMPOTENCY: Final = "idempotency_error"  # the `type` of Stripe, whose header Idempotency-Key is
_OF_IDEMPOTENCY: Final = frozenset({"request_id_reused", "result_gone"})

# Codes whose path leads into the output, not into the request.
_OF_OUTPUT: Final = frozenset({"invalid_output", "not_json", "schema_violated", "output_does_not_fit"})


def shutting_down() -> ApiError:
    """What a call is told that comes when the instance has been told to end."""
    # A connection that is kept would bring the next call here too.
    return _told(ROWS["client_closed"], ErrorDetail(code="client_closed", message=""), None, more=CLOSE)


# --- from a result ----------------------------------------------------------------------------------------


def failure_of(result: Result, wanted: Wanted | None = None) -> ApiError:
    """What the caller is told of a result that is not `ok`; `wanted` names its parameters as the caller did."""
    detail = result.error or ErrorDetail(code=result.status, message=f"the request ended as {result.status}")
    row = ROWS.get(detail.code, _BY_STATUS[result.status])
    return _told(
        row, detail, wanted, into_output=result.status == "invalid_output", more=response_headers(result)
    )


def _told(
    row: _Row,
    detail: ErrorDetail,
    wanted: Wanted | None,
    *,
    into_output: bool = False,
    more: dict[str, str] | None = None,
) -> ApiError:
    if detail.code == "prompt_too_long":
        param, message = _too_long(detail, wanted)
    elif into_output or detail.code in _OF_OUTPUT:
        param = _constraint_param(wanted)
        message = detail.message + (f" (at {detail.path} of the output)" if detail.path else "")
    else:
        param, rest = param_of(detail.path, wanted)
        message = detail.message + (f" (at {rest})" if rest else "")
        if detail.code == "result_too_large":
            message = f"the answer is too large to be delivered: ask for less of it. {message}"
        elif param is None:
            param = _param_without_path(detail.code, wanted)
    if row.says is not None:
        param, message = None, row.says
    return ApiError(
        row.status,
        message,
        reason=row.reason or detail.code,
        param=param,
        kind=_IDEMPOTENCY if detail.code in _OF_IDEMPOTENCY else _KINDS.get(row.status),
        headers=(more or {}) | _whether_again(row),
    )


def _param_without_path(code: str, wanted: Wanted | None) -> str | None:
    if code == "constraint_error":
        return _constraint_param(wanted)
    return "messages" if code == "template_failed" else None


def _whether_again(row: _Row) -> dict[str, str]:
    if row.again is None:
        return {}
    return {"retry-after": str(RETRY_AFTER_S)} if row.again else NO_RETRY


_LENGTHS: Final = re.compile(r"the prompt has (\d+) tokens; the model holds (\d+)")


def _too_long(detail: ErrorDetail, wanted: Wanted | None) -> tuple[str, str]:
    """Param and message in OpenAI's words: programs look for them, to send less and try again."""
    of_prompt = detail.path == "/prompt" or (wanted is not None and wanted.endpoint == "completions")
    param = "prompt" if of_prompt else "messages"
    found = _LENGTHS.match(detail.message)
    if found is None:
        return param, f"This model's maximum context length is exceeded: {detail.message}"
    length, limit = found.groups()
    has = f"your prompt has {length} tokens" if of_prompt else f"your messages resulted in {length} tokens"
    room = ", which leaves no room for an answer" if length == limit else ""
    advice = "Please reduce your prompt." if of_prompt else "Please reduce the length of the messages."
    return param, f"This model's maximum context length is {limit} tokens. However, {has}{room}. {advice}"


# --- from an error ----------------------------------------------------------------------------------------

# The fields of a Reply that no Request has.
_OF_REPLY: Final = frozenset(Reply.model_fields) - frozenset(Request.model_fields)


def failure_of_error(error: Exception, wanted: Wanted | None = None) -> ApiError:
    """What the caller is told of an error that the client, or the endpoint itself, has raised.

    Of one that is none of ours nothing is told: what it says may be anybody's.
    """
    match error:
        case ApiError():
            return error
        case OutputDoesNotFit():  # its result is `ok`
            more = response_headers(error.result)
            return _told(ROWS[error.code], _detail(error), wanted, more=more)
        case RequestFailed():
            return failure_of(error.result, wanted)
        # Time is left, but no reply can come any more.
        case NoReply(__cause__=HeadraceError() as cause):
            # Nothing that may be wrong with another's message says anything of this call.
            kind = cause if _row_of(cause).status == 503 else KafkaFailed("")
            return _told(_row_of(kind), ErrorDetail(code=kind.code, message=""), wanted)
        case MessageError(code="result_too_large"):  # it is the request that Kafka does not take
            return ApiError(413, "the request is larger than the queue takes", reason="request_too_large")
        case MessageError() if _is_of_a_reply(error):
            return _told(ROWS["undecodable"], _detail(error), wanted)
        case TopicsError() | TopicMissing() if ".requests." in error.message:
            return no_such_model(wanted.model if wanted else None)
        case HeadraceError():
            return _told(_row_of(error), _detail(error), wanted)
        case _:
            return _told(ROWS["error"], ErrorDetail(code="internal_error", message=""), wanted)


def no_such_model(name: str | None) -> ApiError:
    """A model that has no contract here, or whose contract has no topics."""
    which = "model" if name is None else f"model `{name}`"
    message = f"The {which} does not exist or you do not have access to it."
    return ApiError(404, message, reason="model_not_found", param="model")


def _is_of_a_reply(error: MessageError) -> bool:
    """Whether it was no request of the caller's, but a worker's reply that could not be read."""
    steps = (error.path or "").split("/")
    return len(steps) > 1 and steps[1] in _OF_REPLY


def _detail(error: HeadraceError) -> ErrorDetail:
    return ErrorDetail(code=error.code, message=error.message, path=error.path)


def _row_of(error: HeadraceError) -> _Row:
    """The row of its code, or of the nearest class above it that has one."""
    codes = (kind.code for kind in type(error).__mro__ if issubclass(kind, HeadraceError))
    return next(ROWS[code] for code in codes if code in ROWS)


# --- from a JSON pointer into the request to the caller's parameter -----------------------------------------

# The steps into a Request that have another name with OpenAI's clients, the longest first.
_PARAMS: Final[tuple[tuple[list[str], str], ...]] = (
    (["reasoning", "max_tokens"], "thinking_token_budget"),
    (["reasoning"], "reasoning_effort"),
    (["tool_choice"], "tool_choice"),
    (["key"], "prompt_cache_key"),
    (["stream"], "stream"),
)
_AS_IT_IS: Final = frozenset({"messages", "prompt", "tools"})


def param_of(path: str | None, wanted: Wanted | None = None) -> tuple[str | None, str]:
    """The caller's parameter that a JSON pointer into a Request leads to, and what the parameter does not say of it.

    `/messages/0/content` is `messages[0].content`. None for what no parameter sets (the deadline).
    """
    if not path:
        return None, ""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]
    match steps:
        case ["sampling", "logprobs", *_] if wanted is not None and wanted.endpoint == "chat":
            return "top_logprobs", ""
        case ["sampling", *rest] if rest:
            return _dotted(rest), ""
        case ["output", *rest]:
            kind = rest[0] if rest else None
            return _constraint_param(wanted, kind), "".join(f"/{step}" for step in rest[1:])
        case ["attributes", name, *_]:  # `user`, `metadata.<key>`: named as the caller names them
            return name, ""
        case [head, *_] if head in _AS_IT_IS:
            return _dotted(steps), ""
        case _:
            param = next((param for prefix, param in _PARAMS if steps[: len(prefix)] == prefix), None)
            return param, "" if param else path


def _dotted(steps: list[str]) -> str:
    """`messages[0].content`, as OpenAI writes the way into a parameter."""
    first, *rest = steps
    return first + "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in rest)


def _constraint_param(wanted: Wanted | None, kind: str | None = None) -> str | None:
    """The parameter that says what the output is held to; None where the model's package alone does.

    `kind` is the constraint's: `regex`. Where the call does not say it, the likeliest parameter is named.
    """
    if wanted is not None:
        if wanted.tool is not None:
            return "tools"
        given = wanted.fields.get("output")
        if given is None or wanted.constraint_param is not None:
            return wanted.constraint_param
        kind = next(iter(given), None)
    return "structured_outputs" if kind in ("regex", "choice", "grammar") else "response_format"
