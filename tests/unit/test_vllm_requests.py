"""Headrace's terms into vLLM's and back. Needs no vLLM."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.schemas.errors import EngineRejected
from headrace.schemas.messages import (
    ChatMessage,
    Function,
    FunctionCall,
    OutputConstraint,
    Sampling,
    TextPart,
    Tool,
    ToolCall,
)
from headrace.workers import vllm_requests
from headrace.workers.engine import Delta


def test_what_is_absent_comes_from_the_models_generation_config() -> None:
    defaults = {"temperature": 0.6, "top_p": 0.9, "max_tokens": 50}
    got = vllm_requests.sampling_arguments(Sampling(temperature=0.0, seed=3), defaults, 10, 1000)
    assert got == {"temperature": 0.0, "top_p": 0.9, "max_tokens": 50, "seed": 3}


@pytest.mark.parametrize(("asked", "got"), [(None, 90), (20, 20), (5000, 90)])
def test_max_tokens_is_what_the_context_has_room_for_at_most(asked: int | None, got: int) -> None:
    assert vllm_requests.sampling_arguments(Sampling(max_tokens=asked), {}, 10, 100)["max_tokens"] == got


def test_a_schema_goes_as_text_in_its_own_order() -> None:
    schema = {"properties": {"z": {"type": "null"}, "a": {"type": "null"}}}
    got = vllm_requests.constraint_arguments(OutputConstraint(json_schema=schema))
    assert list(json.loads(got["json"])["properties"]) == ["z", "a"]
    assert vllm_requests.constraint_arguments(OutputConstraint(json_schema=True)) == {"json": "{}"}
    assert vllm_requests.constraint_arguments(OutputConstraint(choice=["a"])) == {"choice": ["a"]}
    with pytest.raises(EngineRejected, match="false"):
        vllm_requests.constraint_arguments(OutputConstraint(json_schema=False))


def test_messages_keep_tool_calls_and_their_text_parts_are_joined() -> None:
    call = ToolCall(id="c1", function=FunctionCall(name="look", arguments='{"at": 1}'))
    turns = vllm_requests.chat_messages(
        [
            ChatMessage(role="user", content=[TextPart(text="a"), TextPart(text="b")]),
            ChatMessage(role="assistant", tool_calls=[call]),
            ChatMessage(role="tool", content="seen", tool_call_id="c1"),
        ]
    )
    assert turns[0] == {"role": "user", "content": "a\nb"}
    assert turns[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": 1}'}
    assert turns[2] == {"role": "tool", "content": "seen", "tool_call_id": "c1"}


def test_tools_reach_the_template() -> None:
    tool = Tool(function=Function(name="look", parameters={"type": "object"}))
    assert vllm_requests.template_arguments([tool])["tools"][0]["function"]["name"] == "look"
    assert "tools" not in vllm_requests.template_arguments([])


def _output(text: str, ids: list[int], finish: str | None = None, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{"index": 0, "text": text, "token_ids": ids, "finish_reason": finish, "logprobs": None} | fields
    )


def test_chunks_of_several_choices_are_added_up_each_for_itself() -> None:
    collector = vllm_requests.OutputCollector(Sampling(n=2))
    assert collector.add([_output("a", [1]), _output("x", [7], index=1)]) == [Delta(0, "a"), Delta(1, "x")]
    assert collector.add([_output("", [2])]) == []  # half a character
    collector.add([_output("b", [3], "stop"), _output("y", [8], "length", index=1)])
    generation = collector.generation(4, 1)
    assert [choice.text for choice in generation.choices] == ["ab", "xy"]
    assert [choice.finish_reason for choice in generation.choices] == ["stop", "length"]
    assert [choice.completion_tokens for choice in generation.choices] == [3, 2]
    assert (generation.prompt_tokens, generation.cached_tokens) == (4, 1)


@pytest.mark.parametrize("finish", [None, "error", "something new"])
def test_an_end_that_is_not_known_counts_as_an_error(finish: str | None) -> None:
    collector = vllm_requests.OutputCollector(Sampling())
    collector.add([_output("a", [1], finish)])
    assert collector.generation(1, 0).choices[0].finish_reason == "error"


def test_logprobs_are_ranked_cut_to_the_number_asked_for_and_finite() -> None:
    def logprob(value: float, rank: int, token: str) -> SimpleNamespace:
        return SimpleNamespace(logprob=value, rank=rank, decoded_token=token)

    position = {5: logprob(-math.inf, 900, "c"), 6: logprob(-0.1, 1, "a"), 7: logprob(-2.0, 2, "b")}
    collector = vllm_requests.OutputCollector(Sampling(logprobs=2))
    collector.add([_output("c", [5], "stop", logprobs=[position])])
    (one,) = collector.generation(1, 0).choices[0].logprobs or []
    assert (one.token, one.logprob) == ("c", vllm_requests.LEAST_LOGPROB)
    assert [(top.token, top.logprob) for top in one.top] == [("a", -0.1), ("b", -2.0)]


def test_biases_go_by_token_ids_that_are_numbers_to_vllm() -> None:
    sampling = Sampling(logit_bias={"7": -100.0, "12": 3.5})
    arguments = vllm_requests.sampling_arguments(sampling, {}, 1, 100)
    assert arguments["logit_bias"] == {7: -100.0, 12: 3.5}
