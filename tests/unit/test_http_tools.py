"""Tools: what the model is shown, and the JSON Schema that a forced call is held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.producers.http.chat import wanted_of_chat
from headrace.producers.http.tool_schema import InvalidToolSchema, any_call_schema
from headrace.producers.http.tools import WantedTools, tools_of
from headrace.producers.http.wanted import ApiError, ForcedTool, Wanted
from headrace.schemas.errors import OutputViolatesSchema
from headrace.schemas.messages import JsonObject
from headrace.schemas.output_schema import OutputSchema

CITY: JsonObject = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "$defs": {"City": {"type": "string"}},
}
TIME: JsonObject = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(name: str, parameters: JsonObject | None = None, **more: Any) -> JsonObject:
    function = {"name": name, **more} | ({} if parameters is None else {"parameters": parameters})
    return {"type": "function", "function": function}


WEATHER, CLOCK = tool("weather", CITY, description="The weather.", strict=True), tool("clock", TIME)


def named(name: str) -> JsonObject:
    return {"type": "function", "function": {"name": name}}


def tools(*offered: Any, parser: bool = False, **given: Any) -> WantedTools:
    return tools_of({"tools": list(offered), **given}, has_tool_parser=parser)


def chat(contract_has_output: bool = False, parser: bool = False, **given: Any) -> Wanted:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], **given}
    return wanted_of_chat(body, contract_has_output=contract_has_output, has_tool_parser=parser)


def refusal(*offered: Any, parser: bool = False, **given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        tools(*offered, parser=parser, **given)
    assert caught.value.status == 400
    return caught.value


def accepts(schema: JsonObject, value: Any) -> bool:
    try:
        OutputSchema(schema).check_value(value)
    except OutputViolatesSchema:
        return False
    return True


# --- tool_choice ----------------------------------------------------------------------------------------------------


def test_a_function_by_name_is_held_to_its_parameters() -> None:
    wanted = chat(tools=[WEATHER, CLOCK], tool_choice=named("weather"))
    assert wanted.fields["tools"] == [WEATHER, CLOCK]
    assert wanted.fields["tool_choice"] == {"mode": "named", "function": "weather"}
    assert wanted.fields["output"] == {"json_schema": CITY}
    assert wanted.tool == ForcedTool("weather")
    assert wanted.constraint_param == "tools"


def test_required_with_one_tool_is_that_tool_by_name() -> None:
    assert tools(CLOCK, tool_choice="required") == tools(CLOCK, tool_choice=named("clock"))


def test_required_with_several_tools_is_any_one_of_them_with_its_own_arguments() -> None:
    wanted = chat(tools=[WEATHER, CLOCK], tool_choice="required")
    assert wanted.fields["tool_choice"] == {"mode": "required"}
    assert wanted.tool == ForcedTool(None)
    schema = wanted.fields["output"]["json_schema"]
    assert accepts(schema, {"name": "weather", "arguments": {"city": "Oslo"}})
    assert accepts(schema, {"name": "clock", "arguments": {"zone": "CET"}})
    assert not accepts(schema, {"name": "weather", "arguments": {"zone": "CET"}})
    assert not accepts(schema, {"name": "weather", "arguments": {"city": 1}})
    assert not accepts(schema, {"name": "other", "arguments": {"city": "Oslo"}})
    assert not accepts(schema, {"name": "clock"})
    assert not accepts(schema, {"name": "clock", "arguments": {"zone": "CET"}, "more": 1})


def test_none_shows_the_tools_and_holds_the_output_to_nothing() -> None:
    wanted = chat(tools=[WEATHER], tool_choice="none")
    assert wanted.fields == {"tools": [WEATHER], "tool_choice": {"mode": "none"}}
    assert wanted.tool is None


@pytest.mark.parametrize("given", [{}, {"tool_choice": "auto"}, {"tool_choice": None}])
def test_auto_needs_a_parser(given: dict[str, Any]) -> None:
    error = refusal(WEATHER, **given)
    assert error.param == "tool_choice"
    assert "tool_parser" in error.message
    assert "'required' or a function by name" in error.message
    found = tools(WEATHER, parser=True, **given)
    assert found == WantedTools([WEATHER], {"mode": "auto"})
    wanted = chat(parser=True, tools=[WEATHER], **given)
    assert (wanted.tool, wanted.constraint_param, "output" in wanted.fields) == (None, "tools", False)


def test_under_auto_the_arguments_of_each_tool_are_an_object() -> None:
    error = refusal(WEATHER, tool("list", {"type": "array"}), parser=True)
    assert error.param == "tools[1].function.parameters.type"


def test_parallel_calls_are_kept_to_one_where_the_caller_says_so() -> None:
    assert chat(parser=True, tools=[WEATHER], parallel_tool_calls=False).parallel_tool_calls is False
    assert chat(parser=True, tools=[WEATHER], parallel_tool_calls=True).parallel_tool_calls is True
    assert chat(parser=True, tools=[WEATHER]).parallel_tool_calls is True
    forced = tools(WEATHER, tool_choice="required", parallel_tool_calls=True)
    assert forced.forced == ForcedTool("weather")
    assert refusal(WEATHER, tool_choice="none", parallel_tool_calls=1).param == "parallel_tool_calls"


@pytest.mark.parametrize(
    "given",
    [
        {"tools": []},
        {"tools": None, "tool_choice": "auto"},
        {"tool_choice": "none"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"parallel_tool_calls": False},
    ],
)
def test_without_tools_what_asks_for_no_call_asks_for_nothing(given: dict[str, Any]) -> None:
    assert chat(**given) == chat()


@pytest.mark.parametrize("choice", ["required", named("weather")])
def test_without_tools_no_call_can_be_had(choice: Any) -> None:
    assert refusal(tool_choice=choice).param == "tool_choice"


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("any", "tool_choice"),
        ("weather", "tool_choice"),
        ("", "tool_choice"),
        (True, "tool_choice"),
        (named("wether"), "tool_choice"),
        ({}, "tool_choice.name"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "function", "function": {}}, "tool_choice.function.name"),
        ({"type": "function", "function": {"name": 1}}, "tool_choice.function.name"),
        ({"type": "function", "function": "weather"}, "tool_choice.function"),
        ({"type": "function", "function": {"name": "weather", "x": 1}}, "tool_choice.function.x"),
        ({"type": "tool", "name": "weather"}, "tool_choice.type"),
        ({"type": "custom", "custom": {"name": "weather"}}, "tool_choice.type"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required"}}, "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": []}}, "tool_choice.allowed_tools.mode"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [named("weather")]}},
            "tool_choice.allowed_tools.mode",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("x")]}},
            "tool_choice",
        ),
    ],
)
def test_a_choice_that_is_none_is_named(choice: Any, param: str) -> None:
    error = refusal(WEATHER, CLOCK, tool_choice=choice)
    assert error.param == param, error.message


def test_any_is_told_that_it_is_required_here() -> None:
    assert "did you mean 'required'" in refusal(WEATHER, tool_choice="any").message


def test_a_name_beside_the_type_is_taken() -> None:
    choice = {"type": "function", "name": "clock"}
    assert tools(WEATHER, CLOCK, tool_choice=choice).forced == ForcedTool("clock")


def allowed(mode: str, *names: str) -> JsonObject:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]},
    }


def test_allowed_tools_hold_a_required_call_to_these() -> None:
    third = tool("third", {"type": "object"})
    found = tools(WEATHER, CLOCK, third, tool_choice=allowed("required", "third", "clock"))
    assert found.tools == [WEATHER, CLOCK, third]
    assert found.json_schema is not None
    assert accepts(found.json_schema, {"name": "clock", "arguments": {"zone": "CET"}})
    assert accepts(found.json_schema, {"name": "third", "arguments": {}})
    assert not accepts(found.json_schema, {"name": "weather", "arguments": {"city": "Oslo"}})
    assert tools(WEATHER, CLOCK, tool_choice=allowed("required", "clock")).forced == ForcedTool("clock")


def test_under_auto_not_some_of_the_tools_only() -> None:
    assert tools(WEATHER, CLOCK, parser=True, tool_choice=allowed("auto", "clock", "weather")).forced is None
    error = refusal(WEATHER, CLOCK, parser=True, tool_choice=allowed("auto", "clock"))
    assert error.param == "tool_choice.allowed_tools"
    assert refusal(CLOCK, tool_choice=allowed("auto", "clock")).param == "tool_choice"


# --- tools ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "param"),
    [
        ("weather", "tools[0]"),
        ({}, "tools[0].function"),
        ({"type": "function", "name": "weather", "parameters": {}}, "tools[0].name"),
        ({"type": "custom", "custom": {"name": "weather"}}, "tools[0].type"),
        ({"type": "web_search"}, "tools[0].type"),
        ({"type": "function", "function": {}}, "tools[0].function.name"),
        (tool(""), "tools[0].function.name"),
        (tool("x" * 257), "tools[0].function.name"),
        (tool("weather", paramters=CITY), "tools[0].function.paramters"),
        (tool("weather", strict="yes"), "tools[0].function.strict"),
        (tool("weather", description=1), "tools[0].function.description"),
        ({**tool("weather"), "parameters": CITY}, "tools[0].parameters"),
        (
            {"type": "function", "function": {"name": "weather", "parameters": []}},
            "tools[0].function.parameters",
        ),
        (
            {"type": "function", "function": {"name": "weather", "parameters": True}},
            "tools[0].function.parameters",
        ),
        (tool("weather", {"type": "string"}), "tools[0].function.parameters.type"),
        (tool("weather", {"type": ["object"]}), "tools[0].function.parameters.type"),
    ],
)
def test_a_tool_that_is_none_is_named(offered: Any, param: str) -> None:
    error = refusal(offered, tool_choice="required")
    assert error.param == param, error.message


def test_a_typo_in_a_tool_is_told() -> None:
    message = refusal(tool("weather", paramters=CITY), tool_choice="none").message
    assert "Did you mean 'tools[0].function.parameters'?" in message


def test_tools_are_a_list() -> None:
    with pytest.raises(ApiError) as caught:
        tools_of({"tools": WEATHER}, has_tool_parser=True)
    assert caught.value.param == "tools"


def test_two_functions_of_one_name_are_refused() -> None:
    assert refusal(CLOCK, WEATHER, CLOCK, tool_choice="none").param == "tools[2].function.name"


def test_tools_are_128_at_most_and_so_many_can_be_chosen_from() -> None:
    many = [tool(f"f{index}", TIME) for index in range(128)]
    schema = tools(*many, tool_choice="required").json_schema
    assert schema is not None
    assert accepts(schema, {"name": "f127", "arguments": {"zone": "CET"}})
    assert refusal(*many, tool("one_more"), tool_choice="none").param == "tools"


def test_nulls_and_an_absent_type_are_let_through() -> None:
    offered = {"function": {"name": "weather", "description": None, "parameters": CITY, "strict": None}}
    assert tools(offered, tool_choice="none").tools == [tool("weather", CITY)]


@pytest.mark.parametrize(
    ("parameters", "held"),
    [
        (None, EMPTY),
        ({}, {"type": "object"}),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}}),
        ({"$ref": "#/$defs/A", "$defs": {"A": TIME}}, {"$ref": "#/$defs/A", "$defs": {"A": TIME}}),
    ],
)
def test_arguments_are_an_object_whatever_is_said_of_them(parameters: Any, held: JsonObject) -> None:
    assert tools(tool("f", parameters), tool_choice="required").json_schema == held


# --- at odds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": TIME}}},
        {"structured_outputs": {"regex": "a"}},
    ],
)
@pytest.mark.parametrize("choice", ["none", "auto", "required", named("weather")])
def test_tools_and_a_constraint_together_are_refused(given: dict[str, Any], choice: Any) -> None:
    with pytest.raises(ApiError) as caught:
        chat(tools=[WEATHER], tool_choice=choice, **given)
    assert (caught.value.status, caught.value.param) == (400, "tools")
    assert next(iter(given)) in caught.value.message


def test_tools_go_with_a_response_format_that_asks_for_text() -> None:
    wanted = chat(tools=[WEATHER], tool_choice="required", response_format={"type": "text"})
    assert wanted.tool == ForcedTool("weather")


@pytest.mark.parametrize("choice", ["none", "auto", "required", named("weather")])
def test_under_a_contracts_output_schema_no_tool_can_be_called(choice: Any) -> None:
    with pytest.raises(ApiError) as caught:
        chat(contract_has_output=True, tools=[WEATHER], tool_choice=choice)
    assert (caught.value.status, caught.value.param) == (400, "tools")
    assert "output schema" in caught.value.message
    assert chat(contract_has_output=True, tools=[], tool_choice="none") == chat()


# --- several schemas in one document --------------------------------------------------------------------------------


def union(*schemas: JsonObject) -> JsonObject:
    """Of functions called `f0`, `f1`, ..."""
    return any_call_schema([(f"f{index}", schema) for index, schema in enumerate(schemas)])


def call(index: int, arguments: Any) -> JsonObject:
    return {"name": f"f{index}", "arguments": arguments}


def test_definitions_of_one_name_stay_apart() -> None:
    def of(kind: str) -> JsonObject:
        return {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": kind}}}

    schema = union(of("string"), of("integer"), of("null"))
    for index, value in enumerate(["x", 1, None]):
        assert accepts(schema, call(index, {"a": value}))
        assert not accepts(schema, call((index + 1) % 3, {"a": value}))


def test_a_schema_that_refers_to_itself_does_so_where_it_is_put() -> None:
    tree: JsonObject = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "below": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["name"],
        "additionalProperties": False,
    }
    schema = union(TIME, tree)
    assert accepts(schema, call(1, {"name": "a", "below": [{"name": "b", "below": []}]}))
    assert not accepts(schema, call(1, {"name": "a", "below": [{"name": 1}]}))
    assert not accepts(schema, call(1, {"name": "a", "below": [call(0, {"zone": "CET"})]}))


@pytest.mark.parametrize("reference", ["#/properties/a~1b", "#/$defs/x%20y", "#here", "#/$defs/d/$defs/e"])
def test_references_of_any_kind_lead_to_where_they_led(reference: str) -> None:
    parameters: JsonObject = {
        "type": "object",
        "properties": {"a/b": {"type": "integer"}, "it": {"$ref": reference}},
        "$defs": {
            "x y": {"type": "integer"},
            "h": {"$anchor": "here", "type": "integer"},
            "d": {"$defs": {"e": {"type": "integer"}}},
        },
    }
    schema = union(CITY, parameters)
    assert accepts(schema, call(1, {"it": 1}))
    assert not accepts(schema, call(1, {"it": "x"}))


def test_a_base_of_its_own_is_left_behind() -> None:
    parameters: JsonObject = {
        "$id": "https://example.com/args",
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "args#/$defs/A"}, "c": {"$ref": "inner"}},
        "$defs": {
            "A": {"type": "integer"},
            "B": {"$id": "inner", "$ref": "#/$defs/C", "$defs": {"C": {"type": "string"}}},
        },
    }
    schema = union(CITY, parameters, parameters)
    assert "$id" not in json.dumps(schema)
    for index in (1, 2):
        assert accepts(schema, call(index, {"a": 1, "b": 2, "c": "x"}))
        for wrong in ({"a": "x"}, {"b": "x"}, {"c": 1}):
            assert not accepts(schema, call(index, wrong))


def test_names_and_data_that_look_like_keywords_are_left_alone() -> None:
    parameters: JsonObject = {
        "type": "object",
        "properties": {
            "$ref": {"type": "integer"},
            "$id": {"const": {"$ref": "#/x", "$id": "y"}},
            "d": {"default": {"$ref": "#/x"}, "enum": [{"$ref": "#/x"}]},
        },
        "required": ["$ref", "$id"],
    }
    schema = union(TIME, parameters)
    assert schema["$defs"]["arguments1"] == parameters
    assert accepts(schema, call(1, {"$ref": 1, "$id": {"$ref": "#/x", "$id": "y"}, "d": {"$ref": "#/x"}}))


def test_the_callers_schema_is_not_changed() -> None:
    before = json.dumps(CITY)
    union(CITY, CITY)
    assert json.dumps(CITY) == before


# --- drafts ---------------------------------------------------------------------------------------------------------

TUPLE_7: JsonObject = {
    "$schema": DRAFT_7,
    "type": "object",
    "properties": {"a": {"type": "array", "items": [{"type": "integer"}], "additionalItems": False}},
}
TUPLE_2020: JsonObject = {
    "type": "object",
    "properties": {"a": {"type": "array", "prefixItems": [{"type": "integer"}], "items": False}},
}


def test_a_draft_that_makes_no_difference_has_no_say() -> None:
    schema = union({"$schema": DRAFT_7, **TIME}, TIME, TUPLE_2020)
    assert "$schema" not in json.dumps(schema)
    assert accepts(schema, call(2, {"a": [1]}))
    assert not accepts(schema, call(2, {"a": [1, 2]}))


def test_a_draft_that_makes_a_difference_is_the_documents() -> None:
    schema = union(TIME, TUPLE_7, {"$schema": DRAFT_7, **CITY})
    assert schema["$schema"] == DRAFT_7
    assert accepts(schema, call(1, {"a": [1]}))
    assert not accepts(schema, call(1, {"a": ["x"]}))
    assert not accepts(schema, call(1, {"a": [1, 2]}))
    assert not accepts(schema, call(2, {"city": 1}))


def test_draft_4_has_no_const_and_is_told_apart_all_the_same() -> None:
    bounded = {
        "$schema": DRAFT_4,
        "type": "object",
        "properties": {"a": {"minimum": 1, "exclusiveMinimum": True}},
    }
    schema = union(TIME, bounded)
    assert accepts(schema, call(1, {"a": 2}))
    assert not accepts(schema, call(1, {"a": 1}))
    assert not accepts(schema, call(0, {"a": 2}))
    constant = {"type": "object", "properties": {"a": {"const": 1}}}
    with pytest.raises(InvalidToolSchema) as caught:
        union(bounded, constant)
    assert (caught.value.index, caught.value.path) == (1, "/properties/a")


def test_drafts_at_odds_are_refused_at_the_tool_that_differs() -> None:
    error = refusal(tool("a", TUPLE_7), tool("b", TIME), tool("c", TUPLE_2020), tool_choice="required")
    assert error.param == "tools[2].function.parameters"
    assert "prefixItems" in error.message


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}, "refers to no schema"),
        (
            {"type": "object", "properties": {"a": {"$ref": "https://example.com/a"}}},
            "refers to another document",
        ),
        ({"type": "object", "x-guidance": {}}, "x-guidance"),
        (
            {
                "type": "object",
                "properties": {"a": {"$dynamicRef": "#b"}},
                "$defs": {"b": {"$dynamicAnchor": "b"}},
            },
            "$dynamicRef",
        ),
        ({"type": "object", "properties": {"a": {"pattern": "a" * 2_000}}}, "pattern"),
    ],
)
def test_a_schema_that_cannot_be_put_beside_others_is_named(parameters: JsonObject, reason: str) -> None:
    error = refusal(CLOCK, tool("b", parameters), tool_choice="required")
    assert error.param == "tools[1].function.parameters"
    assert reason in error.message


# --- schemas from real projects -------------------------------------------------------------------------------------

REAL = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "real_schemas.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("row", REAL, ids=[row["name"] for row in REAL])
def test_real_schemas_accept_beside_others_what_they_accept_alone(row: dict[str, Any]) -> None:
    alone, both = row["schema"], union(CITY, row["schema"], row["schema"])
    for test in row["tests"]:
        assert accepts(alone, test["data"]) == accepts(both, call(1, test["data"]))
        assert accepts(alone, test["data"]) == accepts(both, call(2, test["data"]))
