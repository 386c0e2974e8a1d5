"""The answers in the OpenAPI document: JSON Schemas of what `answers.py`, `streams.py` and `models.py` make."""

from __future__ import annotations

from typing import Final

from headrace.producers.http.openapi_calls import NULL, TEXT, field_of, or_null, reference
from headrace.schemas.messages import FunctionCall, JsonObject, TokenLogprob, ToolCall, Usage

_NUMBER: Final[JsonObject] = {"type": "integer", "minimum": 0}
_SECONDS: Final[JsonObject] = {**_NUMBER, "description": "Seconds since the epoch."}
_LOGPROB: Final = field_of(TokenLogprob, "logprob")
_FINISH_REASON: Final[JsonObject] = {"enum": ["stop", "length", "tool_calls"]}
_TEXT_FINISH_REASON: Final[JsonObject] = {"enum": ["stop", "length"]}
_TIER: Final[JsonObject] = {
    "enum": ["default", "flex"],
    "description": "`default` is the interactive lane, `flex` a slower one.",
}
_FINGERPRINT: Final[JsonObject] = {"type": "string", "pattern": "^fp_[0-9a-f]{12}$"}


def components() -> JsonObject:
    """The schemas of answers, by name."""
    return {
        "ChatCompletion": _chat_completion(),
        "ChatCompletionChunk": _chat_chunk(),
        "Completion": _completion(),
        "CompletionChunk": _completion_chunk(),
        "Error": _error(),
        "Model": _model(),
        "ModelList": made_of({"object": {"const": "list"}, "data": array_of(reference("Model"))}),
        "ToolCall": _tool_call(),
        "Usage": _usage(),
    }


def made_of(members: JsonObject, optional: JsonObject | None = None) -> JsonObject:
    """An object that has all of `members`, and may have the `optional` ones."""
    return {"type": "object", "properties": {**members, **(optional or {})}, "required": list(members)}


def array_of(items: JsonObject, *, least: int = 0) -> JsonObject:
    """An array."""
    return {"type": "array", "items": items, **({"minItems": least} if least else {})}


# --- chats ----------------------------------------------------------------------------------------------------------


def _chat_completion() -> JsonObject:
    message = made_of(
        {"role": {"const": "assistant"}, "content": or_null(TEXT), "refusal": NULL},
        {**_thought(), "tool_calls": array_of(reference("ToolCall"), least=1)},
    )
    choice = made_of(
        {
            "index": _NUMBER,
            "message": message,
            "logprobs": or_null(_chat_logprobs()),
            "finish_reason": _FINISH_REASON,
        }
    )
    return made_of(
        {
            **_head("chat.completion"),
            "choices": array_of(choice, least=1),
            "usage": reference("Usage"),
            "service_tier": _TIER,
            "system_fingerprint": _FINGERPRINT,
        }
    )


def _chat_chunk() -> JsonObject:
    delta = made_of(
        {},
        {
            "role": {"const": "assistant"},
            "content": or_null(TEXT),
            "refusal": NULL,
            **_thought(),
            "tool_calls": array_of(_tool_call({"index": _NUMBER}), least=1),
        },
    )
    choice = made_of(
        {
            "index": _NUMBER,
            "delta": delta,
            "logprobs": or_null(_chat_logprobs()),
            "finish_reason": or_null(_FINISH_REASON),
        }
    )
    return made_of({**_chunk_head("chat.completion.chunk", choice), "service_tier": _TIER}, _chunk_usage())


def _thought() -> JsonObject:
    return {"reasoning_content": TEXT, "reasoning": TEXT}


def _tool_call(more: JsonObject | None = None) -> JsonObject:
    function = made_of({name: field_of(FunctionCall, name) for name in FunctionCall.model_fields})
    return made_of(
        {**(more or {}), "id": field_of(ToolCall, "id"), "type": {"const": "function"}, "function": function}
    )


def _chat_logprobs() -> JsonObject:
    token: JsonObject = {
        "token": TEXT,
        "logprob": _LOGPROB,
        "bytes": array_of({"type": "integer", "minimum": 0, "maximum": 255}),
    }
    content = made_of({**token, "top_logprobs": array_of(made_of(token))})
    return made_of({"content": array_of(content), "refusal": NULL})


# --- completions ----------------------------------------------------------------------------------------------------


def _completion() -> JsonObject:
    return made_of(
        {
            **_head("text_completion"),
            "choices": array_of(_text_choice(_TEXT_FINISH_REASON), least=1),
            "usage": reference("Usage"),
            "system_fingerprint": _FINGERPRINT,
        }
    )


def _completion_chunk() -> JsonObject:
    choice = _text_choice(or_null(_TEXT_FINISH_REASON))
    return made_of(_chunk_head("text_completion", choice), _chunk_usage())


def _text_choice(finish_reason: JsonObject) -> JsonObject:
    likeliest = {"type": "object", "additionalProperties": _LOGPROB}
    logprobs = made_of(
        {
            "tokens": array_of(TEXT),
            "token_logprobs": array_of(_LOGPROB),
            "top_logprobs": array_of(likeliest),
            "text_offset": array_of(_NUMBER),
        }
    )
    members: JsonObject = {
        "index": _NUMBER,
        "text": TEXT,
        "logprobs": or_null(logprobs),
        "finish_reason": finish_reason,
    }
    return made_of(members, _thought())


# --- what both have -------------------------------------------------------------------------------------------------


def _head(kind: str) -> JsonObject:
    model = {**TEXT, "description": "As the call named it."}
    return {"id": TEXT, "object": {"const": kind}, "created": _SECONDS, "model": model}


def _chunk_head(kind: str, choice: JsonObject) -> JsonObject:
    return {
        **_head(kind),
        "choices": array_of(choice),
        "system_fingerprint": {**or_null(_FINGERPRINT), "description": "Known with the result: at the end."},
    }


def _chunk_usage() -> JsonObject:
    asked = "With `stream_options.include_usage`: null but in the last chunk, which has no choices."
    return {"usage": {**or_null(reference("Usage")), "description": asked}}


def _usage() -> JsonObject:
    cached = made_of({"cached_tokens": field_of(Usage, "cached_tokens")})
    tokens = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _NUMBER)
    return made_of({**tokens, "prompt_tokens_details": cached})


def _model() -> JsonObject:
    return made_of(
        {
            "id": TEXT,
            "object": {"const": "model"},
            "created": _SECONDS,
            "owned_by": {"const": "headrace"},
            "root": {**TEXT, "description": "The contract that the name means: `model@number`."},
            "parent": NULL,
            "max_model_len": {
                **or_null(_NUMBER),
                "description": "Tokens, prompt and answer together; null where no worker has said it yet.",
            },
        }
    )


def _error() -> JsonObject:
    return made_of(
        {
            "error": made_of(
                {
                    "message": TEXT,
                    "type": TEXT,
                    "param": {**or_null(TEXT), "description": "The parameter or header at fault."},
                    "code": or_null(TEXT),
                }
            )
        }
    )
