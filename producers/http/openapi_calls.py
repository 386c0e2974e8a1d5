"""The bodies of calls in the OpenAPI document: JSON Schemas of what each parameter takes.

Names come from the table of parameters, bounds from the messages that the parameters become. No body that is served
is invalid by these schemas; one that is valid may still be refused with 400, where two parameters are at odds or the
model's package lacks what they ask for.
"""

from __future__ import annotations

from typing import Final, cast

from pydantic import BaseModel, TypeAdapter

from headrace.producers.http.call_options import MAX_KEY, MAX_METADATA, MAX_METADATA_KEY, MAX_RECORDED
from headrace.producers.http.parameters import MAX_PROMPTS, Parameter, parameters_of
from headrace.producers.http.wanted import Endpoint
from headrace.schemas.messages import (
    ChatMessage,
    Function,
    FunctionCall,
    JsonObject,
    OutputConstraint,
    Reasoning,
    Request,
    Sampling,
    ToolCall,
)

NULL: Final[JsonObject] = {"type": "null"}
ANYTHING: Final[JsonObject] = {}
FLAG: Final[JsonObject] = {"type": "boolean"}
TEXT: Final[JsonObject] = {"type": "string"}
OFF: Final[JsonObject] = {"const": False}
_OBJECT: Final[JsonObject] = {"type": "object"}

NEEDED: Final[dict[Endpoint, tuple[str, ...]]] = {
    "chat": ("model", "messages"),
    "completions": ("model", "prompt"),
}


def body_of(endpoint: Endpoint) -> JsonObject:
    """The schema of a call's body. It refers to `components`."""
    values = CHAT_VALUES if endpoint == "chat" else COMPLETION_VALUES
    properties: JsonObject = {}
    for row in parameters_of(endpoint).values():
        if row.treatment == "refused":
            properties[row.name] = _refused(row)
            continue
        value = values[row.name] if row.name in NEEDED[endpoint] else or_null(values[row.name])
        properties[row.name] = {"description": f"{row.treatment.capitalize()}. {row.why}", **value}
    return {
        "type": "object",
        "properties": properties,
        "required": list(NEEDED[endpoint]),
        "additionalProperties": NULL,  # null means absent, whatever the name
    }


def components() -> JsonObject:
    """The schemas that `body_of` refers to, by name."""
    return {
        "ChatMessage": _message(),
        "Content": _content(),
        "JsonSchema": _json_schema(),
        "ResponseFormat": _response_format(),
        "StructuredOutputs": _structured_outputs(),
        "Tool": closed({"type": {"const": "function"}, "function": _function()}, "function"),
        "ToolChoice": _tool_choice(),
    }


def reference(name: str) -> JsonObject:
    """To a component of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


# --- pieces ---------------------------------------------------------------------------------------------------------


def or_null(schema: JsonObject) -> JsonObject:
    """What may be null as well: absent."""
    return schema if schema == ANYTHING else {"anyOf": [schema, NULL]}


def closed(properties: JsonObject, *required: str) -> JsonObject:
    """An object of these members alone. Those that are not required may be null, and so may any that it has not."""
    return {
        "type": "object",
        "properties": {
            name: value if name in required else or_null(value) for name, value in properties.items()
        },
        "required": list(required),
        "additionalProperties": NULL,
    }


def field_of(message: type[BaseModel], name: str) -> JsonObject:
    """The schema of a message's field, null left out."""
    schema = TypeAdapter[object](message.model_fields[name].rebuild_annotation()).json_schema()
    if "anyOf" in schema:
        some = [each for each in cast("list[JsonObject]", schema.pop("anyOf")) if each != NULL]
        schema = some[0] if len(some) == 1 else {"anyOf": some}
    return {keyword: value for keyword, value in schema.items() if keyword not in ("title", "default")}


def _text_of(most: int, least: int = 0) -> JsonObject:
    return {"type": "string", "maxLength": most, **({"minLength": least} if least else {})}


def _refused(row: Parameter) -> JsonObject:
    description = f"Refused: {row.why}."
    if row.harmless_as is not None:
        value = {"description": f"{description} The value of `{row.harmless_as}` is let through."}
        return value | or_null(field_of(Sampling, row.harmless_as))
    return {"description": description, "enum": [*row.harmless, None]}


# --- messages -------------------------------------------------------------------------------------------------------


def _content() -> JsonObject:
    text_part = {
        "type": "object",
        "properties": {"type": {"enum": ["text", "input_text", "output_text"]}, "text": TEXT},
        "required": ["type", "text"],
    }
    refusal_part = {
        "type": "object",
        "properties": {"type": {"const": "refusal"}, "refusal": TEXT},
        "required": ["type", "refusal"],
    }
    return {
        "description": "A text, or a list of text parts.",
        "anyOf": [TEXT, {"type": "array", "items": {"anyOf": [TEXT, text_part, refusal_part]}}],
    }


def _message() -> JsonObject:
    """By role. Unknown keys pass: clients send past answers back with all that was in them."""
    content = reference("Content")
    call_id = field_of(ChatMessage, "tool_call_id")
    common: JsonObject = {
        "name": or_null(field_of(ChatMessage, "name")),
        "audio": NULL,
        "function_call": NULL,
    }
    no_calls: JsonObject = {"tool_calls": {"anyOf": [{"type": "array", "maxItems": 0}, NULL]}}
    calls: JsonObject = {"type": "array", "items": _past_call()}

    def by(roles: list[str], properties: JsonObject, *required: str, **keywords: object) -> JsonObject:
        members = {"role": {"enum": roles}, **common, **properties}
        return {"type": "object", "properties": members, "required": ["role", *required], **keywords}

    said = {"properties": {"content": content}, "required": ["content"]}
    refused = {"properties": {"refusal": TEXT}, "required": ["refusal"]}
    called = {
        "properties": {
            "content": NULL,
            "refusal": or_null(TEXT),
            "tool_calls": {"type": "array", "minItems": 1},
        },
        "required": ["tool_calls"],
    }
    return {
        "anyOf": [
            by(
                ["system", "developer", "user"],
                {"content": content, "tool_call_id": NULL, **no_calls},
                "content",
            ),
            by(
                ["assistant"],
                {"content": or_null(content), "tool_calls": or_null(calls), "tool_call_id": NULL},
                anyOf=[said, refused, called],
            ),
            by(
                ["tool"], {"content": content, "tool_call_id": call_id, **no_calls}, "content", "tool_call_id"
            ),
        ]
    }


def _past_call() -> JsonObject:
    function = {name: field_of(FunctionCall, name) for name in ("name", "arguments")}
    return {
        "type": "object",
        "properties": {
            "id": field_of(ToolCall, "id"),
            "type": or_null({"const": "function"}),
            "function": {"type": "object", "properties": function, "required": list(function)},
        },
        "required": ["id", "function"],
    }


# --- what an output is held to --------------------------------------------------------------------------------------


def _json_schema() -> JsonObject:
    return {
        "description": "A JSON Schema: an object, true or false, or its JSON text.",
        "anyOf": [_OBJECT, FLAG, TEXT],
    }


def _response_format() -> JsonObject:
    schema = reference("JsonSchema")
    labels: JsonObject = {"name": _text_of(MAX_RECORDED), "description": TEXT, "strict": ANYTHING}
    wrapped = closed({"schema": schema, **labels}, "schema")
    bare = {"type": "object", "minProperties": 1, "not": {"required": ["schema"]}}
    json_kinds: JsonObject = {"type": {"enum": ["json_schema", "json_object", "json"]}}
    places: JsonObject = {
        "json_schema": {"anyOf": [wrapped, bare, FLAG, TEXT]},
        "schema": schema,
        "value": schema,
    }
    pattern = {"anyOf": [TEXT, closed({"regex": TEXT}, "regex")]}
    return {
        "description": "`json_schema` as OpenAI has it, and the shapes that other servers have made common.",
        "anyOf": [
            closed({"type": {"const": "text"}}, "type"),
            closed({"type": {"const": "json_object"}, **labels}, "type"),
            *(closed({**json_kinds, name: value, **labels}, "type", name) for name, value in places.items()),
            *(
                closed({"type": {"const": "regex"}, name: pattern}, "type", name)
                for name in ("value", "pattern", "regex")
            ),
            closed({"type": {"const": "grammar"}, "grammar": TEXT}, "type", "grammar"),
        ],
    }


def _structured_outputs() -> JsonObject:
    """One of them at most."""
    options = {
        "disable_any_whitespace": FLAG,
        "disable_additional_properties": OFF,
        "whitespace_pattern": OFF,
        "structural_tag": OFF,
    }
    constraints = {
        "json": reference("JsonSchema"),
        "regex": TEXT,
        "choice": field_of(OutputConstraint, "choice"),
        "grammar": TEXT,
    }
    alone = [closed({name: value, "json_object": OFF, **options}) for name, value in constraints.items()]
    return {"anyOf": [*alone, closed({"json_object": FLAG, **options})]}


# --- tools ----------------------------------------------------------------------------------------------------------


def _function() -> JsonObject:
    return closed({name: field_of(Function, name) for name in Function.model_fields}, "name")


def _tool_choice() -> JsonObject:
    kind: JsonObject = {"const": "function"}
    by_name = {
        "anyOf": [
            closed({"type": kind, "function": closed({"name": TEXT}, "name"), "name": ANYTHING}, "function"),
            closed({"type": kind, "name": TEXT}, "name"),
        ]
    }
    allowed = closed(
        {"mode": {"enum": ["auto", "required"]}, "tools": {"type": "array", "items": by_name, "minItems": 1}},
        "mode",
        "tools",
    )
    return {
        "anyOf": [
            {"enum": ["none", "auto", "required"]},
            by_name,
            closed({"type": {"const": "allowed_tools"}, "allowed_tools": allowed}, "type", "allowed_tools"),
        ]
    }


# --- the parameters -------------------------------------------------------------------------------------------------

_EFFORT: Final = field_of(Reasoning, "effort")
_BUDGET: Final = field_of(Reasoning, "max_tokens")
_STOP: Final = field_of(Sampling, "stop")
_PROMPT: Final = field_of(Request, "prompt")

_VALUES: Final[JsonObject] = {
    "model": _text_of(512, 1),
    **{
        name: field_of(Sampling, name)
        for name in (
            "frequency_penalty", "max_tokens", "min_p", "n", "presence_penalty", "repetition_penalty",
            "seed", "temperature", "top_p",
        )
    },
    "logit_bias": {**field_of(Sampling, "logit_bias"), "additionalProperties": False},
    "metadata": {
        "type": "object",
        "maxProperties": MAX_METADATA,
        "propertyNames": {"maxLength": MAX_METADATA_KEY},
        "additionalProperties": or_null(_text_of(MAX_RECORDED)),
    },
    "priority": {"type": "integer"},
    "prompt_cache_key": _text_of(MAX_KEY, 1),
    "response_format": reference("ResponseFormat"),
    "service_tier": {"enum": ["auto", "default", "flex", "priority", "fast", "scale"]},
    "stop": {"anyOf": [_STOP["items"], _STOP]},
    "stream": FLAG,
    "stream_options": closed(
        {"include_usage": FLAG, "include_obfuscation": OFF, "continuous_usage_stats": OFF}
    ),
    "structured_outputs": reference("StructuredOutputs"),
    "thinking_token_budget": {**_BUDGET, "minimum": -1},
    "top_k": {**field_of(Sampling, "top_k"), "minimum": -1},
    **{
        name: _text_of(MAX_RECORDED)
        for name in ("safety_identifier", "session_id", "user")
    },
}  # fmt: skip

CHAT_VALUES: Final[JsonObject] = {
    **_VALUES,
    "chat_template_kwargs": closed({"enable_thinking": FLAG, "thinking": FLAG}),
    "logprobs": FLAG,
    "max_completion_tokens": field_of(Sampling, "max_tokens"),
    "messages": {"type": "array", "minItems": 1, "items": reference("ChatMessage")},
    "parallel_tool_calls": FLAG,
    "prompt_cache_options": closed(dict.fromkeys(("mode", "ttl"), _text_of(MAX_RECORDED))),
    "prompt_cache_retention": _text_of(MAX_RECORDED),
    "reasoning": closed(
        {"effort": _EFFORT, "max_tokens": _BUDGET, "enabled": FLAG, "exclude": OFF, "summary": OFF}
    ),
    "reasoning_effort": _EFFORT,
    "tool_choice": reference("ToolChoice"),
    "tools": {"type": "array", "items": reference("Tool")},
    "top_logprobs": field_of(Sampling, "logprobs"),
}
COMPLETION_VALUES: Final[JsonObject] = {
    **_VALUES,
    "logprobs": field_of(Sampling, "logprobs"),
    "prompt": {
        "anyOf": [_PROMPT, {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _PROMPT}]
    },
}
