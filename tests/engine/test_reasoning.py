"""Reasoning on vLLM: its parsers by themselves, and (in `make soak`) a reasoning model on an engine of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest

from headrace.schemas.errors import PackageError, UnsupportedField
from headrace.schemas.messages import ChatMessage, Reasoning, Sampling
from headrace.workers.engine import ChatPrompt, Generation, GenerationJob, TextPrompt
from headrace.workers.vllm_reasoning import ReasoningParsers, check_parser_name
from headrace.workers.vllm_requests import OutputCollector

pytestmark = pytest.mark.usefixtures("needs_vllm")

ANSWER = '{"mood":"calm","score":3,"tags":["abc"]}'

# --- vLLM's parsers -------------------------------------------------------------------------------------------------

THINK, END = 256, 257  # token ids; those below are bytes


class Bytes:
    """As much of a tokenizer as a parser asks for: a token is a byte, or one of the two that mark reasoning."""

    marks: Mapping[str, int] = MappingProxyType({"<think>": THINK, "</think>": END})
    all_special_ids: tuple[int, ...] = ()
    all_special_tokens: tuple[str, ...] = ()
    name_or_path = "bytes"

    @property
    def vocab(self) -> dict[str, int]:
        return {chr(code): code for code in range(256)} | dict(self.marks)

    def get_vocab(self) -> dict[str, int]:
        return self.vocab

    def encode(self, text: str, **_: object) -> list[int]:
        ids: list[int] = []
        while text:
            mark = next((each for each in self.marks if text.startswith(each)), text[0])
            ids.append(self.vocab[mark])
            text = text[len(mark) :]
        return ids

    def decode(self, ids: list[int] | int, **_: object) -> str:
        names = {code: name for name, code in self.vocab.items()}
        return "".join(names[each] for each in ([ids] if isinstance(ids, int) else ids))

    def convert_ids_to_tokens(self, ids: list[int], **_: object) -> list[str]:
        return [self.decode(each) for each in ids]

    def apply_chat_template(self, messages: object, **_: object) -> str:
        raise AssertionError("no test renders messages")


SWITCH = "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"
DEGREE = "{{ reasoning_effort }}"


def parsers(name: str = "qwen3", template: str | None = SWITCH, *, budget: bool = True) -> ReasoningParsers:
    config = SimpleNamespace(model_config=None, reasoning_config=SimpleNamespace(enabled=budget))
    return ReasoningParsers(name, Bytes(), config, chat_template=template)


def output(text: str, finish: str | None) -> Any:
    token_ids = Bytes().encode(text)
    return SimpleNamespace(index=0, text=text, token_ids=token_ids, finish_reason=finish, logprobs=None)


def collected(
    name: str, chunks: list[str], *, prompt: str = "x<think>", reasoning: Reasoning | None = None
) -> tuple[Generation, str]:
    """What becomes of these chunks of generated text, and what of it was streamed."""
    job = GenerationJob("a", Bytes().encode(prompt), Sampling(), reasoning=reasoning)
    _, splitter = parsers(name).begin(job)
    collector = OutputCollector(Sampling(), splitter)
    streamed = ""
    for number, chunk in enumerate(chunks):
        last = number == len(chunks) - 1
        streamed += "".join(delta.text for delta in collector.add([output(chunk, "stop" if last else None)]))
    return collector.generation(1, 0), streamed


def by_token(text: str) -> Iterator[str]:
    yield from (Bytes().decode(each) for each in Bytes().encode(text))


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("well</think>" + ANSWER, "well", ANSWER),
        ("<think>well</think>good", "well", "good"),
        ("well, well", "well, well", ""),
        ("well</think>", "well", ""),
    ],
    ids=["json", "opened again", "cut", "no answer"],
)
def test_the_reasoning_is_parted_from_the_answer(
    name: str, whole: bool, text: str, reasoning: str, answer: str
) -> None:
    generation, streamed = collected(name, [text] if whole else list(by_token(text)))
    choice = generation.choices[0]
    assert (choice.reasoning, choice.text) == (reasoning, answer)
    assert streamed == answer
    assert choice.completion_tokens == len(Bytes().encode(text))


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
def test_all_is_answer_where_the_prompt_ends_the_reasoning(name: str, whole: bool) -> None:
    chunks = [ANSWER] if whole else list(by_token(ANSWER))
    generation, streamed = collected(
        name, chunks, prompt="x<think></think>", reasoning=Reasoning(effort="none")
    )
    assert (generation.choices[0].reasoning, generation.choices[0].text) == (None, ANSWER)
    assert streamed == ANSWER


def test_the_engine_is_told_whether_the_prompt_ends_the_reasoning() -> None:
    job = GenerationJob("a", Bytes().encode("x<think>"), Sampling())
    assert parsers().begin(job)[0]["reasoning_ended"] is False
    off = GenerationJob(
        "a", Bytes().encode("x<think></think>"), Sampling(), reasoning=Reasoning(effort="none")
    )
    told, _ = parsers().begin(off)
    assert told == {
        "reasoning_ended": True,
        "reasoning_parser_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
    }


@pytest.mark.parametrize(
    ("template", "effort", "told"),
    [
        (SWITCH, "none", {"enable_thinking": False}),
        (SWITCH, "medium", {"enable_thinking": True}),
        ("{{ thinking }}", "none", {"thinking": False}),
        (DEGREE, "high", {"reasoning_effort": "high"}),
        (SWITCH + DEGREE, "none", {"enable_thinking": False, "reasoning_effort": "none"}),
        (SWITCH, None, {}),
        ("plain", None, {}),
    ],
)
def test_an_effort_is_told_to_the_template_in_its_own_names(
    template: str, effort: Any, told: dict[str, Any]
) -> None:
    prompt = ChatPrompt([ChatMessage(role="user", content="x")], reasoning=Reasoning(effort=effort))
    asked = parsers(template=template)
    asked.check(prompt)
    assert asked.template_arguments(prompt.reasoning) == told


@pytest.mark.parametrize(
    ("template", "wish", "path"),
    [
        (SWITCH, {"effort": "low"}, "/reasoning/effort"),
        (SWITCH, {"effort": "high"}, "/reasoning/effort"),
        ("plain", {"effort": "none"}, "/reasoning/effort"),
        ("plain", {"effort": "medium"}, "/reasoning/effort"),
        (None, {"effort": "none"}, "/reasoning/effort"),
        (SWITCH, {"max_tokens": 5}, "/reasoning/max_tokens"),
    ],
)
def test_a_wish_that_cannot_be_honoured_is_refused_by_name(
    template: str | None, wish: dict[str, Any], path: str
) -> None:
    prompt = ChatPrompt([ChatMessage(role="user", content="x")], reasoning=Reasoning(**wish))
    with pytest.raises(UnsupportedField) as refused:
        parsers(template=template, budget=False).check(prompt)
    assert refused.value.path == path


def test_a_text_goes_through_no_template_but_may_be_cut_short() -> None:
    with pytest.raises(UnsupportedField, match="goes through none"):
        parsers(template=DEGREE).check(TextPrompt("x", Reasoning(effort="low")))
    parsers().check(TextPrompt("x", Reasoning(max_tokens=3)))
    assert parsers().sampling_arguments(Reasoning(max_tokens=3))["thinking_token_budget"] == 3
    assert "thinking_token_budget" not in parsers().sampling_arguments(None)


def test_an_unknown_parser_is_refused_with_a_suggestion() -> None:
    check_parser_name("deepseek_r1")
    with pytest.raises(PackageError, match="did you mean qwen3") as error:
        check_parser_name("qwen3_")
    assert error.value.key == "reasoning_parser"
    with pytest.raises(PackageError, match=r"it has .*deepseek_r1"):
        check_parser_name("zzz")


def test_a_parser_whose_tokens_the_model_has_not_is_refused() -> None:
    class Other(Bytes):
        marks = MappingProxyType[str, int]({})

    config = SimpleNamespace(model_config=None, reasoning_config=None)
    with pytest.raises(PackageError, match="deepseek_r1 does not go with this model"):
        ReasoningParsers("deepseek_r1", cast("Any", Other()), config, chat_template=None)


# --- a model on an engine -------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("parser", ["deepseek_r1", "qwen3"])
def test_a_reasoning_model_is_held_to_its_schema_after_its_reasoning_and_only_then(
    tmp_path: Path, parser: str
) -> None:
    script = Path(__file__).parent / "reasoning_life.py"
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path), parser],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    seen = json.loads(ended.stdout.splitlines()[-1])
    for name in ("held", "several", "streamed", "text"):
        for choice in seen[name]["generation"]["choices"]:
            assert choice["finish_reason"] == "stop"
            assert json.loads(choice["text"])["mood"] in ("bright", "dark")
            assert choice["reasoning"]
            assert "<" not in choice["reasoning"] + choice["text"]
    for name in ("called", "called_streamed"):
        choice = seen[name]["generation"]["choices"][0]
        assert choice["reasoning"]
        assert (choice["parted"]["content"], choice["parted"]["unread"]) == ("I look. ", False)
        (call,) = choice["parted"]["calls"]
        assert (call["name"], call["arguments"]) == ("look", "{}")
    for name in ("streamed", "free_streamed", "cut_streamed", "off_streamed"):
        choice = seen[name]["generation"]["choices"][0]
        assert "".join(delta["text"] for delta in seen[name]["deltas"]) == choice["text"]
        assert (
            choice
            == seen[name.removesuffix("_streamed").replace("streamed", "held")]["generation"]["choices"][0]
        )
    for name in ("cut", "cut_streamed"):
        choice = seen[name]["generation"]["choices"][0]
        assert (choice["finish_reason"], choice["text"], choice["completion_tokens"]) == ("length", "", 10)
        assert choice["reasoning"]
    for name in ("off", "off_streamed"):
        choice = seen[name]["generation"]["choices"][0]
        assert json.loads(choice["text"])["mood"] in ("bright", "dark")
        assert choice["reasoning"] is None
    free = seen["free"]["generation"]["choices"][0]
    assert free["reasoning"]
    assert free["text"]
    off = seen["off_free"]["generation"]["choices"][0]
    assert (off["reasoning"], bool(off["text"])) == (None, True)
    assert seen["refused"] == {
        "low": "/reasoning/effort", "medium": None, "none": None, "text": "/reasoning/effort",
    }  # fmt: skip
