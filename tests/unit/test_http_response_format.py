"""`response_format` and `structured_outputs` in the shapes that callers bring along: a constraint, or an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.producers.http.chat import wanted_of_chat
from headrace.producers.http.completions import wanted_of_completion
from headrace.producers.http.response_format import output_of
from headrace.producers.http.wanted import ApiError, Wanted

S = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
HELD = {"json_schema": S}


def output(contract_has_output: bool = False, **given: Any) -> Any:
    """What the output is held to."""
    return output_of(given, contract_has_output=contract_has_output).constraint


def refusal(contract_has_output: bool = False, **given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        output(contract_has_output, **given)
    assert caught.value.status == 400
    return caught.value


def chat(**given: Any) -> Wanted:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], **given}
    return wanted_of_chat(body, contract_has_output=False, has_tool_parser=False)


# --- response_format ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({"type": "json_schema", "json_schema": {"name": "n", "schema": S}}, id="OpenAI"),
        pytest.param(
            {"type": "json_schema", "json_schema": {"name": "n", "schema": S, "strict": True}}, id="strict"
        ),
        pytest.param(
            {"type": "json_schema", "json_schema": {"name": "n", "schema": S, "strict": False}},
            id="not strict",
        ),
        pytest.param(
            {"type": "json_schema", "json_schema": {"name": "n", "schema": S, "strict": "true"}},
            id="LM Studio",
        ),
        pytest.param(
            {
                "type": "json_schema",
                "json_schema": {"name": "n", "description": None, "schema": S, "strict": None},
            },
            id="nulls",
        ),
        pytest.param({"type": "json_schema", "json_schema": {"schema": S}}, id="no name"),
        pytest.param({"type": "json_schema", "json_schema": S}, id="bare"),
        pytest.param(
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, **S}}, id="flattened"
        ),
        pytest.param({"type": "json_schema", "schema": S}, id="Together"),
        pytest.param({"type": "json_schema", "name": "n", "schema": S, "strict": True}, id="Responses"),
        pytest.param(
            {"type": "json_schema", "json_schema": {"schema": S}, "strict": True}, id="strict outside"
        ),
        pytest.param({"type": "json_schema", "value": {**S}}, id="TGI's json_schema"),
        pytest.param({"type": "json_object", "schema": S}, id="Anyscale"),
        pytest.param({"type": "json_object", "schema": S, "json_schema": None}, id="Anyscale with null"),
        pytest.param({"type": "json_object", "json_schema": {"schema": S}}, id="json_object with a schema"),
        pytest.param({"type": "json_object", "value": S}, id="TGI's json_object"),
        pytest.param({"type": "json", "value": S}, id="TGI's json"),
        pytest.param({"type": "json_schema", "json_schema": {"schema": json.dumps(S)}}, id="JSON text"),
        pytest.param({"type": "json_object", "schema": json.dumps(S)}, id="JSON text in Anyscale's place"),
    ],
)
def test_a_schema_is_held_wherever_it_stands(shape: dict[str, Any]) -> None:
    assert output(response_format=shape) == HELD


@pytest.mark.parametrize(
    ("shape", "held"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_object", "schema": None}, {"json_object": True}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}, {"json_schema": {}}),
        ({"type": "json_schema", "schema": True}, {"json_schema": True}),
        ({"type": "json_object", "schema": {}}, {"json_schema": {}}),
        ({"type": "regex", "value": "a+"}, {"regex": "a+"}),
        ({"type": "regex", "pattern": "a+"}, {"regex": "a+"}),
        ({"type": "regex", "regex": "a+"}, {"regex": "a+"}),
        ({"type": "regex", "regex": {"regex": "a+"}}, {"regex": "a+"}),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ],
)
def test_other_types_are_what_they_say(shape: dict[str, Any], held: dict[str, Any] | None) -> None:
    assert output(response_format=shape) == held


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/A", "$defs": {"A": S}},
        {"anyOf": [S]},
        {"enum": ["a"]},
        {"title": "T", "properties": {}},
    ],
)
def test_a_bare_schema_is_known_by_its_keywords(schema: dict[str, Any]) -> None:
    assert output(response_format={"type": "json_schema", "json_schema": schema}) == {"json_schema": schema}


@pytest.mark.parametrize(
    ("shape", "param"),
    [
        ("json_object", "response_format"),
        ([], "response_format"),
        ({}, "response_format.type"),
        ({"type": None}, "response_format.type"),
        ({"type": ["json_object"]}, "response_format.type"),
        ({"type": "json-schema"}, "response_format.type"),
        ({"type": "object", "properties": {}}, "response_format.type"),
        ({"type": "structural_tag", "format": {}}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": None}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": None}},
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": [S]}},
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": "{"}},
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schemas": S}},
            "response_format.json_schema.schemas",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": S, "extra": 1}},
            "response_format.json_schema.extra",
        ),
        ({"type": "json_schema", "json_schema": {"name": 1, "schema": S}}, "response_format.name"),
        ({"type": "json_schema", "json_schema": [S]}, "response_format.json_schema"),
        ({"type": "json_schema", "jsonSchema": {"schema": S}}, "response_format.jsonSchema"),
        ({"type": "json_schema", "json_schema": {"schema": S}, "schema": S}, "response_format.schema"),
        ({"type": "json", "value": None}, "response_format.value"),
        ({"type": "text", "schema": S}, "response_format.schema"),
        ({"type": "json_object", "schemas": S}, "response_format.schemas"),
        ({"type": "regex"}, "response_format.value"),
        ({"type": "regex", "value": "a", "pattern": "b"}, "response_format.value"),
        ({"type": "regex", "regex": {"pattern": "a"}}, "response_format.regex.pattern"),
        ({"type": "regex", "regex": {}}, "response_format.regex.regex"),
        ({"type": "grammar"}, "response_format.grammar"),
        ({"type": "grammar", "grammar": 1}, "response_format.grammar"),
    ],
)
def test_what_is_no_shape_of_a_constraint_is_an_error_never_free_text(shape: Any, param: str) -> None:
    error = refusal(response_format=shape)
    assert error.param == param, error.message


def test_a_schema_in_place_of_the_format_is_told_how_to_be_sent() -> None:
    assert '"json_schema": {"name": NAME, "schema": SCHEMA}' in refusal(response_format=S).message


def test_the_order_of_properties_is_kept() -> None:
    schema = {"type": "object", "properties": {"why": {"type": "string"}, "answer": {"type": "string"}}}
    held = output(response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    assert list(held["json_schema"]["properties"]) == ["why", "answer"]


def test_name_and_description_are_recorded() -> None:
    wrapper = {"name": "film", "description": "A film.", "schema": S, "strict": True}
    wanted = chat(response_format={"type": "json_schema", "json_schema": wrapper}, user="u")
    assert wanted.fields["attributes"] == {
        "user": "u",
        "response_format.name": "film",
        "response_format.description": "A film.",
    }
    assert wanted.recorded == ("user", "response_format.name", "response_format.description")
    assert wanted.fields["output"] == HELD
    assert wanted.constraint_param == "response_format"


def test_text_asks_for_nothing() -> None:
    assert chat(response_format={"type": "text"}) == chat()


# --- structured_outputs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "held"),
    [
        ({"json": S}, HELD),
        ({"json": json.dumps(S)}, HELD),
        ({"json": {}}, {"json_schema": {}}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"json_object": True}, {"json_object": True}),
        ({"json_object": False}, None),
        ({}, None),
        # What a client of vLLM's own dataclass sends.
        (
            {
                "json": S, "regex": None, "choice": None, "grammar": None, "json_object": None,
                "disable_any_whitespace": False, "disable_additional_properties": False,
                "whitespace_pattern": None, "structural_tag": None,
            },
            HELD,
        ),
        ({"json": S, "disable_any_whitespace": True}, HELD),
    ],
)  # fmt: skip
def test_structured_outputs_are_honoured(wish: dict[str, Any], held: dict[str, Any] | None) -> None:
    assert output(structured_outputs=wish) == held
    wanted = chat(structured_outputs=wish)
    assert wanted.fields.get("output") == held
    assert wanted.constraint_param == (None if held is None else "structured_outputs")


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ([], "structured_outputs"),
        ({"json": S, "regex": "a"}, "structured_outputs"),
        ({"json": S, "json_object": True}, "structured_outputs"),
        ({"json": 1}, "structured_outputs.json"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"jsonSchema": S}, "structured_outputs.jsonSchema"),
        ({"json_schema": S}, "structured_outputs.json_schema"),
        ({"regex": 1}, "structured_outputs.regex"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": "a"}, "structured_outputs.choice"),
        ({"choice": ["a", 1]}, "structured_outputs.choice[1]"),
        ({"grammar": {}}, "structured_outputs.grammar"),
        ({"json_object": "yes"}, "structured_outputs.json_object"),
        ({"json": S, "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
        (
            {"json": S, "disable_additional_properties": True},
            "structured_outputs.disable_additional_properties",
        ),
        ({"json": S, "disable_any_whitespace": 1}, "structured_outputs.disable_any_whitespace"),
        ({"structural_tag": "{}"}, "structured_outputs.structural_tag"),
    ],
)
def test_structured_outputs_that_cannot_be_had_are_named(wish: Any, param: str) -> None:
    assert refusal(structured_outputs=wish).param == param


def test_two_constraints_are_refused_and_text_is_none() -> None:
    error = refusal(response_format={"type": "json_object"}, structured_outputs={"json": S})
    assert error.param == "structured_outputs"
    assert output(response_format={"type": "text"}, structured_outputs={"json": S}) == HELD
    assert output(response_format={"type": "json_object"}, structured_outputs={}) == {"json_object": True}


# --- under a contract with an output schema -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"schema": S}},
        {"type": "json", "value": S},
    ],
)
def test_under_a_contracts_schema_json_is_passed_on_for_the_worker_to_compare(shape: dict[str, Any]) -> None:
    assert output(True, response_format=shape) == output(response_format=shape) is not None


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"response_format": {"type": "regex", "value": "a"}}, "response_format"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "a"}}, "structured_outputs"),
    ],
)
def test_under_a_contracts_schema_what_is_no_json_is_refused(given: dict[str, Any], param: str) -> None:
    error = refusal(True, **given)
    assert error.param == param
    assert "held to its output schema" in error.message


def test_completions_take_both() -> None:
    for given in (
        {"response_format": {"type": "json_object", "schema": S}},
        {"structured_outputs": {"json": S}},
    ):
        body = {"model": "m", "prompt": "Hello", **given}
        wanted = wanted_of_completion(body, contract_has_output=False)
        assert wanted.fields == {"output": HELD}
        assert wanted.constraint_param == next(iter(given))
