"""The table of parameters: whole, and true of what is done with each."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from openai.types import completion_create_params as openai_completions
from openai.types.chat import completion_create_params as openai_chat

from headrace.producers.http.chat import wanted_of_chat
from headrace.producers.http.completions import wanted_of_completion
from headrace.producers.http.parameters import PARAMETERS, Parameter, markdown_table, parameters_of
from headrace.producers.http.wanted import ApiError, Endpoint, Wanted

ENDPOINTS: tuple[Endpoint, ...] = ("chat", "completions")
LEAST: dict[Endpoint, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "Hello"}]},
    "completions": {"model": "m", "prompt": "Hello"},
}
OPENAI = {
    "chat": (
        openai_chat.CompletionCreateParamsNonStreaming,
        openai_chat.CompletionCreateParamsStreaming,
    ),
    "completions": (
        openai_completions.CompletionCreateParamsNonStreaming,
        openai_completions.CompletionCreateParamsStreaming,
    ),
}
# All that may be refused of OpenAI's own; what needs a parser or a modality is refused by its value.
MAY_BE_REFUSED = {
    "audio", "modalities", "functions", "function_call", "web_search_options", "prediction", "store", "moderation",
    "verbosity", "best_of", "suffix", "echo",
}  # fmt: skip
REFUSED = [
    (endpoint, row)
    for endpoint in ENDPOINTS
    for row in parameters_of(endpoint).values()
    if row.treatment == "refused"
]
REFUSED_IDS = [f"{endpoint}-{row.name}" for endpoint, row in REFUSED]


def wanted(endpoint: Endpoint, **given: Any) -> Wanted:
    """The least call, with these parameters besides."""
    body = LEAST[endpoint] | given
    if endpoint == "chat":
        return wanted_of_chat(body, contract_has_output=False, has_tool_parser=False)
    return wanted_of_completion(body, contract_has_output=False)


def refusal(endpoint: Endpoint, **given: Any) -> ApiError:
    """What the least call with these parameters is told."""
    with pytest.raises(ApiError) as caught:
        wanted(endpoint, **given)
    assert caught.value.status == 400
    assert caught.value.kind == "invalid_request_error"
    return caught.value


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_parameter_of_openai_has_a_row(endpoint: Endpoint) -> None:
    names: set[str] = set()
    for params in OPENAI[endpoint]:
        names |= typing.get_type_hints(params).keys()
    assert len(names) > 15
    assert names - parameters_of(endpoint).keys() == set()


def test_no_parameter_has_two_rows_for_an_endpoint() -> None:
    for endpoint in ENDPOINTS:
        assert len(parameters_of(endpoint)) == sum(endpoint in row.endpoints for row in PARAMETERS)


def test_of_openais_own_only_what_may_be_is_refused() -> None:
    refused = {row.name for row in PARAMETERS if row.origin == "OpenAI" and row.treatment == "refused"}
    assert refused == MAY_BE_REFUSED


@pytest.mark.parametrize(("endpoint", "row"), REFUSED, ids=REFUSED_IDS)
def test_a_refused_parameter_is_named_with_its_reason(endpoint: Endpoint, row: Parameter) -> None:
    error = refusal(endpoint, **{row.name: {"some": "thing"}})
    assert error.param == row.name
    assert row.why in error.message
    assert error.reason == "unsupported_parameter"


@pytest.mark.parametrize(("endpoint", "row"), REFUSED, ids=REFUSED_IDS)
def test_what_asks_for_nothing_is_let_through(endpoint: Endpoint, row: Parameter) -> None:
    plain = wanted(endpoint)
    for value in (None, *row.harmless):
        assert wanted(endpoint, **{row.name: value}) == plain


def test_best_of_asks_for_nothing_where_it_is_n() -> None:
    assert wanted("completions", best_of=1).choices == 1
    assert wanted("completions", best_of=3, n=3).choices == 3
    assert refusal("completions", best_of=3).param == "best_of"
    assert refusal("completions", best_of=3, n=2).param == "best_of"
    assert refusal("completions", best_of=True).param == "best_of"


def test_a_value_is_harmless_by_its_type_too() -> None:
    assert refusal("chat", store=0).param == "store"
    assert refusal("chat", min_tokens=False).param == "min_tokens"
    assert wanted("chat", length_penalty=1.0) == wanted("chat")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_null_is_absent(endpoint: Endpoint) -> None:
    nulls = dict.fromkeys({*parameters_of(endpoint), "topK"} - LEAST[endpoint].keys())
    assert wanted(endpoint, **nulls) == wanted(endpoint)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("responseFormat", "response_format"),
        ("maxTokens", "max_tokens"),
        ("maxCompletionTokens", "max_completion_tokens"),
        ("toolChoice", "tool_choice"),
        ("topP", "top_p"),
        ("top-p", "top_p"),
        ("Temperature", "temperature"),
        ("temprature", "temperature"),
        ("response_formats", "response_format"),
        ("frequencypenalty", "frequency_penalty"),
        ("structured_output", "structured_outputs"),
        ("max_new_tokens", "max_tokens"),
        ("guidedJson", "guided_json"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_one_that_it_looks_like(name: str, meant: str) -> None:
    error = refusal("chat", **{name: 1})
    assert error.param == name
    assert error.reason == "unknown_parameter"
    assert error.message == f"Unknown parameter: '{name}'. Did you mean '{meant}'?"


@pytest.mark.parametrize("name", ["provider", "x", "", "ключ", "n" * 10_000])
def test_an_unknown_parameter_that_looks_like_none_is_refused_without_a_suggestion(name: str) -> None:
    error = refusal("chat", **{name: 1})
    assert error.param is not None
    assert error.param[:100] == name[:100]
    assert len(error.message) < 200
    assert "mean" not in error.message


def test_a_parameter_of_the_other_endpoint_says_so() -> None:
    error = refusal("chat", prompt="Hello")
    assert error.param == "prompt"
    assert "/v1/completions has it" in error.message
    assert refusal("completions", messages=[]).param == "messages"


@pytest.mark.parametrize(
    ("name", "spelling"),
    [
        ("guided_json", 'structured_outputs: {"json": SCHEMA}'),
        ("guided_regex", 'structured_outputs: {"regex": PATTERN}'),
        ("guided_choice", 'structured_outputs: {"choice": [TEXT, ...]}'),
        ("guided_grammar", 'structured_outputs: {"grammar": GRAMMAR}'),
        ("guided_json_object", 'response_format: {"type": "json_object"}'),
    ],
)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_vllms_old_spelling_is_refused_with_the_new_one(endpoint: Endpoint, name: str, spelling: str) -> None:
    error = refusal(endpoint, **{name: {"type": "object"}})
    assert error.param == name
    assert spelling in error.message


def test_the_table_has_a_line_for_each_row_and_no_cell_breaks_it() -> None:
    table = markdown_table()
    lines = table.splitlines()
    assert table.endswith("|\n")
    assert len(lines) == 2 + len(PARAMETERS)
    for line in lines:
        assert line.replace(r"\|", "").count("|") == 6
    assert "| `store` | OpenAI | chat | refused |" in table
    assert next(line for line in lines if "`store`" in line).endswith("Let through: `false`. |")


def test_every_row_says_how_or_why() -> None:
    for row in PARAMETERS:
        assert row.why.endswith(".") == (row.treatment != "refused"), row.name
