"""Reasoning models on vLLM: one of its reasoning parsers, asked as vLLM's own server asks it.

vLLM's engine holds a constraint back until its parser sees the reasoning end. Here the same parser says whether the
prompt has already ended it, and parts what was generated into reasoning and answer, so that both sides agree on where
the answer begins. vLLM is imported in functions only.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any, cast

from headrace.schemas.errors import PackageError, UnsupportedField
from headrace.schemas.messages import Reasoning
from headrace.workers.engine import ChatPrompt, GenerationJob, Prompt

# Names by which chat templates ask for thinking at all; both are in use.
_SWITCHES = ("enable_thinking", "thinking")
_DEGREE = "reasoning_effort"


def check_parser_name(name: str) -> None:
    """Raises PackageError, with a suggestion, for what is none of vLLM's reasoning parsers."""
    known: list[str] = importlib.import_module("vllm.reasoning").ReasoningParserManager.list_registered()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
        raise PackageError(f"vLLM has no reasoning parser {name!r}; {hint}", key="reasoning_parser")


class ReasoningParsers:
    """The parsers of one engine: one for each choice of a job, for they have state."""

    def __init__(self, name: str, tokenizer: Any, vllm_config: Any, *, chat_template: str | None) -> None:
        """`chat_template` is None where the model's messages are rendered by other means than a template.

        Raises PackageError for a parser that the model's tokenizer cannot serve.
        """
        parser: Any = importlib.import_module("vllm.parser.parser_manager").ParserManager
        protocol: Any = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
        self._tokenizer = tokenizer
        self._model_config = vllm_config.model_config
        self._taken = _taken(tokenizer, chat_template)
        self._has_budget = bool(vllm_config.reasoning_config and vllm_config.reasoning_config.enabled)
        try:
            self._parser_class: Any = parser.get_parser(reasoning_parser_name=name, tokenizer=tokenizer)
            # Some of them read a request, and some write into it how the text is to be detokenised.
            self._request: Any = protocol.ChatCompletionRequest(messages=[], model="headrace")
            self._request = self._new_parser(None).reasoning_parser.adjust_request(self._request)
        except Exception as error:
            raise PackageError(
                f"{name} does not go with this model: {error}", key="reasoning_parser"
            ) from error

    @property
    def skip_special_tokens(self) -> bool:
        """Whether special tokens are left out of the text; not where the parser looks for them there."""
        return bool(self._request.skip_special_tokens)

    def check(self, prompt: Prompt) -> None:
        """Raises UnsupportedField, with its path, for a wish that neither the chat template nor vLLM can honour."""
        wish = prompt.reasoning
        if wish is None:
            return
        if wish.max_tokens is not None and not self._has_budget:
            raise UnsupportedField(
                "this model's reasoning has no tokens that begin and end it, so it cannot be cut short",
                path="/reasoning/max_tokens",
            )
        if wish.effort is None:
            return
        if not isinstance(prompt, ChatPrompt):
            raise UnsupportedField(
                "an effort is told to the model by its chat template, and a prompt that is a text goes through none",
                path="/reasoning/effort",
            )
        if not self._taken:
            raise UnsupportedField(
                "this model's chat template takes no effort: the model reasons as it does",
                path="/reasoning/effort",
            )
        if wish.effort not in ("none", "medium") and _DEGREE not in self._taken:
            raise UnsupportedField(
                "this model's chat template knows no degrees of effort: it takes medium (on) and none (off)",
                path="/reasoning/effort",
            )

    def template_arguments(self, wish: Reasoning | None) -> dict[str, Any]:
        """What the chat template is told, in its own names."""
        if wish is None or wish.effort is None:
            return {}
        asked: dict[str, Any] = dict.fromkeys(_SWITCHES, wish.effort != "none") | {_DEGREE: wish.effort}
        return {name: value for name, value in asked.items() if name in self._taken}

    def sampling_arguments(self, wish: Reasoning | None) -> dict[str, Any]:
        """Keyword arguments of vLLM's SamplingParams."""
        arguments: dict[str, Any] = {"skip_special_tokens": self.skip_special_tokens}
        if wish is not None and wish.max_tokens is not None:
            arguments["thinking_token_budget"] = wish.max_tokens
        return arguments

    def begin(self, job: GenerationJob) -> tuple[dict[str, Any], Callable[[], ReasoningSplitter]]:
        """Keyword arguments of AsyncLLM's `generate`, and what makes the splitter of each choice."""
        arguments = self.template_arguments(job.reasoning)
        ended = bool(self._new_parser(arguments).is_reasoning_end(job.token_ids))

        def splitter() -> ReasoningSplitter:
            return ReasoningSplitter(self._new_parser(arguments), self._request, job.token_ids, ended=ended)

        return {
            "reasoning_ended": ended,
            "reasoning_parser_kwargs": {"chat_template_kwargs": arguments},
        }, splitter

    def _new_parser(self, template_arguments: dict[str, Any] | None) -> Any:
        return self._parser_class(
            self._tokenizer, None, chat_template_kwargs=template_arguments, model_config=self._model_config
        )


class ReasoningSplitter:
    """Parts the text of one choice into reasoning and answer, as it comes or all at once."""

    def __init__(self, parser: Any, request: Any, prompt_token_ids: list[int], *, ended: bool) -> None:
        self._parser = parser
        self._request = request
        self._prompt_token_ids = prompt_token_ids
        self._ended = ended  # with the prompt: all of the text is the answer
        self._begun = False

    def split(self, text: str, token_ids: Sequence[int], *, finished: bool) -> tuple[str, str]:
        """The reasoning and the answer that this adds. `finished`: nothing follows."""
        if self._ended:
            return "", text
        if finished and not self._begun:
            whole = self._parser.parse(text, self._request, model_output_token_ids=list(token_ids))
            reasoning, answer = cast("tuple[str | None, str | None]", whole[:2])
            return reasoning or "", answer or ""
        self._begun = True
        added = self._parser.parse_delta(
            text, list(token_ids), self._request, self._prompt_token_ids, finished=finished
        )
        return ("", "") if added is None else (added.reasoning or "", added.content or "")


def chat_template_of(llm: Any) -> str | None:
    """The chat template that an AsyncLLM renders messages with; None where it has none that can be read."""
    renderers: Any = importlib.import_module("vllm.renderers.hf")
    if not isinstance(llm.renderer, renderers.HfRenderer):
        return None
    found = renderers.resolve_chat_template(
        llm.get_tokenizer(), None, None, model_config=llm.vllm_config.model_config
    )
    return cast("str | None", found)


def _taken(tokenizer: Any, chat_template: str | None) -> frozenset[str]:
    """Which of the names for reasoning the template takes: vLLM drops the others without a word."""
    if chat_template is None:
        return frozenset()
    renderers: Any = importlib.import_module("vllm.renderers.hf")
    asked = dict.fromkeys((*_SWITCHES, _DEGREE))
    return frozenset(renderers.resolve_chat_template_kwargs(tokenizer, chat_template, asked))
