"""The calls that a model makes by itself, from what it wrote to the result."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from hook_desk import Desk
from packages import a_package
from serving_parts import Sent, a_work

from headrace.schemas.codec import Codec
from headrace.schemas.errors import InvalidField, InvalidSchema, OutputError, PackageError
from headrace.schemas.messages import Reply, Tool
from headrace.schemas.tool_calls import ToolCallCheck
from headrace.workers import vllm_parser_names
from headrace.workers.answers import Served
from headrace.workers.cancels import Cancels
from headrace.workers.engine import FoundCall, GeneratedChoice, PartedText
from headrace.workers.replying import ReplySender
from headrace.workers.serving import Serving, judge
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile
from headrace.workers.simulated_failures import Failure

AT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 9}
LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {"at": AT},
    "required": ["at"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "look", "parameters": LOOK}},
    {"type": "function", "function": {"name": "wait"}},
]
PARSER = 'tool_parser = "hermes"'


def check(*tools: dict[str, Any]) -> ToolCallCheck:
    return ToolCallCheck([Tool.model_validate(tool) for tool in tools or TOOLS])


def call(name: str, arguments: str) -> FoundCall:
    return FoundCall("c", name, arguments)


# --- the check ------------------------------------------------------------------------------------------------------


def test_calls_of_the_tools_with_arguments_that_they_take_are_held() -> None:
    check().check([call("look", '{"at": 3}'), call("wait", "{}"), call("look", '{"at":9}')])
    check({"function": {"name": "any", "parameters": {}}}).check([call("any", '{"a": [1]}')])


@pytest.mark.parametrize(
    ("name", "arguments", "code", "path"),
    [
        ("lok", '{"at": 3}', "schema_violated", "/tool_calls/1/name"),
        ("", "{}", "schema_violated", "/tool_calls/1/name"),
        ("look", '{"at": 10}', "schema_violated", "/tool_calls/1/arguments/at"),
        ("look", "{}", "schema_violated", "/tool_calls/1/arguments"),
        ("look", '{"at": 3, "by": 1}', "schema_violated", "/tool_calls/1/arguments"),
        ("wait", '{"at": 3}', "schema_violated", "/tool_calls/1/arguments"),
        ("look", "[3]", "schema_violated", "/tool_calls/1/arguments"),
        ("look", '"at"', "schema_violated", "/tool_calls/1/arguments"),
        ("look", "", "not_json", "/tool_calls/1/arguments"),
        ("look", '{"at": 3', "not_json", "/tool_calls/1/arguments"),
        ("look", '{"at": 3, "at": 4}', "not_json", "/tool_calls/1/arguments/at"),
        ("look", '{"at": 1e999}', "not_json", "/tool_calls/1/arguments/at"),
        ("wait", "null", "schema_violated", "/tool_calls/1/arguments"),
    ],
)
def test_any_other_call_is_refused_with_its_place(name: str, arguments: str, code: str, path: str) -> None:
    with pytest.raises(OutputError) as wrong:
        check().check([call("wait", "{}"), call(name, arguments)])
    assert (wrong.value.code, wrong.value.path) == (code, path)


@pytest.mark.parametrize(
    ("parameters", "error", "path"),
    [
        ({"type": "array"}, InvalidSchema, "/tools/1/function/parameters/type"),
        ({"type": "strin"}, InvalidSchema, "/tools/1/function/parameters/type"),
        ({"properties": {"a": {"type": 1}}}, InvalidSchema, "/tools/1/function/parameters/properties/a/type"),
        ({"$ref": "https://example.org/a"}, InvalidSchema, "/tools/1/function/parameters"),
    ],
)
def test_parameters_that_are_no_schema_of_an_object_are_refused(
    parameters: dict[str, Any], error: type[Exception], path: str
) -> None:
    with pytest.raises(error) as wrong:
        check(TOOLS[0], {"function": {"name": "more", "parameters": parameters}})
    assert isinstance(wrong.value, InvalidSchema)
    assert (wrong.value.path or "").startswith(path)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidField) as wrong:
        check(TOOLS[0], TOOLS[0])
    assert wrong.value.path == "/tools/1/function/name"


# --- one choice -----------------------------------------------------------------------------------------------------


def judged(parted: PartedText, finish: Any = "stop") -> Any:
    text = "Wait. <tool_call>as it was written"
    return judge(GeneratedChoice(text, finish, 5, parted=parted), None, calls=check())


def test_calls_that_hold_are_published_with_what_is_said_beside_them() -> None:
    found = judged(PartedText("Wait.", [call("look", '{"at": 3}')]))
    assert (found.status, found.error) == ("ok", None)
    assert (found.output.text, found.output.finish_reason) == ("Wait.", "tool_calls")
    (made,) = found.output.tool_calls
    assert (made.id, made.function.name, made.function.arguments) == ("c", "look", '{"at": 3}')


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_text_without_a_call_is_an_answer(finish: str) -> None:
    found = judged(PartedText("Wait."), finish)
    assert (found.status, found.output.text, found.output.finish_reason) == ("ok", "Wait.", finish)
    assert found.output.tool_calls is None


@pytest.mark.parametrize("parted", [PartedText("", unread=True), PartedText("", [call("look", '{"at": 3}')])])
def test_what_is_cut_off_amid_its_calls_is_truncated_and_no_call_of_it_is_published(
    parted: PartedText,
) -> None:
    found = judged(parted, "length")
    assert (found.status, found.error.code, found.error.path) == (
        "truncated",
        "truncated",
        "/sampling/max_tokens",
    )
    assert found.output.tool_calls is None


@pytest.mark.parametrize(
    ("parted", "code", "path"),
    [
        (PartedText("", unread=True), "not_json", "/tool_calls/0"),
        (PartedText("", [call("wait", "{}")], unread=True), "not_json", "/tool_calls/1"),
        (PartedText("", [call("lok", "{}")]), "schema_violated", "/tool_calls/0/name"),
        (
            PartedText("", [call("wait", "{}"), call("look", "{}")]),
            "schema_violated",
            "/tool_calls/1/arguments",
        ),
    ],
)
def test_a_call_that_does_not_hold_makes_the_output_invalid_and_shows_what_was_written(
    parted: PartedText, code: str, path: str
) -> None:
    found = judged(parted)
    assert (found.status, found.error.code, found.error.path) == ("invalid_output", code, path)
    assert (found.output.text, found.output.finish_reason) == ("Wait. <tool_call>as it was written", "stop")
    assert found.output.tool_calls is None


@pytest.mark.parametrize(("finish", "code"), [("error", "constraint_error"), ("abort", "aborted")])
def test_a_generation_that_failed_has_failed(finish: str, code: str) -> None:
    found = judged(PartedText("", [call("wait", "{}")]), finish)
    assert (found.status, found.error.code) == ("failed", code)


# --- a request on the simulated engine ------------------------------------------------------------------------------


def asked(text: str = "Please look.", **fields: Any) -> str:
    return json.dumps(
        {
            "id": "a",
            "messages": [{"role": "user", "content": text}],
            "tools": TOOLS,
            "sampling": {"max_tokens": 90},
        }
        | fields
    )


def serve(
    directory: Path, value: str, *failures: Failure, extra: str = PARSER, stream: bool = False
) -> tuple[Served, list[Reply]]:
    engine = SimulatedEngine(SimulatedProfile(time_scale=0, max_model_len=512))
    for failure in failures:
        engine.script.fail_next(failure)
    sent = Sent()
    replies = ReplySender(sent, Codec(), model="tagger")

    async def run() -> Served:
        await engine.start()
        serving = Serving(
            package=a_package(directory, extra=extra), engine=engine, replies=replies, cancels=Cancels()
        )
        return await serving.serve(a_work(value, stream=stream))

    served = asyncio.run(run())
    replies.stop()
    replies.run()
    return served, sent.deltas()


@pytest.mark.parametrize("fields", [{}, {"tool_choice": {"mode": "auto"}}])
def test_a_tool_is_called_where_it_is_left_to_the_model(tmp_path: Path, fields: dict[str, Any]) -> None:
    served, _ = serve(tmp_path, asked(**fields))
    assert (served.status, served.error) == ("ok", None)
    (output,) = served.outputs
    assert (output.text, output.finish_reason) == ("I look it up.\n", "tool_calls")
    (made,) = output.tool_calls or []
    assert made.function.name == "look"
    assert 1 <= json.loads(made.function.arguments)["at"] <= 9
    assert (served.output_schema_digest, served.tier) == (None, None)
    assert serve(tmp_path, asked(**fields))[0].outputs == served.outputs, "the same for the same prompt"


def test_a_text_is_an_answer_where_no_tool_is_called(tmp_path: Path) -> None:
    served, _ = serve(tmp_path, asked("Good morning."))
    assert (served.status, served.outputs[0].tool_calls) == ("ok", None)
    assert served.outputs[0].text


def test_nothing_of_it_leaves_before_it_is_checked(tmp_path: Path) -> None:
    for text in ("Please look.", "Good morning."):
        served, deltas = serve(tmp_path, asked(text, stream=True), stream=True)
        assert (served.status, deltas) == ("ok", [])


def test_an_invalid_call_is_tried_again_and_then_is_an_invalid_output(tmp_path: Path) -> None:
    twice = f"{PARSER}\nmax_attempts = 2"
    served, _ = serve(tmp_path, asked(), "invalid_output", extra=twice)
    assert (served.status, served.attempt) == ("ok", 2)
    served, _ = serve(tmp_path, asked(), "invalid_output", "invalid_output", extra=twice)
    assert (served.status, served.attempt) == ("invalid_output", 2)
    assert served.error is not None
    assert (served.error.code, served.error.path) == ("schema_violated", "/tool_calls/0/arguments")


def test_a_call_that_max_tokens_cuts_off_is_truncated(tmp_path: Path) -> None:
    seen: set[str] = set()
    for max_tokens in range(1, 20):
        served, _ = serve(tmp_path, asked(sampling={"max_tokens": max_tokens}))
        seen.add(served.status)
        (output,) = served.outputs
        if served.status == "truncated":
            assert "<tool_call>".startswith(output.text.removeprefix("I look it up.\n")[:11])
        elif output.tool_calls is None:
            assert (served.status, output.finish_reason) == ("ok", "length")
            assert "I look it up.\n".startswith(output.text)
    assert seen == {"ok", "truncated"}


def test_what_is_wrong_with_the_tools_is_told_before_anything_is_generated(tmp_path: Path) -> None:
    wrong = [{"function": {"name": "look", "parameters": {"type": "strin"}}}]
    served, _ = serve(tmp_path, asked(tools=wrong))
    assert (served.status, served.error and served.error.path) == (
        "rejected",
        "/tools/0/function/parameters/type",
    )
    served, _ = serve(tmp_path, asked(), extra="")
    assert (served.status, served.error and served.error.path) == ("rejected", "/tool_choice")
    assert served.error is not None
    assert "no tool_parser" in served.error.message


# --- hooks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "status"), [(5, "ok"), (50, "invalid_output")])
def test_calls_that_a_hook_has_changed_are_held_as_well(tmp_path: Path, at: int, status: str) -> None:
    code = f"""
    class Own:
        def after(self, result):
            (output,) = result.outputs
            (call,) = output.tool_calls
            function = call.function.model_copy(update={{"arguments": '{{"at": {at}}}'}})
            calls = [call.model_copy(update={{"function": function}})]
            return result.model_copy(update={{"outputs": [output.model_copy(update={{"tool_calls": calls}})]}})
    """
    served = Desk(tmp_path, dedent(code), extra=PARSER).serve(asked())
    assert served.status == status
    assert (served.error and served.error.path) == (None if status == "ok" else "/tool_calls/0/arguments/at")


# --- names of parsers -----------------------------------------------------------------------------------------------


def test_the_parsers_of_an_installed_vllm_are_read_from_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = a_package(tmp_path / "package", extra='tool_parser = "hermess"')
    origin: list[str] = []

    def find_spec(_: str) -> object | None:
        return SimpleNamespace(origin=origin[0]) if origin else None

    monkeypatch.setattr(vllm_parser_names.importlib.util, "find_spec", find_spec)
    vllm_parser_names.check_package(package)  # nothing can be said
    vllm = tmp_path / "vllm"
    (vllm / "tool_parsers").mkdir(parents=True)
    (vllm / "tool_parsers" / "__init__.py").write_text(
        '_TOOL_PARSERS_TO_REGISTER = {\n    "hermes": ("a", "B"),  # Hermes\n    "jamba": ("c", "D"),\n}\n'
    )
    origin.append(str(vllm / "__init__.py"))
    assert vllm_parser_names.listed("tool_parser") == ["hermes", "jamba"]
    assert vllm_parser_names.listed("reasoning_parser") is None
    with pytest.raises(
        PackageError, match=r"package.toml:5: tool_parser: vLLM has no tool parser 'hermess'; did you"
    ):
        vllm_parser_names.check_package(package)
    vllm_parser_names.check_package(replace(package, tool_parser="jamba"))
    (vllm / "tool_parsers" / "__init__.py").write_text("# another way to list them\n")
    vllm_parser_names.check_package(package)
