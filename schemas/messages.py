"""The messages that go through Kafka: Request, Result, Reply, DeadLetter and Cancel.

These types are what the code sees; `schemas/avro/*.avsc` is what other languages see, and `schemas/codec.py` goes
between. Validation is strict: nothing is coerced, and a field that is not named here is an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

# JSON values stay plain Python objects. In Avro these fields are strings of JSON text, since Avro has no recursion
# but through records and JSON values have no depth known beforehand.
JsonValue = Any
JsonObject = dict[str, Any]

Status = Literal["ok", "invalid_output", "truncated", "rejected", "failed", "expired", "cancelled"]
FinishReason = Literal["stop", "length", "abort", "error", "tool_calls"]
Lane = Literal["interactive", "standard", "backfill"]
LANES: tuple[Lane, ...] = ("interactive", "standard", "backfill")

# From the best to the worst: a result has the worst status of its outputs.
STATUS_ORDER: tuple[Status, ...] = (
    "ok",
    "truncated",
    "invalid_output",
    "cancelled",
    "expired",
    "failed",
    "rejected",
)

Identifier = Annotated[str, Field(min_length=1, max_length=256)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]  # a string, as keys of JSON objects are
LogitBias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Milliseconds = Annotated[int, Field(ge=0, le=2**53 - 1)]


class Message(BaseModel):
    """What all of them have in common: frozen, strict, no field unknown."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, ser_json_bytes="base64", val_json_bytes="base64"
    )


# --- Request --------------------------------------------------------------------------------------------------


class TextPart(Message):
    """One part of a message's content. Text is the only kind so far."""

    type: Literal["text"] = "text"
    text: str


class FunctionCall(Message):
    """A function's name and its arguments, a string of JSON text as the model wrote it."""

    name: Identifier
    arguments: str


class ToolCall(Message):
    """A call of a tool that a model asked for."""

    id: Identifier
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Message):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Identifier | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Identifier | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise ValueError("a message needs content, or an assistant's tool_calls")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message may have tool_calls")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("tool_call_id belongs to a message of role tool, and every such message has one")
        return self


class Function(Message):
    """A function that the model may call; `parameters` is a JSON Schema."""

    name: Identifier
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Message):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: Function


class ToolChoice(Message):
    """Whether and which tool is to be called; `function` names it where the mode is `named`."""

    mode: Literal["none", "auto", "required", "named"]
    function: Identifier | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.mode == "named") != (self.function is not None):
            raise ValueError("function goes with mode named, and only with it")
        return self


class Reasoning(Message):
    """How much a reasoning model is to think."""

    effort: Literal["none", "minimal", "low", "medium", "high"] | None = None
    max_tokens: Count | None = None


class Sampling(Message):
    """How to sample. What is absent comes from the package, then from the model's own generation config."""

    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    n: Annotated[int, Field(ge=1, le=8)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    logit_bias: Annotated[dict[TokenId, LogitBias], Field(max_length=1024)] | None = None


class OutputConstraint(Message):
    """What the output is held to: exactly one of these."""

    json_schema: JsonObject | bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "exactly one of json_schema, regex, choice, grammar, json_object; given: "
                + (", ".join(given) or "none")
            )
        return self


class Request(Message):
    """One request for a generation."""

    id: Identifier
    key: Identifier | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    prompt: Annotated[str, Field(min_length=1)] | None = None
    variables: JsonObject | None = None
    tools: Annotated[list[Tool], Field(min_length=1)] | None = None
    tool_choice: ToolChoice | None = None
    reasoning: Reasoning | None = None
    sampling: Sampling | None = None
    output: OutputConstraint | None = None
    deadline: Milliseconds | None = None  # ms since the epoch
    tenant: Identifier | None = None
    job: Identifier | None = None
    result_topic: Identifier | None = None
    stream: bool = False
    attributes: dict[str, str] = Field(default_factory=dict[str, str])

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        given = [name for name in ("messages", "prompt", "variables") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "exactly one of messages, prompt, variables; given: " + (" and ".join(given) or "none")
            )
        return self


# --- Result ---------------------------------------------------------------------------------------------------


class TopLogprob(Message):
    """A token that might have been, with its log probability."""

    token: str
    logprob: Finite


class TokenLogprob(Message):
    """A generated token, its log probability (natural logarithm), and the likeliest others."""

    token: str
    logprob: Finite
    top: list[TopLogprob] = Field(default_factory=list[TopLogprob])


class Output(Message):
    """One generated choice."""

    text: str
    finish_reason: FinishReason
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    value: JsonValue = None
    logprobs: list[TokenLogprob] | None = None


class Usage(Message):
    """Tokens: of the prompt, of those the ones served from the prefix cache, and generated."""

    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0


class Timings(Message):
    """Milliseconds from the record's append time: until admission, the first token, and the end."""

    queued_ms: Milliseconds = 0
    first_token_ms: Milliseconds | None = None
    total_ms: Milliseconds = 0


class ErrorDetail(Message):
    """Why it is not `ok`: a code (see `schemas/errors.py`), a sentence, and a JSON pointer."""

    code: str
    message: str
    path: str | None = None


class Provenance(Message):
    """What produced a result, down to the versions and digests."""

    model: str
    version: str
    contract: Count
    engine: str
    engine_version: str
    weights_digest: str | None = None
    output_schema_digest: str | None = None
    tier: str | None = None
    backend: str | None = None
    slot: str
    source_topic: str
    source_partition: Count
    source_offset: Annotated[int, Field(ge=0)]
    attempt: Annotated[int, Field(ge=1)] = 1


class Result(Message):
    """The one answer to a request."""

    id: str
    status: Status
    outputs: list[Output] = Field(default_factory=list[Output])
    usage: Usage = Usage()
    timings: Timings = Timings()
    error: ErrorDetail | None = None
    provenance: Provenance
    attributes: dict[str, str] = Field(default_factory=dict[str, str])


# --- Reply, DeadLetter, Cancel ----------------------------------------------------------------------------------


class Location(Message):
    """Where a record lies."""

    topic: str
    partition: Count
    offset: Annotated[int, Field(ge=0)]


class Reply(Message):
    """One message to whoever waits for a request: tokens as they come, and at last the result."""

    id: str
    attempt: Annotated[int, Field(ge=1)] = 1
    seq: Count
    kind: Literal["delta", "final", "error", "duplicate"]
    choice: Count = 0
    delta: str | None = None
    result: Result | None = None
    location: Location | None = None


class Header(Message):
    """A record header as it was."""

    key: str
    value: bytes | None = None


class DeadLetter(Message):
    """A request that was not served as asked: why, and its bytes as they were."""

    id: str | None = None
    code: str
    message: str
    path: str | None = None
    source: Location
    key: bytes | None = None
    value: bytes | None = None
    headers: list[Header] = Field(default_factory=list[Header])
    attempt: Annotated[int, Field(ge=1)] = 1
    time: Milliseconds  # ms since the epoch


class Cancel(Message):
    """A wish that a request, or all of a job, be given up."""

    id: Identifier | None = None
    job: Identifier | None = None
    reason: str = ""
    time: Milliseconds  # ms since the epoch

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.id is None) == (self.job is None):
            raise ValueError("exactly one of id, job")
        return self
