"""What holds of typed results for real schemas, their instances, and whatever else a value may be."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_strategies import json_values, results
from property_examples import EXAMPLES
from registry_twin import RegistryTwin

from headrace.schemas.avro_form import contract_result_schema
from headrace.schemas.codec import Codec, TypedResults
from headrace.schemas.errors import MessageError
from headrace.schemas.messages import Output, Result

TOPIC = "headrace.m.c1.results"
REAL: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "real_schemas.jsonl").read_text("utf-8").splitlines()
]


class Form(NamedTuple):
    """A real schema that has an Avro form, with its instances and codecs for both framings."""

    name: str
    foreign: Any  # as fastavro has it
    codecs: tuple[Codec, Codec]
    valid: list[Any]
    invalid: list[Any]


def forms() -> list[Form]:
    found: list[Form] = []
    for real in REAL:
        text = contract_result_schema(real["schema"], "m", 1)
        if text is not None:
            typed = TypedResults(TOPIC, text)
            codecs = (Codec(typed_results=typed), Codec(RegistryTwin(), typed_results=typed))
            foreign = fastavro.parse_schema(json.loads(text))
            by_verdict = {
                verdict: [test["data"] for test in real["tests"] if test["valid"] is verdict]
                for verdict in (True, False)
            }
            found.append(Form(real["name"], foreign, codecs, by_verdict[True], by_verdict[False]))
    return found


FORMS = forms()
START = (10, 5)  # of the datum, in each framing


def result_of(result: Result, value: Any) -> Result:
    output = Output(text="", finish_reason="stop", value=value)
    return result.model_copy(update={"outputs": [output]})


def same(a: Any, b: Any) -> bool:
    """Equal as JSON values: 1 is 1.0, and neither is true."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def test_nearly_every_real_schema_has_a_form() -> None:
    assert len(FORMS) >= 0.95 * len(REAL)


@settings(max_examples=3, deadline=None)
@given(results)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_valid_instance_has_its_columns_and_comes_back_as_it_was(form: Form, result: Result) -> None:
    for value in form.valid:
        for codec, start in zip(form.codecs, START, strict=True):
            data = codec.encode(result_of(result, value), topic=TOPIC)
            assert same(codec.decode(Result, data).message.outputs[0].value, value)
            rest = io.BytesIO(data[start:])
            seen: Any = fastavro.schemaless_reader(rest, form.foreign, None)
            assert rest.read() == b""
            assert seen["outputs"][0]["value_json"] is None
            assert (seen["outputs"][0]["value"] is None) == (value is None)


@st.composite
def near_misses(draw: st.DrawFn) -> tuple[Form, Any]:
    """A form, and an instance with one of its parts replaced, dropped or added; or any value at all."""
    form = draw(st.sampled_from([form for form in FORMS if form.valid]))
    value: Any = json.loads(json.dumps(draw(st.sampled_from(form.valid + form.invalid))))
    place: Any = [value]
    key: Any = 0
    while draw(st.booleans()) and isinstance(place[key], (dict, list)) and place[key]:
        place = place[key]
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    whole = place if place == [value] else None
    new = draw(json_values)
    if isinstance(place, dict) and draw(st.booleans()):
        del place[key]
        if draw(st.booleans()):
            place[draw(st.text(max_size=3))] = new
    else:
        place[key] = new
    return form, (whole[0] if whole is not None else value)


@settings(max_examples=EXAMPLES, deadline=None)
@given(near_misses(), results)
def test_whatever_the_value_is_it_comes_back_as_it_was(case: tuple[Form, Any], result: Result) -> None:
    form, value = case
    data = form.codecs[0].encode(result_of(result, value), topic=TOPIC)
    decoded = form.codecs[0].decode(Result, data).message
    assert same(decoded.outputs[0].value, value)
    assert decoded.model_copy(update={"outputs": []}) == result.model_copy(update={"outputs": []})
    fastavro.schemaless_reader(io.BytesIO(data[10:]), form.foreign, None)


@settings(max_examples=EXAMPLES, deadline=None)
@given(near_misses(), results, st.data())
def test_bytes_that_were_damaged_are_refused_or_read_and_never_more(
    case: tuple[Form, Any], result: Result, data: st.DataObject
) -> None:
    form, value = case
    encoded = bytearray(form.codecs[0].encode(result_of(result, value), topic=TOPIC))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(10, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MessageError):
        form.codecs[0].decode(Result, bytes(encoded[: data.draw(st.integers(10, len(encoded)))]))
