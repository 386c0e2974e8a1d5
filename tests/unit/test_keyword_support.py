"""The table of keywords is right about the validator; tests/engine has it tested against the backends."""

from __future__ import annotations

import pytest

from headrace.schemas.errors import OutputError
from headrace.schemas.keyword_sites import comes_out_raw, sites_of, with_javascript_dots
from headrace.schemas.keyword_support import SUPPORT, Support, support_table
from headrace.schemas.messages import JsonObject
from headrace.schemas.output_schema import OutputSchema

each_row = pytest.mark.parametrize("row", SUPPORT, ids=[row.name for row in SUPPORT])


@each_row
def test_a_row_recognises_its_own_example(row: Support) -> None:
    assert any(row.is_in(site) for site in sites_of(row.schema))


@each_row
def test_the_validator_takes_what_a_row_says_is_accepted_and_nothing_that_is_rejected(row: Support) -> None:
    schema = OutputSchema.parse(row.schema)
    schema.check(row.accepted)
    if row.forbidden is not None:
        schema.check(row.forbidden)
    with pytest.raises(OutputError):
        schema.check(row.rejected)


@each_row
def test_a_row_that_narrows_shows_what_is_forbidden(row: Support) -> None:
    assert ("narrowed" in (row.xgrammar, row.guidance)) == (row.forbidden is not None)


@each_row
def test_a_row_names_the_keywords_to_give_up_where_a_backend_does_not_hold_them(row: Support) -> None:
    if {"ignored", "refused"} & {row.xgrammar, row.guidance}:
        assert set(row.keywords) & {keyword for site in sites_of(row.schema) for keyword in site.schema}


def test_the_table_has_a_line_for_every_row_and_no_name_twice() -> None:
    table = support_table()
    assert len(table) == len(SUPPORT)
    assert len({name for name, *_ in table}) == len(table)


def test_definitions_that_nothing_refers_to_are_no_sites() -> None:
    schema: JsonObject = {"$defs": {"A": {"not": {}}, "B": {"type": "null"}}, "items": {"$ref": "#/$defs/B"}}
    assert {site.pointer for site in sites_of(schema)} == {"", "/items", "/$defs/B"}


def test_what_a_reference_leads_to_below_an_unknown_keyword_is_a_site() -> None:
    places = {site.pointer for site in sites_of({"thing": {"not": {}}, "items": {"$ref": "#/thing"}})}
    assert "/thing" in places


def test_a_dot_and_brackets_in_a_class_get_javascripts_meaning() -> None:
    assert with_javascript_dots(r"^a.\.[.a]$") == r"^a[^\n\r\u2028\u2029]\.[.a]$"
    assert with_javascript_dots("[[:alpha:]]") == r"[\[:alpha:]]"
    assert with_javascript_dots(r"[\]&&a]") == r"[\]\&\&a]"


@pytest.mark.parametrize("pattern", ['"', r"\\", r"\n", r"\x1f", "(?!a)", "a(^b)", r"\u0022", r"\u005c"])
def test_a_pattern_that_xgrammar_may_write_raw_is_seen(pattern: str) -> None:
    assert comes_out_raw(pattern)


@pytest.mark.parametrize(
    "pattern", ["^[a-z]+$", r"^\d{4}-\w$", "^(?:a|b)$", "[^a]", r"\.", r"[^\x00-\x1f]{1,3}"]
)
def test_a_plain_pattern_is_not_held_for_raw(pattern: str) -> None:
    assert not comes_out_raw(pattern)
