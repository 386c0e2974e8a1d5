"""From a Result to the body that OpenAI's clients expect. Pure.

What a chat's choice and a completion's choice are made of is here in parts, since a stream sends the same parts one
by one (`streams.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import pydantic_core

from headrace.producers.asking import raise_for_status
from headrace.producers.http.wanted import ApiError, ForcedTool, Wanted
from headrace.schemas import strict_json
from headrace.schemas.messages import FinishReason, JsonObject, Lane, Output, Provenance, Result, TokenLogprob

LEAST_LOGPROB: Final = -9999.0  # what OpenAI says of a token that is very unlikely; JSON has no -inf
API_VERSION: Final = "2020-10-01"  # of OpenAI's REST API

# Of OpenAI's reasons only `length` says that a text ended before the model had ended it. An `ok` result has `abort`
# or `error` only where a package's hook has decided to let its text pass.
_FINISH_REASONS: Final[dict[FinishReason, str]] = {
    "stop": "stop", "length": "length", "tool_calls": "tool_calls", "abort": "length", "error": "length",
}  # fmt: skip
_SERVICE_TIERS: Final[dict[Lane, str]] = {"interactive": "default", "standard": "flex", "backfill": "flex"}

_SURROGATE: Final = re.compile(
    rb"\xed[\xa0-\xbf][\x80-\xbf]"
)  # as `surrogatepass` encodes one; nothing else has this
_REPLACEMENT: Final = "�".encode()


# --- whole bodies -----------------------------------------------------------------------------------------


def chat_completion(result: Result, wanted: Wanted, *, created: int) -> JsonObject:
    """The body of `/v1/chat/completions`. `created` in seconds since the epoch.

    Raises RequestFailed for a result that is not `ok`, and ApiError where a forced tool call cannot be read.
    """
    raise_for_status(result)
    return {
        "id": chat_id(result.id),
        "object": "chat.completion",
        "created": created,
        "model": wanted.model,
        "choices": [
            {
                "index": index,
                "message": _message(output, tool_calls(result, index, wanted)),
                "logprobs": chat_logprobs(output, wanted),
                "finish_reason": chat_finish_reason(output, wanted.tool),
            }
            for index, output in enumerate(result.outputs)
        ],
        "usage": usage([result]),
        "service_tier": service_tier(wanted),
        "system_fingerprint": system_fingerprint([result]),
    }


def text_completion(
    results: Sequence[Result], wanted: Wanted, *, created: int, request_id: str | None = None
) -> JsonObject:
    """The body of `/v1/completions`: a result for each prompt, in their order; choices are numbered across them.

    `request_id` is the call's, where it is not that of the first prompt's request. Raises RequestFailed for a result
    that is not `ok`.
    """
    choices: list[JsonObject] = []
    for place, result in enumerate(results):
        raise_for_status(result)
        for index, output in enumerate(result.outputs, start=place * wanted.choices):
            choices.append(
                {
                    "index": index,
                    "text": output.text,
                    "logprobs": text_logprobs(output, wanted),
                    "finish_reason": text_finish_reason(output),
                    **reasoning(output),
                }
            )
    return {
        "id": text_id(results[0].id if request_id is None else request_id),
        "object": "text_completion",
        "created": created,
        "model": wanted.model,
        "choices": choices,
        "usage": usage(results),
        "system_fingerprint": system_fingerprint(results),
    }


def encode_json(body: JsonObject) -> bytes:
    """A body as JSON in UTF-8, without blanks. What is no character (a caller's lone surrogate) becomes U+FFFD."""
    try:
        return pydantic_core.to_json(body, inf_nan_mode="null")
    except pydantic_core.PydanticSerializationError:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return _SURROGATE.sub(_REPLACEMENT, text.encode("utf-8", "surrogatepass"))


def response_headers(result: Result) -> dict[str, str]:
    """What the headers of a response say of its result.

    `x-request-id` is what OpenAI's clients show as `_request_id`. `openai-processing-ms` runs from the request's
    place in the queue to the end, and so includes `x-headrace-queue-ms`.
    """
    return {
        "x-request-id": _header_text(result.id),
        "x-headrace-model-version": _header_text(result.provenance.version),
        "x-headrace-queue-ms": str(result.timings.queued_ms),
        "openai-processing-ms": str(result.timings.total_ms),
        "openai-version": API_VERSION,
    }


def _header_text(text: str) -> str:
    """Printable ASCII as it is, all else percent-encoded: a header can hold no more."""
    return quote(text, safe=string.punctuation + " ", errors="replace").strip()


# --- what bodies and streams are made of ------------------------------------------------------------------


def chat_id(request_id: str) -> str:
    """A chat completion's id."""
    return f"chatcmpl-{request_id}"


def text_id(request_id: str) -> str:
    """A text completion's id."""
    return f"cmpl-{request_id}"


def usage(results: Sequence[Result]) -> JsonObject:
    """Tokens of all of them together."""
    prompt = sum(result.usage.prompt_tokens for result in results)
    completion = sum(result.usage.completion_tokens for result in results)
    cached = sum(result.usage.cached_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def service_tier(wanted: Wanted) -> str:
    """The lane in OpenAI's terms: `default` is the interactive one, `flex` every slower one."""
    return _SERVICE_TIERS[wanted.lane]


def system_fingerprint(results: Sequence[Result]) -> str:
    """`fp_` and 12 hexadecimal digits that change when what generates does: package, engine, their versions, weights.

    Not what a request brings itself (its output schema): callers compare fingerprints across requests.
    """
    backends = sorted({_backend(result.provenance) for result in results})
    return f"fp_{hashlib.sha256(json.dumps(backends).encode()).hexdigest()[:12]}"


def _backend(made_by: Provenance) -> tuple[str, ...]:
    return (
        made_by.model,
        str(made_by.contract),
        made_by.version,
        made_by.engine,
        made_by.engine_version,
        made_by.weights_digest or "",
    )


def chat_finish_reason(output: Output, tool: ForcedTool | None) -> str:
    """As OpenAI gives it: `stop` for a call that the caller named, `tool_calls` where the model chose the tool."""
    reason = _FINISH_REASONS[output.finish_reason]
    if reason == "stop" and (output.tool_calls or (tool is not None and tool.name is None)):
        return "tool_calls"
    return reason


def text_finish_reason(output: Output) -> str:
    """`stop` or `length`: the old endpoint knows no tools."""
    return "length" if _FINISH_REASONS[output.finish_reason] == "length" else "stop"


def reasoning(output: Output) -> JsonObject:
    """What a reasoning model thought, in both of the names that clients look for; nothing where it did not."""
    if output.reasoning is None:
        return {}
    return {"reasoning_content": output.reasoning, "reasoning": output.reasoning}


def _message(output: Output, calls: list[JsonObject]) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": output.text, "refusal": None, **reasoning(output)}
    if calls:
        message |= {"content": spoken_text(output) or None, "tool_calls": calls}
    return message


def spoken_text(output: Output) -> str:
    """What is said beside the tool calls: nothing where the text is the call."""
    return output.text if output.tool_calls else ""


def tool_calls(result: Result, index: int, wanted: Wanted) -> list[JsonObject]:
    """The tool calls of a choice: those that the worker's parser found, else the one that the caller forced.

    Raises ApiError where the text is no such call. A worker has held it to that; but a request id that was used
    before has the answer to what was asked then.
    """
    output = result.outputs[index]
    if output.tool_calls:
        count = None if wanted.parallel_tool_calls else 1
        return [call.model_dump() for call in output.tool_calls[:count]]
    if wanted.tool is None:
        return []
    name, arguments = _forced_call(output.text, wanted.tool)
    digest = hashlib.sha256(f"{result.id}:{index}".encode()).hexdigest()
    function = {"name": name, "arguments": arguments}
    return [{"id": f"call_{digest[:24]}", "type": "function", "function": function}]


def _forced_call(text: str, tool: ForcedTool) -> tuple[str, str]:
    """Name and arguments, the latter JSON text."""
    try:
        value = strict_json.parse(text)
        if tool.name is not None:
            return tool.name, text
        match value:
            case {"name": str(name), "arguments": arguments}:
                return name, strict_json.dump(arguments)
            case _:
                pass
    except strict_json.JsonFault:
        pass
    raise ApiError(
        422,
        "the answer is no call of the tool that was asked for. Was this request's id used for another call before?",
        reason="invalid_output",
        param="tools",
        kind="output_error",
    )


def chat_logprobs(output: Output, wanted: Wanted) -> JsonObject | None:
    """A choice's `logprobs` in the shape of chats; None where they were not asked for, or there are none."""
    if not wanted.logprobs or output.logprobs is None:
        return None
    content = [
        {
            **_token(one.token, one.logprob),
            "top_logprobs": [_token(top.token, top.logprob) for top in one.top[: wanted.top_logprobs]],
        }
        for one in output.logprobs
    ]
    return {"content": content, "refusal": None}


def _token(token: str, logprob: float) -> JsonObject:
    encoded = list(token.encode("utf-8", "replace"))
    return {"token": token, "logprob": max(logprob, LEAST_LOGPROB), "bytes": encoded}


def text_logprobs(output: Output, wanted: Wanted) -> JsonObject | None:
    """A choice's `logprobs` in the old shape; `text_offset` in characters from where the generated text begins."""
    if not wanted.logprobs or output.logprobs is None:
        return None
    offsets: list[int] = []
    offset = 0
    for one in output.logprobs:
        offsets.append(offset)
        offset += len(one.token)
    return {
        "tokens": [one.token for one in output.logprobs],
        "token_logprobs": [max(one.logprob, LEAST_LOGPROB) for one in output.logprobs],
        "top_logprobs": [_likeliest(one, wanted.top_logprobs) for one in output.logprobs],
        "text_offset": offsets,
    }


def _likeliest(one: TokenLogprob, count: int) -> dict[str, float]:
    """The likeliest tokens, and the generated one, which may be none of them."""
    found = {top.token: max(top.logprob, LEAST_LOGPROB) for top in one.top[:count]}
    return found | {one.token: max(one.logprob, LEAST_LOGPROB)}
