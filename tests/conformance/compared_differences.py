"""Where `headrace serve` answers otherwise than `vllm serve`, and why: data, and the table of docs/http.md.

A difference that stands in no row fails the comparison, and so does a row that explains nothing any more. Print the
table with `PYTHONPATH=tests python -m conformance.compared_differences`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from conformance.compared_answers import Difference

# What must be the same, whole or joined from a stream. A row may excuse it of calls alone that it names one by one.
ESSENTIAL: Final = (
    "status", "stream.done", "*.text", "*.content", "*.arguments", "*.name", "*usage*.prompt_tokens",
    "*usage*.completion_tokens", "*usage*.total_tokens", "*usage*.cached_tokens", "*.finish_reason",
    "*.logprob", "*.token", "*.tokens[]", "*.token_logprobs[]", "*.top_logprobs[]*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Explanation:
    """A row: `paths` of answers to the calls named by `requests` may differ.

    In both `*` stands for any text, and in paths `[]` for any place in a list. `perhaps` are paths that differ for some
    texts only. `of` and `field` are the same for the reader, `why` says what each of the two does.
    """

    field: str
    of: str
    why: str
    paths: tuple[str, ...]
    requests: tuple[str, ...] = ("*",)
    perhaps: tuple[str, ...] = ()

    def covers(self, request: str, path: str) -> bool:
        """Whether it explains a difference."""
        named = [pattern for pattern in self.requests if _matches(pattern, request)]
        if not named or not any(_matches(pattern, path) for pattern in (*self.paths, *self.perhaps)):
            return False
        return any("*" not in pattern for pattern in named) or not is_essential(path)


_STREAMS: Final = ("chat: stream*", "completion: stream*")
_TOOLS: Final = (
    "chat: named tool", "chat: required tool", "chat: stream of a named tool", "chat: stream of a required tool",
)  # fmt: skip

EXPLANATIONS: Final[tuple[Explanation, ...]] = (
    # --- answers
    Explanation(
        "`prompt_logprobs`, `prompt_token_ids`, `prompt_text`, `kv_transfer_params`, `ec_transfer_params`, `metrics`; "
        "of a choice `token_ids`, `routed_experts`",
        "all",
        "There `null`, unless asked for by parameters that are refused here. Here left out.",
        (
            "body.prompt_logprobs", "body.prompt_token_ids", "body.prompt_text", "body.kv_transfer_params",
            "body.ec_transfer_params", "body.metrics", "body.choices[].token_ids", "body.choices[].routed_experts",
            "body.choices[].prompt_logprobs", "body.choices[].prompt_token_ids", "chunk(*).prompt_token_ids",
            "chunk(*).prompt_text", "chunk(*).choices[].token_ids", "chunk(*).choices[].prompt_token_ids",
        ),
        ("chat: *", "completion: *"),
    ),
    Explanation(
        "`annotations`, `audio`, `function_call`, `reasoning` of a message",
        "chats",
        "There always, mostly `null`. Here a message has what it says; that of a reasoning model has `reasoning` and "
        "`reasoning_content`.",
        (
            "body.choices[].message.annotations", "body.choices[].message.audio",
            "body.choices[].message.function_call", "body.choices[].message.reasoning",
        ),
        ("chat: *",),
    ),
    Explanation(
        "`refusal` of a message's first chunk, and of `logprobs`",
        "chats",
        "Here `null`, as OpenAI has it. There missing.",
        ("body.choices[].logprobs.refusal", "chunk(role).choices[].delta.refusal"),
        ("chat: *",),
    ),
    Explanation(
        "`stop_reason`",
        "all",
        "There the stop text that ended the answer. OpenAI has no such field, and it is missing here.",
        ("body.choices[].stop_reason", "stream.choices[].stop_reason", "chunk(*).choices[].stop_reason"),
        ("chat: *", "completion: *"),
    ),
    Explanation(
        "`service_tier`",
        "all",
        "There `null` or missing. Here the lane in OpenAI's terms for chats: `default`, or `flex`.",
        ("body.service_tier", "chunk(*).service_tier"),
        ("chat: *", "completion: *"),
    ),
    Explanation(
        "`created_cache_tokens`, `multimodal_tokens`, `completion_tokens_details` of `usage`",
        "all",
        "There 0 or `null`. Here `cached_tokens` is the one detail, and always there; `vllm serve` tells it with "
        "`--enable-prompt-tokens-details`.",
        (
            "body.usage.prompt_tokens_details.created_cache_tokens",
            "body.usage.prompt_tokens_details.multimodal_tokens", "body.usage.completion_tokens_details",
            "stream.usage[].prompt_tokens_details.created_cache_tokens",
            "chunk(usage).usage.prompt_tokens_details.created_cache_tokens",
        ),
        ("chat: *", "completion: *"),
    ),
    Explanation(
        "headers `x-request-id`, `openai-processing-ms`, `x-headrace-*`",
        "all",
        "There none of them, `x-request-id` with `--enable-request-id-headers`.",
        (
            "headers.x-request-id", "headers.openai-processing-ms", "headers.x-headrace-model-version",
            "headers.x-headrace-queue-ms",
        ),
    ),
    Explanation(
        "length of an answer",
        "completions without `max_tokens`",
        "There 16 tokens. Here what the package says, else the model, as for a chat.",
        ("body.choices[].text", "body.usage.*_tokens"),
        ("completion: no max_tokens",),
        perhaps=("body.choices[].finish_reason",),
    ),
    Explanation(
        "`top_logprobs`",
        "chats whose `temperature` is not 0",
        "There the token that was sampled comes first, and one of the likeliest has to go for it. Here the likeliest "
        "alone, as OpenAI has it.",
        ("body.choices[].logprobs.content[].top_logprobs*", "stream.choices[].logprobs.content[].top_logprobs*"),
        ("chat: logprobs", "chat: stream of logprobs"),
    ),
    # --- streams
    Explanation(
        "header `cache-control`",
        "streams",
        "Here `no-cache`, so that no proxy keeps a stream.",
        ("headers.cache-control",),
        _STREAMS,
    ),
    Explanation(
        "`system_fingerprint` of chunks",
        "streams",
        "There in the last chunk alone. Here in each: `null` before the result is known.",
        ("chunk(role).system_fingerprint", "chunk(text).system_fingerprint", "chunk(tool).system_fingerprint",
         "chunk(end).system_fingerprint"),
        _STREAMS,
    ),
    Explanation(
        "`usage` of the chunks before the last",
        "streams with `include_usage`",
        "Here `null`, as OpenAI has it. There missing.",
        ("chunk(role).usage", "chunk(text).usage", "chunk(tool).usage", "chunk(end).usage"),
        _STREAMS,
    ),
    Explanation(
        "the last piece of text",
        "streams",
        "There it comes with the `finish_reason`. Here the `finish_reason` has a chunk of its own with an empty delta, "
        "as OpenAI's has.",
        (
            "chunk(text).choices[].finish_reason", "chunk(end).choices[].delta", "chunk(end).choices[].delta.*",
        ),
        _STREAMS,
        perhaps=("chunk(tool).choices[].finish_reason",),
    ),
    Explanation(
        "tokens that are no text yet, such as half a character",
        "streams",
        "There each is a chunk with an empty text. Here none is.",
        ("chunk(nothing)*", "stream.choices[].order"),
        _STREAMS,
    ),
    Explanation(
        "`logprobs`",
        "streams",
        "There with each piece of text. Here all together, in a chunk after the text.",
        ("chunk(*).choices[].logprobs*", "chunk(nothing)*", "stream.choices[].order"),
        ("chat: stream of logprobs", "completion: stream of logprobs"),
    ),
    # --- what is promised
    Explanation(
        "status of an answer that `max_tokens` cuts under a schema",
        "calls with a `response_format` or a forced tool",
        "There 200 with broken JSON. Here 422.",
        ("status",),
        ("chat: json_schema cut",),
    ),
    Explanation(
        "forced tool calls",
        "chats with `tool_choice` `required` or a function's name",
        "There the model writes the call in the form of its `--tool-call-parser`, without which it is refused; that "
        "costs tokens, and without `strict` the arguments are not held to their schema. Here the model writes the "
        "arguments alone, or `name` and `arguments` where it may choose, and they are held to the schema. The id of a "
        "call begins with `call_`.",
        (
            "body.choices[].message.content", "body.choices[].message.tool_calls*", "body.choices[].finish_reason",
            "body.usage.*_tokens", "stream.choices[].tool_calls*", "stream.choices[].finish_reason",
            "stream.usage[].*_tokens", "chunk(tool).choices[].delta*", "chunk(role).choices[].delta.content",
        ),
        _TOOLS,
    ),
    Explanation(
        "`tools` together with `response_format`",
        "chats",
        "There the tools count and the format is dropped. Here 400.",
        ("status",),
        ("chat: tools and response_format",),
    ),
    # --- refusals
    Explanation(
        "parameters that nobody knows, and those that are refused here",
        "`responseFormat`, `guided_json`, `echo`, `modalities`, `best_of`, token ids as a prompt",
        "There what is not known is dropped without a word, and some that are refused here are served. Here 400, with "
        "the parameter's name. See the table of parameters.",
        ("status",),
        (
            "chat: unknown parameter", "chat: guided_json", "chat: echo", "chat: modalities", "completion: echo",
            "completion: best_of", "completion: token ids",
        ),
    ),
    Explanation(
        "what is not said clearly",
        "a number as text, a role that nobody has, no `model`, two token limits that differ",
        "There it is taken for what it looks like. Here 400, with the parameter's name.",
        ("status",),
        ("chat: number as text", "chat: role that is none", "chat: no model", "chat: two different token limits"),
    ),
    Explanation("`n` above 8", "all", "There served. Here 400.", ("status",), ("chat: n too high",)),
    Explanation(
        "`max_tokens` beyond the context",
        "all",
        "There 400. Here it is a bound like any: the answer may be as long as there is room for.",
        ("status",),
        ("chat: max_tokens beyond the context",),
    ),
    Explanation(
        "`message`, `type`, `param`, `code` of an error",
        "all errors",
        "There `code` is the status, and `type` a name of vLLM's. Here both are OpenAI's words, `param` is the "
        "caller's parameter wherever there is one, and messages say what to do.",
        ("body.error.message", "body.error.type", "body.error.param", "body.error.code"),
        ("chat: *", "completion: *", "body: *"),
    ),
    Explanation(
        "the body of an error",
        "addresses and methods that are not there",
        'There `{"detail": ...}`. Here an error in OpenAI\'s shape.',
        ("body.detail", "body.error.*"),
        ("page: no such page", "page: wrong method", "page: wrong method for models"),
    ),
    Explanation(
        "`/v1/models`",
        "the list, and one of them",
        "There the one model, with `permission`, and `root` is where its weights lie; `/v1/models/NAME` is not there. "
        "Here every name that can be asked for, `root` is its contract, and each has its own page.",
        ("body.data[].*", "status"),
        ("page: models", "page: model"),
    ),
)  # fmt: skip


def is_essential(path: str) -> bool:
    """Whether two servers of one model must agree there."""
    return not path.startswith("chunk(") and any(_matches(pattern, path) for pattern in ESSENTIAL)


def unexplained(request: str, found: Iterable[Difference]) -> list[Difference]:
    """The differences that stand in no row."""
    return [each for each in found if not any(row.covers(request, each.path) for row in EXPLANATIONS)]


def stale(found: Mapping[str, Iterable[Difference]]) -> list[str]:
    """What of the rows explains none of the differences, by call: a path, or the calls of a row."""
    pairs = [(request, each.path) for request, differences in found.items() for each in differences]
    unused: list[str] = []
    for row in EXPLANATIONS:
        covered = [(request, path) for request, path in pairs if row.covers(request, path)]
        unused += [
            f"{row.field}: path {each}"
            for each in row.paths
            if not any(_matches(each, path) for _, path in covered)
        ]
        unused += [
            f"{row.field}: call {each}"
            for each in row.requests
            if not any(_matches(each, name) for name, _ in covered)
        ]
    return unused


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    parts = (re.escape(part).replace(r"\[\]", r"\[\d*\]") for part in pattern.split("*"))
    return re.compile(".*".join(parts), re.DOTALL)


def _matches(pattern: str, text: str) -> bool:
    return _pattern(pattern).fullmatch(text) is not None


def markdown_table() -> str:
    """The rows as Markdown; ends with a newline."""
    lines = ["| what | of which calls | `vllm serve`, and here |", "| --- | --- | --- |"]
    lines += ["| " + " | ".join((row.field, row.of, row.why)) + " |" for row in EXPLANATIONS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown_table(), end="")
