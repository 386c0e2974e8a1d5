"""From the body of a call to /v1/completions to what it wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from headrace.producers.http.call_options import attributes_of, key_of, lane_of, reasoning_of, stream_of
from headrace.producers.http.call_sampling import completion_sampling
from headrace.producers.http.given import given_parameters, model_of
from headrace.producers.http.parameters import MAX_PROMPTS
from headrace.producers.http.refusing import invalid, missing, unsupported
from headrace.producers.http.response_format import output_of
from headrace.producers.http.typed_values import without_nulls
from headrace.producers.http.wanted import Wanted

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject, JsonValue


def wanted_of_completion(body: JsonObject, *, contract_has_output: bool) -> Wanted:
    """The call, translated; a list of prompts has as many of `asked`, in its order.

    `contract_has_output`: the package has an output schema of its own. Raises ApiError with status 400 and `param` for
    what is not served; nothing is dropped.
    """
    given = given_parameters(body, "completions")
    model = model_of(given)
    prompts = _prompts(given.get("prompt"))
    sampling = completion_sampling(given)
    output = output_of(given, contract_has_output=contract_has_output)
    attributes, recorded = attributes_of(given)
    stream, include_usage = stream_of(given)
    fields: JsonObject = {
        "key": key_of(given),
        "reasoning": reasoning_of(given),
        "sampling": sampling.fields,
        "output": output.constraint,
        "attributes": (attributes | output.labels) or None,
    }
    return Wanted(
        endpoint="completions",
        model=model,
        fields=without_nulls(fields),
        asked=tuple({"prompt": prompt} for prompt in prompts),
        lane=lane_of(given),
        stream=stream,
        include_usage=include_usage,
        choices=sampling.choices,
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs,
        recorded=(*recorded, *output.labels),
        constraint_param=output.param,
    )


def _prompts(value: JsonValue) -> list[str]:
    if value is None:
        raise missing("prompt")
    if isinstance(value, str):
        return [_text(value, "prompt")]
    if not isinstance(value, list):
        raise invalid("prompt", "must be a string or an array of strings")
    prompts = cast("list[JsonValue]", value)
    if not prompts:
        raise invalid("prompt", "must have at least one text")
    if any(_is_token_ids(prompt) for prompt in prompts):
        raise unsupported("prompt", "token ids are not taken, for a request has text: send the text")
    if len(prompts) > MAX_PROMPTS:
        raise invalid("prompt", f"must have at most {MAX_PROMPTS} texts; given: {len(prompts)}")
    return [_text(prompt, f"prompt[{index}]") for index, prompt in enumerate(prompts)]


def _is_token_ids(prompt: JsonValue) -> bool:
    return isinstance(prompt, (int, list)) and not isinstance(prompt, bool)


def _text(value: JsonValue, param: str) -> str:
    if not isinstance(value, str):
        raise invalid(param, "must be a string")
    if not value:
        raise invalid(param, "must have at least 1 character")
    return value
