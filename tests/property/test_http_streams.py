"""What holds of every answer, however its text was cut when it was streamed."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from message_strategies import outputs, results, texts
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai_parts import a_chat, a_completion, events_in
from property_examples import EXAMPLES

from headrace.producers.http.answers import chat_completion, encode_json, response_headers, text_completion
from headrace.producers.http.failures import failure_of
from headrace.producers.http.streams import KEEP_ALIVE, ChatStream, TextStream
from headrace.producers.http.wanted import ForcedTool, Wanted
from headrace.schemas.messages import Output, Result

names = st.sampled_from(["tag", "suchen", "näher"])
arguments = st.dictionaries(texts, st.integers() | texts, max_size=3)
switches = st.fixed_dictionaries(
    {
        "include_usage": st.booleans(),
        "logprobs": st.booleans(),
        "top_logprobs": st.integers(0, 3),
        "lane": st.sampled_from(["interactive", "standard", "backfill"]),
        "model": texts,
        "parallel_tool_calls": st.booleans(),
    }
)


def ok_results(output: st.SearchStrategy[Output], choices: int) -> st.SearchStrategy[Result]:
    made = st.lists(output, min_size=choices, max_size=choices)
    return st.builds(
        lambda result, outputs: result.model_copy(update={"status": "ok", "error": None, "outputs": outputs}),
        results,
        made,
    )


@st.composite
def forced(draw: st.DrawFn, tool: ForcedTool) -> Output:
    """An output that is a call of the tool."""
    said = draw(arguments)
    value = said if tool.name is not None else {"name": draw(names), "arguments": said}
    return draw(outputs).model_copy(update={"text": json.dumps(value), "tool_calls": None})


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """The pieces of a beginning of the text, the empty ones included."""
    ends = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@st.composite
def chats(draw: st.DrawFn) -> tuple[Wanted, Result]:
    tool = draw(st.none() | st.builds(ForcedTool, st.none() | names))
    choices = draw(st.integers(1, 3))
    wanted = a_chat(tool=tool, choices=choices, **draw(switches))
    return wanted, draw(ok_results(outputs if tool is None else forced(tool), choices))


def joined(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """Each choice of a chat, put together as a client does."""
    choices: dict[int, dict[str, Any]] = defaultdict(lambda: {"content": "", "reasoning": None, "calls": {}})
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        whole, delta = choices[choice["index"]], choice["delta"]
        assert "finish_reason" not in whole, "nothing of a choice follows its end"
        whole["content"] += delta.get("content") or ""
        if "reasoning" in delta:
            whole["reasoning"] = delta["reasoning"]
        for call in delta.get("tool_calls", []):
            assert call["index"] not in whole["calls"]
            whole["calls"][call["index"]] = {name: value for name, value in call.items() if name != "index"}
        if choice["logprobs"] is not None:
            assert "logprobs" not in whole
            whole["logprobs"] = choice["logprobs"]
        if choice["finish_reason"] is not None:
            whole["finish_reason"] = choice["finish_reason"]
    return choices


@settings(max_examples=EXAMPLES, deadline=None)
@given(chats(), st.data())
def test_a_streamed_chat_is_the_chat_that_is_not(made: tuple[Wanted, Result], data: st.DataObject) -> None:
    wanted, result = made
    pieces = data.draw(cut(result.outputs[0].text))
    stream = ChatStream(wanted, request_id=result.id, created=1)
    sent = [stream.first()]
    for piece in pieces:
        sent += [KEEP_ALIVE, stream.text(piece)]
    sent += stream.finish(result)
    whole = json.loads(encode_json(chat_completion(result, wanted, created=1)))
    ChatCompletion.model_validate(whole)

    *chunks, done = events_in(sent)
    assert done == "[DONE]"
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        (whole["id"], 1, wanted.model)
    }
    assert ("usage" in chunks[0]) == wanted.include_usage
    if wanted.include_usage:
        assert chunks[-1]["choices"] == []
        assert chunks.pop()["usage"] == whole["usage"]
        assert all(chunk["usage"] is None for chunk in chunks)
    found = joined(chunks)
    for choice, output in zip(whole["choices"], result.outputs, strict=True):
        mine, message = found[choice["index"]], choice["message"]
        assert mine["content"] == (message["content"] or "")
        assert mine["content"] == (output.text if wanted.tool is None else "")
        assert mine["reasoning"] == message.get("reasoning") == output.reasoning
        assert list(mine["calls"].values()) == message.get("tool_calls", [])
        assert mine.get("logprobs") == choice["logprobs"]
        assert mine["finish_reason"] == choice["finish_reason"]


@st.composite
def completions(draw: st.DrawFn) -> tuple[Wanted, list[Result]]:
    prompts, choices = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    wanted = a_completion(*["x"] * prompts, choices=choices, **draw(switches))
    made = st.lists(ok_results(outputs, choices), min_size=prompts, max_size=prompts)
    return wanted, draw(made)


@settings(max_examples=EXAMPLES, deadline=None)
@given(completions(), st.data())
def test_a_streamed_completion_is_the_completion_that_is_not(
    made: tuple[Wanted, list[Result]], data: st.DataObject
) -> None:
    wanted, several = made
    stream = TextStream(wanted, request_id="r", created=1)
    sent = [stream.first()]
    for place, result in data.draw(st.permutations(list(enumerate(several)))):
        sent += [stream.text(piece, place) for piece in data.draw(cut(result.outputs[0].text))]
        sent += stream.finish(result, place)
    whole = json.loads(encode_json(text_completion(several, wanted, created=1, request_id="r")))
    Completion.model_validate(whole)

    *chunks, done = events_in(sent)
    assert done == "[DONE]"
    if wanted.include_usage:
        assert chunks.pop()["usage"] == whole["usage"]
    texts_of: dict[int, str] = defaultdict(str)
    ends: dict[int, str] = {}
    logprobs: dict[int, Any] = {}
    for chunk in chunks:
        assert chunk["id"] == whole["id"]
        (choice,) = chunk["choices"]
        if choice["finish_reason"] is not None:
            Completion.model_validate(chunk)
            ends[choice["index"]] = choice["finish_reason"]
        texts_of[choice["index"]] += choice["text"]
        if choice["logprobs"] is not None:
            logprobs[choice["index"]] = choice["logprobs"]
    for choice in whole["choices"]:
        index = choice["index"]
        assert texts_of[index] == choice["text"]
        assert ends[index] == choice["finish_reason"]
        assert logprobs.get(index) == choice["logprobs"]


@settings(max_examples=EXAMPLES, deadline=None)
@given(results)
def test_every_result_has_headers_that_http_takes_and_every_failure_a_body(result: Result) -> None:
    for value in response_headers(result).values():
        assert value.isascii()
        assert value.isprintable()
        assert value == value.strip()
    error = failure_of(result, a_chat())
    assert 400 <= error.status < 600
    assert json.loads(encode_json(error.as_json()))["error"]["message"] == error.message


anything = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)  # lone surrogates too


@settings(max_examples=EXAMPLES, deadline=None)
@given(anything)
def test_whatever_a_text_holds_its_event_is_one_line_of_json(text: str) -> None:
    event = ChatStream(a_chat(), request_id="r", created=1).text(text)
    if not text:
        assert event == b""
        return
    assert len(event.decode().splitlines()) == 2
    (chunk,) = events_in([event])
    replaced = "".join("�" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert chunk["choices"][0]["delta"]["content"] == replaced
