"""From a table's row to what is asked, and from its result to what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai_parts import a_failed_result, a_result, an_output

from headrace.producers.backfill.contract_view import ContractView
from headrace.producers.backfill.failures import JobInvalid
from headrace.producers.backfill.job import job_of
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.rows import RowMapping
from headrace.schemas.contract import Contract
from headrace.schemas.errors import InvalidField, MessageError, MissingVariable, TemplateFailed
from headrace.schemas.messages import JsonObject, Request

FILM: JsonObject = {
    "Title": "Heat",
    "Release Date": "Dec 15 1995",
    "year": 1995,
    "votes": "12",
    "score": None,
}
COLUMNS = tuple(FILM)
VARIABLES: JsonObject = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 1},
        "year": {"type": "string", "pattern": "^[0-9]{4}$"},
        "votes": {"type": "integer"},
        "score": {"$ref": "#/$defs/score"},
    },
    "required": ["title", "year"],
    "additionalProperties": False,
    "$defs": {"score": {"type": "number"}},
}
OBJECT: JsonObject = {"type": "object"}
TITLE = {"title": "Title"}


def a_view(variables: Any = VARIABLES, output: Any = None) -> ContractView:
    contract = Contract("tagger", 1, variables, output)
    known = frozenset(variables["properties"]) if variables else None
    return ContractView(contract, "frozen", known, has_tool_parser=False, max_model_len=None)


def a_mapping(
    view: ContractView | None = None, columns: tuple[str, ...] = COLUMNS, **fields: Any
) -> RowMapping:
    job = job_of({"model": "tagger", "input": "a.csv", "output": "b.parquet", **fields}, Path("/work"))
    return RowMapping(job, view or a_view(), columns)


def asked(row: JsonObject | None = None, **fields: Any) -> JsonObject:
    """What is asked about a row, which is a Request's."""
    found = a_mapping(**fields).request_of(FILM | (row or {}))
    Request.model_validate(found | {"id": "1"})
    return found


# --- variables ------------------------------------------------------------------------------------------------


def test_variables_come_from_the_columns_of_their_names_unless_the_job_says_otherwise() -> None:
    variables = asked(variables=TITLE)["variables"]
    assert variables == {"title": "Heat", "year": "1995", "votes": 12}
    assert type(variables["votes"]) is int


def test_a_variable_can_be_a_template_over_the_row_and_over_its_columns() -> None:
    year = "{{ row['Release Date'][-4:] }}"
    variables = {
        "title": "{{ Title | upper }} ({{ row.year }})",
        "year": year,
        "votes": "{{ 3 * 4 }}",
        "score": 8.5,
    }
    assert asked(variables=variables)["variables"] == {
        "title": "HEAT (1995)", "year": "1995", "votes": 12, "score": 8.5,
    }  # fmt: skip


def test_a_column_whose_name_looks_like_a_template_is_a_column() -> None:
    mapping = a_mapping(columns=("{{ a }}", "year"), variables={"title": "{{ a }}"})
    assert mapping.request_of({"{{ a }}": "Heat", "year": 1995})["variables"]["title"] == "Heat"


@pytest.mark.parametrize(
    ("year", "becomes"),
    [(1995, "1995"), (1995.0, "1995"), ("1995", "1995")],
)
def test_a_year_is_a_text_however_the_table_has_it(year: Any, becomes: str) -> None:
    assert asked({"year": year}, variables=TITLE)["variables"]["year"] == becomes


@pytest.mark.parametrize(
    ("value", "becomes"),
    [(0.0, "0"), (-0.0, "-0.0"), (6.1, "6.1"), (1e22, "1e+22"), (True, "true"), (10**30, "1" + "0" * 30)],
)
def test_a_number_becomes_the_text_that_reads_back_to_it(value: Any, becomes: str) -> None:
    assert asked({"Title": value}, variables=TITLE)["variables"]["title"] == becomes


@pytest.mark.parametrize("votes", ["12.5", "012", "1e3", " 12", "true", True, 0.5])
def test_what_a_coercion_would_change_is_left_for_the_schema_to_refuse(votes: Any) -> None:
    with pytest.raises(InvalidField, match="the column 'votes': type: ") as raised:
        asked({"votes": votes}, variables=TITLE)
    assert raised.value.path == "/variables/votes"


def test_a_null_is_left_out_where_the_variable_may_be_absent() -> None:
    assert "score" not in asked({"score": None}, variables=TITLE)["variables"]
    assert asked({"score": "0.5"}, variables=TITLE)["variables"]["score"] == 0.5


def test_a_null_or_an_absent_column_where_the_variable_is_required_is_a_reject_that_names_it() -> None:
    mapping = a_mapping(variables=TITLE)
    for row in (FILM | {"Title": None}, {"year": 1995}):
        with pytest.raises(
            MissingVariable, match="the column 'Title' is null, and the variable 'title' is"
        ) as raised:
            mapping.request_of(row)
        assert raised.value.path == "/variables/title"


def test_a_null_goes_through_where_the_schema_names_it() -> None:
    variables = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}
    mapping = a_mapping(a_view(variables), ("a",))
    assert mapping.request_of({"a": None}) == {"variables": {"a": None}}


def test_a_row_that_the_variables_schema_refuses_is_refused_here_with_the_column() -> None:
    with pytest.raises(InvalidField, match="the column 'year': pattern") as raised:
        asked({"year": 95}, variables=TITLE)
    assert raised.value.path == "/variables/year"
    with pytest.raises(InvalidField, match="the template of 'year': pattern"):
        asked(variables=TITLE | {"year": "{{ Title }}"})


def test_a_template_that_fails_or_prints_a_null_is_a_reject_that_names_its_variable() -> None:
    for template, why in (
        ("{{ score }}", "it prints a null"),
        ("{{ row['score'][-4:] }}", "NoneType"),
        ("{{ 'x' * 2000000 }}", "a repetition"),
    ):
        with pytest.raises(TemplateFailed, match=f"the template of 'title': .*{why}") as raised:
            asked(variables={"title": template})
        assert raised.value.path == "/variables/title"
    assert asked(variables={"title": "{{ score or 'none' }}"})["variables"]["title"] == "none"


# --- prompts and messages -------------------------------------------------------------------------------------------


def test_a_prompt_is_a_text_and_with_a_system_turn_a_conversation() -> None:
    free = a_view(None)
    assert asked(view=free, prompt="Tag {{ Title }}") == {"prompt": "Tag Heat"}
    assert asked(view=free, prompt="Tag {{ Title }}", system="You tag.") == {
        "messages": [{"role": "system", "content": "You tag."}, {"role": "user", "content": "Tag Heat"}]
    }
    turns = [{"role": "user", "content": "{{ Title }}?"}, {"role": "assistant", "content": "A film."}]
    assert asked(view=free, messages=turns)["messages"][0] == {"role": "user", "content": "Heat?"}


def test_an_empty_prompt_is_a_reject() -> None:
    with pytest.raises(TemplateFailed, match="an empty text") as raised:
        asked({"Title": " "}, view=a_view(None), prompt="{{ Title }}")
    assert raised.value.path == "/prompt"
    with pytest.raises(MessageError) as raised_in_turn:
        asked({"Title": " "}, view=a_view(None), prompt="{{ Title }}", system="x")
    assert raised_in_turn.value.path == "/messages/1/content"


def test_what_is_the_same_for_all_rows_goes_with_each() -> None:
    found = asked(
        view=a_view(None), prompt="{{ Title }}", output_schema=OBJECT, sampling={"max_tokens": 5},
        tenant="films", attributes={"for": "test"},
    )  # fmt: skip
    assert found == {
        "prompt": "Heat", "sampling": {"max_tokens": 5}, "output": {"json_schema": OBJECT}, "tenant": "films",
        "attributes": {"for": "test"},
    }  # fmt: skip


# --- what no row could be asked with --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, r"variables: tagger@1 needs the variable 'title'.*title = \"Title\"\. Columns: 'Title', 'Release Date'"),
        ({"variables": {"titel": "Title"}}, "variables.titel: tagger@1 has no such variable; did you mean 'title'"),
        ({"variables": {"title": "titl"}}, "variables.title: there is no column 'titl'; did you mean 'Title'"),
        ({"variables": {"title": "Zzz"}}, "there is no column 'Zzz'; there are 'Title', 'Release Date', 'year', 'vot"),
        ({"variables": {"title": "{{ Titel }}"}}, "the template uses 'Titel', which is no column; did you mean 'Tit"),
        ({"variables": {"title": "{{ row['Titel'] }}"}}, "variables.title: the template uses 'Titel', which is no c"),
        ({"variables": {"title": "{{ row.Titel }}"}}, "the template uses 'Titel', which is no column"),
        ({"variables": {"title": "{{ a"}}, "variables.title: the template is not Jinja2"),
        ({"prompt": "Tag {Title}"}, "prompt: uses no column, so that every row would be asked the same"),
        ({"view": a_view(None)}, "tagger@1 has no prompt template, and so no variables: give prompt or messages"),
        (
            {"view": a_view(output=OBJECT), "variables": TITLE, "output_schema": True},
            "output_schema: all outputs of tagger@1 are held to its own output schema",
        ),
    ],
)  # fmt: skip
def test_what_no_row_could_be_asked_with_is_told_before_anything_is_sent(fields: Any, said: str) -> None:
    with pytest.raises(JobInvalid, match=said.replace("(", r"\(").replace("{", r"\{")) as raised:
        a_mapping(**fields)
    assert raised.value.exit_code == 2


# --- the digest -----------------------------------------------------------------------------------------------


def test_the_digest_is_of_what_decides_what_is_asked_and_of_nothing_else() -> None:
    same = a_mapping(variables=TITLE).digest
    assert same == a_mapping(variables=TITLE, tenant="a", attributes={"a": "b"}, token_budget=5).digest
    assert same == a_mapping(variables=TITLE | {"year": "year"}).digest
    assert same == a_mapping(a_view(output=OBJECT), columns=(*COLUMNS, "more"), variables=TITLE).digest
    others = {
        a_mapping(variables={"title": "year"}).digest,
        a_mapping(variables=TITLE, sampling={"seed": 1}).digest,
        a_mapping(variables=TITLE, output_schema=OBJECT).digest,
        a_mapping(variables=TITLE | {"votes": 5}).digest,
        a_mapping(prompt="{{ Title }}").digest,
        a_mapping(prompt="{{ Title }}", system="x").digest,
    }
    assert len(others | {same}) == 7


# --- what became of it ----------------------------------------------------------------------------------------


def test_an_outcome_has_the_value_the_tokens_and_who_made_it() -> None:
    result = a_result(an_output('{"a": 1}', value={"a": 1}), id="tags.0.1.ab")
    assert a_mapping(variables=TITLE).outcome_of(result) == Outcome(
        "ok", {"a": 1}, None, None, 12, 5, "3", "tags.0.1.ab"
    )


def test_an_output_without_a_value_is_parsed_where_it_is_held_to_a_schema_and_a_text_elsewhere() -> None:
    text, null = a_result(an_output('{"a": 1}')), a_result(an_output("null"))
    free, held = a_mapping(variables=TITLE), a_mapping(a_view(output=OBJECT), variables=TITLE)
    asked_for = a_mapping(variables=TITLE, output_schema=OBJECT)
    assert free.outcome_of(text).value == '{"a": 1}'
    assert held.outcome_of(text).value == asked_for.outcome_of(text).value == {"a": 1}
    assert held.outcome_of(null).value is None
    broken = held.outcome_of(a_result(an_output('{"a": ')))
    assert (broken.status, broken.code, broken.value) == ("invalid_output", "not_json", None)


def test_what_went_wrong_is_said_with_its_place() -> None:
    mapping = a_mapping(variables=TITLE)
    failed = mapping.outcome_of(a_failed_result("rejected", "invalid_field", "too long", "/variables/title"))
    assert (failed.status, failed.code, failed.error) == (
        "rejected", "invalid_field", "too long (at /variables/title)",
    )  # fmt: skip
    assert failed.value is None
    expired = mapping.outcome_of(a_result(status="expired", outputs=[]))
    assert (expired.code, expired.error) == ("expired", "the request ended as expired")
