"""From a call's parameters to what a Request has beside its prompt, its sampling and its output's constraint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from headrace.producers.http.given import same
from headrace.producers.http.refusing import invalid, unsupported
from headrace.producers.http.typed_values import (
    as_flag,
    as_object,
    as_one_of,
    as_text,
    members,
    without_nulls,
)

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject, JsonValue, Lane

T = TypeVar("T", str, int)

MAX_RECORDED: Final = 512  # characters of a recorded value
MAX_METADATA: Final = 16
MAX_METADATA_KEY: Final = 64  # characters
MAX_KEY: Final = 256  # characters of a record's key

_TEXTS: Final = ("user", "safety_identifier", "session_id", "prompt_cache_retention")
_LANE_OF_TIER: Final[dict[str, Lane | None]] = {
    "auto": None, "default": None,  # no wish
    "flex": "standard",
    "priority": "interactive", "fast": "interactive", "scale": "interactive",
}  # fmt: skip
_SWITCHES: Final = ("enable_thinking", "thinking")  # of chat templates
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high")
_HIGHER_EFFORTS: Final = ("xhigh", "max")
_STREAM_OPTIONS: Final = {
    "include_obfuscation": "events are not padded with random characters",
    "continuous_usage_stats": "usage comes once, in the last chunk: send include_usage",
}


def attributes_of(given: JsonObject) -> tuple[dict[str, str], tuple[str, ...]]:
    """The attributes that record what the call says of itself, and the parameters that they come from."""
    attributes: dict[str, str] = {}
    recorded: list[str] = []
    for name in _TEXTS:
        if name in given:
            attributes[name] = as_text(given[name], name, longest=MAX_RECORDED)
            recorded.append(name)
    for name, read in (("metadata", _metadata), ("prompt_cache_options", _cache_options)):
        if name in given:
            attributes |= read(as_object(given[name], name), name)
            recorded.append(name)
    return attributes, tuple(recorded)


def key_of(given: JsonObject) -> str | None:
    """The record's key."""
    if "prompt_cache_key" not in given:
        return None
    key = as_text(given["prompt_cache_key"], "prompt_cache_key", longest=MAX_KEY)
    if not key:
        raise invalid("prompt_cache_key", "must have at least 1 character")
    return key


def lane_of(given: JsonObject) -> Lane:
    """The lane that `service_tier` or `priority` name; `interactive` where they name none."""
    tier = by_tier = None
    if "service_tier" in given:
        tier = as_one_of(given["service_tier"], _LANE_OF_TIER, "service_tier")
        by_tier = _LANE_OF_TIER[tier]
    by_priority = _lane_of_priority(given.get("priority"))
    if by_tier and by_priority and by_tier != by_priority:
        raise invalid("priority", f"asks for the lane {by_priority}, and service_tier: {tier} for {by_tier}")
    return by_tier or by_priority or "interactive"


def stream_of(given: JsonObject) -> tuple[bool, bool]:
    """Whether the answer is streamed, and whether a last chunk has the usage."""
    stream = "stream" in given and as_flag(given["stream"], "stream")
    param = "stream_options"
    options = members(given.get(param, {}), param, ("include_usage", *_STREAM_OPTIONS))
    flags = {name: as_flag(value, f"{param}.{name}") for name, value in options.items()}
    for name, why in _STREAM_OPTIONS.items():
        if flags.get(name):
            raise unsupported(f"{param}.{name}", why)
    usage = flags.get("include_usage", False)
    if usage and not stream:
        raise invalid(param, "goes with stream: true; an answer that is not streamed has its usage anyway")
    return stream, usage


def reasoning_of(given: JsonObject) -> JsonObject | None:
    """How much a reasoning model is to think: `effort`, `max_tokens`, or both; None where nothing is said of it."""
    efforts: dict[str, str] = {}  # by the parameter that says so
    budgets: dict[str, int] = {}
    if "reasoning_effort" in given:
        efforts["reasoning_effort"] = _effort(given["reasoning_effort"], "reasoning_effort")
    if "chat_template_kwargs" in given:
        efforts |= _effort_of_template(given["chat_template_kwargs"], "chat_template_kwargs")
    if "reasoning" in given:
        efforts |= _effort_of_reasoning(given["reasoning"], "reasoning")
        budgets |= _budget(
            as_object(given["reasoning"], "reasoning").get("max_tokens"), "reasoning.max_tokens"
        )
    if not same(given.get("thinking_token_budget"), -1):
        budgets |= _budget(given.get("thinking_token_budget"), "thinking_token_budget")
    wish = {"effort": _the_one(efforts), "max_tokens": _the_one(budgets)}
    return without_nulls(wish) or None


# --- recorded -------------------------------------------------------------------------------------------------------


def _metadata(value: JsonObject, param: str) -> dict[str, str]:
    if len(value) > MAX_METADATA:
        raise invalid(param, f"must have at most {MAX_METADATA} keys; given: {len(value)}")
    attributes: dict[str, str] = {}
    for key, text in value.items():
        if len(key) > MAX_METADATA_KEY:
            raise invalid(
                param, f"its keys must have at most {MAX_METADATA_KEY} characters; given: {len(key)}"
            )
        if text is not None:
            attributes[f"{param}.{key}"] = as_text(text, f"{param}.{key}", longest=MAX_RECORDED)
    return attributes


def _cache_options(value: JsonObject, param: str) -> dict[str, str]:
    options = members(value, param, ("mode", "ttl"))
    return {
        f"{param}.{name}": as_text(text, f"{param}.{name}", longest=MAX_RECORDED)
        for name, text in options.items()
    }


# --- lanes ----------------------------------------------------------------------------------------------------------


def _lane_of_priority(value: JsonValue) -> Lane | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(
            "priority", "must be a whole number: 0 or less is the lane interactive, above 0 backfill"
        )
    return "backfill" if value > 0 else "interactive"


# --- reasoning ------------------------------------------------------------------------------------------------------


def _effort(value: JsonValue, param: str) -> str:
    if value in _HIGHER_EFFORTS:
        raise invalid(param, f"{value} is higher than any that is known here; the highest is 'high'")
    return as_one_of(value, _EFFORTS, param)


def _effort_of_template(value: JsonValue, param: str) -> dict[str, str]:
    """Templates have a switch: on is what `medium` makes of it in the worker, off is `none`."""
    efforts: dict[str, str] = {}
    for name, switch in without_nulls(as_object(value, param)).items():
        place = f"{param}.{name[:100]}"
        if name not in _SWITCHES:
            raise unsupported(
                place, "of a chat template's arguments only enable_thinking and thinking are passed on"
            )
        efforts[place] = "medium" if as_flag(switch, place) else "none"
    return efforts


def _effort_of_reasoning(value: JsonValue, param: str) -> dict[str, str]:
    wish = members(value, param, ("effort", "max_tokens", "enabled", "exclude", "summary"))
    for name, why in (
        ("exclude", "a reasoning model's answer comes with its reasoning"),
        ("summary", "reasoning is not summarised"),
    ):
        if name in wish and wish[name] is not False:
            raise unsupported(f"{param}.{name}", why)
    efforts: dict[str, str] = {}
    if "effort" in wish:
        efforts[f"{param}.effort"] = _effort(wish["effort"], f"{param}.effort")
    if "enabled" in wish:
        enabled = as_flag(wish["enabled"], f"{param}.enabled")
        if not enabled:
            efforts[f"{param}.enabled"] = "none"
        elif wish.keys() <= {"enabled", "exclude"}:
            efforts[f"{param}.enabled"] = "medium"
    return efforts


def _budget(value: JsonValue, param: str) -> dict[str, int]:
    if value is None:
        return {}
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise invalid(param, "must be a whole number of tokens, 0 or more")
    return {param: value}


def _the_one(said: dict[str, T]) -> T | None:
    """What all parameters say that say anything."""
    if len(set(said.values())) > 1:
        first, *_, last = said
        raise invalid(last, f"says {said[last]}, and {first} says {said[first]}")
    return next(iter(said.values()), None)
