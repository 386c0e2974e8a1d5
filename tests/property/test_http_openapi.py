"""No call that is served is invalid by the endpoint's own OpenAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from property.test_http_translation import CHATS, COMPLETIONS, bodies, translated
from property_examples import EXAMPLES

from headrace.producers.http import openapi_calls
from headrace.producers.http.wanted import ApiError, Endpoint
from headrace.schemas.messages import JsonObject


def validator_of(endpoint: Endpoint) -> Any:
    schema = openapi_calls.body_of(endpoint) | {"components": {"schemas": openapi_calls.components()}}
    return jsonschema_rs.Draft202012Validator(schema)


VALIDATORS: dict[Endpoint, Any] = {
    "chat": validator_of("chat"),
    "completions": validator_of("completions"),
}


def is_served(endpoint: Endpoint, body: JsonObject) -> bool:
    """Whether a package that can do everything would be asked."""
    try:
        translated(endpoint, body, has_tool_parser=True)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("body", CHATS)
def test_a_chat_that_says_all_there_is_is_valid(body: JsonObject) -> None:
    assert is_served("chat", body)
    VALIDATORS["chat"].validate(body)


@pytest.mark.parametrize("body", COMPLETIONS)
def test_a_completion_that_says_all_there_is_is_valid(body: JsonObject) -> None:
    assert is_served("completions", body)
    VALIDATORS["completions"].validate(body)


@settings(max_examples=EXAMPLES, deadline=None)
@given(bodies(CHATS))
def test_a_chat_that_is_served_is_valid(body: JsonObject) -> None:
    if is_served("chat", body):
        VALIDATORS["chat"].validate(body)


@settings(max_examples=EXAMPLES, deadline=None)
@given(bodies(COMPLETIONS))
def test_a_completion_that_is_served_is_valid(body: JsonObject) -> None:
    if is_served("completions", body):
        VALIDATORS["completions"].validate(body)
