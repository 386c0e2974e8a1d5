"""A call's answer as server-sent events."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from openai_parts import (
    CREATED,
    PROVENANCE,
    a_chat,
    a_completion,
    a_failed_result,
    a_result,
    an_output,
    events_in,
    failing,
    streaming,
)
from pydantic import BaseModel

from headrace.producers.http.answers import system_fingerprint
from headrace.producers.http.failures import failure_of, failure_of_error
from headrace.producers.http.streams import DONE, KEEP_ALIVE, ChatStream, EventStream, TextStream
from headrace.producers.http.wanted import ApiError, ForcedTool, Wanted
from headrace.schemas.errors import Failed, StreamRestarted
from headrace.schemas.messages import FunctionCall, Result, TokenLogprob, ToolCall, TopLogprob, Usage

HEL = TokenLogprob(token="Hel", logprob=-0.5, top=[TopLogprob(token="Hel", logprob=-0.5)])
LO = TokenLogprob(token="lo", logprob=-1.0, top=[])


def chat(wanted: Wanted | None = None) -> ChatStream:
    return ChatStream(wanted or a_chat(), request_id="r-1", created=CREATED)


def text(wanted: Wanted | None = None) -> TextStream:
    return TextStream(wanted or a_completion(), request_id="r-1", created=CREATED)


def sent(stream: EventStream, result: Result, *pieces: str) -> list[bytes]:
    """A whole stream: these pieces of text, then the result."""
    return [stream.first(), *(stream.text(piece) for piece in pieces), *stream.finish(result)]


def choices_in(events: list[Any]) -> list[Any]:
    return [choice for event in events if event != "[DONE]" for choice in event["choices"]]


# --- chats ------------------------------------------------------------------------------------------------


def test_a_chat_is_streamed_as_openai_does_to_the_field() -> None:
    events = events_in(sent(chat(), a_result(an_output("Hello")), "Hel", "lo"))
    head: dict[str, Any] = {
        "id": "chatcmpl-r-1",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": "tagger",
        "system_fingerprint": None,
        "service_tier": "default",
    }

    def chunk(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**head, "choices": [choice], **more}

    assert events == [
        chunk({"role": "assistant", "content": "", "refusal": None}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop", system_fingerprint=system_fingerprint([a_result()])),
        "[DONE]",
    ]
    for event in events[:-1]:
        ChatCompletionChunk.model_validate(event)


def test_what_was_not_streamed_comes_with_the_end() -> None:
    events = events_in(sent(chat(), a_result(an_output("Hello", finish_reason="length")), "Hel"))
    assert [(choice["delta"].get("content"), choice["finish_reason"]) for choice in choices_in(events)] == [
        ("", None), ("Hel", None), ("lo", None), (None, "length"),
    ]  # fmt: skip


def test_several_choices_each_have_their_role_their_text_and_their_end() -> None:
    result = a_result(an_output("a"), an_output("b", finish_reason="length"))
    choices = choices_in(events_in(sent(chat(a_chat(choices=2)), result)))
    for index, (said, reason) in enumerate([("a", "stop"), ("b", "length")]):
        mine = [choice for choice in choices if choice["index"] == index]
        assert [each["delta"].get("role") for each in mine] == ["assistant", None, None]
        assert (mine[1]["delta"], mine[2]["finish_reason"]) == ({"content": said}, reason)


def test_a_choice_without_text_has_its_role_and_its_end() -> None:
    choices = choices_in(events_in(sent(chat(), a_result(an_output("")))))
    assert [choice["finish_reason"] for choice in choices] == [None, "stop"]


def test_usage_comes_last_without_choices_and_is_null_until_then() -> None:
    events = events_in(sent(chat(a_chat(include_usage=True)), a_result(), "Hel"))
    assert events.pop() == "[DONE]"
    last = events.pop()
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 5,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    assert last["system_fingerprint"] == system_fingerprint([a_result()])
    assert all("usage" in event and event["usage"] is None for event in events)


def test_without_include_usage_no_chunk_speaks_of_it() -> None:
    assert not any("usage" in event for event in events_in(sent(chat(), a_result())))


def test_reasoning_goes_before_the_text_under_both_of_its_names() -> None:
    choices = choices_in(events_in(sent(chat(), a_result(an_output("4", reasoning="2 and 2")))))
    assert [choice["delta"] for choice in choices[1:3]] == [
        {"reasoning_content": "2 and 2", "reasoning": "2 and 2"},
        {"content": "4"},
    ]


def test_logprobs_ride_on_the_text_and_not_on_the_reasoning() -> None:
    result = a_result(an_output("Hello", reasoning="greet", logprobs=[HEL, LO]))
    choices = choices_in(events_in(sent(chat(a_chat(logprobs=True)), result)))
    assert [choice["delta"] for choice in choices if choice["logprobs"]] == [{"content": "Hello"}]


@pytest.mark.parametrize("pieces", [(), ("Hel",), ("Hel", "lo")])
def test_logprobs_come_all_at_once_and_once_whatever_was_streamed(pieces: tuple[str, ...]) -> None:
    result = a_result(an_output("Hello", logprobs=[HEL, LO]))
    wanted = a_chat(logprobs=True, top_logprobs=1)
    choices = choices_in(events_in(sent(chat(wanted), result, *pieces)))
    (found,) = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert [each["token"] for each in found["content"]] == ["Hel", "lo"]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "Hello"
    assert choices[-1]["logprobs"] is None


def test_a_forced_call_is_one_delta_and_its_text_is_never_content() -> None:
    stream = chat(a_chat(tool=ForcedTool("tag")))
    choices = choices_in(events_in(sent(stream, a_result(an_output('{"mood": "dark"}')), '{"mo')))
    role, call, end = choices
    assert role["delta"] == {"role": "assistant", "content": None, "refusal": None}
    (found,) = call["delta"]["tool_calls"]
    assert found.pop("id").startswith("call_")
    assert found == {
        "index": 0,
        "type": "function",
        "function": {"name": "tag", "arguments": '{"mood": "dark"}'},
    }
    assert end["finish_reason"] == "stop"


def test_a_call_of_any_tool_ends_with_tool_calls() -> None:
    stream = chat(a_chat(tool=ForcedTool(None)))
    choices = choices_in(events_in(sent(stream, a_result(an_output('{"name":"tag","arguments":{}}')))))
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_calls_that_the_worker_found_follow_what_is_said_each_in_a_delta() -> None:
    calls = [ToolCall(id=f"c-{n}", function=FunctionCall(name="tag", arguments="{}")) for n in (1, 2)]
    result = a_result(an_output("Let me see.", tool_calls=calls))
    choices = choices_in(events_in(sent(chat(), result, "Let me")))
    assert [choice["delta"].get("content") for choice in choices[1:3]] == ["Let me", " see."]
    found = [choice["delta"]["tool_calls"][0] for choice in choices[3:5]]
    assert [(call["index"], call["id"]) for call in found] == [(0, "c-1"), (1, "c-2")]
    assert choices[5]["finish_reason"] == "tool_calls"


# --- completions ------------------------------------------------------------------------------------------


def test_a_completion_is_streamed_as_openai_does() -> None:
    stream = text(a_completion(include_usage=True))
    events = events_in(sent(stream, a_result(an_output("Hello")), "Hel"))
    assert [choice["text"] for choice in choices_in(events)] == ["Hel", "lo", ""]
    assert choices_in(events)[-1]["finish_reason"] == "stop"
    assert {event["id"] for event in events[:-1]} == {"cmpl-r-1"}
    assert {event["object"] for event in events[:-1]} == {"text_completion"}
    assert events[-2]["usage"]["total_tokens"] == 17
    for event in events[:-1]:
        Completion.model_validate(event | {"choices": [c for c in event["choices"] if c["finish_reason"]]})


def test_several_prompts_share_a_stream_that_ends_with_the_last_of_them() -> None:
    stream = text(a_completion("a", "b", choices=1, include_usage=True))
    first = [
        stream.text("A", 0),
        stream.text("B", 1),
        stream.text("B", 1),
        *stream.finish(a_result(an_output("BB")), 1),
    ]
    assert DONE not in first
    other = a_result(an_output("AA"), usage=Usage(prompt_tokens=1, completion_tokens=1))
    events = events_in([*first, *stream.finish(other, 0)])
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"]["total_tokens"] == 19
    texts = ["".join(choice["text"] for choice in choices_in(events) if choice["index"] == n) for n in (0, 1)]
    assert texts == ["AA", "BB"]


def test_choices_of_several_prompts_are_numbered_across_them() -> None:
    stream = text(a_completion("a", "b", choices=2))
    results = [a_result(an_output("a1"), an_output("a2")), a_result(an_output("b1"), an_output("b2"))]
    events = events_in([each for n, result in enumerate(results) for each in stream.finish(result, n)])
    assert {choice["index"]: choice["text"] for choice in choices_in(events) if choice["text"]} == {
        0: "a1", 1: "a2", 2: "b1", 3: "b2",
    }  # fmt: skip


def test_reasoning_is_not_lost_in_a_streamed_completion() -> None:
    choices = choices_in(events_in(sent(text(), a_result(an_output("4", reasoning="2 and 2")), "4")))
    assert [choice["reasoning"] for choice in choices if "reasoning" in choice] == ["2 and 2"]


def test_logprobs_of_a_completion_come_with_the_end() -> None:
    stream = text(a_completion(logprobs=True))
    choices = choices_in(events_in(sent(stream, a_result(an_output("Hello", logprobs=[HEL, LO])), "Hello")))
    (found,) = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert (found["tokens"], found["text_offset"]) == (["Hel", "lo"], [0, 3])


# --- what goes wrong --------------------------------------------------------------------------------------


def test_a_text_that_goes_on_otherwise_is_not_passed_off_as_its_end() -> None:
    stream = chat()
    stream.text("Good")
    with pytest.raises(StreamRestarted):
        stream.finish(a_result(an_output("Hello")))


def test_a_result_that_is_not_ok_does_not_end_a_stream_well() -> None:
    with pytest.raises(Failed):
        chat().finish(a_failed_result("failed", "engine_error"))


def test_a_text_that_is_no_call_does_not_end_a_stream_well() -> None:
    with pytest.raises(ApiError):
        chat(a_chat(tool=ForcedTool("tag"))).finish(a_result(an_output("no call")))


def test_a_failure_is_one_event_and_no_done() -> None:
    error = failure_of(a_failed_result("failed", "engine_error", "it broke"))
    assert events_in([chat().failed(error)]) == [
        {"error": {"message": "it broke", "type": "server_error", "param": None, "code": "engine_error"}}
    ]


# --- bytes ------------------------------------------------------------------------------------------------


def test_an_event_is_one_line_for_every_reader_of_lines() -> None:
    awkward = "a\nb\r\nc\x0bd\x0ce\x1cf\x85g\u2028h\u2029i\x00j"
    event = chat().text(awkward)
    assert len(event.decode().splitlines()) == 2, "the line of data and the blank one"
    assert choices_in(events_in([event]))[0]["delta"]["content"] == awkward


def test_no_character_is_split_and_what_is_none_is_replaced() -> None:
    assert '"content":"déjà 😀"'.encode() in chat().text("déjà 😀")
    assert '"content":"x�"'.encode() in chat().text("x\ud83d")


def test_no_text_is_no_event() -> None:
    assert chat().text("") == b""
    assert text().first() == b""


# --- on the caller's side ---------------------------------------------------------------------------------

HI: Any = [{"role": "user", "content": "Hi"}]


class Tags(BaseModel):
    mood: str


def test_the_official_client_puts_a_stream_together_over_keep_alives() -> None:
    wanted = a_chat(include_usage=True)
    pieces = sent(chat(wanted), a_result(an_output("déjà vu 😀")), "déjà ", "vu")
    alive = [part for piece in pieces for part in (KEEP_ALIVE, piece)]
    cut = b"".join(alive)
    bytewise = [cut[n : n + 1] for n in range(len(cut))]  # as bad as a network can be
    with streaming(bytewise).client() as client:
        stream = client.chat.completions.create(
            model="tagger", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == "déjà vu 😀"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 17
    assert {chunk.id for chunk in chunks} == {"chatcmpl-r-1"}


def test_the_official_clients_stream_helper_parses_the_answer() -> None:
    result = a_result(an_output('{"mood": "dark"}', logprobs=[HEL, LO]))
    pieces = sent(chat(a_chat(include_usage=True, logprobs=True)), result, '{"mood"')
    with (
        streaming(pieces).client() as client,
        client.chat.completions.stream(model="tagger", messages=HI, response_format=Tags) as stream,
    ):
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == Tags(mood="dark")
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].logprobs is not None
    assert [each.token for each in final.choices[0].logprobs.content or []] == ["Hel", "lo"]
    assert final.usage is not None
    assert final.system_fingerprint == system_fingerprint([result])
    assert {"content.delta", "content.done"} <= set(kinds)


@pytest.mark.parametrize("name", [None, "Tags"])
def test_the_official_clients_stream_helper_parses_a_forced_call(name: str | None) -> None:
    said = '{"mood": "dark"}' if name else '{"name": "Tags", "arguments": {"mood": "dark"}}'
    pieces = sent(chat(a_chat(tool=ForcedTool(name), choices=2)), a_result(an_output(said), an_output(said)))
    with (
        streaming(pieces).client() as client,
        client.chat.completions.stream(
            model="tagger",
            messages=HI,
            n=2,
            tools=[openai.pydantic_function_tool(Tags)],
            tool_choice="required",
        ) as stream,
    ):
        final = stream.get_final_completion()
    assert len(final.choices) == 2
    for choice in final.choices:
        (found,) = choice.message.tool_calls or []
        assert found.function.parsed_arguments == Tags(mood="dark")


def test_the_official_client_reads_a_streamed_completion() -> None:
    with streaming(sent(text(), a_result(an_output("Hello")), "Hel")).client() as client:
        stream = client.completions.create(model="tagger", prompt="Hi", stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_an_error_in_mid_stream_is_raised_by_the_official_client(endpoint: str) -> None:
    error = failure_of_error(StreamRestarted("another attempt has begun"))
    stream: EventStream = chat() if endpoint == "chat" else text()
    pieces = [stream.first(), stream.text("Hel"), KEEP_ALIVE, stream.failed(error)]
    with streaming(pieces).client() as client:
        answer: Any = (
            client.chat.completions.create(model="tagger", messages=HI, stream=True)
            if endpoint == "chat"
            else client.completions.create(model="tagger", prompt="Hi", stream=True)
        )
        seen: list[object] = []
        with pytest.raises(openai.APIError, match="another attempt has begun") as caught:
            seen.extend(answer)
    assert len(seen) == (2 if endpoint == "chat" else 1)
    assert caught.value.code == "stream_restarted"


def test_a_stream_that_fails_before_it_begins_is_raised_as_its_status() -> None:
    with (
        failing(failure_of(a_failed_result("rejected", "invalid_field"))).client() as client,
        pytest.raises(openai.BadRequestError),
    ):
        client.chat.completions.create(model="tagger", messages=HI, stream=True)


def test_the_fingerprint_of_a_stream_is_that_of_its_results() -> None:
    other = a_result(provenance=PROVENANCE.model_copy(update={"version": "4"}))
    events = events_in(sent(chat(), other))
    assert events[-2]["system_fingerprint"] == system_fingerprint([other])
