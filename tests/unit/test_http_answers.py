"""From a Result to what OpenAI's clients expect."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai_parts import (
    CREATED,
    PROVENANCE,
    a_chat,
    a_completion,
    a_failed_result,
    a_result,
    an_output,
    answering,
)
from pydantic import BaseModel

from headrace.producers.http.answers import (
    chat_completion,
    encode_json,
    response_headers,
    system_fingerprint,
    text_completion,
)
from headrace.producers.http.wanted import ApiError, ForcedTool, Wanted
from headrace.schemas.errors import Failed
from headrace.schemas.messages import (
    FunctionCall,
    Output,
    Result,
    TokenLogprob,
    ToolCall,
    TopLogprob,
    Usage,
)

HELLO = TokenLogprob(
    token="Héllo",
    logprob=-0.5,
    top=[TopLogprob(token="Héllo", logprob=-0.5), TopLogprob(token="Hi", logprob=-1.5)],
)
WORLD = TokenLogprob(token=" world", logprob=-20_000.0, top=[TopLogprob(token=" you", logprob=-0.25)])


def chat_body(result: Result, wanted: Wanted | None = None) -> dict[str, Any]:
    """The body, once it is one that the official client's own types take."""
    body = json.loads(encode_json(chat_completion(result, wanted or a_chat(), created=CREATED)))
    ChatCompletion.model_validate(body)
    return body


def text_body(results: list[Result], wanted: Wanted, **more: Any) -> dict[str, Any]:
    body = json.loads(encode_json(text_completion(results, wanted, created=CREATED, **more)))
    Completion.model_validate(body)
    return body


# --- chats ------------------------------------------------------------------------------------------------


def test_a_chat_completion_is_openais_to_the_field() -> None:
    assert chat_body(a_result(an_output("Hello"))) == {
        "id": "chatcmpl-r-1",
        "object": "chat.completion",
        "created": CREATED,
        "model": "tagger",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 12,
            "completion_tokens": 5,
            "total_tokens": 17,
            "prompt_tokens_details": {"cached_tokens": 8},
        },
        "service_tier": "default",
        "system_fingerprint": system_fingerprint([a_result()]),
    }


def test_the_model_is_named_as_the_caller_named_it() -> None:
    assert chat_body(a_result(), a_chat(model="tagger@3"))["model"] == "tagger@3"


def test_each_choice_has_its_index_and_its_own_finish_reason() -> None:
    body = chat_body(a_result(an_output("a"), an_output("b", finish_reason="length")), a_chat(choices=2))
    assert [
        (choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in body["choices"]
    ] == [(0, "a", "stop"), (1, "b", "length")]


@pytest.mark.parametrize("cut", ["abort", "error"])
def test_a_text_that_a_hook_let_pass_though_it_was_cut_is_not_said_to_have_stopped(cut: str) -> None:
    result = a_result(an_output("half", finish_reason=cut))
    assert chat_body(result)["choices"][0]["finish_reason"] == "length"
    assert text_body([result], a_completion())["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("lane", "tier"), [("interactive", "default"), ("standard", "flex"), ("backfill", "flex")]
)
def test_the_service_tier_is_the_lane(lane: Any, tier: str) -> None:
    assert chat_body(a_result(), a_chat(lane=lane))["service_tier"] == tier


def test_reasoning_has_both_of_its_names_and_none_where_there_is_none() -> None:
    message = chat_body(a_result(an_output("4", reasoning="2 and 2")))["choices"][0]["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == (
        "4",
        "2 and 2",
        "2 and 2",
    )
    assert "reasoning" not in chat_body(a_result())["choices"][0]["message"]


def test_logprobs_have_the_chats_shape_with_bytes_and_as_many_of_the_likeliest_as_asked_for() -> None:
    result = a_result(an_output("Héllo world", logprobs=[HELLO, WORLD]))
    logprobs = chat_body(result, a_chat(logprobs=True, top_logprobs=1))["choices"][0]["logprobs"]
    first, second = logprobs["content"]
    assert first == {
        "token": "Héllo",
        "logprob": -0.5,
        "bytes": [72, 195, 169, 108, 108, 111],
        "top_logprobs": [{"token": "Héllo", "logprob": -0.5, "bytes": [72, 195, 169, 108, 108, 111]}],
    }
    assert second["logprob"] == -9999.0, "what OpenAI says of the very unlikely"


def test_logprobs_that_were_not_asked_for_stay_out() -> None:
    result = a_result(an_output(logprobs=[HELLO]))
    assert chat_body(result)["choices"][0]["logprobs"] is None
    assert text_body([result], a_completion())["choices"][0]["logprobs"] is None


def test_what_is_not_ok_is_never_an_answer() -> None:
    with pytest.raises(Failed):
        chat_completion(a_failed_result("failed", "engine_error"), a_chat(), created=CREATED)
    with pytest.raises(Failed):
        text_completion(
            [a_result(), a_failed_result("failed", "engine_error")], a_completion("a", "b"), created=CREATED
        )


# --- tool calls -------------------------------------------------------------------------------------------


def test_a_call_of_a_named_tool_has_the_text_for_its_arguments_and_ends_with_stop() -> None:
    wanted = a_chat(tool=ForcedTool("tag"))
    choice = chat_body(a_result(an_output('{"mood": 1.50}')), wanted)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "tag", "arguments": '{"mood": 1.50}'}}


def test_a_call_of_any_tool_is_read_from_the_text_and_ends_with_tool_calls() -> None:
    text = '{"name": "tag", "arguments": {"mood": "düster", "n": 12345678901234567890}}'
    choice = chat_body(a_result(an_output(text)), a_chat(tool=ForcedTool(None)))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    function = choice["message"]["tool_calls"][0]["function"]
    assert function == {"name": "tag", "arguments": '{"mood":"düster","n":12345678901234567890}'}


def test_each_choices_call_has_an_id_of_its_own_that_is_the_same_when_asked_again() -> None:
    result = a_result(an_output("{}"), an_output("{}"))
    wanted = a_chat(tool=ForcedTool("tag"), choices=2)

    def ids() -> list[str]:
        return [choice["message"]["tool_calls"][0]["id"] for choice in chat_body(result, wanted)["choices"]]

    assert ids() == ids()
    assert len(set(ids())) == 2


@pytest.mark.parametrize("name", [None, "tag"])
@pytest.mark.parametrize("text", ["Once upon a time", "", "{"])
def test_a_text_that_is_no_call_is_an_error_and_no_call(name: str | None, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat_completion(a_result(an_output(text)), a_chat(tool=ForcedTool(name)), created=CREATED)
    assert (caught.value.status, caught.value.reason) == (422, "invalid_output")


@pytest.mark.parametrize("text", ["[]", '{"name": 1, "arguments": {}}', '{"name": "tag"}'])
def test_json_that_names_no_tool_is_an_error_too(text: str) -> None:
    with pytest.raises(ApiError):
        chat_completion(a_result(an_output(text)), a_chat(tool=ForcedTool(None)), created=CREATED)


def two_calls(text: str = "") -> Output:
    calls = [ToolCall(id=f"c-{n}", function=FunctionCall(name="tag", arguments="{}")) for n in (1, 2)]
    return an_output(text, tool_calls=calls, finish_reason="stop")


def test_calls_that_the_worker_found_stand_as_they_are_beside_what_is_said() -> None:
    choice = chat_body(a_result(two_calls("Let me see.")))["choices"][0]
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["c-1", "c-2"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Let me see.", "tool_calls")


def test_without_parallel_tool_calls_the_first_call_stands_alone() -> None:
    choice = chat_body(a_result(two_calls()), a_chat(parallel_tool_calls=False))["choices"][0]
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["c-1"]
    assert choice["message"]["content"] is None


# --- completions ------------------------------------------------------------------------------------------


def test_a_text_completion_is_openais_to_the_field() -> None:
    assert text_body([a_result(an_output("Hello"))], a_completion()) == {
        "id": "cmpl-r-1",
        "object": "text_completion",
        "created": CREATED,
        "model": "tagger",
        "choices": [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 12,
            "completion_tokens": 5,
            "total_tokens": 17,
            "prompt_tokens_details": {"cached_tokens": 8},
        },
        "system_fingerprint": system_fingerprint([a_result()]),
    }


def test_choices_are_numbered_across_prompts_and_usage_is_that_of_all() -> None:
    results = [
        a_result(an_output("a1"), an_output("a2"), id="r-0"),
        a_result(
            an_output("b1"), an_output("b2"), id="r-1", usage=Usage(prompt_tokens=1, completion_tokens=2)
        ),
    ]
    body = text_body(results, a_completion("a", "b", choices=2), request_id="r")
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "a1"), (1, "a2"), (2, "b1"), (3, "b2"),
    ]  # fmt: skip
    assert body["id"] == "cmpl-r"
    assert (body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]) == (13, 20)


def test_logprobs_have_the_old_shape() -> None:
    result = a_result(an_output("Héllo world", logprobs=[HELLO, WORLD]))
    choice = text_body([result], a_completion(logprobs=True, top_logprobs=1))["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["Héllo", " world"],
        "token_logprobs": [-0.5, -9999.0],
        "top_logprobs": [{"Héllo": -0.5}, {" you": -0.25, " world": -9999.0}],
        "text_offset": [0, 5],
    }


def test_reasoning_is_not_lost_in_a_text_completion() -> None:
    choice = text_body([a_result(an_output("4", reasoning="2 and 2"))], a_completion())["choices"][0]
    assert (choice["text"], choice["reasoning"]) == ("4", "2 and 2")


# --- fingerprint and headers ------------------------------------------------------------------------------


def of(**changes: Any) -> str:
    return system_fingerprint([a_result(provenance=PROVENANCE.model_copy(update=changes))])


def test_the_fingerprint_changes_with_what_generates_and_with_nothing_else() -> None:
    same = system_fingerprint([a_result()])
    assert same.startswith("fp_")
    assert len(same) == 15
    for change in (
        {"version": "4"},
        {"engine_version": "0.33.0"},
        {"engine": "simulated"},
        {"weights_digest": None},
        {"contract": 2},
        {"model": "other"},
    ):
        assert of(**change) != same, change
    assert (
        of(slot="slot-2", source_offset=99, attempt=2, output_schema_digest="sha256:bb", backend="x") == same
    )


def test_the_fingerprint_of_several_is_that_of_one_where_one_backend_made_them_all() -> None:
    other = a_result(provenance=PROVENANCE.model_copy(update={"version": "4"}))
    assert system_fingerprint([a_result(), a_result()]) == system_fingerprint([a_result()])
    mixed = system_fingerprint([a_result(), other])
    assert mixed == system_fingerprint([other, a_result()])
    assert mixed not in (system_fingerprint([a_result()]), system_fingerprint([other]))


def test_the_headers_say_whose_answer_it_is_and_how_long_it_took() -> None:
    assert response_headers(a_result()) == {
        "x-request-id": "r-1",
        "x-headrace-model-version": "3",
        "x-headrace-queue-ms": "7",
        "openai-processing-ms": "90",
        "openai-version": "2020-10-01",
    }


def test_an_id_cannot_add_a_header_nor_break_one() -> None:
    assert response_headers(a_result(id="a\r\nset-cookie: é"))["x-request-id"] == "a%0D%0Aset-cookie: %C3%A9"


def test_json_is_utf8_without_blanks_and_what_is_no_character_becomes_one() -> None:
    assert encode_json({"a": "é", "b": [1, None]}) == '{"a":"é","b":[1,null]}'.encode()
    assert encode_json({"\udc80": "x\ud83dé\U0001f600"}) == '{"�":"x�é😀"}'.encode()


# --- on the caller's side ---------------------------------------------------------------------------------


class Tags(BaseModel):
    mood: str


def test_the_official_client_reads_a_chat_completion_with_its_request_id() -> None:
    result = a_result(an_output("Hello"))
    body = chat_completion(result, a_chat(), created=CREATED)
    with answering(body, response_headers(result)).client() as client:
        answer = client.chat.completions.create(model="tagger", messages=[{"role": "user", "content": "Hi"}])
    assert answer.choices[0].message.content == "Hello"
    assert answer._request_id == "r-1"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 8


def test_parse_of_the_official_client_gives_the_callers_model() -> None:
    body = chat_completion(a_result(an_output('{"mood": "dark"}')), a_chat(), created=CREATED)
    with answering(body).client() as client:
        answer = client.chat.completions.parse(
            model="tagger", messages=[{"role": "user", "content": "Hi"}], response_format=Tags
        )
    assert answer.choices[0].message.parsed == Tags(mood="dark")


@pytest.mark.parametrize("name", [None, "Tags"])
def test_parse_of_the_official_client_reads_the_arguments_of_a_forced_tool(name: str | None) -> None:
    text = '{"mood": "dark"}' if name else '{"name": "Tags", "arguments": {"mood": "dark"}}'
    body = chat_completion(a_result(an_output(text)), a_chat(tool=ForcedTool(name)), created=CREATED)
    with answering(body).client() as client:
        answer = client.chat.completions.parse(
            model="tagger",
            messages=[{"role": "user", "content": "Hi"}],
            tools=[openai.pydantic_function_tool(Tags)],
            tool_choice="required",
        )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.parsed_arguments == Tags(mood="dark")


def test_the_official_client_reads_a_text_completion() -> None:
    body = text_completion([a_result(an_output("Hello"))], a_completion(), created=CREATED)
    with answering(body).client() as client:
        answer = client.completions.create(model="tagger", prompt="Hi")
    assert answer.choices[0].text == "Hello"
