"""Between Headrace's terms and vLLM's: sampling, constraints, messages; and the outputs back.

Plain data both ways, so that nothing here imports vLLM.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, cast

from headrace.schemas.errors import EngineRejected
from headrace.schemas.messages import (
    ChatMessage,
    FinishReason,
    OutputConstraint,
    Sampling,
    TokenLogprob,
    Tool,
    TopLogprob,
)
from headrace.workers.engine import Delta, GeneratedChoice, Generation

# vLLM gives -inf for a token that a grammar forbids, which JSON cannot say; its own server writes this
# number.
LEAST_LOGPROB = -9999.0

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort", "error": "error"}


def sampling_arguments(
    sampling: Sampling, model_defaults: Mapping[str, Any], prompt_tokens: int, max_model_len: int
) -> dict[str, Any]:
    """Keyword arguments of vLLM's SamplingParams.

    `model_defaults` is the model's generation config in vLLM's names; it stands wherever `sampling` has None.
    `max_tokens` never exceeds what the context has room for.
    """
    given = sampling.model_dump(exclude_none=True)
    if sampling.logit_bias is not None:
        given["logit_bias"] = {int(token): bias for token, bias in sampling.logit_bias.items()}
    arguments = {**model_defaults, **given}
    room = max_model_len - prompt_tokens
    arguments["max_tokens"] = min(int(arguments.get("max_tokens") or room), room)
    return arguments


def constraint_arguments(constraint: OutputConstraint) -> dict[str, Any]:
    """Keyword arguments of vLLM's StructuredOutputsParams. Raises EngineRejected for the schema `false`.

    A JSON Schema goes as text, so that its order of properties is kept. vLLM takes only objects: `true` is
    `{}`.
    """
    schema = constraint.json_schema
    if schema is False:
        raise EngineRejected("the output schema false accepts no output at all", path="/output/json_schema")
    if schema is not None:
        return {"json": json.dumps({} if schema is True else schema)}
    return constraint.model_dump(exclude_none=True)


def chat_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as the OpenAI API has them, which is what vLLM's chat renderer takes.

    Text parts are joined by line breaks, as vLLM's own server joins them: templates differ in whether they take lists,
    and text is the only kind.
    """
    rendered: list[dict[str, Any]] = []
    for message in messages:
        turn = message.model_dump(exclude_none=True)
        if isinstance(message.content, list):
            turn["content"] = "\n".join(part.text for part in message.content)
        rendered.append(turn)
    return rendered


def template_arguments(
    tools: Sequence[Tool], reasoning: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """What the chat template is called with, beside the messages; `reasoning` is in the template's own names."""
    arguments: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False, **reasoning}
    if tools:
        arguments["tools"] = [tool.model_dump(exclude_none=True) for tool in tools]
    return arguments


class Splitter(Protocol):
    """Parts a choice's text into reasoning and answer: `vllm_reasoning.ReasoningSplitter`."""

    def split(self, text: str, token_ids: Sequence[int], *, finished: bool) -> tuple[str, str]:
        """The reasoning and the answer that this adds."""
        ...


@dataclass(slots=True)
class _Choice:
    splitter: Splitter | None
    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    finish: FinishReason | None = None


class OutputCollector:
    """Adds up the chunks of a job: vLLM's DELTA outputs, or the one of FINAL_ONLY."""

    def __init__(self, sampling: Sampling, splitter: Callable[[], Splitter] | None = None) -> None:
        """`splitter` makes one for each choice of a reasoning model."""
        self._choices = [_Choice(splitter and splitter()) for _ in range(sampling.n or 1)]
        self._logprobs = sampling.logprobs

    def add(self, outputs: Sequence[Any]) -> list[Delta]:
        """Take one RequestOutput's `outputs`; gives what was added to the text of each choice."""
        deltas: list[Delta] = []
        for output in outputs:
            index: int = output.index
            choice = self._choices[index]
            choice.token_ids += output.token_ids
            text: str = output.text
            if choice.splitter is not None:
                finished = output.finish_reason is not None
                reasoning, text = choice.splitter.split(text, output.token_ids, finished=finished)
                choice.reasoning.append(reasoning)
            if text:
                choice.text.append(text)
                deltas.append(Delta(index, text))
            if self._logprobs is not None and output.logprobs:
                chunk = zip(output.token_ids, output.logprobs, strict=True)
                choice.logprobs += [
                    _token_logprob(token, position, self._logprobs) for token, position in chunk
                ]
            if output.finish_reason is not None:
                choice.finish = _FINISH.get(output.finish_reason, "error")
        return deltas

    @property
    def token_ids(self) -> list[list[int]]:
        """Of each choice, those of its reasoning among them."""
        return [choice.token_ids for choice in self._choices]

    def generation(self, prompt_tokens: int, cached_tokens: int) -> Generation:
        """The whole. A choice that vLLM never ended counts as an error."""
        choices = [
            GeneratedChoice(
                text="".join(choice.text),
                finish_reason=choice.finish or "error",
                completion_tokens=len(choice.token_ids),
                logprobs=None if self._logprobs is None else choice.logprobs,
                reasoning="".join(choice.reasoning) or None,
            )
            for choice in self._choices
        ]
        return Generation(choices, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)


def _token_logprob(token: int, position: Mapping[int, Any], top: int) -> TokenLogprob:
    """One position of vLLM's logprobs: token id to (logprob, rank, decoded_token), the chosen one among
    them.
    """
    chosen = position[token]
    ranked = sorted(position.values(), key=lambda one: cast("int", one.rank or 0))[:top]
    return TokenLogprob(
        token=chosen.decoded_token or "",
        logprob=_finite(chosen.logprob),
        top=[TopLogprob(token=one.decoded_token or "", logprob=_finite(one.logprob)) for one in ranked],
    )


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB
