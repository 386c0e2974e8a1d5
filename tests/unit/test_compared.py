"""The comparison with `vllm serve` sees what differs, and its table of explanations is what docs/http.md shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conformance import compared_differences
from conformance.compared_answers import ABSENT, Difference, Values, differences, values_of
from conformance.compared_differences import (
    EXPLANATIONS,
    Explanation,
    is_essential,
    markdown_table,
    stale,
    unexplained,
)
from conformance.compared_requests import COMPARED

DOCS = Path(__file__).parents[2] / "docs" / "http.md"


def body(**fields: Any) -> Values:
    return values_of(200, {"content-type": "application/json"}, json.dumps(fields))


def stream(*chunks: Any, done: bool = True) -> Values:
    lines = [
        ": a comment",
        *(f"data: {json.dumps(chunk)}" for chunk in chunks),
        *(["data: [DONE]"] if done else []),
    ]
    return values_of(200, {"content-type": "text/event-stream"}, "\n\n".join(lines) + "\n\n")


def chunk(delta: Any, finish_reason: str | None = None, **more: Any) -> Any:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "created": 1, "choices": [choice], **more}


def paths(there: Values, here: Values) -> list[str]:
    return [each.path for each in differences(there, here)]


# --- what is compared -----------------------------------------------------------------------------------------------


def test_each_value_is_compared_by_its_path_and_type() -> None:
    there = body(id="chatcmpl-1", n=1, x=[{"a": 1.0}, {"a": 0.5}], gone=None)
    here = body(id="chatcmpl-2", n=True, x=[{"a": 1.0}, {"a": 0.502}], more={})
    assert differences(there, here) == [
        Difference("body.n", 1, True),
        Difference("body.x[1].a", 0.5, 0.502),
        Difference("body.gone", None, ABSENT),
        Difference("body.more", ABSENT, {}),
    ]
    assert differences(body(a=0.5), body(a=0.5009)) == []


def test_where_the_status_differs_nothing_else_is_told() -> None:
    refused = values_of(400, {"content-type": "application/json"}, '{"error": {}}')
    assert differences(body(a=1), refused) == [Difference("status", 200, 400)]


def test_streams_are_compared_by_what_their_chunks_add_up_to_not_by_how_the_text_is_cut() -> None:
    role, end = chunk({"role": "assistant", "content": ""}), chunk({}, "stop")
    one = stream(role, chunk({"content": "Hello"}), end)
    assert paths(one, stream(role, chunk({"content": "Hel"}), chunk({"content": "lo"}), end)) == []
    assert paths(one, stream(role, chunk({"content": "Hallo"}), end)) == ["stream.choices[0].text"]
    assert paths(one, stream(role, chunk({"content": "Hello"}), chunk({}, "length"))) == [
        "stream.choices[0].finish_reason"
    ]
    assert paths(one, stream(role, chunk({"content": "Hello"}), end, done=False)) == [
        "stream.done",
        "stream.ends with",
    ]
    assert "stream.choices[0].order" in paths(one, stream(chunk({"content": "Hello"}), role, end))


def test_each_kind_of_chunk_is_compared_by_its_shape() -> None:
    role, end = chunk({"role": "assistant", "content": ""}), chunk({}, "stop")
    one = stream(role, chunk({"content": "Hello"}), end)
    more = stream(role, chunk({"content": "Hello"}, usage=None), end)
    assert differences(one, more) == [Difference("chunk(text).usage", ABSENT, "null")]


# --- what is explained ----------------------------------------------------------------------------------------------


def explained(monkeypatch: pytest.MonkeyPatch, *rows: Explanation) -> None:
    monkeypatch.setattr(compared_differences, "EXPLANATIONS", rows)


def test_a_difference_without_a_row_and_a_row_without_a_difference_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    explained(monkeypatch, Explanation("f", "all", "why", ("body.a[].*", "body.b"), ("chat: *", "page: x")))
    found = [Difference("body.a[12].c", 1, 2), Difference("body.c", 1, 2)]
    assert unexplained("chat: plain", found) == found[1:]
    assert unexplained("completion: plain", found) == found
    assert stale({"chat: plain": found}) == ["f: path body.b", "f: call page: x"]


def test_what_must_be_the_same_is_excused_of_calls_alone_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        Difference(path, 1, 2) for path in ("status", "stream.usage[0].prompt_tokens", "body.choices[0].text")
    ]
    assert all(is_essential(each.path) for each in found)
    explained(monkeypatch, Explanation("f", "all", "why", ("*",), ("*",)))
    assert unexplained("chat: plain", found) == found
    explained(monkeypatch, Explanation("f", "all", "why", ("*",), ("chat: plain",)))
    assert unexplained("chat: plain", found) == []


def test_the_calls_have_names_of_their_own_and_rows_name_calls_that_there_are() -> None:
    names = [each.name for each in COMPARED]
    assert len(names) == len(set(names)) > 40
    named = {pattern for row in EXPLANATIONS for pattern in row.requests if "*" not in pattern}
    assert named <= set(names)


def test_the_table_of_differences_in_the_docs_is_that_of_the_data() -> None:
    (table,) = re.findall(
        r"<!-- differences: begin -->\n\n(.*)\n<!-- differences: end -->", DOCS.read_text(), re.DOTALL
    )
    assert table.strip() == markdown_table().strip(), (
        "write it anew: PYTHONPATH=tests python -m conformance.compared_differences"
    )
