"""The engine port: what the worker needs of something that generates text.

Two implementations: `vllm_engine.VllmEngine` and `simulated_engine.SimulatedEngine`. The same port tests
(`tests/conformance/engine_port.py`) run on both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from headrace.schemas.enforcement import Enforcement
from headrace.schemas.messages import (
    ChatMessage,
    FinishReason,
    Lane,
    OutputConstraint,
    Reasoning,
    Sampling,
    TokenLogprob,
    Tool,
)

# vLLM serves the lowest number first.
PRIORITY: dict[Lane, int] = {"interactive": 0, "standard": 10, "backfill": 20}


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages, and the tools that may be called, which the model's chat template turns into a prompt."""

    messages: list[ChatMessage]
    tools: list[Tool] = field(default_factory=list[Tool])
    reasoning: Reasoning | None = None


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt as it is."""

    text: str
    reasoning: Reasoning | None = None


Prompt = ChatPrompt | TextPrompt


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One generation to be made.

    `token_ids` is what `Engine.encode` gave. `sampling` is final: the worker has merged request and package; None in
    it means the engine's own default (the model's generation config). `request_id` is unique among running jobs.
    """

    request_id: str
    token_ids: list[int]
    sampling: Sampling
    constraint: OutputConstraint | None = None
    priority: int = PRIORITY["standard"]
    stream: bool = False
    reasoning: Reasoning | None = None  # that of the prompt
    calls_of: ChatPrompt | None = None  # the prompt, where its tools may be called


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that was added to a choice; only of jobs with `stream`. Concatenated they are the final text.

    Reasoning is no part of them.
    """

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call of a tool as the model wrote it: nothing of it has been held against the tools yet."""

    id: str
    name: str
    arguments: str  # should be the JSON text of an object


@dataclass(frozen=True, slots=True)
class PartedText:
    """A text, parted into the calls of tools in it and what is said beside them.

    `unread`: a call was begun that is not among `calls`, for it is cut off or cannot be read.
    """

    content: str
    calls: list[FoundCall] = field(default_factory=list[FoundCall])
    unread: bool = False


@dataclass(frozen=True, slots=True)
class GeneratedChoice:
    """One finished choice. `finish_reason` `error`: a grammar that did not compile (vLLM raises nothing then).

    A reasoning model's `text` is its answer alone; it is empty where the generation ended within the reasoning.
    `completion_tokens` and `logprobs` are of both. `text` has the calls of tools in it as the model wrote them, and
    `parted` has them apart: of jobs with `calls_of`.
    """

    text: str
    finish_reason: FinishReason
    completion_tokens: int
    logprobs: list[TokenLogprob] | None = None
    reasoning: str | None = None
    parted: PartedText | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """The end of a job: all its choices in order."""

    choices: list[GeneratedChoice]
    prompt_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What an engine is, for provenance."""

    engine: str  # "vllm", "simulated"
    engine_version: str
    backend: str | None  # structured-output backend, pinned for the engine's life
    weights_digest: str | None
    max_model_len: int  # tokens, prompt and completion together
    default_max_tokens: int | None = None  # of the model's generation config
    extra: dict[str, str] = field(default_factory=dict[str, str])  # torch, xgrammar: their versions
    max_sequences: int | None = None  # that one step takes; None: not known
    kv_tokens: int | None = None  # that the KV cache holds, of all sequences together; None: not known


class Engine(Protocol):
    """Generates text. All methods are called on one asyncio loop."""

    @property
    def identity(self) -> EngineIdentity:
        """What this engine is. Valid after `start()`."""
        ...

    async def start(self) -> None:
        """Load the model. Raises EngineUnavailable when that cannot be done here."""
        ...

    async def probe(self) -> None:
        """Generate one token for real. Raises EngineDead or EngineError. The worker joins its group only after it."""
        ...

    async def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, the chat template applied.

        Raises TemplateFailed when the chat template refuses the messages, UnsupportedField for a wish in `reasoning`
        that this model cannot honour. Does not check the length.
        """
        ...

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        """How this engine holds outputs to a constraint: what a job is to be given instead of it, and what that holds.

        Raises InvalidSchema, of it SchemaTooComplex, for one that it cannot hold, with a path into the request
        (`/output/json_schema/type`); EngineDead after `shutdown()`.
        """
        ...

    def generate(self, job: GenerationJob) -> AsyncIterator[Delta | Generation]:
        """Run a job: deltas if `job.stream`, then exactly one Generation.

        Raises, at the first step: PromptTooLong, EngineRejected (with the reason: an unsupported schema, ...);
        at any step: EngineDead, EngineError. A caller that stops iterating (or whose task is cancelled) aborts the job.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a job early: its Generation comes with finish_reason `abort`. An unknown id is no error."""
        ...

    def check_health(self) -> None:
        """Raises EngineDead (with the cause where known) once the engine has died. Cheap."""
        ...

    async def shutdown(self) -> None:
        """Abort what runs and free everything. Idempotent."""
        ...
