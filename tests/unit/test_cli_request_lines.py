"""Lines of a JSONL file as requests: where the id comes from, and what a wrong line says."""

from __future__ import annotations

import json

import pytest

from headrace.ops.cli.request_lines import read_line
from headrace.schemas.errors import InvalidField, Undecodable
from headrace.schemas.messages import Request

FILM = {"key": "film-17", "title": "Heat", "year": 1995}


def line_of(given: object) -> bytes:
    return json.dumps(given).encode()


def test_a_field_of_the_variables_can_be_the_id_and_is_then_no_variable() -> None:
    line = read_line(1, line_of(FILM), True, "key")
    assert isinstance(line.request, Request)
    assert line.request.id == "film-17"
    assert line.request.variables == {"title": "Heat", "year": 1995}
    assert not line.id_is_new


def test_an_integer_can_be_the_id() -> None:
    line = read_line(1, line_of(FILM), True, "year")
    assert isinstance(line.request, Request)
    assert line.request.id == "1995"


def test_without_an_id_field_every_field_is_a_variable() -> None:
    line = read_line(1, line_of(FILM), True)
    assert isinstance(line.request, Request)
    assert line.request.variables == FILM
    assert line.id_is_new


@pytest.mark.parametrize("value", [True, None, 1.5, ["a"]])
def test_an_id_that_is_none_names_its_field(value: object) -> None:
    line = read_line(3, line_of({"title": "Heat", "key": value}), True, "key")
    assert isinstance(line.request, InvalidField)
    assert line.request.path == "/key"


def test_what_is_not_json_is_said_once_and_where() -> None:
    line = read_line(2, b'{"title": }', True)
    assert isinstance(line.request, Undecodable)
    assert str(line.request) == "not JSON: Expecting value (at byte 10)"
