"""JSON that every reader takes the same way: what hides behind another fault."""

import pytest

from headrace.schemas.strict_json import JsonFault, parse


@pytest.mark.parametrize(
    "text",
    [
        "[1e999, ",
        "[1e999, " + "[" * 100_000,
        '"\ud800"',
        '{"\ud800": 1}',
        '"\\ud800"',
        "1" * 310,
        "-" + "9" * 309,
        '{"a": 1, "a": 2',
    ],
)
def test_a_fault_behind_a_fault_is_still_ours(text: str) -> None:
    with pytest.raises(JsonFault):
        parse(text)


def test_the_largest_integer_that_a_double_holds_is_read() -> None:
    assert parse("1" + "0" * 308) == 10**308
