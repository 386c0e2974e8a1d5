"""vLLM's tool parsers by themselves, on the tokenizer of the tiny model: what they find in a text, and what not."""

from __future__ import annotations

import importlib
import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.errors import OutputError, PackageError
from headrace.schemas.messages import ChatMessage, FunctionCall, Tool, ToolCall
from headrace.schemas.settings import Settings
from headrace.schemas.tool_calls import ToolCallCheck
from headrace.workers.engine import ChatPrompt, PartedText
from headrace.workers.vllm_parser_names import listed
from headrace.workers.vllm_tools import ToolParsers, check_parser_name

pytestmark = pytest.mark.usefixtures("needs_vllm")

AT = {"type": "integer", "minimum": 1, "maximum": 9}
LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {"at": AT, "by": {"type": "string"}},
    "required": ["at"],
}
TOOLS = [
    Tool.model_validate({"function": {"name": "look", "parameters": LOOK, "strict": True}}),
    Tool.model_validate({"function": {"name": "wait"}}),
]
PROMPT = ChatPrompt([ChatMessage(role="user", content="Look at it.")], TOOLS)
# A call of `look` at 3 by "day", as the models of each parser write it.
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "look", "arguments": {"at": 3, "by": "day"}}\n</tool_call>',
    "qwen3_json": '<tool_call>\n{"name": "look", "arguments": {"at": 3, "by": "day"}}\n</tool_call>',
    "llama3_json": '<|python_tag|>{"name": "look", "parameters": {"at": 3, "by": "day"}}',
    "llama4_json": '{"name": "look", "parameters": {"at": 3, "by": "day"}}',
    "pythonic": '[look(at=3, by="day")]',
    "llama4_pythonic": '[look(at=3, by="day")]',
    "olmo3": '<function_calls>look(at=3, by="day")</function_calls>',
    "qwen3_coder": "<tool_call>\n<function=look>\n<parameter=at>\n3\n</parameter>\n<parameter=by>\nday\n</parameter>\n"
    "</function>\n</tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=look>\n<parameter=at>3</parameter>\n<parameter=by>day</parameter>\n"
    "</function>\n</seed:tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "look", "arguments": {"at": 3, "by": "day"}}]',
    "granite": '<|tool_call|>[{"name": "look", "arguments": {"at": 3, "by": "day"}}]',
    "granite4": '<tool_call>{"name": "look", "arguments": {"at": 3, "by": "day"}}</tool_call>',
    "internlm": '<|action_start|><|plugin|>{"name": "look", "parameters": {"at": 3, "by": "day"}}<|action_end|>',
    "phi4_mini_json": 'functools[{"name": "look", "arguments": {"at": 3, "by": "day"}}]',
    "glm45": "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>3</arg_value>\n<arg_key>by</arg_key>\n"
    "<arg_value>day</arg_value>\n</tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
    '{"at": 3, "by": "day"}<|tool_call_end|><|tool_calls_section_end|>',
    "xlam": '[{"name": "look", "arguments": {"at": 3, "by": "day"}}]',
}


@cache
def tokenizer() -> Any:
    transformers: Any = importlib.import_module("transformers")
    made = transformers.AutoTokenizer.from_pretrained(
        tiny_model(Settings.from_environment().cache_dir / "models")
    )
    made.add_tokens(
        ["<|python_tag|>", "[TOOL_CALLS]", "<think>", "</think>"]
    )  # parsers of these look for them in the vocabulary
    return made


@cache
def parsers(name: str) -> ToolParsers:
    return ToolParsers(name, tokenizer(), SimpleNamespace(model_config=None))


def part(name: str, text: str, *, cut: bool = False) -> PartedText:
    return parsers(name).part(PROMPT, text, cut=cut)


def is_held(parted: PartedText) -> bool:
    try:
        ToolCallCheck(TOOLS).check(parted.calls)
    except OutputError:
        return False
    return not parted.unread


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_is_found_with_its_arguments_and_an_id(name: str) -> None:
    parted = part(name, WRITTEN[name])
    (call,) = parted.calls
    assert (call.name, json.loads(call.arguments)) == ("look", {"at": 3, "by": "day"})
    assert call.id
    assert parted.content.strip() == ""
    assert is_held(parted)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize(
    "text",
    ["It stands there.", "Let me look(again) at {it} [twice] <b>now</b>.", "  \n", '{"at": 3}', "[1, 2]"],
)
def test_an_answer_without_a_call_is_an_answer(name: str, text: str) -> None:
    for cut in (False, True):
        parted = part(name, text, cut=cut)
        assert (parted.calls, parted.unread) == ([], False)
        assert parted.content.strip() == text.strip()


@pytest.mark.parametrize("name", WRITTEN)
def test_no_beginning_of_a_call_passes_for_an_answer_or_for_a_whole_call(name: str) -> None:
    written = WRITTEN[name]
    whole = written.rstrip()
    shown: list[str] = []
    for length in range(1, len(whole)):
        parted = part(name, written[:length], cut=True)
        if not (parted.calls or parted.unread):
            shown.append(written[:length])
    # What has neither a mark nor a name yet may be anything.
    assert all(len(text) <= 14 for text in shown), shown


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "look", "arguments": {"at": 3}</tool_call>'),
        ("hermes", '<tool_call>{"name": "look"}</tool_call>'),
        ("hermes", WRITTEN["hermes"] + "\n<tool_call>{"),
        ("llama3_json", '<|python_tag|>{"name": "look", "parameters": {"at": 3}'),
        ("llama4_json", '{"name": "look", "parameters": {"at": 3'),
        ("pythonic", "[look(at=3"),
        ("qwen3_coder", "<tool_call>\n<function=look>\n<parameter=at>\n3\n</parameter>\n<parameter=by>\nda"),
        ("qwen3_coder", WRITTEN["qwen3_coder"] + "<tool_call>"),
        ("mistral", '[TOOL_CALLS][{"name": "look", "arguments": {"at": 3'),
        ("glm45", "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>3"),
        ("phi4_mini_json", 'functools[{"name": "look", "arguments": {"at": 3}'),
    ],
)
def test_a_call_that_the_model_ended_too_early_holds_in_no_case(name: str, text: str) -> None:
    assert not is_held(part(name, text))


@pytest.mark.parametrize(
    "call", ['{"name": "lok", "arguments": {"at": 3}}', '{"name": "look", "arguments": {"at": 10}}',
             '{"name": "look", "arguments": [3]}', '{"name": "wait", "arguments": {"at": 3}}'],
)  # fmt: skip
def test_a_call_is_found_as_it_was_written_and_held_against_the_tools_afterwards(call: str) -> None:
    parted = part("hermes", f"<tool_call>{call}</tool_call>")
    assert not parted.unread
    assert len(parted.calls) == 1
    assert not is_held(parted)


def test_several_calls_come_in_their_order_with_what_is_said_before_and_ids_of_their_own() -> None:
    second = '<tool_call>{"name": "wait", "arguments": {}}</tool_call>'
    parted = part("hermes", f"Let me see. {WRITTEN['hermes']}\n{second}")
    assert parted.content == "Let me see. "
    assert [call.name for call in parted.calls] == ["look", "wait"]
    assert len({call.id for call in parted.calls}) == 2
    assert is_held(parted)


def test_earlier_calls_of_the_conversation_are_taken() -> None:
    earlier = ToolCall(id="functions.look:0", function=FunctionCall(name="look", arguments='{"at": 1}'))
    prompt = ChatPrompt(
        [
            ChatMessage(role="user", content="Look."),
            ChatMessage(role="assistant", tool_calls=[earlier]),
            ChatMessage(role="tool", content="Nothing.", tool_call_id=earlier.id),
        ],
        TOOLS,
    )
    (call,) = parsers("kimi_k2").part(prompt, WRITTEN["kimi_k2"]).calls
    assert call.id


def test_a_parser_stands_beside_a_reasoning_parser() -> None:
    config = SimpleNamespace(model_config=None)
    both = ToolParsers("hermes", tokenizer(), config, reasoning_parser="qwen3")
    assert is_held(both.part(PROMPT, WRITTEN["hermes"], [1, 2, 3]))


def test_special_tokens_stay_in_the_text_for_parsers_that_look_for_them_there() -> None:
    assert not parsers("hermes").skip_special_tokens
    assert parsers("pythonic").skip_special_tokens


def test_an_unknown_parser_is_refused_with_a_suggestion() -> None:
    check_parser_name("hermes")
    with pytest.raises(PackageError, match="no tool parser 'hermess'; did you mean hermes") as error:
        check_parser_name("hermess")
    assert error.value.key == "tool_parser"
    with pytest.raises(PackageError, match=r"it has .*llama3_json"):
        check_parser_name("zzz")


@pytest.mark.parametrize("name", ["deepseek_v3", "openai", "hf"])
def test_a_parser_that_does_not_go_with_the_model_is_refused(name: str) -> None:
    with pytest.raises(PackageError, match=f"{name} does not go with this model: .+") as error:
        parsers(name)
    assert error.value.key == "tool_parser"


def test_the_names_in_the_source_are_those_that_are_registered() -> None:
    tools: Any = importlib.import_module("vllm.tool_parsers").ToolParserManager
    reasoning: Any = importlib.import_module("vllm.reasoning").ReasoningParserManager
    assert listed("tool_parser") == tools.list_registered()
    assert listed("reasoning_parser") == reasoning.list_registered()
