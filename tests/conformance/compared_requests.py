"""Calls that are sent to `vllm serve` and to `headrace serve` alike: data.

Both serve the tiny model under the name `free`. Answers are sampled with a seed, which makes the texts the same and
unlike one another: with temperature 0 this model says dots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

MODEL: Final = "free"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"

TEXT: Final = "Tell me of the mill."
SEED: Final = 11
HALF: Final = "161"  # the token of the byte E2, which begins a character
BRACES: Final = {"93": 100, "95": 90}  # the tokens of `{` and `}`: an object ends as soon as it can
MESSAGES: Final = [{"role": "user", "content": TEXT}]
MOOD: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["bright", "dark", "calm"]},
        "score": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["mood", "score"],
    "additionalProperties": False,
}
WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town.",
        "strict": True,  # else `vllm serve` holds nothing of a call but its name
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"enum": ["Kigali", "Brno"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["town", "days"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip
NAMED: Final = {"type": "function", "function": {"name": "weather"}}
CALLED: Final = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"town": "Brno"}'},
}
USAGE: Final = {"stream": True, "stream_options": {"include_usage": True}}


def _held(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "held", "schema": schema, "strict": True}}


@dataclass(frozen=True, slots=True)
class Compared:
    """One call. `body` is sent as JSON, `raw` as it is."""

    name: str
    path: str
    body: dict[str, Any] | None = None
    raw: bytes | None = None
    method: str = "POST"
    content_type: str | None = "application/json"


def _chat(name: str, **fields: Any) -> Compared:
    least = {"model": MODEL, "messages": MESSAGES, "max_tokens": 16, "temperature": 1, "seed": SEED}
    return Compared(f"chat: {name}", CHAT, _without_absent(least | fields))


def _text(name: str, **fields: Any) -> Compared:
    least = {"model": MODEL, "prompt": TEXT, "max_tokens": 16, "temperature": 1, "seed": SEED}
    return Compared(f"completion: {name}", COMPLETIONS, _without_absent(least | fields))


def _raw(name: str, raw: bytes, content_type: str | None = "application/json") -> Compared:
    return Compared(f"body: {name}", CHAT, raw=raw, content_type=content_type)


def _get(name: str, path: str, method: str = "GET") -> Compared:
    return Compared(f"page: {name}", path, method=method, content_type=None)


ABSENT: Final = object()  # a field of the least call that is left out


def _without_absent(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not ABSENT}


COMPARED: Final[tuple[Compared, ...]] = (
    # --- chats that are answered
    _chat("plain"),
    _chat("no max_tokens", max_tokens=ABSENT),
    _chat("max_completion_tokens", max_tokens=ABSENT, max_completion_tokens=5),
    _chat("two equal token limits", max_completion_tokens=16),
    _chat("temperature 0", temperature=0),
    _chat("top_p, top_k, min_p", top_p=0.9, top_k=40, min_p=0.01),
    _chat("penalties", presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.2),
    _chat("logit_bias", logit_bias={"300": 5, "301": -100}),
    _chat("stop", stop=["a", "e"]),
    _chat("stop that does not come", stop="quite another text"),
    _chat("n", n=2),
    _chat("logprobs", logprobs=True, top_logprobs=3),
    _chat("logprobs at temperature 0", temperature=0, logprobs=True, top_logprobs=5),
    _chat("logprobs without top_logprobs", logprobs=True),
    _chat("system and past turns", messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "The miller."}, {"role": "user", "content": "Why?"},
    ]),
    _chat("developer", messages=[{"role": "developer", "content": "Be brief."}, *MESSAGES]),
    _chat("text part", messages=[{"role": "user", "content": [{"type": "text", "text": TEXT}]}]),
    _chat("text parts", messages=[
        {"role": "user", "content": [{"type": "text", "text": "Tell me"}, {"type": "text", "text": "of the mill."}]},
    ]),
    _chat("name and unknown keys in a message", messages=[
        {"role": "user", "content": TEXT, "name": "Ann", "reasoning_content": None, "annotations": []},
    ]),
    _chat("past tool call", messages=[
        *MESSAGES, {"role": "assistant", "content": None, "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]),
    _chat("null parameters", temperature=0, **dict.fromkeys(["top_p", "stop", "n", "seed", "tools", "user"])),
    _chat("recorded parameters", user="u1", metadata={"job": "7"}, safety_identifier="s1", prompt_cache_key="k"),
    _chat("service_tier", service_tier="auto"),
    # --- chats under a constraint
    _chat("json_schema", max_tokens=60, response_format=_held(MOOD)),
    _chat("json_schema cut", max_tokens=3, response_format=_held(MOOD)),
    _chat("json_object", max_tokens=60, response_format={"type": "json_object"}, logit_bias=BRACES),
    _chat("response_format text", response_format={"type": "text"}),
    _chat("structured_outputs regex", structured_outputs={"regex": "[a-z]{5}-[0-9]{3}"}, max_tokens=30),
    _chat("structured_outputs choice", structured_outputs={"choice": ["water", "wheel"]}),
    _chat("structured_outputs grammar", structured_outputs={"grammar": 'start: "a" | "b"'}),
    _chat("named tool", max_tokens=60, tools=[WEATHER], tool_choice=NAMED),
    _chat("required tool", max_tokens=60, tools=[WEATHER], tool_choice="required"),
    _chat("tool_choice none", tools=[WEATHER], tool_choice="none"),
    _chat("tool_choice auto", tools=[WEATHER]),
    # --- chats that are streamed
    _chat("stream", stream=True),
    _chat("stream with usage", **USAGE),
    _chat("stream of n", n=2, **USAGE),
    _chat("stream of logprobs", logprobs=True, top_logprobs=2, stream=True),
    _chat("stream of half characters", logit_bias={HALF: 100}, stream=True),
    _chat("stream with stop", stop=["a", "e"], **USAGE),
    _chat("stream of json_schema", max_tokens=60, response_format=_held(MOOD), **USAGE),
    _chat("stream of tool_choice auto", tools=[WEATHER], **USAGE),
    _chat("stream of a named tool", max_tokens=60, tools=[WEATHER], tool_choice=NAMED, **USAGE),
    _chat("stream of a required tool", max_tokens=60, tools=[WEATHER], tool_choice="required", **USAGE),
    # --- completions that are answered
    _text("plain"),
    _text("temperature 0", temperature=0),
    _text("no max_tokens", max_tokens=ABSENT),
    _text("n", n=2),
    _text("stop", stop=["a", "e"]),
    _text("several prompts", prompt=["The mill", "The river runs"]),
    _text("logprobs", logprobs=2),
    _text("json_schema", max_tokens=60, response_format=_held(MOOD)),
    _text("stream", stream=True),
    _text("stream with usage", **USAGE),
    _text("stream of several prompts", prompt=["The mill", "The river runs"], **USAGE),
    _text("stream of logprobs", logprobs=2, stream=True),
    # --- chats that one of them refuses, or both
    _chat("unknown parameter", responseFormat={"type": "json_object"}),
    _chat("guided_json", guided_json=MOOD),
    _chat("two different token limits", max_completion_tokens=5),
    _chat("number as text", temperature="0.5"),
    _chat("wrong type", temperature="hot"),
    _chat("temperature below 0", temperature=-1),
    _chat("max_tokens 0", max_tokens=0),
    _chat("max_tokens below 0", max_tokens=-1),
    _chat("max_tokens beyond the context", max_tokens=5000, stop=["a", "e"]),
    _chat("n 0", n=0),
    _chat("n too high", n=9),
    _chat("greedy n", n=2, temperature=0),
    _chat("top_p 0", top_p=0),
    _chat("top_logprobs too high", logprobs=True, top_logprobs=21),
    _chat("top_logprobs without logprobs", top_logprobs=2),
    _chat("logit_bias beyond the vocabulary", logit_bias={"99999": 1}),
    _chat("logit_bias of a word", logit_bias={"mill": 1}),
    _chat("empty stop", stop=""),
    _chat("stream_options without stream", stream_options={"include_usage": True}),
    _chat("echo", echo=True),
    _chat("modalities", modalities=["text", "audio"]),
    _chat("tool that is not there", tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "no"}}),
    _chat("tool_choice without tools", tool_choice="required"),
    _chat("tools and response_format", max_tokens=60, tools=[WEATHER], tool_choice=NAMED, response_format=_held(MOOD)),
    _chat("json_schema that is none", response_format=_held({"properties": {"a": {"type": "strin"}}})),
    _chat("response_format without its schema", response_format={"type": "json_schema"}),
    _chat("image", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
    _chat("role that is none", messages=[{"role": "miller", "content": TEXT}]),
    _chat("messages as text", messages=TEXT),
    _chat("no messages", messages=ABSENT),
    _chat("empty messages", messages=[]),
    _chat("messages that the template refuses", messages=[{"role": "assistant", "content": "I begin."}]),
    _chat("no model", model=ABSENT),
    _chat("unknown model", model="other"),
    _chat("too long", messages=[{"role": "user", "content": "the mill " * 3000}]),
    _chat("stream that is too long", messages=[{"role": "user", "content": "the mill " * 3000}], stream=True),
    # --- completions that one of them refuses, or both
    _text("echo", echo=True),
    _text("suffix", suffix="the end"),
    _text("best_of", best_of=2),
    _text("token ids", prompt=[300, 301, 302]),
    _text("empty prompt", prompt=""),
    _text("no prompt", prompt=ABSENT),
    _text("logprobs too high", logprobs=21),
    _text("too long", prompt="the mill " * 3000),
    _text("unknown model", model="other"),
    # --- bodies and pages
    _raw("not JSON", b'{"model": '),
    _raw("empty", b""),
    _raw("no object", b'[{"model": "free"}]'),
    _raw("no content type", b'{"model": "free", "messages": [{"role": "user", "content": "x"}]}', None),
    _get("models", "/v1/models"),
    _get("model", f"/v1/models/{MODEL}"),
    _get("no such page", "/v1/nowhere"),
    _get("wrong method", CHAT),
    _get("wrong method for models", "/v1/models", "DELETE"),
)  # fmt: skip
