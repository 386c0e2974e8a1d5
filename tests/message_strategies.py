"""Hypothesis strategies for every message, for all tests that need messages of any shape."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headrace.schemas.messages import (
    Cancel,
    ChatMessage,
    DeadLetter,
    ErrorDetail,
    Function,
    FunctionCall,
    Header,
    Location,
    Message,
    Output,
    OutputConstraint,
    Provenance,
    Reasoning,
    Reply,
    Request,
    Result,
    Sampling,
    TextPart,
    Timings,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolChoice,
    TopLogprob,
    Usage,
)

texts = st.text(max_size=30)
identifiers = st.text(min_size=1, max_size=20)
counts = st.integers(0, 2**31 - 1)
times = st.integers(0, 2**53 - 1)
offsets = st.integers(0, 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
attributes = st.dictionaries(texts, texts, max_size=3)

_scalars = st.none() | st.booleans() | st.integers(-(10**40), 10**40) | finite | texts
json_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """None, or what the strategy gives."""
    return st.none() | strategy


def lists(strategy: st.SearchStrategy[Any], *, min_size: int = 0) -> st.SearchStrategy[list[Any]]:
    """Short lists."""
    return st.lists(strategy, min_size=min_size, max_size=3)


tool_calls = st.builds(
    ToolCall, id=identifiers, function=st.builds(FunctionCall, name=identifiers, arguments=texts)
)
contents = texts | lists(st.builds(TextPart, text=texts))
chat_messages = st.one_of(
    st.builds(
        ChatMessage,
        role=st.sampled_from(["system", "developer", "user"]),
        content=contents,
        name=optional(identifiers),
    ),
    st.builds(
        ChatMessage,
        role=st.just("assistant"),
        content=optional(contents),
        tool_calls=lists(tool_calls, min_size=1),
    ),
    st.builds(ChatMessage, role=st.just("tool"), content=contents, tool_call_id=identifiers),
)
tools = st.builds(
    Tool,
    function=st.builds(
        Function,
        name=identifiers,
        description=optional(texts),
        parameters=optional(json_objects),
        strict=optional(st.booleans()),
    ),
)
tool_choices = st.builds(ToolChoice, mode=st.sampled_from(["none", "auto", "required"])) | st.builds(
    ToolChoice, mode=st.just("named"), function=identifiers
)
samplings = st.builds(
    Sampling,
    max_tokens=optional(st.integers(1, 2**31 - 1)),
    temperature=optional(st.floats(0, 100)),
    top_p=optional(st.floats(0, 1, exclude_min=True)),
    top_k=optional(counts),
    min_p=optional(st.floats(0, 1)),
    seed=optional(st.integers(-(2**63), 2**63 - 1)),
    stop=optional(lists(identifiers)),
    presence_penalty=optional(st.floats(-2, 2)),
    frequency_penalty=optional(st.floats(-2, 2)),
    repetition_penalty=optional(st.floats(0, 10, exclude_min=True)),
    n=optional(st.integers(1, 8)),
    logprobs=optional(st.integers(0, 20)),
    logit_bias=optional(
        st.dictionaries(st.from_regex(r"[0-9]{1,9}", fullmatch=True), st.floats(-100, 100), max_size=3)
    ),
)
constraints = st.one_of(
    st.builds(OutputConstraint, json_schema=json_objects | st.booleans()),
    st.builds(OutputConstraint, regex=texts),
    st.builds(OutputConstraint, choice=lists(texts, min_size=1)),
    st.builds(OutputConstraint, grammar=texts),
    st.builds(OutputConstraint, json_object=st.just(True)),
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Requests with one of the three kinds of prompt."""
    prompt: dict[str, Any] = draw(
        st.one_of(
            st.fixed_dictionaries({"messages": lists(chat_messages, min_size=1)}),
            st.fixed_dictionaries({"prompt": identifiers}),
            st.fixed_dictionaries({"variables": json_objects}),
        )
    )
    return draw(
        st.builds(
            Request,
            id=identifiers,
            key=optional(identifiers),
            tools=optional(lists(tools, min_size=1)),
            tool_choice=optional(tool_choices),
            reasoning=optional(
                st.builds(
                    Reasoning,
                    effort=optional(st.sampled_from(["none", "minimal", "low", "medium", "high"])),
                    max_tokens=optional(counts),
                )
            ),
            sampling=optional(samplings),
            output=optional(constraints),
            deadline=optional(times),
            tenant=optional(identifiers),
            job=optional(identifiers),
            result_topic=optional(identifiers),
            stream=st.booleans(),
            attributes=attributes,
            **{name: st.just(value) for name, value in prompt.items()},
        )
    )


logprobs = st.builds(
    TokenLogprob,
    token=texts,
    logprob=finite,
    top=lists(st.builds(TopLogprob, token=texts, logprob=finite)),
)
outputs = st.builds(
    Output,
    text=texts,
    finish_reason=st.sampled_from(["stop", "length", "abort", "error", "tool_calls"]),
    reasoning=optional(texts),
    tool_calls=optional(lists(tool_calls)),
    value=json_values,
    logprobs=optional(lists(logprobs)),
)
provenances = st.builds(
    Provenance,
    model=texts,
    version=texts,
    contract=counts,
    engine=texts,
    engine_version=texts,
    weights_digest=optional(texts),
    output_schema_digest=optional(texts),
    tier=optional(texts),
    backend=optional(texts),
    slot=texts,
    source_topic=texts,
    source_partition=counts,
    source_offset=offsets,
    attempt=st.integers(1, 2**63 - 1),
)
results = st.builds(
    Result,
    id=texts,
    status=st.sampled_from(
        ["ok", "invalid_output", "truncated", "rejected", "failed", "expired", "cancelled"]
    ),
    outputs=lists(outputs),
    usage=st.builds(Usage, prompt_tokens=counts, cached_tokens=counts, completion_tokens=counts),
    timings=st.builds(Timings, queued_ms=times, first_token_ms=optional(times), total_ms=times),
    error=optional(st.builds(ErrorDetail, code=texts, message=texts, path=optional(texts))),
    provenance=provenances,
    attributes=attributes,
)
locations = st.builds(Location, topic=texts, partition=counts, offset=offsets)
replies = st.builds(
    Reply,
    id=texts,
    attempt=st.integers(1, 2**63 - 1),
    seq=counts,
    kind=st.sampled_from(["delta", "final", "error", "duplicate"]),
    choice=counts,
    delta=optional(texts),
    result=optional(results),
    location=optional(locations),
)
blobs = st.binary(max_size=30)
dead_letters = st.builds(
    DeadLetter,
    id=optional(texts),
    code=texts,
    message=texts,
    path=optional(texts),
    source=locations,
    key=optional(blobs),
    value=optional(blobs),
    headers=lists(st.builds(Header, key=texts, value=optional(blobs))),
    attempt=st.integers(1, 2**63 - 1),
    time=times,
)
cancels = st.builds(Cancel, id=identifiers, reason=texts, time=times) | st.builds(
    Cancel, job=identifiers, reason=texts, time=times
)

messages: st.SearchStrategy[Message] = st.one_of(requests(), results, replies, dead_letters, cancels)
