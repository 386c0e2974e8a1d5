"""Every parameter of the two endpoints, and what becomes of it: data.

The names are those of OpenAI's API, of vLLM's server, and some that callers carry over from elsewhere. What stands
in no row is unknown, and refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from headrace.producers.http.wanted import Endpoint
from headrace.schemas import strict_json
from headrace.schemas.messages import JsonValue

Treatment = Literal["honoured", "recorded", "refused"]
Origin = Literal["OpenAI", "vLLM", "others"]

CHAT: Final[tuple[Endpoint, ...]] = ("chat",)
COMPLETIONS: Final[tuple[Endpoint, ...]] = ("completions",)
BOTH: Final[tuple[Endpoint, ...]] = ("chat", "completions")

MAX_PROMPTS: Final = 64  # of one call to /v1/completions


@dataclass(frozen=True, slots=True)
class Parameter:
    """A row of the table.

    `why` says how it is honoured or recorded, or why it is refused and what to send instead; it ends without a full
    stop where it is refused, for it is part of the error. `harmless` are values of a refused parameter that ask for
    nothing and are let through, as null always is; `harmless_as` names a parameter whose value is such a one.
    """

    name: str
    endpoints: tuple[Endpoint, ...]
    treatment: Treatment
    why: str
    origin: Origin = "OpenAI"
    harmless: tuple[JsonValue, ...] = ()
    harmless_as: str | None = None


def _honoured(
    name: str, why: str, endpoints: tuple[Endpoint, ...] = BOTH, origin: Origin = "OpenAI"
) -> Parameter:
    return Parameter(name, endpoints, "honoured", why, origin)


def _recorded(
    name: str, why: str, endpoints: tuple[Endpoint, ...] = BOTH, origin: Origin = "OpenAI"
) -> Parameter:
    return Parameter(name, endpoints, "recorded", why, origin)


def _refused(
    name: str,
    why: str,
    *harmless: JsonValue,
    endpoints: tuple[Endpoint, ...] = BOTH,
    origin: Origin = "OpenAI",
) -> Parameter:
    return Parameter(name, endpoints, "refused", why, origin, harmless)


def _of_vllm(name: str, why: str, *harmless: JsonValue, endpoints: tuple[Endpoint, ...] = BOTH) -> Parameter:
    return Parameter(name, endpoints, "refused", why, "vLLM", harmless)


_TOKEN_IDS = (
    "a request has text, and so has its result; token ids differ from one rollout's tokenizer to the next"
)
_PACKAGE = "the package of the model says so, for all of its callers"
_NO_MEDIA = "the package has no modality but text"
_RENDER_ONLY = "it is for the render endpoints of vLLM only"
_TRANSFER = "the workers serve prefill and decode in one engine"

PARAMETERS: Final[tuple[Parameter, ...]] = (
    # --- OpenAI's, honoured -------------------------------------------------------------------------------------------
    _honoured("model", "A name of `/v1/models`, resolved through the aliases to a contract; `model@3` or a contract "
              "pins it."),
    _honoured("messages", "Roles `system`, `developer`, `user`, `assistant` and `tool`. Content is a text or a list of "
              "text parts; a past refusal counts as text. Unknown keys inside a message pass. Images, audio and files "
              "are refused (a modality that the package lacks), and so are role `function` and `function_call`.", CHAT),
    _honoured("prompt", f"A text, or a list of at most {MAX_PROMPTS} texts, each a request of its own. Token ids are "
              "refused: a request has text.", COMPLETIONS),
    _honoured("frequency_penalty", "-2 to 2."),
    _honoured("presence_penalty", "-2 to 2."),
    _honoured("logit_bias", "Token ids as strings of digits, each -100 to 100; at most 1,024."),
    _honoured("logprobs", "`true`: the log probability of each token of the content.", CHAT),
    _honoured("logprobs", "0 to 20: the log probability of each token, and of so many likeliest ones.", COMPLETIONS),
    _honoured("top_logprobs", "0 to 20, with `logprobs: true`.", CHAT),
    _honoured("max_completion_tokens", "At least 1. Absent, it is the package's, else what the context has room for. "
              "400 where `max_tokens` says something else.", CHAT),
    _honoured("max_tokens", "The older name of `max_completion_tokens`.", CHAT),
    _honoured("max_tokens", "At least 1. Absent, it is the package's, else what the context has room for: not 16.",
              COMPLETIONS),
    _honoured("n", "1 to 8; each choice is validated."),
    _honoured("parallel_tool_calls", "A forced call is always one, which answers `true` too. Under `auto`, `false` "
              "keeps an answer to its first call.", CHAT),
    _honoured("prompt_cache_key", "Becomes the record's key: requests of a key lie in one partition, and so meet one "
              "worker's prefix cache. 1 to 256 characters."),
    _honoured("reasoning_effort", "`none`, `minimal`, `low`, `medium` or `high`, where the package has a "
              "`reasoning_parser`.", CHAT),
    _honoured("response_format", "`text`, `json_object` and `json_schema`; the schema under `json_schema.schema`, "
              "`json_schema`, `schema` or `value`, as an object or its JSON text; also `json`, `regex` and `grammar`. "
              "A schema is held whatever `strict` says; its `name` and `description` are recorded. Not together with "
              "`tools`."),
    _honoured("seed", "-2^63 to 2^63-1."),
    _honoured("service_tier", "`flex` is the lane `standard`; `auto`, `default`, `priority`, `fast` and `scale` are "
              "the lane `interactive`."),
    _honoured("stop", "A text or at most 16 of them."),
    _honoured("stream", "Server-sent events."),
    _honoured("stream_options", "`include_usage`, with `stream: true`. `include_obfuscation` and "
              "`continuous_usage_stats` are refused unless `false`."),
    _honoured("temperature", "0 to 100."),
    _honoured("tools", "Functions, at most 128. Their JSON Schema holds each call, `strict` or not, all of it; a "
              "forced one while it is generated too. Not together with `response_format`, nor where the contract has "
              "an output schema.", CHAT),
    _honoured("tool_choice", "`required`, a function by name, and `allowed_tools` with mode `required`: one call, held "
              "to the JSON Schema of the parameters. `auto`, the default, where the package has a `tool_parser`: "
              "as many calls as the model makes, each validated. `none`: the tools are shown to the model and none is "
              "called.", CHAT),
    _honoured("top_p", "Above 0, at most 1."),
    # --- OpenAI's, recorded -------------------------------------------------------------------------------------------
    _recorded("metadata", "In the attributes of request and result, as `metadata.<key>`: at most 16, keys of 64 "
              "characters, values of 512."),
    _recorded("prompt_cache_options", "In the attributes, as `prompt_cache_options.<key>`: the engine's prefix cache "
              "is always on and has no lifetimes.", CHAT),
    _recorded("prompt_cache_retention", "In the attributes: the engine keeps prefixes as long as it has room.", CHAT),
    _recorded("safety_identifier", "In the attributes; at most 512 characters."),
    _recorded("user", "In the attributes; at most 512 characters."),
    # --- OpenAI's, refused --------------------------------------------------------------------------------------------
    _refused("audio", _NO_MEDIA, endpoints=CHAT),
    Parameter("best_of", COMPLETIONS, "refused", "candidates are not ranked here: send n and choose yourself",
              harmless_as="n"),
    _refused("echo", "the answer has the completion alone: put the prompt before it yourself", False,
             endpoints=COMPLETIONS),
    _refused("function_call", "it was replaced by tool_choice: send that", "none", "auto", endpoints=CHAT),
    _refused("functions", "it was replaced by tools: send those", [], endpoints=CHAT),
    _refused("modalities", _NO_MEDIA, ["text"], endpoints=CHAT),
    _refused("moderation", "nothing here moderates", endpoints=CHAT),
    _refused("prediction", "the workers do not decode from a predicted output", endpoints=CHAT),
    _refused("store", "completions are not kept to be asked for again: read the contract's results topic", False,
             endpoints=CHAT),
    _refused("suffix", "no text is inserted between two others", "", endpoints=COMPLETIONS),
    _refused("verbosity", "the model takes no such wish: say it in a message", "medium", endpoints=CHAT),
    _refused("web_search_options", "nothing here searches the web", endpoints=CHAT),
    # --- vLLM's -------------------------------------------------------------------------------------------------------
    Parameter("chat_template_kwargs", CHAT, "honoured", "`enable_thinking` or `thinking`, true or false, as a wish for "
              "reasoning; others are refused.", "vLLM"),
    Parameter("min_p", BOTH, "honoured", "0 to 1.", "vLLM"),
    Parameter("priority", BOTH, "honoured", "Becomes the lane: 0 or less is `interactive`, above 0 `backfill`.",
              "vLLM"),
    Parameter("repetition_penalty", BOTH, "honoured", "Above 0, at most 10.", "vLLM"),
    Parameter("structured_outputs", BOTH, "honoured", "One of `json` (an object or its JSON text), `regex`, `choice`, "
              "`grammar` and `json_object`. Not together with `response_format` or `tools`.", "vLLM"),
    Parameter("thinking_token_budget", BOTH, "honoured", "Where the package has a `reasoning_parser`; -1 is no bound.",
              "vLLM"),
    Parameter("top_k", BOTH, "honoured", "0 and -1: all tokens.", "vLLM"),
    Parameter("session_id", BOTH, "recorded", "In the attributes; at most 512 characters.", "vLLM"),
    _of_vllm("add_generation_prompt", "the model always answers in a turn of its own", True, endpoints=CHAT),
    _of_vllm("add_special_tokens", "the chat template writes them", False, endpoints=CHAT),
    _of_vllm("add_special_tokens", _PACKAGE, True, endpoints=COMPLETIONS),
    _of_vllm("allowed_token_ids", _TOKEN_IDS),
    _of_vllm("bad_words", "words are not banned here: use logit_bias", []),
    _of_vllm("cache_salt", "a prefix cache is shared by the callers of a contract"),
    _of_vllm("chat_template", _PACKAGE, endpoints=CHAT),
    _of_vllm("continue_final_message", "the model always answers in a turn of its own", False, endpoints=CHAT),
    _of_vllm("documents", "put them into a message", [], endpoints=CHAT),
    _of_vllm("ec_transfer_params", _TRANSFER),
    _of_vllm("echo", "the answer has the completion alone", False, endpoints=CHAT),
    _of_vllm("ignore_eos", "the model may end when it has answered", False),
    _of_vllm("include_reasoning", "a reasoning model's answer comes with its reasoning", True, endpoints=CHAT),
    _of_vllm("include_stop_str_in_output", "a stop text is never part of the answer, as OpenAI has it", False),
    _of_vllm("kv_transfer_params", _TRANSFER),
    _of_vllm("length_penalty", "there is no beam search here", 1),
    _of_vllm("logprob_token_ids", _TOKEN_IDS, []),
    _of_vllm("media_io_kwargs", _NO_MEDIA, {}, endpoints=CHAT),
    _of_vllm("min_tokens", "the model may end when it has answered", 0),
    _of_vllm("mm_payload", _RENDER_ONLY, "tensors"),
    _of_vllm("mm_processor_kwargs", _NO_MEDIA, {}, endpoints=CHAT),
    _of_vllm("prompt_embeds", "a request has text", endpoints=COMPLETIONS),
    _of_vllm("prompt_logprobs", "results have the log probabilities of what was generated"),
    _of_vllm("repetition_detection", "bound an answer with max_tokens or an output schema"),
    _of_vllm("request_id", "send the header Idempotency-Key: it becomes the request's id"),
    _of_vllm("return_mm_kwargs", _RENDER_ONLY, False, True),
    _of_vllm("return_prompt_text", "results have what was generated", False),
    _of_vllm("return_token_ids", _TOKEN_IDS, False),
    _of_vllm("return_token_offsets", _RENDER_ONLY, False),
    _of_vllm("return_tokens_as_token_ids", _TOKEN_IDS, False),
    _of_vllm("routed_experts_prompt_start", "results have no expert routing", 0),
    _of_vllm("skip_special_tokens", "special tokens are never part of the answer", True),
    _of_vllm("spaces_between_special_tokens", "special tokens are never part of the answer", True),
    _of_vllm("stop_token_ids", "send the texts as stop", []),
    _of_vllm("stream_interval", "the first token is sent at once and later ones as they come", 1),
    _of_vllm("truncate_prompt_tokens", "a prompt that is too long is refused, never cut"),
    _of_vllm("truncation_side", "a prompt that is too long is refused, never cut"),
    _of_vllm("use_beam_search", "there is no beam search here", False),
    _of_vllm("vllm_xargs", "the workers load no extensions of vLLM", {}),
    _of_vllm("watermarking", "nothing here marks its output", False),
    # --- old spellings, and other servers' ---------------------------------------------------------------------------
    _of_vllm("guided_json", 'it is an old spelling: send structured_outputs: {"json": SCHEMA}, or response_format'),
    _of_vllm("guided_json_object", 'it is an old spelling: send response_format: {"type": "json_object"}', False),
    _of_vllm("guided_regex", 'it is an old spelling: send structured_outputs: {"regex": PATTERN}'),
    _of_vllm("guided_choice", 'it is an old spelling: send structured_outputs: {"choice": [TEXT, ...]}'),
    _of_vllm("guided_grammar", 'it is an old spelling: send structured_outputs: {"grammar": GRAMMAR}'),
    _of_vllm("guided_decoding_backend", "it is an old spelling, and the package of the model chooses the backend"),
    _of_vllm("guided_whitespace_pattern", "it is an old spelling, and JSON is generated without whitespace"),
    Parameter("reasoning", CHAT, "honoured", "`effort` and `max_tokens`, or `enabled`, as OpenRouter has them.",
              "others"),
    _refused("extra_body", "it is an argument of the Python client: send its members at the top of the body", {},
             origin="others"),
    _refused("json_schema", 'send response_format: {"type": "json_schema", "json_schema": {"name": NAME, "schema": '
             "SCHEMA}}", origin="others"),
    _refused("regex", 'send structured_outputs: {"regex": PATTERN}', origin="others"),
    _refused("ebnf", 'send structured_outputs: {"grammar": GRAMMAR}', origin="others"),
    _refused("grammar", 'send structured_outputs: {"grammar": GRAMMAR}', origin="others"),
    _refused("enable_thinking", "send reasoning_effort: none or medium", endpoints=CHAT, origin="others"),
    _refused("thinking", "send reasoning_effort: none or medium", endpoints=CHAT, origin="others"),
)  # fmt: skip

PATHS: Final[dict[Endpoint, str]] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def parameters_of(endpoint: Endpoint) -> dict[str, Parameter]:
    """The rows of one endpoint, by name."""
    return {row.name: row for row in PARAMETERS if endpoint in row.endpoints}


def markdown_table() -> str:
    """The table as Markdown, OpenAI's parameters first; ends with a newline."""
    lines = ["| parameter | of | endpoint | | how or why |", "| --- | --- | --- | --- | --- |"]
    for origin in ("OpenAI", "vLLM", "others"):
        rows = [row for row in PARAMETERS if row.origin == origin]
        lines += [_line(row) for row in sorted(rows, key=lambda row: (row.name, row.endpoints))]
    return "\n".join(lines) + "\n"


def _line(row: Parameter) -> str:
    where = "both" if row.endpoints == BOTH else row.endpoints[0]
    cells = (f"`{row.name}`", row.origin, where, row.treatment, _sentence(row) + _let_through(row))
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _sentence(row: Parameter) -> str:
    if row.treatment != "refused":
        return row.why
    return row.why[0].upper() + row.why[1:] + "."


def _let_through(row: Parameter) -> str:
    values = [f"`{strict_json.dump(value)}`" for value in row.harmless]
    if row.harmless_as is not None:
        values.append(f"the value of `{row.harmless_as}`")
    return f" Let through: {_listed(values)}." if values else ""


def _listed(values: Iterable[str]) -> str:
    return ", ".join(values)
