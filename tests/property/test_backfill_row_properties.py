"""Whatever a table holds: what is coerced loses nothing, and equal rows are asked about alike."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from message_strategies import finite, json_values, texts
from property_examples import EXAMPLES

from headrace.producers.backfill.coercion import coerced, kept_types, types_of
from headrace.producers.backfill.contract_view import ContractView
from headrace.producers.backfill.job import job_of
from headrace.producers.backfill.rows import RowMapping
from headrace.schemas.contract import Contract
from headrace.schemas.errors import MessageError
from headrace.schemas.messages import JsonObject, Request
from headrace.schemas.output_schema import OutputSchema

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
COLUMNS = ("a", "b", "c c")

# Texts that look like something else, and numbers where doubles have no more whole ones between them.
telling_texts = st.sampled_from(
    ["true", "True", "0", "-0", "00", "1.0", "1e3", "1e999", "0.1", "0.10", "1995", " 1", "１", "9" * 400, "1_000",
     "0.1234567890123456789", "NaN", "Infinity", "", "null"]
) | st.integers().map(str) | finite.map(repr)  # fmt: skip
telling_numbers = st.sampled_from([-0.0, 0.0, 1995.0, 2.0**53, 2.0**53 + 2, 1e22, 5e-324, 2**63, -(2**53)])
cells = telling_texts | telling_numbers | json_values
type_names = st.sampled_from(TYPES)
schemas = st.recursive(
    st.fixed_dictionaries({"type": type_names | st.lists(type_names, min_size=1, max_size=3, unique=True)})
    | st.fixed_dictionaries({"enum": st.lists(cells, min_size=1, max_size=3)})
    | st.fixed_dictionaries({"const": cells})
    | st.booleans()
    | st.just({})
    | st.just({"$ref": "#/$defs/number"}),
    lambda inner: st.fixed_dictionaries(
        {"anyOf": st.lists(inner, min_size=1, max_size=2)},
        optional={"allOf": st.lists(inner, min_size=1, max_size=2), "type": type_names},
    ),
    max_leaves=4,
)
DEFS: JsonObject = {"number": {"type": "number"}}


def read_back(value: Any, kind: type) -> Any:
    """A coerced value as one of the type that it had; texts that are numbers as what they say."""
    if kind is bool:
        return {"true": True, "false": False}[value]
    if kind is str:
        return value if isinstance(value, bool) else Decimal(repr(value))
    return kind(value)


@settings(max_examples=EXAMPLES, deadline=None)
@given(cells, st.sets(type_names).map(frozenset))
@example("0.1234567890123456789", frozenset({"number"}))
@example("-0", frozenset({"integer"}))
@example("-0", frozenset({"number"}))
@example("007", frozenset({"integer", "number"}))
@example(-0.0, frozenset({"integer"}))
def test_what_is_coerced_reads_back_to_what_it_was(value: Any, types: frozenset[str]) -> None:
    types = types | {"integer"} if "number" in types else types
    made = coerced(value, types)
    if type(made) is type(value):
        assert made is value or made == value
        return
    if isinstance(value, str):
        said = value == "true" if isinstance(made, bool) else Decimal(value)
        assert read_back(made, str) == said
        assert isinstance(made, bool) or math.isfinite(made)
        assert type(made) is not int or str(made) == value
    else:
        assert read_back(made, type(value)) == value
        assert math.copysign(1, read_back(made, type(value))) == math.copysign(1, value)
    assert type(made) in kept_types(types), "it is coerced to what is wanted, or not at all"


@settings(max_examples=EXAMPLES, deadline=None)
@given(schemas, cells)
def test_a_value_that_the_schema_accepts_is_never_another_after_it(schema: Any, value: Any) -> None:
    whole = {"allOf": [schema], "$defs": DEFS}
    types = types_of(whole, whole)
    if not _accepts(whole, value):
        return
    if type(value) in kept_types(types):
        return  # it is taken as it is
    made = value if value is None or types is None else coerced(value, types)
    assert made == value
    assert isinstance(made, str) == isinstance(value, str)


def _accepts(schema: JsonObject, value: Any) -> bool:
    try:
        OutputSchema(schema).check_value(value)
    except Exception:  # noqa: BLE001  (a schema beyond the bounds, a value that is no JSON)
        return False
    return True


def a_mapping(schema: Any, template: str | None) -> RowMapping:
    variables = {
        "type": "object",
        "properties": {"a": schema, "b": {}, "c": {"type": "string"}},
        "required": ["a"],
        "$defs": DEFS,
    }
    given_variables: JsonObject = {"c": "c c"} if template is None else {"c": template}
    job = job_of(
        {"model": "m", "input": "i", "output": "o", "variables": given_variables, "sampling": {"seed": 1}},
        Path("/"),
    )
    view = ContractView(
        Contract("m", 1, variables, None), "frozen", None, has_tool_parser=False, max_model_len=None
    )
    return RowMapping(job, view, COLUMNS)


templates = st.sampled_from(
    [None, "{{ a }}", "{{ row['c c'] }}{{ b }}", "{% for x in b %}{{ x }}{% endfor %}{{ row }}"]
)
rows = st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, cells))


@settings(max_examples=EXAMPLES, deadline=None)
@given(schemas, templates, rows)
def test_a_row_becomes_a_request_or_is_refused_and_equal_rows_become_equal_ones(
    schema: Any, template: str | None, row: JsonObject
) -> None:
    once = _asked(a_mapping(schema, template), row)
    again = _asked(a_mapping(schema, template), json.loads(json.dumps(row)))
    assert once == again
    if isinstance(once, str):
        assert " at /variables" in once
    else:
        Request.model_validate(once | {"id": "1"})


def _asked(mapping: RowMapping, row: JsonObject) -> JsonObject | str:
    before = json.dumps(row)
    try:
        return mapping.request_of(row)
    except MessageError as error:
        return f"{error.code} at {error.path}: {error}"
    finally:
        assert json.dumps(row) == before, "a row is never changed"


@settings(max_examples=EXAMPLES, deadline=None)
@given(texts, texts)
def test_rows_that_differ_in_a_column_that_is_asked_about_are_asked_about_differently(
    one: str, other: str
) -> None:
    mapping = a_mapping({"type": "string"}, None)
    found = [mapping.request_of({"a": each, "b": 1, "c c": "x"}) for each in (one, other)]
    assert (found[0] == found[1]) == (one == other)
