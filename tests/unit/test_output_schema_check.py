"""The check of every kind of constraint."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schemas.errors import InvalidSchema, OutputError, OutputNotJson, SchemaTooComplex
from headrace.schemas.messages import OutputConstraint
from headrace.schemas.output_schema import MAX_GRAMMAR_BYTES, OutputCheck, OutputSchema

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def check(**constraint: Any) -> OutputCheck:
    return OutputCheck(OutputConstraint(**constraint))


@pytest.mark.parametrize(
    ("constraint", "text", "value"),
    [
        ({"json_schema": SCHEMA}, '{"n": 1}', {"n": 1}),
        ({"json_schema": True}, "null", None),
        ({"json_object": True}, '{"a": []}', {"a": []}),
        ({"choice": ["yes", "no"]}, "yes", None),
        ({"regex": "[a-z]+|[0-9]"}, "abc", None),
        ({"regex": "^abc$"}, "abc", None),
        ({"regex": ""}, "", None),
        ({"grammar": "root ::= 'a'"}, "anything", None),
    ],
)
def test_a_good_output_gives_its_value(constraint: Any, text: str, value: Any) -> None:
    assert check(**constraint).check(text) == value


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ({"json_schema": SCHEMA}, '{"n": "1"}'),
        ({"json_schema": False}, "null"),
        ({"json_object": True}, "[]"),
        ({"json_object": True}, '{"a": 1e999}'),
        ({"choice": ["yes", "no"]}, "yes "),
        ({"choice": ["yes", "no"]}, "ye"),
        ({"regex": "[a-z]+|[0-9]"}, "abc1"),
        ({"regex": "a|b"}, "a\n"),
        ({"regex": "(?m)a$"}, "a\nb"),
        ({"regex": "a*"}, "\ud800"),
        ({"regex": "(a+)+$"}, "a" * 5_000 + "b"),
    ],
)
def test_a_bad_output_is_refused(constraint: Any, text: str) -> None:
    with pytest.raises(OutputError):
        check(**constraint).check(text)


@pytest.mark.parametrize(
    "regex", ["(", "a)|(b", "(?=a)b", r"(a)\1", "(?x)a # b", "\ud800", "((a{1000}){1000}){1000}"]
)
def test_a_regex_that_cannot_be_held_in_linear_time_is_refused(regex: str) -> None:
    with pytest.raises(InvalidSchema) as refusal:
        check(regex=regex)
    assert refusal.value.path == "/regex"


@pytest.mark.parametrize(
    ("constraint", "path"),
    [
        ({"regex": "a{1001}"}, "/regex"),
        ({"regex": "a" * 1025}, "/regex"),
        ({"choice": [str(i) for i in range(2001)]}, "/choice"),
        ({"grammar": "é" * (MAX_GRAMMAR_BYTES // 2 + 1)}, "/grammar"),
        ({"json_schema": {"items": {"maxItems": 5000}}}, "/json_schema/items/maxItems"),
    ],
)
def test_a_constraint_beyond_the_bounds_is_refused_with_its_place(constraint: Any, path: str) -> None:
    with pytest.raises(SchemaTooComplex) as refusal:
        check(**constraint)
    assert refusal.value.path == path


def test_digests_tell_constraints_apart() -> None:
    assert check(json_schema=SCHEMA).digest == OutputSchema.parse(SCHEMA).digest
    digests = {
        check(**constraint).digest
        for constraint in ({"regex": "a"}, {"grammar": "a"}, {"choice": ["a"]}, {"json_object": True})
    }
    assert len(digests) == 4


def test_json_by_regex_is_not_parsed() -> None:
    assert check(regex=".*").check("{") is None
    with pytest.raises(OutputNotJson):
        check(json_object=True).check("{")
