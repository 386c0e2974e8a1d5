"""From `response_format` and `structured_outputs` to a Request's `output`.

OpenAI has three types; other servers put the schema elsewhere and have further types, and callers bring these along:

    {"type": "json_schema", "json_schema": {"name": N, "schema": S, "strict": true}}   OpenAI, Azure, vLLM, Fireworks
    {"type": "json_schema", "json_schema": S}                                          the schema bare
    {"type": "json_schema", "schema": S, "name": N}                                    Together; OpenAI's Responses
    {"type": "json_object", "schema": S}                                               Anyscale, Together, llama.cpp
    {"type": "json_object" | "json" | "json_schema", "value": S}                       Text Generation Inference
    {"type": "regex", "value" | "pattern" | "regex": P}                                the same, Together, Perplexity
    {"type": "grammar", "grammar": G}                                                  Fireworks

Elsewhere a shape that a server does not know has been dropped, and the answer was free text with status 200. Here
each is a constraint or an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from pydantic import TypeAdapter

from headrace.producers.http.refusing import check, invalid, missing, unknown, unsupported
from headrace.producers.http.suggesting import suggestion
from headrace.producers.http.typed_values import (
    as_flag,
    as_object,
    as_one_of,
    as_text,
    members,
    without_nulls,
)
from headrace.schemas import strict_json
from headrace.schemas.keyword_sites import ASSERTIONS
from headrace.schemas.messages import OutputConstraint

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject, JsonValue

FORMAT: Final = "response_format"
STRUCTURED: Final = "structured_outputs"

_TYPES: Final = ("text", "json_object", "json_schema", "json", "regex", "grammar")
_JSON_TYPES: Final = ("json_object", "json_schema", "json")
_PATTERN_NAMES: Final = ("value", "pattern", "regex")
_LABELS: Final = (
    "name",
    "description",
    "strict",
)  # beside a schema, none of them a keyword of JSON Schema's but one
_SCHEMA_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
# A schema that stands bare under `json_schema` is known by one of these.
_KEYWORDS: Final = ASSERTIONS | {"$schema", "$id", "$defs", "definitions", "title"}
_MAX_LABEL: Final = 512  # characters of what is recorded
_CONSTRAINT: Final = TypeAdapter(OutputConstraint)
_ONE_OF: Final = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
# vLLM's options beside them. What the engine always does, or what is their default, is let through.
_OPTIONS: Final = {
    "disable_any_whitespace": "",
    "disable_additional_properties": "put additionalProperties: false into the schema",
    "whitespace_pattern": "no whitespace is generated between tokens of JSON",
    "structural_tag": "send json, regex, choice or grammar",
}


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """`constraint` is a Request's `output`, `param` the parameter that asks for it, `labels` attributes."""

    constraint: JsonObject | None = None
    param: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])


def output_of(given: JsonObject, *, contract_has_output: bool) -> WantedOutput:
    """What the call wants its output held to. Raises ApiError for what is no shape of a constraint, or two of them.

    Under a contract with an output schema of its own only JSON can be asked for; whether the contract's schema covers
    it, the worker says.
    """
    found = [read(given[name]) for name, read in _READERS.items() if name in given]
    wanted = [each for each in found if each.constraint is not None]
    if len(wanted) > 1:
        raise invalid(STRUCTURED, "goes without response_format: send one of them")
    if not wanted:
        return found[0] if found else WantedOutput()
    output = wanted[0]
    kind = next(iter(output.constraint or {}))
    if contract_has_output and kind not in ("json_schema", "json_object"):
        raise unsupported(
            output.param or FORMAT,
            f"all outputs of this contract are held to its output schema, and {kind} is at odds with it",
        )
    check(_CONSTRAINT, output.constraint, output.param or FORMAT)
    return output


# --- response_format ------------------------------------------------------------------------------------------------


def _response_format(value: JsonValue) -> WantedOutput:
    if isinstance(value, str):
        raise invalid(FORMAT, 'must be an object, such as {"type": "json_object"}')
    wish = without_nulls(as_object(value, FORMAT))
    if "type" not in wish:
        raise missing(f"{FORMAT}.type")
    kind = wish["type"]
    if kind == "structural_tag":
        raise unsupported(f"{FORMAT}.type", "structural tags are not served: send json_schema, or tools")
    if isinstance(kind, str) and kind in _SCHEMA_TYPES:
        wrapped = '{"type": "json_schema", "json_schema": {"name": NAME, "schema": SCHEMA}}'
        raise invalid(f"{FORMAT}.type", f"this is a JSON Schema by itself; send it as {wrapped}")
    kind = as_one_of(kind, _TYPES, f"{FORMAT}.type")
    if kind in _JSON_TYPES:
        return _json_format(kind, wish)
    if kind == "regex":
        _check_members(wish, _PATTERN_NAMES)
        return WantedOutput({"regex": _pattern(wish)}, FORMAT)
    if kind == "grammar":
        _check_members(wish, ("grammar",))
        if "grammar" not in wish:
            raise missing(f"{FORMAT}.grammar")
        return WantedOutput({"grammar": as_text(wish["grammar"], f"{FORMAT}.grammar")}, FORMAT)
    _check_members(wish, ())
    return WantedOutput()


def _json_format(kind: str, wish: JsonObject) -> WantedOutput:
    places = [name for name in ("json_schema", "schema", "value") if name in wish]
    _check_members(wish, ("json_schema", "schema", "value", *_LABELS))
    if len(places) > 1:
        raise invalid(f"{FORMAT}.{places[1]}", f"the schema is given twice: under {places[0]} too")
    labels = {name: wish[name] for name in _LABELS if name in wish}
    if not places:
        if kind == "json_object":
            return WantedOutput({"json_object": True}, FORMAT, _recorded(labels, FORMAT))
        raise missing(
            f"{FORMAT}.{'value' if kind == 'json' else 'json_schema'}", "A schema is to be held: say which."
        )
    place = places[0]
    value, param = wish[place], f"{FORMAT}.{place}"
    if place == "json_schema" and isinstance(value, dict):
        value, inner, param = _unwrapped(cast("JsonObject", value), param)
        for name in labels.keys() & inner.keys():
            if labels[name] != inner[name]:
                raise invalid(f"{FORMAT}.{name}", f"is given twice: under {place} too")
        labels |= inner
    return WantedOutput({"json_schema": _json_schema(value, param)}, FORMAT, _recorded(labels, FORMAT))


def _unwrapped(value: JsonObject, param: str) -> tuple[JsonValue, JsonObject, str]:
    """(the schema, its labels, where it stands), from OpenAI's wrapper or bare."""
    if "schema" in value:
        found = members(value, param, ("schema", *_LABELS))
        if "schema" not in found:
            raise missing(f"{param}.schema")
        return found.pop("schema"), found, f"{param}.schema"
    if not value.keys() & _KEYWORDS:
        for name in value:
            if name not in _LABELS:
                raise unknown(*suggestion(name, ("schema", *_LABELS), within=param))
        raise missing(f"{param}.schema")
    # The labels of a flattened wrapper are beside the keywords; `description` is a keyword as well, and stays.
    labels = {name: value[name] for name in ("name", "strict") if value.get(name) is not None}
    return {name: member for name, member in value.items() if name not in ("name", "strict")}, labels, param


def _recorded(labels: JsonObject, param: str) -> dict[str, str]:
    """`name` and `description` as attributes. `strict` says nothing: every schema is held."""
    return {
        f"{param}.{name}": as_text(
            labels[name], f"{param}.{name}", longest=None if name != "name" else _MAX_LABEL
        )
        for name in ("name", "description")
        if name in labels
    }


def _pattern(wish: JsonObject) -> str:
    places = [name for name in _PATTERN_NAMES if name in wish]
    if len(places) != 1:
        raise missing(f"{FORMAT}.value", "Exactly one of value, pattern and regex is the regular expression.")
    value, param = wish[places[0]], f"{FORMAT}.{places[0]}"
    if isinstance(value, dict):  # Perplexity: {"regex": {"regex": P}}
        value = members(cast("JsonObject", value), param, ("regex",)).get("regex")
        param += ".regex"
    return as_text(value, param)


def _check_members(wish: JsonObject, known: tuple[str, ...]) -> None:
    for name in wish:
        if name not in known and name != "type":
            raise unknown(*suggestion(name, ("type", *known), within=FORMAT))


# --- structured_outputs ---------------------------------------------------------------------------------------------


def _structured_outputs(value: JsonValue) -> WantedOutput:
    wish = members(value, STRUCTURED, (*_ONE_OF, "json_object", *_OPTIONS))
    for name, why in _OPTIONS.items():
        if why and name in wish and wish[name] is not False:
            raise unsupported(f"{STRUCTURED}.{name}", why)
    if "disable_any_whitespace" in wish:
        as_flag(wish["disable_any_whitespace"], f"{STRUCTURED}.disable_any_whitespace")
    constraint: JsonObject = {
        field_: wish[name] for name, field_ in _ONE_OF.items() if name in wish and name != "json"
    }
    if "json" in wish:
        constraint["json_schema"] = _json_schema(wish["json"], f"{STRUCTURED}.json")
    if "json_object" in wish and as_flag(wish["json_object"], f"{STRUCTURED}.json_object"):
        constraint["json_object"] = True
    if len(constraint) > 1:
        raise invalid(STRUCTURED, f"asks for several things at once: {', '.join(constraint)}")
    return WantedOutput(constraint, STRUCTURED) if constraint else WantedOutput()


def _json_schema(value: JsonValue, param: str) -> JsonObject | bool:
    """A JSON Schema, given as it is or as its JSON text."""
    if isinstance(value, str):
        try:
            value = strict_json.parse(value)
        except strict_json.JsonFault as error:
            raise invalid(param, f"is a string, and no JSON text: {error.reason}") from None
    if not isinstance(value, (dict, bool)):
        raise invalid(param, "must be a JSON Schema: an object, true or false")
    return cast("JsonObject | bool", value)


_READERS: Final = {FORMAT: _response_format, STRUCTURED: _structured_outputs}
