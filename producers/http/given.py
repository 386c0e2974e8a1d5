"""What a call gives: its parameters by name, once the unknown and the refused are turned away."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from headrace.producers.http.parameters import PATHS, Parameter, parameters_of
from headrace.producers.http.refusing import missing, shortened, unknown, unsupported
from headrace.producers.http.suggesting import suggestion
from headrace.producers.http.typed_values import as_text, without_nulls
from headrace.producers.http.wanted import ApiError, Endpoint

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject, JsonValue

_OTHER: Final[dict[Endpoint, Endpoint]] = {"chat": "completions", "completions": "chat"}
_rows = cache(parameters_of)


def given_parameters(body: JsonObject, endpoint: Endpoint) -> JsonObject:
    """The parameters that are honoured or recorded, without nulls.

    Raises ApiError for a name that the endpoint has not, and for a refused parameter whose value asks for something.
    """
    rows = _rows(endpoint)
    given = without_nulls(body)
    for name, value in given.items():
        row = rows.get(name)
        if row is None:
            raise _unknown(name, endpoint)
        if row.treatment == "refused" and not _asks_for_nothing(row, value, given):
            raise unsupported(name, row.why)
    return {name: value for name, value in given.items() if rows[name].treatment != "refused"}


def model_of(given: JsonObject) -> str:
    """The model's name as the caller has it."""
    model = given.get("model")
    if model is None or model == "":
        raise missing("model", "GET /v1/models lists them.")
    return as_text(model, "model", longest=512)


def same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two JSON values are the same: 1 and 1.0 are, 1 and true are not."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _unknown(name: str, endpoint: Endpoint) -> ApiError:
    other = _OTHER[endpoint]
    if name in _rows(other):
        return unknown(name, f"{PATHS[other]} has it, {PATHS[endpoint]} has not.")
    param, hint = suggestion(name, _rows(endpoint))
    return unknown(shortened(param), hint)


def _asks_for_nothing(row: Parameter, value: JsonValue, given: JsonObject) -> bool:
    if row.harmless_as is not None and same(value, given.get(row.harmless_as, 1)):
        return True
    return any(same(value, harmless) for harmless in row.harmless)
