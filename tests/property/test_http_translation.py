"""Whatever JSON a call is, it is translated into Requests or refused by name: nothing else comes of it."""

from __future__ import annotations

import copy
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_strategies import json_values, texts
from property_examples import EXAMPLES

from headrace.producers.http.chat import wanted_of_chat
from headrace.producers.http.completions import wanted_of_completion
from headrace.producers.http.parameters import PARAMETERS, parameters_of
from headrace.producers.http.tool_schema import any_call_schema
from headrace.producers.http.wanted import ApiError, Endpoint, ForcedTool, Wanted
from headrace.schemas import strict_json
from headrace.schemas.errors import OutputViolatesSchema
from headrace.schemas.messages import JsonObject, Request
from headrace.schemas.output_schema import OutputSchema

S: JsonObject = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"type": "array", "items": {"$ref": "#"}}},
    "$defs": {"A": {"type": "integer"}},
}
FUNCTION: JsonObject = {"name": "f", "description": "F.", "parameters": S, "strict": True}
CALL: JsonObject = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
COMMON: JsonObject = {
    "model": "m", "frequency_penalty": 1, "presence_penalty": 0.5, "logit_bias": {"17": -100}, "max_tokens": 5, "n": 2,
    "prompt_cache_key": "k", "seed": 1, "service_tier": "flex", "stop": ["a", "b"], "stream": True,
    "stream_options": {"include_usage": True}, "temperature": 0.5, "top_p": 0.5, "metadata": {"k": "v"}, "user": "u",
    "safety_identifier": "s", "min_p": 0.5, "repetition_penalty": 1.5, "thinking_token_budget": 5, "top_k": 5,
    "session_id": "s",
}  # fmt: skip
CHAT: JsonObject = COMMON | {
    "messages": [
        {"role": "developer", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "refusal", "refusal": "y"}], "name": "a"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ],
    "store": False, "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 5, "reasoning_effort": "medium",
    "prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h",
    "chat_template_kwargs": {"enable_thinking": True}, "reasoning": {"effort": "medium", "max_tokens": 5},
}  # fmt: skip
CHATS = [
    CHAT
    | {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": S, "strict": True}}},
    CHAT | {"response_format": {"type": "regex", "value": "a"}},
    CHAT | {"structured_outputs": {"json": json.dumps(S), "choice": None}},
    CHAT
    | {
        "tools": [
            {"type": "function", "function": FUNCTION},
            {"type": "function", "function": {"name": "g"}},
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    CHAT
    | {
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
        },
    },
]
COMPLETIONS = [
    COMMON | {"prompt": ["a", "b"], "logprobs": 2, "best_of": 2, "structured_outputs": {"regex": "a"}},
    COMMON | {"prompt": "a", "response_format": {"type": "json_object", "schema": S}},
]
NAMES = sorted({row.name for row in PARAMETERS})
# Values that mean something somewhere, and so get further than any others.
TELLING = st.sampled_from(
    [
        None, True, False, 0, 1, -1, 2, 0.5, 1.0, 10**40, "", "a", "none", "auto", "required", "text", "json_object",
        "json_schema", "function", "user", "assistant", "tool", "object", [], {}, ["text"], [[]], [1], ["a", ["b"]],
        {"type": "json_schema"}, {"type": "text"}, {"type": "function", "name": "f"}, {"$ref": "#"}, S, [CALL],
        [{"type": "function", "function": FUNCTION}], {"name": "f"}, "{}", "[", '{"a": 1, "a": 2}',
    ]
)  # fmt: skip
KEYS = (
    st.sampled_from(NAMES)
    | st.sampled_from(["type", "schema", "name", "role", "content", "$ref", "$id"])
    | texts
)


@st.composite
def bodies(draw: st.DrawFn, whole: list[JsonObject]) -> JsonObject:
    """A body that says much, less some of it, with a few values changed anywhere inside."""
    body = copy.deepcopy(draw(st.sampled_from(whole)))
    for name in draw(st.sets(st.sampled_from(sorted(body)))) if draw(st.booleans()) else ():
        del body[name]
    for _ in range(draw(st.integers(0, 4))):
        _change(draw, body)
    return strict_json.parse(strict_json.dump(body))


def _change(draw: st.DrawFn, body: JsonObject) -> None:
    deep = sorted(name for name, value in body.items() if value and isinstance(value, (dict, list)))
    within = draw(st.sampled_from(deep)) if deep and draw(st.integers(0, 4)) else None
    here: Any = body if within is None else body[within]
    while here:
        steps: list[Any] = sorted(here) if isinstance(here, dict) else list(range(len(here)))
        step = draw(st.sampled_from(steps))
        inner = here[step]
        if isinstance(inner, (dict, list)) and inner and draw(st.integers(0, 3)):
            here = inner
            continue
        match draw(st.sampled_from(["set", "delete", "add"])):
            case "set":
                here[step] = copy.deepcopy(draw(TELLING | json_values))
            case "delete":
                del here[step]
            case _ if isinstance(here, dict):
                here[draw(KEYS)] = copy.deepcopy(draw(TELLING | json_values))
            case _:
                here.append(copy.deepcopy(draw(TELLING | json_values)))
        return


flags = st.booleans()
anything = st.dictionaries(KEYS, TELLING | json_values, max_size=6)


def translated(
    endpoint: Endpoint, body: JsonObject, *, contract_has_output: bool = False, has_tool_parser: bool = False
) -> Wanted:
    if endpoint == "chat":
        return wanted_of_chat(body, contract_has_output=contract_has_output, has_tool_parser=has_tool_parser)
    return wanted_of_completion(body, contract_has_output=contract_has_output)


def outcome(endpoint: Endpoint, body: JsonObject, **package: bool) -> Wanted | ApiError:
    try:
        return translated(endpoint, body, **package)
    except ApiError as error:
        return error


def check(
    endpoint: Endpoint, body: JsonObject, *, contract_has_output: bool, has_tool_parser: bool = False
) -> Wanted | None:
    """What comes of the body: a Wanted of Requests, or None for an error that names a parameter."""
    before = strict_json.dump(body)
    wanted = outcome(endpoint, body, contract_has_output=contract_has_output, has_tool_parser=has_tool_parser)
    assert strict_json.dump(body) == before, "the caller's body was changed"
    if isinstance(wanted, ApiError):
        assert wanted.status == 400
        assert isinstance(wanted.param, str)
        assert len(wanted.param) < 400
        assert len(wanted.message) < 2_000
        assert wanted.as_json()["error"]["type"] == "invalid_request_error"
        strict_json.dump(wanted.as_json())
        return None
    assert wanted.model == body["model"]
    assert 1 <= len(wanted.asked) <= 64
    for one in wanted.asked:
        request = Request.model_validate({"id": "r", **wanted.fields, **one})
        assert wanted.choices == ((request.sampling and request.sampling.n) or 1)
        assert request.tools is None or request.output is None or wanted.tool is not None
        assert (wanted.tool is not None) == (
            request.tool_choice is not None and request.tool_choice.mode in ("required", "named")
        )
        assert not (contract_has_output and request.tools)
    may_call = wanted.fields.get("tool_choice") == {"mode": "auto"}
    assert (wanted.constraint_param is None) == ("output" not in wanted.fields and not may_call)
    return wanted


@settings(max_examples=EXAMPLES, deadline=None)
@given(body=bodies(CHATS), contract_has_output=flags, has_tool_parser=flags)
def test_a_changed_chat_is_translated_or_refused_by_name(
    body: JsonObject, contract_has_output: bool, has_tool_parser: bool
) -> None:
    check("chat", body, contract_has_output=contract_has_output, has_tool_parser=has_tool_parser)


@settings(max_examples=EXAMPLES, deadline=None)
@given(body=bodies(COMPLETIONS), contract_has_output=flags)
def test_a_changed_completion_is_translated_or_refused_by_name(
    body: JsonObject, contract_has_output: bool
) -> None:
    check("completions", body, contract_has_output=contract_has_output)


@settings(max_examples=EXAMPLES, deadline=None)
@given(body=anything, has_tool_parser=flags)
def test_any_object_is_translated_or_refused_by_name(body: JsonObject, has_tool_parser: bool) -> None:
    for endpoint in ("chat", "completions"):
        least = {"messages": [{"role": "user", "content": "x"}]} if endpoint == "chat" else {"prompt": "x"}
        check(endpoint, body, contract_has_output=False, has_tool_parser=has_tool_parser)
        check(endpoint, {"model": "m", **least, **body}, contract_has_output=False, has_tool_parser=True)


@pytest.mark.parametrize("body", CHATS)
def test_the_chats_to_be_changed_are_translated_as_they_are(body: JsonObject) -> None:
    assert check("chat", body, contract_has_output=False, has_tool_parser=True) is not None


@pytest.mark.parametrize("body", COMPLETIONS)
def test_the_completions_to_be_changed_are_translated_as_they_are(body: JsonObject) -> None:
    assert check("completions", body, contract_has_output=False) is not None


# --- nothing is dropped ---------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_no_honoured_or_recorded_parameter_is_without_effect(data: st.DataObject) -> None:
    endpoint: Endpoint = data.draw(st.sampled_from(["chat", "completions"]))
    whole = data.draw(st.sampled_from(CHATS if endpoint == "chat" else COMPLETIONS))
    name = data.draw(
        st.sampled_from(sorted(whole.keys() - {"model", "messages", "prompt", "stream_options"}))
    )
    if parameters_of(endpoint)[name].treatment == "refused" or name == "top_logprobs":
        return
    least: JsonObject = {
        key: whole[key] for key in ("model", "messages", "prompt", "tools", "tool_choice") if key in whole
    }
    plain = {**least, "tool_choice": "none"} if "tools" in whole else least
    if name == "parallel_tool_calls":
        plain = {**least, "tool_choice": "auto"}
    changed = {**plain, name: whole[name]}
    if name == "tools":
        plain = {key: plain[key] for key in plain if not key.startswith("tool")}
    assert translated(endpoint, changed, has_tool_parser=True) != translated(
        endpoint, plain, has_tool_parser=True
    )


# --- a forced call of one of several tools --------------------------------------------------------------------------

TYPES = ["string", "integer", "boolean", "null"]
VALUES = st.sampled_from(["x", 1, True, None])
names = st.sampled_from(["a", "b", "a/b", "a~1", "x y", "$ref", "$defs", "ä"])


@st.composite
def schemas_and_values(draw: st.DrawFn) -> tuple[JsonObject, Any]:
    """A schema with references into itself, and a value that it may or may not accept."""
    definitions = draw(
        st.dictionaries(names, st.builds(lambda kind: {"type": kind}, st.sampled_from(TYPES)), min_size=1)
    )
    where = draw(st.sampled_from(["$defs", "definitions"]))
    references = [f"#/{where}/" + quote(name.replace("~", "~0").replace("/", "~1")) for name in definitions]
    targets = st.sampled_from([*references, "#"])
    properties = draw(st.dictionaries(names, st.builds(lambda target: {"$ref": target}, targets), max_size=3))
    schema = {
        "type": "object",
        "properties": properties,
        "additionalProperties": draw(flags),
        where: definitions,
    }
    if draw(flags):
        schema = {"$id": "https://example.com/" + draw(st.sampled_from(["x", "y"])), **schema}
    value = draw(st.dictionaries(names, VALUES | st.dictionaries(names, VALUES, max_size=2), max_size=3))
    return schema, value


def accepts(schema: OutputSchema, value: Any) -> bool:
    try:
        schema.check_value(value)
    except OutputViolatesSchema:
        return False
    return True


@settings(max_examples=EXAMPLES, deadline=None)
@given(drawn=st.lists(schemas_and_values(), min_size=2, max_size=4))
def test_a_schema_accepts_beside_others_what_it_accepts_alone(drawn: list[tuple[JsonObject, Any]]) -> None:
    functions = [(f"f{index}", schema) for index, (schema, _) in enumerate(drawn)]
    both = OutputSchema(any_call_schema(functions))
    for name, schema in functions:
        alone = OutputSchema(schema)
        for _, value in drawn:
            assert accepts(both, {"name": name, "arguments": value}) == accepts(alone, value)


def test_a_forced_call_is_read_as_it_is_held() -> None:
    wanted = translated("chat", CHATS[3])
    assert wanted.tool == ForcedTool(None)
    schema = OutputSchema(wanted.fields["output"]["json_schema"])
    assert accepts(schema, {"name": "f", "arguments": {"a": 1, "b": [{"a": 2}]}})
    assert accepts(schema, {"name": "g", "arguments": {}})
    assert not accepts(schema, {"name": "g", "arguments": {"a": 1}})
