"""From a call's parameters to a Request's sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import ConfigDict, TypeAdapter

from headrace.producers.http.given import same
from headrace.producers.http.refusing import check, invalid, shortened
from headrace.producers.http.typed_values import as_flag, as_list, as_object
from headrace.schemas.messages import Sampling

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject, JsonValue

# Of the same name and meaning in a call and in a Request.
_SAME: Final = (
    "temperature", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "n",
)  # fmt: skip
_ALL_TOKENS: Final = (0, -1)  # of top_k: vLLM knows both
_FIELDS: Final = {
    name: TypeAdapter[object](field.rebuild_annotation(), config=ConfigDict(strict=True))
    for name, field in Sampling.model_fields.items()
}


@dataclass(frozen=True, slots=True)
class CallSampling:
    """`fields` are a Request's `sampling`, None where the call says nothing of it."""

    fields: JsonObject | None
    choices: int
    logprobs: bool
    top_logprobs: int


def chat_sampling(given: JsonObject) -> CallSampling:
    """How a chat's answer is sampled. Raises ApiError for what a Request does not take."""
    sampling = _common(given)
    limit = _token_limit(given)
    if limit is not None:
        sampling["max_tokens"] = limit
    wanted = "logprobs" in given and as_flag(given["logprobs"], "logprobs")
    top: int = _field("logprobs", given["top_logprobs"], "top_logprobs") if "top_logprobs" in given else 0
    if top and not wanted:
        raise invalid("top_logprobs", "needs logprobs: true")
    if wanted:
        sampling["logprobs"] = top
    return _sampling(sampling)


def completion_sampling(given: JsonObject) -> CallSampling:
    """How a completion is sampled. Raises ApiError for what a Request does not take."""
    sampling = _common(given)
    for name in ("max_tokens", "logprobs"):
        if name in given:
            sampling[name] = _field(name, given[name], name)
    return _sampling(sampling)


def _sampling(fields: JsonObject) -> CallSampling:
    return CallSampling(
        fields or None,
        fields.get("n", 1),
        logprobs="logprobs" in fields,
        top_logprobs=fields.get("logprobs", 0),
    )


def _common(given: JsonObject) -> JsonObject:
    sampling = {name: _field(name, given[name], name) for name in _SAME if name in given}
    if "top_k" in given:
        top_k = 0 if any(same(given["top_k"], each) for each in _ALL_TOKENS) else given["top_k"]
        sampling["top_k"] = _field("top_k", top_k, "top_k")
    if "logit_bias" in given and (biases := as_object(given["logit_bias"], "logit_bias")):
        sampling["logit_bias"] = _biases(biases)
    stop = _stop(given.get("stop"))
    if stop:
        sampling["stop"] = stop
    return sampling


def _token_limit(given: JsonObject) -> int | None:
    """`max_completion_tokens`, or `max_tokens`, its older name."""
    limits = {
        name: _field("max_tokens", given[name], name)
        for name in ("max_completion_tokens", "max_tokens")
        if name in given
    }
    if len(set(limits.values())) > 1:
        raise invalid("max_tokens", "says something else than max_completion_tokens: send one of them")
    return next(iter(limits.values()), None)


def _biases(value: JsonObject) -> JsonValue:
    for token in value:
        if not (token.isascii() and token.isdigit()):
            raise invalid(
                "logit_bias", f"its keys must be token ids, strings of digits; given: {shortened(token)!r}"
            )
    return _field("logit_bias", value, "logit_bias")


def _stop(value: JsonValue) -> list[JsonValue] | None:
    if value is None:
        return None
    if isinstance(value, str):
        if not value:
            raise invalid("stop", "must have at least 1 character")
        return [value]
    return _field("stop", as_list(value, "stop"), "stop")


def _field(name: str, value: JsonValue, param: str) -> JsonValue:
    """The value, once it is one that the sampling's field takes."""
    check(_FIELDS[name], value, param)
    return value
