"""Answers that are held to something: a schema of the call's, one of the contract's, or a tool's."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from conformance.http_parts import (
    BADLY,
    TAGGED,
    TOOLED,
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

    # --- tools that the model calls by itself ------------------------------------------------------------

    def test_the_model_calls_a_tool_where_its_package_has_a_tool_parser(self, stage: Stage) -> None:
        for fields in ({}, {"tool_choice": "auto"}):
            answer = parse(stage.client, **_left("Ask Weather."), **fields)
            (only,) = answer.choices
            assert only.finish_reason == "tool_calls"
            assert only.message.content == "I look it up.\n"
            (call,) = only.message.tool_calls or []
            assert (call.type, call.function.name) == ("function", "Weather")
            assert isinstance(call.function.parsed_arguments, Weather)
        request = stage.seen.request(id_of(answer))[2]
        assert request.tool_choice is not None
        assert (request.tool_choice.mode, request.output) == ("auto", None)
        result = stage.seen.result(request.id)
        assert [each.id for each in result.outputs[0].tool_calls or []] == [call.id]
        assert (result.outputs[0].text, result.outputs[0].finish_reason) == ("I look it up.\n", "tool_calls")

    def test_it_may_call_several_and_is_kept_to_one_where_the_caller_says_so(self, stage: Stage) -> None:
        asked = _left("Ask Weather and Booking.")
        both = parse(stage.client, **asked).choices[0].message.tool_calls or []
        assert [type(call.function.parsed_arguments) for call in both] == [Booking, Weather]
        assert len({call.id for call in both}) == 2
        (one,) = parse(stage.client, **asked, parallel_tool_calls=False).choices[0].message.tool_calls or []
        assert one.function == both[0].function

    def test_it_may_call_none(self, stage: Stage) -> None:
        (only,) = ask(stage.client, **_left("Good morning.")).choices
        assert only.message.content
        assert only.message.tool_calls is None
        assert only.finish_reason in ("stop", "length")

    def test_calls_that_are_streamed_add_up_to_the_whole_ones(self, stage: Stage) -> None:
        asked: Any = _left("Ask Weather and Booking.")
        whole = ask(stage.client, **asked).choices[0]
        calls: list[Any] = list(whole.message.tool_calls or [])
        with stage.client.chat.completions.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion().choices[0]
        assert kinds.count("tool_calls.function.arguments.done") == len(calls) == 2
        assert (final.message.content, final.finish_reason) == (whole.message.content, "tool_calls")
        found = [(call.function.name, call.function.arguments) for call in final.message.tool_calls or []]
        assert found == [(call.function.name, call.function.arguments) for call in calls]
        _, events = raw_stream(stage.client, **asked)
        *chunks, done = events
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0]["role"] == "assistant"
        assert [call["index"] for delta in deltas for call in delta.get("tool_calls", [])] == [0, 1]
        assert (chunks[-1]["choices"][0]["finish_reason"], done) == ("tool_calls", "[DONE]")

    def test_an_answer_without_a_call_is_streamed_too(self, stage: Stage) -> None:
        asked: Any = _left("Good morning.")
        whole = ask(stage.client, **asked).choices[0]
        chunks = list(streamed(stage.client, **asked))
        assert text_of(chunks) == whole.message.content
        assert chunks[-1].choices[0].finish_reason == whole.finish_reason
        assert not any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)

    @pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 2, "temperature": 1.0}])
    def test_a_call_that_its_tool_does_not_take_is_an_error(
        self, stage: Stage, fields: dict[str, Any]
    ) -> None:
        with pytest.raises(openai.UnprocessableEntityError, match="/tool_calls/0/arguments") as wrong:
            ask(stage.client, **_left(f"Ask Weather {BADLY}."), **fields)
        assert (wrong.value.code, wrong.value.param) == ("schema_violated", "tools")

    def test_a_call_that_is_cut_off_is_an_error(self, stage: Stage) -> None:
        with pytest.raises(openai.UnprocessableEntityError, match="amid a call") as cut:
            ask(stage.client, **_left("Ask Weather.", max_tokens=15))
        assert (cut.value.code, cut.value.param) == ("truncated", "max_tokens")

    def test_the_result_of_a_call_goes_back_and_the_model_may_call_again(self, stage: Stage) -> None:
        asked = _left("Ask Weather.")
        message: Any = ask(stage.client, **asked).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": '{"rain": true}'}
        messages: Any = [*says("Ask Weather.")["messages"], message, result]
        answer = ask(stage.client, **asked | {"messages": messages, "max_tokens": 8})
        assert answer.choices[0].message.tool_calls is None
        again = {"role": "user", "content": "Ask Booking."}
        (call,) = (
            ask(stage.client, **asked | {"messages": [*messages, again]}).choices[0].message.tool_calls or []
        )
        assert call.type == "function"
        assert call.function.name == "Booking"

    def test_beside_it_a_call_can_still_be_demanded_or_forbidden(self, stage: Stage) -> None:
        asked = _left("Ask Weather.")
        forced = parse(stage.client, **asked, tool_choice="required").choices[0]
        assert len(forced.message.tool_calls or []) == 1
        none = ask(stage.client, **asked | {"max_tokens": 8}, tool_choice="none").choices[0]
        assert none.message.tool_calls is None
        with pytest.raises(openai.BadRequestError) as both:
            ask(stage.client, **asked, response_format=FORMAT)
        assert both.value.param == "tools"

    def test_parameters_that_are_no_schema_are_refused_with_their_place(self, stage: Stage) -> None:
        function = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "int"}}}}
        with pytest.raises(openai.BadRequestError) as wrong:
            ask(stage.client, model=TOOLED, tools=[{"type": "function", "function": function}])
        assert wrong.value.param == "tools[0].function.parameters.properties.at.type"


def _left(text: str, **fields: Any) -> Any:
    """The arguments of a call that leaves it to the model whether it calls a tool; it calls those that are named."""
    return says(text, model=TOOLED, seed=1, max_tokens=250, tools=tools(Booking, Weather)) | fields


def _of_tags() -> Any:
    return {"type": "json_schema", "json_schema": {"name": "tags", "schema": TAGS_SCHEMA}}
