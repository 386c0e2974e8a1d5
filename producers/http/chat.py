"""From the body of a call to /v1/chat/completions to what it wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.producers.http.call_options import attributes_of, key_of, lane_of, reasoning_of, stream_of
from headrace.producers.http.call_sampling import chat_sampling
from headrace.producers.http.chat_messages import chat_messages
from headrace.producers.http.given import given_parameters, model_of
from headrace.producers.http.refusing import unsupported
from headrace.producers.http.response_format import WantedOutput, output_of
from headrace.producers.http.tools import tools_of
from headrace.producers.http.typed_values import without_nulls
from headrace.producers.http.wanted import Wanted

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject


def wanted_of_chat(body: JsonObject, *, contract_has_output: bool, has_tool_parser: bool) -> Wanted:
    """The call, translated.

    `contract_has_output`: the package has an output schema of its own. `has_tool_parser`: it can tell a model's call of
    a tool from text. Raises ApiError with status 400 and `param` for what is not served; nothing is dropped.
    """
    given = given_parameters(body, "chat")
    model = model_of(given)
    messages = chat_messages(given.get("messages"))
    sampling = chat_sampling(given)
    output = output_of(given, contract_has_output=contract_has_output)
    if given.get("tools"):
        _check_at_odds(output, contract_has_output=contract_has_output)
    tools = tools_of(given, has_tool_parser=has_tool_parser)
    attributes, recorded = attributes_of(given)
    stream, include_usage = stream_of(given)
    fields: JsonObject = {
        "key": key_of(given),
        "tools": tools.tools,
        "tool_choice": tools.tool_choice,
        "reasoning": reasoning_of(given),
        "sampling": sampling.fields,
        "output": output.constraint if tools.json_schema is None else {"json_schema": tools.json_schema},
        "attributes": (attributes | output.labels) or None,
    }
    return Wanted(
        endpoint="chat",
        model=model,
        fields=without_nulls(fields),
        asked=({"messages": messages},),
        lane=lane_of(given),
        stream=stream,
        include_usage=include_usage,
        tool=tools.forced,
        parallel_tool_calls=tools.parallel,
        choices=sampling.choices,
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs,
        recorded=(*recorded, *output.labels),
        constraint_param="tools" if tools.holds_the_output else output.param,
    )


def _check_at_odds(output: WantedOutput, *, contract_has_output: bool) -> None:
    """Raises ApiError where tools cannot be had, whichever they are."""
    if output.constraint is not None:
        raise unsupported(
            "tools",
            f"together with {output.param} it is not known whether an answer or a call is wanted: send one of them",
        )
    if contract_has_output:
        raise unsupported(
            "tools",
            "all outputs of this contract are held to its output schema, so none can be a call of a tool: send the "
            "messages alone",
        )
