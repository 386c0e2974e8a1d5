"""From a request to its prompt, its constraint and its sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.schemas.bounded_templates import MAX_PROMPT_CHARACTERS
from headrace.schemas.errors import (
    InvalidField,
    InvalidSchema,
    MessageError,
    MissingVariable,
    TemplateFailed,
    UnknownField,
    UnsupportedField,
)
from headrace.schemas.messages import ChatMessage, JsonObject, Request, Sampling
from headrace.schemas.output_schema import OutputSchema
from headrace.schemas.package import Package, load_package
from headrace.schemas.prompt import (
    PromptTemplate,
    TemplateSource,
    calls_of,
    constraint_of,
    prompt_of,
    sampling_of,
)

TOOLS = [{"function": {"name": "f"}}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}


def template(text: str, input_schema: Any = None) -> PromptTemplate:
    source = TemplateSource("text", text, Path("package.toml"))
    return PromptTemplate([source], None if input_schema is None else OutputSchema.parse(input_schema))


def package(directory: Path, extra: str = "") -> Package:
    head = 'model = "m"\nversion = "1"\ncontract = 1\nweights = "org/name"\n'
    (directory / "package.toml").write_text(head + extra, encoding="utf-8")
    return load_package(directory)


def request(**fields: Any) -> Request:
    return Request(
        id="r", **(fields if fields.keys() & {"messages", "variables"} else {"prompt": "p", **fields})
    )


def test_text_and_messages_are_rendered(tmp_path: Path) -> None:
    assert template("About {{ title }}.\n").render({"title": "<b>&"}) == "About <b>&."
    chat = package(tmp_path, '[prompt]\nsystem = "Be {{ how }}."\nuser = "{{ title }}"\n')
    assert prompt_of(request(variables={"how": "brief", "title": "Alien"}), chat) == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Alien"),
    ]


def test_blocks_leave_no_empty_lines() -> None:
    assert (
        template("a\n{% if x %}\n  {% if x %}\nb\n  {% endif %}\n{% endif %}\nc").render({"x": "1"})
        == "a\nb\nc"
    )


def test_json_in_a_prompt_is_plain() -> None:
    rendered = template("{{ x | tojson }}", {}).render({"x": {"a": "<é>"}})
    assert rendered == '{"a": "<é>"}'


@pytest.mark.parametrize(
    ("text", "input_schema", "variables", "error", "path"),
    [
        ("{{ a }}{{ b }}", None, {"a": "1"}, MissingVariable, "/variables/b"),
        ("{{ a }}", None, {"a": "1", "c/d": "2"}, UnknownField, "/variables/c~1d"),
        ("{{ a }}", None, {"a": 1}, InvalidField, "/variables/a"),
        ("{{ a }}", {"required": ["a"]}, {}, MissingVariable, "/variables/a"),
        ("{{ a }}", {"properties": {"a": {"type": "string"}}}, {}, MissingVariable, "/variables/a"),
        ("{{ a }}", {"properties": {"a": {"type": "string"}}}, {"a": 1}, InvalidField, "/variables/a"),
        ("{{ a.b }}", {"properties": {"a": {"required": ["b"]}}}, {"a": {}}, InvalidField, "/variables/a"),
        ("{{ a }}", {"properties": {"b": {}}}, {"a": 1, "c": 1}, UnknownField, "/variables/c"),
        ("{{ a.b }}", {}, {"a": {}}, TemplateFailed, "/variables"),
    ],
)
def test_variables_that_do_not_fit_are_refused_with_their_place(
    text: str, input_schema: Any, variables: Any, error: type[MessageError], path: str
) -> None:
    with pytest.raises(error) as refusal:
        template(text, input_schema).render(variables)
    assert refusal.value.path == path


def test_a_variable_that_the_input_schema_makes_optional_may_be_absent() -> None:
    optional = template(
        "a{% if x is defined %}{{ x }}{% endif %}", {"properties": {"x": {"type": "integer"}}}
    )
    assert optional.render({}) == "a"
    assert optional.render({"x": 1}) == "a1"


def test_a_variable_that_only_the_input_schema_knows_is_no_error() -> None:
    assert template("a", {"properties": {"x": {}}}).render({"x": 1}) == "a"


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(n) %}x{% endfor %}",
        "{{ a * n }}",
        "{{ n * a }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ l * n }}",
        "{{ a.ljust(n) }}",
        "{{ a | center(n) }}",
        "{{ a | indent(width=n) }}",
        "{{ l | batch(n, a) | list }}",
        "{{ n ** n }}",
        "{{ f % 1 }}",
        "{% for i in range(100000) %}{{ a }}{{ a }}{{ a }}{{ a }}{{ a }}{{ a }}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ a.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ l.append(1) }}",
        "{{ 1 / 0 }}",
        "{% include 'x' %}",
        "{{ a.nope() }}",
        "   ",
        "{{ e }}",
    ],
)
def test_a_template_that_explodes_breaks_out_or_raises_fails_its_request_alone(text: str) -> None:
    compiled = template(text, {"properties": {name: {} for name in "aefln"}})
    variables = {"a": "xy", "e": "", "f": "%1000000000d", "l": [1], "n": 10**7}
    with pytest.raises(TemplateFailed) as failure:
        compiled.render(variables)
    assert failure.value.path == "/variables"


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in l %}{% for j in l %}{% endfor %}{% endfor %}a",
        "{% for i in l %}{% for j in l if i == j + 0.5 %}{% endfor %}{% endfor %}a",
        "{% for i in range(300) %}{% for j in range(1000) %}{% set k = j %}{% endfor %}{% endfor %}a",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}a{{ m(60) }}",
        "{% for i in l if -i not in l and -i - 0.5 not in l %}{% endfor %}a",
    ],
)
def test_a_template_that_would_run_for_hours_and_print_nothing_ends_soon(text: str) -> None:
    with pytest.raises(TemplateFailed, match="more than"):
        template(text, {"properties": {"l": {}}}).render({"l": list(range(1, 100_000))})


def test_loops_see_their_length_their_neighbours_and_their_branches_as_ever() -> None:
    loops = template(
        "{% for i in l %}{{ loop.index }}/{{ loop.length }}{{ loop.previtem if not loop.first }}"
        "{% if loop.last %}.{% endif %}{% else %}none{% endfor %} "
        "{% for k, v in d | dictsort %}{{ k }}{{ v }}{% endfor %} "
        "{% for i in t recursive %}({{ i.n }}{{ loop(i.t) }}){% endfor %}",
        {"properties": {}},
    )
    tree: list[JsonObject] = [{"n": 1, "t": [{"n": 2, "t": []}]}, {"n": 3, "t": []}]
    variables: JsonObject = {"l": ["x", "y"], "d": {"b": 2, "a": 1}, "t": tree}
    assert loops.render(variables) == "1/22/2x. a1b2 (1(2))(3)"
    assert loops.render({"l": [], "d": {}, "t": []}) == "none  "


def test_the_bound_is_on_all_messages_together() -> None:
    sources = [TemplateSource(role, "{{ a }}", Path("p")) for role in ("system", "user")]
    compiled = PromptTemplate(sources)
    assert compiled.render({"a": "x" * (MAX_PROMPT_CHARACTERS // 2)})
    with pytest.raises(TemplateFailed):
        compiled.render({"a": "x" * (MAX_PROMPT_CHARACTERS // 2 + 1)})


def test_a_template_renders_the_same_each_time() -> None:
    with pytest.raises(Exception, match="random"):
        template("{{ [1, 2] | random }}")


def test_messages_and_prompts_need_no_template(tmp_path: Path) -> None:
    bare = package(tmp_path)
    messages = [ChatMessage(role="user", content="hi")]
    assert prompt_of(request(messages=messages), bare) == messages
    assert prompt_of(request(), bare) == "p"
    with pytest.raises(UnsupportedField) as refusal:
        prompt_of(request(variables={}), bare)
    assert refusal.value.path == "/variables"


@pytest.mark.parametrize(
    "field",
    [
        {"tools": TOOLS},
        {"tool_choice": {"mode": "auto"}},
        {"reasoning": {"effort": "low"}},
    ],
)
def test_what_this_package_cannot_serve_is_refused_by_name(tmp_path: Path, field: Any) -> None:
    with pytest.raises(UnsupportedField) as refusal:
        prompt_of(request(**field), package(tmp_path))
    assert refusal.value.path == "/" + next(iter(field))


def test_tools_are_shown_to_the_model_and_none_is_called_that_no_output_schema_holds(tmp_path: Path) -> None:
    messages = [ChatMessage(role="user", content="hi")]
    shown = request(messages=messages, tools=TOOLS, tool_choice={"mode": "none"})
    assert prompt_of(shown, package(tmp_path)) == messages
    held = request(
        messages=messages,
        tools=TOOLS,
        tool_choice={"mode": "required"},
        output={"json_schema": {"type": "object"}},
    )
    assert prompt_of(held, package(tmp_path)) == messages
    for choice in (None, {"mode": "auto"}, {"mode": "named", "function": "f"}):
        with pytest.raises(UnsupportedField) as refusal:
            prompt_of(request(messages=messages, tools=TOOLS, tool_choice=choice), package(tmp_path))
        assert refusal.value.path == "/tool_choice"


def test_calls_are_left_to_the_model_where_its_package_has_a_tool_parser(tmp_path: Path) -> None:
    tooled = package(tmp_path, 'tool_parser = "hermes"\n')
    asked: dict[str, Any] = {"messages": [ChatMessage(role="user", content="hi")], "tools": TOOLS}
    held: dict[str, Any] = {"output": {"json_schema": {"type": "object"}}}
    for choice in (None, {"mode": "auto"}):
        assert prompt_of(request(**asked, tool_choice=choice), tooled) == asked["messages"]
        assert calls_of(request(**asked, tool_choice=choice), tooled) is not None
        with pytest.raises(UnsupportedField) as refusal:
            prompt_of(request(**asked, **held, tool_choice=choice), tooled)
        assert refusal.value.path == "/output"
    assert calls_of(request(**asked, tool_choice={"mode": "none"}), tooled) is None
    assert calls_of(request(**asked, **held, tool_choice={"mode": "required"}), tooled) is None
    assert calls_of(request(messages=asked["messages"]), tooled) is None
    with pytest.raises(UnsupportedField) as refusal:
        calls_of(request(**asked, tool_choice={"mode": "required"}), tooled)
    assert refusal.value.path == "/tool_choice"
    with pytest.raises(UnsupportedField) as refusal:
        calls_of(request(tools=TOOLS), tooled)
    assert refusal.value.path == "/tools"


def test_the_constraint_is_the_packages_or_the_requests_or_none(tmp_path: Path) -> None:
    bare = package(tmp_path)
    assert constraint_of(request(), bare) == (None, None)
    constraint, check = constraint_of(request(output={"choice": ["a"]}), bare)
    assert constraint is not None
    assert check is not None
    assert (constraint.choice, check.constraint) == (["a"], constraint)
    held = package(tmp_path, 'output = { type = "object", properties = { a = { type = "integer" } } }\n')
    assert constraint_of(request(), held) == (held.constraint, held.output_check)


def test_asking_for_any_object_is_asking_for_the_packages_where_all_of_those_are_objects(
    tmp_path: Path,
) -> None:
    held = package(tmp_path, 'output = { type = "object", properties = { a = { type = "integer" } } }\n')
    assert constraint_of(request(output={"json_object": True}), held) == (held.constraint, held.output_check)
    may_be_more = package(tmp_path, 'output = { properties = { a = { type = "integer" } } }\n')
    with pytest.raises(UnsupportedField):
        constraint_of(request(output={"json_object": True}), may_be_more)


def test_a_request_may_ask_for_the_packages_schema_again_and_for_nothing_else(tmp_path: Path) -> None:
    toml = (
        'output = { type = "object", properties = { a = { type = "integer" }, b = { type = "string" } } }\n'
    )
    held = package(tmp_path, toml)
    reordered = {"properties": dict(reversed(SCHEMA["properties"].items())), "type": "object"}
    for same in (SCHEMA, reordered):
        assert constraint_of(request(output={"json_schema": same}), held) == (
            held.constraint,
            held.output_check,
        )
    for other in ({"json_schema": {"type": "object"}}, {"regex": "a"}):
        with pytest.raises(UnsupportedField) as refusal:
            constraint_of(request(output=other), held)
        assert refusal.value.path == "/output"
    with pytest.raises(InvalidSchema) as invalid:
        constraint_of(request(output={"json_schema": {"items": {"type": 1}}}), package(tmp_path))
    assert invalid.value.path == "/output/json_schema/items/type"


def test_the_requests_sampling_is_laid_over_the_packages(tmp_path: Path) -> None:
    own = package(tmp_path, "[sampling]\nmax_tokens = 5\ntemperature = 0.5\n")
    assert sampling_of(request(), own) == Sampling(max_tokens=5, temperature=0.5)
    merged = sampling_of(request(sampling={"temperature": 0.0, "seed": 1}), own)
    assert merged == Sampling(max_tokens=5, temperature=0, seed=1)
