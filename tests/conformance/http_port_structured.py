"""Answers that are held to something: a schema of the call's, one of the contract's, or a tool's."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from conformance.http_parts import (
    TAGGED,
    Booking,
    Mood,
    Stage,
    Weather,
    ask,
    complete,
    id_of,
    parse,
    raw_stream,
    says,
    streamed,
    text_of,
)
from packages import TAGS_SCHEMA

SCHEMA = Mood.model_json_schema()
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "mood", "schema": SCHEMA, "strict": True}}


def tools(*models: type[Weather | Booking]) -> Any:
    return [openai.pydantic_function_tool(model) for model in models]


class HttpStructured:
    """A part of `HttpPort`."""

    # --- response_format ---------------------------------------------------------------------------------

    def test_an_answer_is_held_to_the_schema_of_the_call(self, stage: Stage) -> None:
        answers = [ask(stage.client, seed=seed, response_format=FORMAT) for seed in range(3)]
        for answer in answers:
            assert answer.choices[0].finish_reason == "stop"
            assert Mood.model_validate_json(answer.choices[0].message.content or "")
        request = stage.seen.request(id_of(answers[0]))[2]
        assert request.output is not None
        assert request.output.json_schema == SCHEMA
        assert stage.seen.result(request.id).outputs[0].value is not None

    def test_each_of_several_choices_is_held_to_it(self, stage: Stage) -> None:
        answer = ask(stage.client, seed=1, n=3, temperature=1.0, response_format=FORMAT)
        assert len(answer.choices) == 3
        for choice in answer.choices:
            assert Mood.model_validate_json(choice.message.content or "")

    def test_a_completion_is_held_to_it_too(self, stage: Stage) -> None:
        answer = complete(stage.client, "A mood:", extra_body={"response_format": FORMAT})
        assert Mood.model_validate_json(answer.choices[0].text)

    def test_an_answer_is_parsed_into_a_model(self, stage: Stage) -> None:
        answer = parse(stage.client, seed=2, response_format=Mood)
        parsed = answer.choices[0].message.parsed
        assert isinstance(parsed, Mood)
        assert parsed == Mood.model_validate_json(answer.choices[0].message.content or "")

    def test_a_streamed_answer_is_parsed_into_a_model(self, stage: Stage) -> None:
        asked: Any = says(seed=2)
        whole = parse(stage.client, **asked, response_format=Mood)
        with stage.client.chat.completions.stream(**asked, response_format=Mood) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        assert "content.delta" in kinds
        assert kinds.count("content.done") == 1
        assert final.choices[0].message.parsed == whole.choices[0].message.parsed
        assert final.choices[0].finish_reason == "stop"

    def test_under_a_schema_that_decoding_holds_the_text_streams_as_it_comes(self, stage: Stage) -> None:
        chunks = list(streamed(stage.client, seed=2, response_format=FORMAT))
        assert Mood.model_validate_json(text_of(chunks))
        assert len([chunk for chunk in chunks if text_of([chunk])]) > 1

    def test_json_objects_patterns_and_grammars_are_held(self, stage: Stage) -> None:
        def text(**fields: Any) -> str:
            return ask(stage.client, seed=1, **fields).choices[0].message.content or ""

        assert text(extra_body={"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}"}})[4] == "-"
        assert text(extra_body={"structured_outputs": {"choice": ["yes", "no"]}}) in ("yes", "no")
        assert text(extra_body={"structured_outputs": {"grammar": 'root ::= "a" | "bb"'}}) in ("a", "bb")
        assert text(response_format={"type": "regex", "pattern": "x{3}"}) == "xxx"

    # --- the contract's schema ---------------------------------------------------------------------------

    def test_the_schema_of_the_contract_holds_whatever_is_asked(self, stage: Stage) -> None:
        wishes: list[Any] = [None, {"type": "json_object"}, _of_tags()]
        answers = [ask(stage.client, model=TAGGED, seed=1, response_format=wish) for wish in wishes]
        (text,) = {answer.choices[0].message.content for answer in answers}
        jsonschema.validate(json.loads(text or ""), TAGS_SCHEMA)
        assert text_of(streamed(stage.client, model=TAGGED, seed=1)) == text
        completion = complete(stage.client, "Tag it.", model=TAGGED, seed=1)
        jsonschema.validate(json.loads(completion.choices[0].text), TAGS_SCHEMA)

    @pytest.mark.parametrize(
        ("param", "fields"),
        [
            ("response_format", {"response_format": FORMAT}),
            ("structured_outputs", {"extra_body": {"structured_outputs": {"regex": "a"}}}),
            ("tools", {"tools": tools(Weather), "tool_choice": "required"}),
        ],
    )
    def test_what_is_at_odds_with_the_schema_of_the_contract_is_refused_by_name(
        self, stage: Stage, param: str, fields: dict[str, Any]
    ) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(stage.client, model=TAGGED, **fields)
        assert refused.value.param == param

    # --- tools -------------------------------------------------------------------------------------------

    def test_a_tool_that_is_named_is_called(self, stage: Stage) -> None:
        choice: Any = {"type": "function", "function": {"name": "Weather"}}
        answer = parse(stage.client, seed=1, tools=tools(Booking, Weather), tool_choice=choice)
        (only,) = answer.choices
        assert only.finish_reason == "stop"  # as OpenAI has it for a call that was named
        assert only.message.content is None
        (call,) = only.message.tool_calls or []
        assert (call.type, call.function.name) == ("function", "Weather")
        assert call.id.startswith("call_")
        assert isinstance(call.function.parsed_arguments, Weather)

    def test_of_several_tools_one_is_called(self, stage: Stage) -> None:
        called: set[str] = set()
        for seed in range(6):
            answer = parse(
                stage.client,
                seed=seed,
                temperature=1.0,
                tools=tools(Booking, Weather),
                tool_choice="required",
            )
            (only,) = answer.choices
            assert only.finish_reason == "tool_calls"
            (call,) = only.message.tool_calls or []
            assert isinstance(
                call.function.parsed_arguments, {"Weather": Weather, "Booking": Booking}[call.function.name]
            )
            called.add(call.function.name)
        assert called <= {"Weather", "Booking"}

    def test_the_only_tool_is_called_where_one_is_required(self, stage: Stage) -> None:
        plain: Any = [
            {"type": "function", "function": {"name": "get_now", "description": "The time."}},
        ]
        answer = ask(stage.client, seed=1, tools=plain, tool_choice="required")
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_now", {})
        answer = parse(
            stage.client, seed=1, tools=tools(Booking), tool_choice="required", parallel_tool_calls=False
        )
        (parsed,) = answer.choices[0].message.tool_calls or []
        assert isinstance(parsed.function.parsed_arguments, Booking)

    def test_a_streamed_call_of_a_tool_adds_up_to_the_whole_one(self, stage: Stage) -> None:
        asked: Any = says(seed=4) | {"tools": tools(Booking, Weather), "tool_choice": "required"}
        whole = parse(stage.client, **asked).choices[0]
        assert whole.message.tool_calls
        with stage.client.chat.completions.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion().choices[0]
        assert kinds.count("tool_calls.function.arguments.done") == 1
        assert final.finish_reason == whole.finish_reason
        assert final.message.tool_calls
        assert final.message.tool_calls[0].function == whole.message.tool_calls[0].function
        _, events = raw_stream(stage.client, **asked)
        first, *_, last, done = events
        assert first["choices"][0]["delta"]["role"] == "assistant"
        assert first["choices"][0]["delta"].get("content") is None
        assert last["choices"][0]["finish_reason"] == "tool_calls"
        assert done == "[DONE]"
        assert {
            call["index"]
            for event in events[:-1]
            for call in event["choices"][0]["delta"].get("tool_calls", [])
        } == {0}

    def test_the_result_of_a_tool_goes_back_with_its_call(self, stage: Stage) -> None:
        shown: Any = tools(Weather)
        asked = says("How is the weather?", seed=1)
        first = ask(stage.client, **asked, tools=shown, tool_choice="required")
        message: Any = first.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": '{"rain": true}'}
        messages: Any = [*asked["messages"], message, result]
        answer = ask(stage.client, messages=messages, tools=shown, tool_choice="none", max_tokens=8)
        assert answer.choices[0].message.content
        assert answer.choices[0].message.tool_calls is None

    def test_a_call_cannot_be_left_to_a_model_without_a_tool_parser(self, stage: Stage) -> None:
        for fields in ({}, {"tool_choice": "auto"}):
            with pytest.raises(openai.BadRequestError, match="tool_parser") as refused:
                ask(stage.client, tools=tools(Weather), **fields)
            assert refused.value.param == "tool_choice"
        with pytest.raises(openai.BadRequestError, match="response_format") as both:
            ask(stage.client, response_format=FORMAT, tools=tools(Weather), tool_choice="required")
        assert both.value.param == "tools"


def _of_tags() -> Any:
    return {"type": "json_schema", "json_schema": {"name": "tags", "schema": TAGS_SCHEMA}}
