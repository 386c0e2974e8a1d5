"""The endpoint's OpenAPI document: it has all that the code has, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from headrace.producers.client import Client
from headrace.producers.http import (
    call_options,
    chat_messages,
    openapi,
    openapi_calls,
    response_format,
    tools,
)
from headrace.producers.http.app import create_app
from headrace.producers.http.failures import ROWS
from headrace.producers.http.keys import KeyRing
from headrace.producers.http.parameters import PATHS, parameters_of
from headrace.producers.http.service import Known, Service, ServiceOptions
from headrace.producers.http.wanted import Endpoint
from headrace.schemas.messages import OutputConstraint

ENDPOINTS: tuple[Endpoint, ...] = ("chat", "completions")
OPEN = ServiceOptions(keys=None)


def app_with(options: ServiceOptions) -> FastAPI:
    def connect(_: Any) -> Client:
        raise AssertionError("nobody calls")

    return create_app(Service(options, cast("Known", None), connect), version="1.2.3")


def document(options: ServiceOptions = OPEN) -> Any:
    """As it is on the wire."""
    return json.loads(json.dumps(app_with(options).openapi()))


def operations(described: Any) -> list[Any]:
    return [operation for path in described["paths"].values() for operation in path.values()]


def test_every_route_is_described_and_no_other() -> None:
    routes = {
        (route.path.replace("{name:path}", "{name}"), method.lower())
        for route in app_with(OPEN).routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods
    }
    described = {(path, method) for path, methods in document()["paths"].items() for method in methods}
    assert described == routes
    assert {path for path, _ in described} >= set(PATHS.values())


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_parameter_is_described_with_its_reason(endpoint: Endpoint) -> None:
    rows = parameters_of(endpoint)
    properties = openapi_calls.body_of(endpoint)["properties"]
    assert properties.keys() == rows.keys()
    for name, row in rows.items():
        assert row.why in properties[name]["description"]
    values = openapi_calls.CHAT_VALUES if endpoint == "chat" else openapi_calls.COMPLETION_VALUES
    assert values.keys() == {row.name for row in rows.values() if row.treatment != "refused"}


def test_every_status_that_a_failure_may_have_is_described() -> None:
    statuses = {str(row.status) for row in ROWS.values()} | {"400", "401", "403", "404", "408", "413", "429"}
    for path in PATHS.values():
        described = document()["paths"][path]["post"]["responses"]
        assert described.keys() == statuses | {"200"}


def test_what_may_be_named_is_what_the_code_knows() -> None:
    components = openapi_calls.components()
    values = openapi_calls.CHAT_VALUES
    assert values["service_tier"]["enum"] == list(call_options._LANE_OF_TIER)
    assert values["reasoning_effort"]["enum"] == list(call_options._EFFORTS)
    assert set(values["stream_options"]["properties"]) == {"include_usage", *call_options._STREAM_OPTIONS}
    assert set(values["chat_template_kwargs"]["properties"]) == set(call_options._SWITCHES)
    roles = [
        role for kind in components["ChatMessage"]["anyOf"] for role in kind["properties"]["role"]["enum"]
    ]
    assert set(roles) == set(chat_messages._ROLES)
    (parts,) = (kind["items"]["anyOf"] for kind in components["Content"]["anyOf"] if "items" in kind)
    kinds = [set(_named(part["properties"]["type"])) for part in parts if "properties" in part]
    assert set().union(*kinds) == set(chat_messages._TEXTS)
    formats = components["ResponseFormat"]["anyOf"]
    assert {name for each in formats for name in _named(each["properties"]["type"])} == set(
        response_format._TYPES
    )
    structured = components["StructuredOutputs"]["anyOf"]
    assert {name for each in structured for name in each["properties"]} == {
        *response_format._ONE_OF,
        "json_object",
        *response_format._OPTIONS,
    }
    assert len(response_format._ONE_OF) + 1 == len(OutputConstraint.model_fields)
    assert components["ToolChoice"]["anyOf"][0]["enum"] == list(tools._MODES)


def _named(schema: Any) -> list[str]:
    return schema["enum"] if "enum" in schema else [schema["const"]]


def test_every_reference_leads_somewhere() -> None:
    described = document()
    text = json.dumps(described)
    names = described["components"]["schemas"].keys()
    referred = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert referred == names


def test_what_the_operator_decides_is_in_it(tmp_path: Path) -> None:
    asked = [operation for operation in operations(document()) if "security" in operation]
    assert asked == []
    options = ServiceOptions(
        keys=KeyRing(tmp_path / "keys.json"), trusts_tenant_header=True, longest_timeout_s=120
    )
    closed = document(options)
    asked = [operation["operationId"] for operation in operations(closed) if "security" in operation]
    assert asked == ["createChatCompletion", "createCompletion", "listModels", "retrieveModel"]
    parameters = {each["name"]: each for each in closed["paths"][PATHS["chat"]]["post"]["parameters"]}
    assert parameters["X-Request-Timeout"]["schema"]["maximum"] == 120
    assert "X-Headrace-Tenant" in parameters
    assert "X-Headrace-Tenant" not in json.dumps(document())
    assert closed["info"]["version"] == "1.2.3"


def test_it_is_made_once() -> None:
    app = app_with(OPEN)
    assert app.openapi() is app.openapi()
    assert app.openapi()["openapi"] == openapi.document(OPEN, version="x")["openapi"]
