"""The endpoint's OpenAPI document (`/openapi.json`, shown at `/docs`): its paths, and how they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.producers.http import openapi_answers, openapi_calls
from headrace.producers.http.failures import CANCELLED
from headrace.producers.http.gateway import (
    IDEMPOTENCY_KEY,
    LEAST_TIMEOUT_S,
    LONGEST_KEY,
    PRINTABLE,
    TENANT,
    TIMEOUT,
)
from headrace.producers.http.openapi_calls import TEXT, reference
from headrace.producers.http.parameters import PATHS

if TYPE_CHECKING:
    from headrace.producers.http.service import ServiceOptions
    from headrace.producers.http.wanted import Endpoint
    from headrace.schemas.messages import JsonObject

_ERRORS: Final = {
    400: "The call is wrong; `param` names what of it.",
    401: "No API key, or one that is not known.",
    403: "The API key is of another tenant.",
    404: "There is no such model.",
    408: "The body did not come in whole in the time that it has.",
    410: "The answer to an earlier call with this `Idempotency-Key` is not kept any more.",
    413: "The call is larger than the queue takes.",
    422: "The answer could not be held to what was asked: its schema, its length. Or the `Idempotency-Key` was "
    "used for another call.",
    429: "A limit of the key or its tenant is reached, or the queue is too long: see `retry-after`.",
    CANCELLED: "Somebody cancelled the request.",
    500: "Something went wrong.",
    502: "An answer came that cannot be used.",
    503: "It cannot be served just now: see `retry-after`.",
    504: "No answer within the time that was allowed.",
}
_SUMMARIES: Final[dict[Endpoint, tuple[str, str]]] = {
    "chat": ("createChatCompletion", "A chat, answered"),
    "completions": ("createCompletion", "A prompt, continued"),
}
_WHOLE: Final[dict[Endpoint, str]] = {"chat": "ChatCompletion", "completions": "Completion"}


def document(options: ServiceOptions, *, version: str) -> JsonObject:
    """The document of an instance with these options."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version,
            "description": "OpenAI's API over a queue: calls become requests in Kafka, and workers answer them.",
        },
        "paths": {
            **{path: {"post": _call(endpoint, options)} for endpoint, path in PATHS.items()},
            "/v1/models": {"get": _models(options)},
            "/v1/models/{name}": {"get": _model(options)},
            "/healthz": {"get": _page("healthz", "Whether the process lives", {200: "It does."})},
            "/readyz": {
                "get": _page(
                    "readyz", "Whether calls can come", {200: "They can.", 503: "Not now; the text says why."}
                )
            },
            "/metrics": {"get": _page("metrics", "Prometheus's metrics", {200: "All of them."})},
        },
        "components": {
            "schemas": {**openapi_calls.components(), **openapi_answers.components()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


# --- calls ----------------------------------------------------------------------------------------------------------


def _call(endpoint: Endpoint, options: ServiceOptions) -> JsonObject:
    operation_id, summary = _SUMMARIES[endpoint]
    whole = _WHOLE[endpoint]
    answered: JsonObject = {
        "description": "The answer.",
        "headers": _headers("x-request-id"),
        "content": {
            "application/json": {"schema": reference(whole)},
            # OpenAPI has `itemSchema` from 3.2 on; FastAPI writes it into documents of 3.1 too.
            "text/event-stream": {"itemSchema": _event(whole)},
        },
    }
    body = {"application/json": {"schema": openapi_calls.body_of(endpoint)}}
    return {
        "operationId": operation_id,
        "summary": summary,
        "parameters": [_timeout(options), _idempotency_key(), *_tenant(options)],
        "requestBody": {"required": True, "content": body},
        "responses": {"200": answered, **_errors(*_ERRORS)},
        **_security(options),
    }


def _event(whole: str) -> JsonObject:
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [reference(f"{whole}Chunk"), reference("Error")]},
    }
    return {
        "type": "object",
        "description": "With `stream: true`. The last event is `[DONE]`, or else an error. Comments come in between.",
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}},
        "required": ["data"],
    }


def _timeout(options: ServiceOptions) -> JsonObject:
    least, most = min(LEAST_TIMEOUT_S, options.longest_timeout_s), options.longest_timeout_s
    return _header(
        TIMEOUT,
        {"type": "number", "minimum": least, "maximum": most},
        f"Seconds that the call may take. Absent: what the client says it waits, else {options.default_timeout_s:g}.",
    )


def _idempotency_key() -> JsonObject:
    return _header(
        IDEMPOTENCY_KEY,
        {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": f"^{PRINTABLE.pattern}$"},
        "Calls with the same key are one request: they have the same answer, and it is generated once.",
    )


def _tenant(options: ServiceOptions) -> list[JsonObject]:
    if not options.trusts_tenant_header:
        return []
    schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY}
    return [_header(TENANT, schema, "For whom the call is, as the gateway before this endpoint says.")]


# --- models and pages -----------------------------------------------------------------------------------------------


def _models(options: ServiceOptions) -> JsonObject:
    return {
        "operationId": "listModels",
        "summary": "What can be asked for",
        "parameters": _tenant(options),
        "responses": {"200": _json("The names.", "ModelList"), **_errors(400, 401, 403, 500, 503)},
        **_security(options),
    }


def _model(options: ServiceOptions) -> JsonObject:
    name = {
        "name": "name",
        "in": "path",
        "required": True,
        "description": "An alias, a model, or a contract: `movie-tagger@3`.",
        "schema": {"type": "string", "minLength": 1},
    }
    return {
        "operationId": "retrieveModel",
        "summary": "One of them",
        "parameters": [name, *_tenant(options)],
        "responses": {"200": _json("The model.", "Model"), **_errors(400, 401, 403, 404, 500, 503)},
        **_security(options),
    }


def _page(operation_id: str, summary: str, answers: dict[int, str]) -> JsonObject:
    content = {"text/plain": {"schema": TEXT}}
    responses = {str(status): {"description": says, "content": content} for status, says in answers.items()}
    return {"operationId": operation_id, "summary": summary, "responses": responses}


# --- pieces ---------------------------------------------------------------------------------------------------------


def _security(options: ServiceOptions) -> JsonObject:
    return {} if options.keys is None else {"security": [{"key": []}]}


def _header(name: str, schema: JsonObject, says: str) -> JsonObject:
    return {"name": name, "in": "header", "description": says, "schema": schema}


def _json(says: str, component: str, *headers: str) -> JsonObject:
    found: JsonObject = {"headers": _headers(*headers)} if headers else {}
    return {"description": says, **found, "content": {"application/json": {"schema": reference(component)}}}


def _errors(*statuses: int) -> JsonObject:
    return {str(status): _json(_ERRORS[status], "Error", "x-request-id") for status in statuses}


def _headers(*names: str) -> JsonObject:
    return {name: {"required": True, "schema": TEXT} for name in names}
