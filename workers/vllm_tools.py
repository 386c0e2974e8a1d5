"""The calls of tools in what a model on vLLM wrote: one of its tool parsers, asked as vLLM's own server asks it.

A parser says what it found, and is silent about what it could not read: some hand out half of a call, some the whole
text as if it were an answer. So a text is looked through for the marks that begin a call as well. vLLM is imported in
functions only.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from headrace.schemas.errors import PackageError
from headrace.schemas.messages import ChatMessage, Tool
from headrace.workers.engine import ChatPrompt, FoundCall, Generation, GenerationJob, PartedText
from headrace.workers.vllm_parser_names import check_name

log = logging.getLogger(__name__)

# What vLLM's parsers call the text that begins a call, or a list of calls.
_NAMES_OF_MARKS: Final = (
    "bot_string", "bot_token", "tc_start", "tool_call_start_token", "tool_calls_start_token", "tool_start_token",
    "tools_open", "TOOL_CALL_BEGIN", "TOOL_CALLS_BEGIN", "_TOOL_CALL_START", "_TOOL_CALLS_START",
)  # fmt: skip
# Of those that have it in their code alone.
_MARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "apertus": ("<|tools_prefix|>",),
    "gigachat3": ("function call<|role_sep|>\n", "<|function_call|>"),
    "internlm": ("<|action_start|><|plugin|>",),
    "lfm2": ("<|tool_call_start|>",),
    "muse_glimmer": ("<atem:invoke",),
    "olmo3": ("<function_calls>",),
    "phi4_mini_json": ("functools[",),
    "xlam": ("[TOOL_CALLS]", "<tool_call>"),
}
# A call without a mark, as the Llamas write it: `{"name": "look", ...` or `[look(...`.
_BARE: Final = re.compile(
    r'\s*(?:```\w*\s*)?\[?\s*(?:\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<json>[^"]*)|(?P<python>\w+)\()'
)
_PROBE: Final = [Tool.model_validate({"function": {"name": "look", "parameters": {"type": "object"}}})]


def check_parser_name(name: str) -> None:
    """Raises PackageError, with a suggestion, for what is none of vLLM's tool parsers."""
    known: list[str] = importlib.import_module("vllm.tool_parsers").ToolParserManager.list_registered()
    check_name("tool_parser", name, known)


class ToolParsers:
    """The tool parsers of one engine: a new one for each text, for they have state."""

    def __init__(
        self, name: str, tokenizer: Any, vllm_config: Any, *, reasoning_parser: str | None = None
    ) -> None:
        """Raises PackageError for a parser that does not go with the model's tokenizer, or with `reasoning_parser`."""
        manager: Any = importlib.import_module("vllm.parser.parser_manager").ParserManager
        protocol: Any = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
        ids: Any = importlib.import_module("vllm.renderers.chat_utils")
        self._new_request: Any = protocol.ChatCompletionRequest
        self._new_id: Any = ids.make_tool_call_id
        self._tokenizer = tokenizer
        self._model_config = vllm_config.model_config
        self._has_reasoning = reasoning_parser is not None
        for noisy in (
            "vllm.parser",
            "vllm.tool_parsers",
        ):  # of each text that they cannot read they log a stack trace
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
        try:
            if reasoning_parser is not None:  # there are some that go with each other only
                manager.get_parser(name, reasoning_parser, enable_auto_tools=True, tokenizer=tokenizer)
            self._parser_class: Any = manager.get_parser(name, enable_auto_tools=True, tokenizer=tokenizer)
            request = self._request(_PROBE, [])
            parser = self._new_parser(request)
            self._marks = frozenset(_marks(name, parser.tool_parser))
            # Some read special tokens in the text, and write into the request that they are to be left there.
            self.skip_special_tokens = bool(parser.adjust_request(request).skip_special_tokens)
            self._parse(self._new_parser(request), "An answer.", self._request(_PROBE, []), ())
        except Exception as error:
            reason = str(error.__cause__ or error) or type(error).__name__
            raise PackageError(f"{name} does not go with this model: {reason}", key="tool_parser") from error

    def parted(
        self, job: GenerationJob, generation: Generation, token_ids: Sequence[Sequence[int]]
    ) -> Generation:
        """The generation, each of its choices `parted`; `token_ids` of each. It may take a while: not for a loop."""
        assert job.calls_of is not None, "no call is looked for"
        choices = [
            replace(
                choice, parted=self.part(job.calls_of, choice.text, ids, cut=choice.finish_reason != "stop")
            )
            for choice, ids in zip(generation.choices, token_ids, strict=True)
        ]
        return replace(generation, choices=choices)

    def part(
        self, prompt: ChatPrompt, text: str, token_ids: Sequence[int] = (), *, cut: bool = False
    ) -> PartedText:
        """A text in which tools of the prompt may be called; `cut`: the model has not ended it."""
        request = self._request(prompt.tools, prompt.messages)
        parser = self._new_parser(request)
        try:
            # With the reasoning taken out of the text, the ids are of more than it.
            content, found = self._parse(parser, text, request, () if self._has_reasoning else token_ids)
        except Exception:
            log.debug("the tool parser failed on a text", exc_info=True)
            return PartedText(text, unread=True)
        calls = [
            FoundCall(each.id or self._new_id(), each.name or "", each.arguments or "")
            for each in found or ()
        ]
        names = [tool.function.name for tool in prompt.tools]
        unread = self._is_unread(text, calls, names, cut=cut) or _is_open(parser.tool_parser, text)
        return PartedText(content or "", calls, unread)

    def _is_unread(self, text: str, calls: Sequence[FoundCall], names: Iterable[str], *, cut: bool) -> bool:
        """Whether more calls were begun than were read."""
        if any(text.count(mark) > len(calls) for mark in self._marks):
            return True
        if calls:
            return False
        return _begins_bare(text, names, cut=cut) or (
            cut and any(_ends_within(text, mark) for mark in self._marks)
        )

    def _parse(
        self, parser: Any, text: str, request: Any, token_ids: Sequence[int]
    ) -> tuple[str | None, list[Any] | None]:
        _, content, calls = parser.parse(
            text, request, enable_auto_tools=True, model_output_token_ids=list(token_ids)
        )
        return content, calls

    def _new_parser(self, request: Any) -> Any:
        return self._parser_class(
            self._tokenizer, request.tools, chat_template_kwargs={}, model_config=self._model_config
        )

    def _request(self, tools: Sequence[Tool], messages: Sequence[ChatMessage]) -> Any:
        """What a parser reads of a request: the tools, and for some models the number of earlier calls.

        Without `strict`, by which vLLM would have decoding hold the calls as well: they are validated afterwards.
        """
        return self._new_request(
            model="headrace",
            messages=[
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [call.model_dump() for call in turn.tool_calls],
                }
                for turn in messages
                if turn.tool_calls
            ],
            tools=[tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools],
            tool_choice="auto",
        )


# --- what begins a call ---------------------------------------------------------------------------------------------


def _marks(name: str, parser: Any) -> Iterator[str]:
    """The texts that begin a call, or a list of calls."""
    yield from _MARKS.get(name, ())
    for each in _NAMES_OF_MARKS:
        mark = getattr(parser, each, None)
        if isinstance(mark, str) and not mark.isalpha():  # a word may be there in any text
            yield mark
    config = _grammar(parser)
    if config is None:
        return
    for (state, terminal), transition in config.transitions.items():
        if state.name == "CONTENT" and transition.next_state.name.startswith("TOOL_"):
            spelt = config.terminals.get(terminal, ())
            yield from (spelt,) if isinstance(spelt, str) else spelt


def _grammar(parser: Any) -> Any:
    """How a parser that is written as a state machine takes a text; None of one that is not."""
    return getattr(getattr(parser, "_parser_engine", None), "parser_engine_config", None)


def _is_open(parser: Any, text: str) -> bool:
    """Whether the text ends within a call: a state machine would close it, and hand out what it has of it."""
    config = _grammar(parser)
    if config is None or not any(
        state.name.startswith("TOOL_") and transition.next_state.name in ("CONTENT", "TOOL_BETWEEN")
        for (state, _), transition in config.transitions.items()
    ):  # else in its format nothing ends a call
        return False
    states: Any = importlib.import_module("vllm.parser.engine.parser_engine_config").ParserState
    machine = parser._parser_engine._engine  # nothing public tells
    machine.reset(initial_state=states.CONTENT)
    machine.feed(text, [])
    return cast("str", machine.state.name) in ("TOOL_NAME", "TOOL_ARGS")


def _begins_bare(text: str, names: Iterable[str], *, cut: bool) -> bool:
    """Whether it begins as a call of one of these functions is written without any mark."""
    found = _BARE.match(text)
    if found is None:
        return False
    called = found["json"] if found["json"] is not None else found["python"]
    if cut and found.end() == len(text) and called:
        return any(name.startswith(called) for name in names)
    return called in names


def _ends_within(text: str, mark: str) -> bool:
    return any(text.endswith(mark[:length]) for length in range(1, len(mark)))
