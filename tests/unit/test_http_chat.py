"""From a call to /v1/chat/completions to what it wants, on the bodies that the official client sends too."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from pydantic import BaseModel

from headrace.producers.http.chat import wanted_of_chat
from headrace.producers.http.wanted import ApiError, ForcedTool, Wanted
from headrace.schemas.messages import Request

HELLO = {"role": "user", "content": "Hello"}


def chat(*messages: Any, **given: Any) -> Wanted:
    """A call with these messages, or with one."""
    body = {"model": "m", "messages": list(messages or (HELLO,)), **given}
    return wanted_of_chat(body, contract_has_output=False, has_tool_parser=False)


def sampling(**given: Any) -> Any:
    return chat(**given).fields.get("sampling")


def refusal(*messages: Any, **given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(*messages, **given)
    assert caught.value.status == 400
    return caught.value


def asked(*messages: Any) -> Any:
    """The messages of the one request; they are a Request's."""
    wanted = chat(*messages)
    (one,) = wanted.asked
    Request.model_validate({"id": "r", **wanted.fields, **one})
    return one["messages"]


def test_the_least_call_says_no_more_than_its_messages() -> None:
    assert chat() == Wanted("chat", "m", {}, ({"messages": [HELLO]},))


# --- model ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"model": None}, {"model": ""}, {"model": 1}, {"model": ["m"]}])
def test_a_call_names_its_model(given: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        wanted_of_chat({"messages": [HELLO], **given}, contract_has_output=False, has_tool_parser=False)
    assert (caught.value.status, caught.value.param) == (400, "model")


# --- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_roles_are_kept(role: str) -> None:
    assert asked({"role": role, "content": "x", "name": "a"}) == [{"role": role, "content": "x", "name": "a"}]


def test_parts_of_text_are_kept_apart() -> None:
    parts = [
        {
            "type": "text",
            "text": "a",
            "cache_control": {"type": "ephemeral"},
            "prompt_cache_breakpoint": {"mode": "explicit"},
        },
        {"type": "input_text", "text": "b"},
        "c",
    ]
    expected = [{"type": "text", "text": text} for text in "abc"]
    assert asked({"role": "user", "content": parts}) == [{"role": "user", "content": expected}]


def test_a_past_call_of_a_tool_and_its_result_are_kept() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]}
    assert asked(
        {"role": "assistant", "content": None, "tool_calls": [{**call, "index": 0, "extra_content": {}}]},
        result,
    ) == [{"role": "assistant", "tool_calls": [call]}, result]


def test_a_call_without_a_type_is_a_functions() -> None:
    given = {"id": "c1", "function": {"name": "f", "arguments": "{}", "parsed_arguments": None}}
    (message,) = asked({"role": "assistant", "tool_calls": [given]})
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


def test_unknown_keys_inside_past_messages_pass() -> None:
    past = ChatCompletionMessage(role="assistant", content="Hi", refusal=None, annotations=[]).model_dump()
    assert past.keys() >= {"refusal", "annotations", "audio", "function_call", "tool_calls"}
    more = {
        "reasoning_content": "hm",
        "reasoning": "hm",
        "provider_specific_fields": {},
        "parsed": None,
        "tool_calls": [],
    }
    assert asked(past | more, HELLO) == [{"role": "assistant", "content": "Hi"}, HELLO]


def test_a_past_refusal_is_what_the_assistant_said() -> None:
    said = [{"role": "assistant", "content": "I cannot."}]
    assert asked({"role": "assistant", "content": None, "refusal": "I cannot."}) == said
    (message,) = asked({"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]})
    assert message["content"] == [{"type": "text", "text": "I cannot."}]
    assert asked({"role": "user", "content": "x", "refusal": "y"}) == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
    ],
)
def test_other_modalities_are_refused_where_they_stand(part: dict[str, Any]) -> None:
    error = refusal(HELLO, {"role": "user", "content": [{"type": "text", "text": "look"}, part]})
    assert error.param == "messages[1].content[1]"
    assert "a modality that the package lacks" in error.message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Hello", "messages[0]"),
        (None, "messages[0]"),
        ({}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": None, "content": "x"}, "messages[0].role"),
        ({"role": "bot", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "function", "name": "f", "content": "x"}, "messages[0].role"),
        ({"role": "assistant", "content": "x", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ({"role": "assistant", "audio": {"id": "a"}}, "messages[0].audio"),
        ({"role": "user"}, "messages[0]"),
        ({"role": "user", "content": None}, "messages[0]"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages[0]"),
        ({"role": "user", "content": 1}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "messages[0].content"),
        ({"role": "user", "content": [1]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "thinking", "text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "x", "name": ""}, "messages[0].name"),
        ({"role": "user", "content": "x", "tool_call_id": "c"}, "messages[0]"),
        ({"role": "tool", "content": "x"}, "messages[0]"),
        (
            {"role": "user", "content": "x", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]},
            "messages[0]",
        ),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {}}]},
            "messages[0].tool_calls[0].type",
        ),
    ],
)  # fmt: skip
def test_a_message_at_fault_is_named_as_openai_names_it(message: Any, param: str) -> None:
    error = refusal(message)
    assert error.param == param, error.message
    assert f"'{param}'" in error.message


@pytest.mark.parametrize("messages", [None, [], {}, "Hello"])
def test_a_chat_has_messages(messages: Any) -> None:
    with pytest.raises(ApiError) as caught:
        wanted_of_chat({"model": "m", "messages": messages}, contract_has_output=False, has_tool_parser=False)
    assert (caught.value.status, caught.value.param) == (400, "messages")


# --- sampling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 0.7),
        ("top_p", 1),
        ("min_p", 0.1),
        ("top_k", 40),
        ("seed", -5),
        ("presence_penalty", -2.0),
        ("frequency_penalty", 2),
        ("repetition_penalty", 1.1),
        ("n", 8),
        ("logit_bias", {"50256": -100, "1": 0.5}),
        ("stop", ["a", "b"]),
        ("max_tokens", 1),
    ],
)
def test_sampling_is_passed_on_as_it_is(name: str, value: Any) -> None:
    assert sampling(**{name: value}) == {name: value}


def test_what_openai_says_in_other_words_is_translated() -> None:
    assert sampling(stop="a") == {"stop": ["a"]}
    assert sampling(max_completion_tokens=5) == {"max_tokens": 5}
    assert sampling(max_completion_tokens=5, max_tokens=5) == {"max_tokens": 5}
    assert sampling(top_k=-1) == {"top_k": 0}
    assert sampling(stop=[], logit_bias={}) is None


def test_two_limits_that_differ_are_refused() -> None:
    error = refusal(max_completion_tokens=5, max_tokens=6)
    assert error.param == "max_tokens"
    assert "max_completion_tokens" in error.message


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("temperature", -0.1, "temperature"),
        ("temperature", 101, "temperature"),
        ("temperature", "0.7", "temperature"),
        ("temperature", True, "temperature"),
        ("temperature", 10**400, "temperature"),
        ("top_p", 0, "top_p"),
        ("top_p", 1.1, "top_p"),
        ("min_p", 2, "min_p"),
        ("top_k", -2, "top_k"),
        ("top_k", 1.5, "top_k"),
        ("seed", 2**63, "seed"),
        ("seed", 1.5, "seed"),
        ("presence_penalty", 2.1, "presence_penalty"),
        ("frequency_penalty", -2.1, "frequency_penalty"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("n", 0, "n"),
        ("n", 9, "n"),
        ("n", True, "n"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", 1.0, "max_tokens"),
        ("max_completion_tokens", 0, "max_completion_tokens"),
        ("max_completion_tokens", 2**31, "max_completion_tokens"),
        ("stop", "", "stop"),
        ("stop", ["a", ""], "stop[1]"),
        ("stop", ["a"] * 17, "stop"),
        ("stop", {"a": 1}, "stop"),
        ("logit_bias", {"a": 1}, "logit_bias"),
        ("logit_bias", {"1": 101}, "logit_bias.1"),
        ("logit_bias", {"1" * 10: 1}, "logit_bias.1111111111"),
        ("logit_bias", {str(token): 1 for token in range(1025)}, "logit_bias"),
        ("logit_bias", [1], "logit_bias"),
        ("logprobs", 1, "logprobs"),
        ("top_logprobs", 21, "top_logprobs"),
        ("top_logprobs", 1, "top_logprobs"),
    ],
)
def test_values_out_of_range_name_openais_parameter(name: str, value: Any, param: str) -> None:
    error = refusal(**{name: value})
    assert error.param == param, error.message
    assert error.reason == "invalid_value"


def test_logprobs() -> None:
    plain, none = chat(logprobs=True), chat(logprobs=False, top_logprobs=0)
    assert (plain.logprobs, plain.top_logprobs, plain.fields) == (True, 0, {"sampling": {"logprobs": 0}})
    assert none == chat()
    top = chat(logprobs=True, top_logprobs=20)
    assert (top.logprobs, top.top_logprobs, top.fields) == (True, 20, {"sampling": {"logprobs": 20}})


def test_choices() -> None:
    assert chat(n=3).choices == 3
    assert chat().choices == 1


# --- what is recorded, and the rest ---------------------------------------------------------------------------------


def test_what_a_caller_says_of_itself_is_recorded() -> None:
    wanted = chat(
        user="u",
        safety_identifier="s",
        session_id="t",
        metadata={"team": "films", "run": "7", "gone": None},
        prompt_cache_retention="24h",
        prompt_cache_options={"mode": "explicit", "ttl": None},
    )
    assert wanted.fields == {
        "attributes": {
            "user": "u",
            "safety_identifier": "s",
            "session_id": "t",
            "prompt_cache_retention": "24h",
            "metadata.team": "films",
            "metadata.run": "7",
            "prompt_cache_options.mode": "explicit",
        }
    }
    assert set(wanted.recorded) == {
        "user", "safety_identifier", "session_id", "metadata", "prompt_cache_retention", "prompt_cache_options",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"user": 1}, "user"),
        ({"user": "u" * 513}, "user"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {str(key): "x" for key in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"prompt_cache_options": {"mod": "explicit"}}, "prompt_cache_options.mod"),
        ({"prompt_cache_options": "explicit"}, "prompt_cache_options"),
        ({"prompt_cache_key": ""}, "prompt_cache_key"),
        ({"prompt_cache_key": "k" * 257}, "prompt_cache_key"),
        ({"prompt_cache_key": 1}, "prompt_cache_key"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"includeUsage": True}}, "stream_options.includeUsage"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"stream": True, "stream_options": True}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"service_tier": 1}, "service_tier"),
        ({"priority": "1"}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"priority": 1, "service_tier": "flex"}, "priority"),
        ({"priority": 0, "service_tier": "flex"}, "priority"),
        ({"reasoning_effort": "xhigh"}, "reasoning_effort"),
        ({"reasoning_effort": "lots"}, "reasoning_effort"),
        ({"reasoning_effort": 1}, "reasoning_effort"),
        ({"reasoning": "low"}, "reasoning"),
        ({"reasoning": {"effort": "max"}}, "reasoning.effort"),
        ({"reasoning": {"efort": "low"}}, "reasoning.efort"),
        ({"reasoning": {"max_tokens": -1}}, "reasoning.max_tokens"),
        ({"reasoning": {"max_tokens": 2**31}}, "reasoning.max_tokens"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning.effort"),
        ({"reasoning": {"max_tokens": 1}, "thinking_token_budget": 2}, "thinking_token_budget"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"thinking_token_budget": True}, "thinking_token_budget"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"thinking": True}, "reasoning_effort": "none"}, "chat_template_kwargs.thinking"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_named(given: dict[str, Any], param: str) -> None:
    error = refusal(**given)
    assert error.param == param, error.message


def test_a_long_key_is_not_echoed() -> None:
    for given in (
        {"metadata": {"k" * 10_000: "x"}},
        {"chat_template_kwargs": {"k" * 10_000: "x"}},
        {"stream_options": {"k" * 10_000: "x"}},
        {"logit_bias": {"k" * 10_000: 1}},
        {"reasoning": {"k" * 10_000: 1}},
    ):
        error = refusal(**given)
        assert len(error.message) < 500, given.keys()
        assert len(error.param or "") < 200


def test_the_key_of_the_record() -> None:
    assert chat(prompt_cache_key="films").fields == {"key": "films"}


@pytest.mark.parametrize(
    ("given", "lane"),
    [
        ({}, "interactive"),
        ({"service_tier": "auto"}, "interactive"),
        ({"service_tier": "default"}, "interactive"),
        ({"service_tier": "priority"}, "interactive"),
        ({"service_tier": "fast"}, "interactive"),
        ({"service_tier": "scale"}, "interactive"),
        ({"service_tier": "flex"}, "standard"),
        ({"priority": 0}, "interactive"),
        ({"priority": -3}, "interactive"),
        ({"priority": 1}, "backfill"),
        ({"priority": 1, "service_tier": "auto"}, "backfill"),
        ({"priority": 0, "service_tier": "priority"}, "interactive"),
    ],
)
def test_lanes(given: dict[str, Any], lane: str) -> None:
    wanted = chat(**given)
    assert wanted.lane == lane
    assert wanted.fields == {}


def test_streams() -> None:
    assert (chat(stream=True).stream, chat(stream=True).include_usage) == (True, False)
    usage = chat(stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert (usage.stream, usage.include_usage) == (True, True)
    assert chat(stream=False, stream_options={"include_usage": False}) == chat()


@pytest.mark.parametrize(
    ("given", "wish"),
    [
        ({"reasoning_effort": "low"}, {"effort": "low"}),
        ({"reasoning_effort": "none"}, {"effort": "none"}),
        ({"reasoning": {"effort": "high", "max_tokens": 100}}, {"effort": "high", "max_tokens": 100}),
        ({"reasoning": {"enabled": True}}, {"effort": "medium"}),
        ({"reasoning": {"enabled": True, "max_tokens": 5, "exclude": False}}, {"max_tokens": 5}),
        ({"reasoning": {"enabled": False}}, {"effort": "none"}),
        ({"reasoning": {"effort": "low", "summary": None}, "reasoning_effort": "low"}, {"effort": "low"}),
        ({"thinking_token_budget": 0}, {"max_tokens": 0}),
        ({"thinking_token_budget": 7, "reasoning_effort": "high"}, {"effort": "high", "max_tokens": 7}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"effort": "none"}),
        ({"chat_template_kwargs": {"thinking": True, "enable_thinking": True}}, {"effort": "medium"}),
    ],
)
def test_how_much_to_think(given: dict[str, Any], wish: dict[str, Any]) -> None:
    assert chat(**given).fields == {"reasoning": wish}


@pytest.mark.parametrize(
    "given", [{"thinking_token_budget": -1}, {"reasoning": {}}, {"chat_template_kwargs": {}}]
)
def test_no_wish_for_thinking_is_none(given: dict[str, Any]) -> None:
    assert chat(**given) == chat()


# --- the bodies of the official client ------------------------------------------------------------------------------


class When(BaseModel):
    day: int


class Event(BaseModel):
    """An event."""

    title: str
    when: When
    kind: Literal["a", "b"]
    note: str | None = None


ANSWER = ChatCompletion.model_validate(
    {
        "id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "{}"}}],
    }
)  # fmt: skip


def sent(call: Callable[[Any], Any], content: str = "{}") -> dict[str, Any]:
    """The body that the client sends in this call of `chat.completions`."""
    bodies: list[bytes] = []
    answer = ANSWER.model_dump()
    answer["choices"][0]["message"]["content"] = content

    def take(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        return httpx.Response(200, json=answer)

    transport = httpx.Client(transport=httpx.MockTransport(take))
    with openai.OpenAI(api_key="k", base_url="http://localhost/v1", http_client=transport) as client:
        call(client.chat.completions)
    (body,) = bodies
    return json.loads(body)


def translated(body: dict[str, Any], *, parser: bool = False) -> Wanted:
    wanted = wanted_of_chat(body, contract_has_output=False, has_tool_parser=parser)
    for one in wanted.asked:
        Request.model_validate({"id": "r", **wanted.fields, **one})
    return wanted


EVENT = '{"title": "t", "when": {"day": 1}, "kind": "a", "note": null}'


def test_a_body_of_parse_is_held_to_the_models_schema() -> None:
    body = sent(lambda chats: chats.parse(model="m", messages=[HELLO], response_format=Event), EVENT)
    wanted = translated(body)
    assert wanted.fields["output"] == {"json_schema": body["response_format"]["json_schema"]["schema"]}
    assert "$defs" in wanted.fields["output"]["json_schema"]
    assert wanted.fields["attributes"] == {"response_format.name": "Event"}


def test_a_body_of_parse_with_pydantic_tools_is_a_forced_call() -> None:
    offered = [openai.pydantic_function_tool(Event), openai.pydantic_function_tool(When, name="when")]
    forced = {"type": "function", "function": {"name": "Event"}}
    body = sent(
        lambda chats: chats.parse(
            model="m", messages=[HELLO], tools=offered, tool_choice=forced, parallel_tool_calls=False
        )
    )
    wanted = translated(body)
    assert wanted.tool == ForcedTool("Event")
    assert wanted.fields["output"] == {"json_schema": body["tools"][0]["function"]["parameters"]}
    assert wanted.fields["tools"] == body["tools"]
    several = translated({**body, "tool_choice": "required"})
    assert several.tool == ForcedTool(None)
    branches = several.fields["output"]["json_schema"]["anyOf"]
    assert [branch["properties"]["name"] for branch in branches] == [{"const": "Event"}, {"const": "when"}]
    assert translated({**body, "tool_choice": "auto"}, parser=True).parallel_tool_calls is False


def test_a_body_with_everything_that_is_honoured() -> None:
    body = sent(
        lambda chats: chats.create(
            model="m",
            messages=[{"role": "developer", "content": "Be short."}, HELLO],
            frequency_penalty=0.5,
            logit_bias={"17": -100},
            logprobs=True,
            top_logprobs=2,
            max_completion_tokens=64,
            metadata={"team": "films"},
            modalities=["text"],
            n=2,
            presence_penalty=-0.5,
            prompt_cache_key="films",
            prompt_cache_retention="in_memory",
            reasoning_effort="low",
            response_format={"type": "json_object"},
            safety_identifier="s",
            seed=7,
            service_tier="flex",
            stop=["\n"],
            store=False,
            temperature=0.2,
            top_p=0.9,
            user="u",
            verbosity="medium",
            extra_body={"top_k": 5, "min_p": 0.1},
        )
    )
    wanted = translated(body)
    assert wanted.lane == "standard"
    assert wanted.choices == 2
    assert wanted.fields == {
        "key": "films",
        "reasoning": {"effort": "low"},
        "sampling": {
            "temperature": 0.2,
            "top_p": 0.9,
            "min_p": 0.1,
            "seed": 7,
            "presence_penalty": -0.5,
            "frequency_penalty": 0.5,
            "n": 2,
            "top_k": 5,
            "logit_bias": {"17": -100},
            "stop": ["\n"],
            "max_tokens": 64,
            "logprobs": 2,
        },
        "output": {"json_object": True},
        "attributes": {
            "user": "u",
            "safety_identifier": "s",
            "prompt_cache_retention": "in_memory",
            "metadata.team": "films",
        },
    }


def test_a_past_answer_of_the_client_can_be_sent_back_as_it_is() -> None:
    answer = ANSWER.choices[0].message
    body = sent(lambda chats: chats.create(model="m", messages=[HELLO, answer, HELLO]))
    (one,) = translated(body).asked
    assert one["messages"] == [HELLO, {"role": "assistant", "content": "{}"}, HELLO]


@pytest.mark.parametrize("value", [0, "", [], False])
def test_biases_that_are_no_object_are_refused_though_they_ask_for_nothing(value: Any) -> None:
    with pytest.raises(ApiError) as refusal:
        wanted_of_chat(
            {"model": "m", "messages": [{"role": "user", "content": "x"}], "logit_bias": value},
            contract_has_output=False,
            has_tool_parser=False,
        )
    assert refusal.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {
                "mode": "required", "tools": [{"type": "custom", "function": {"name": "f"}}]}}},
            "tool_choice.allowed_tools.tools[0].type",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}, "name": "g"}}, "tool_choice.name"),
    ],
)  # fmt: skip
def test_a_choice_of_tools_that_says_two_things_is_refused(more: dict[str, Any], param: str) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools} | more
    with pytest.raises(ApiError) as refusal:
        wanted_of_chat(body, contract_has_output=False, has_tool_parser=False)
    assert refusal.value.param == param


def test_a_label_of_a_schema_that_is_given_twice_is_refused_unless_both_say_the_same() -> None:
    def wanted(name: Any) -> Any:
        form = {
            "type": "json_schema",
            "name": name,
            "json_schema": {"name": "n", "schema": {"type": "object"}},
        }
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": form}
        return wanted_of_chat(body, contract_has_output=False, has_tool_parser=False)

    assert wanted("n").fields["output"] == {"json_schema": {"type": "object"}}
    for other in ("m", {}):
        with pytest.raises(ApiError) as refusal:
            wanted(other)
        assert refusal.value.param == "response_format.name"
