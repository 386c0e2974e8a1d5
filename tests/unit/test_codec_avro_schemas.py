"""The .avsc files and the typed messages say the same."""

from __future__ import annotations

import io
import json
import types
import typing
from typing import Any, Literal

import fastavro
import pytest
from pydantic.fields import FieldInfo

from headrace.schemas import messages as typed
from headrace.schemas.avro_schema import (
    ABSENT,
    Array,
    AvroField,
    AvroType,
    Map,
    Primitive,
    Record,
    Union,
    default_value,
    shipped,
    shipped_text,
)
from headrace.schemas.codec import FORMER_SCHEMAS, SCHEMA_NAMES, Codec
from headrace.schemas.messages import Message

KINDS = list(SCHEMA_NAMES)


def avro_form(type_: AvroType) -> Any:
    """A type in a form that can be compared: primitives by name, unions as sets of branches."""
    match type_:
        case Primitive(kind):
            return kind
        case Array(items):
            return ("array", avro_form(items))
        case Map(values):
            return ("map", avro_form(values))
        case Union(branches):
            return frozenset(avro_form(each) for each in branches)
        case Record(name):
            return name.removeprefix("headrace.v1.")
        case _:
            raise AssertionError(type_)


def expected_form(annotation: Any) -> Any:
    """The Avro form that a field's Python type should have."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return expected_form(typing.get_args(annotation)[0])
    if origin is Literal:
        (kind,) = {type(value) for value in typing.get_args(annotation)}
        return {str: "string", bool: "boolean"}[kind]
    if origin in (typing.Union, types.UnionType):
        return frozenset(expected_form(each) for each in typing.get_args(annotation))
    if origin is list:
        return ("array", expected_form(typing.get_args(annotation)[0]))
    if origin is dict:
        return ("map", expected_form(typing.get_args(annotation)[1]))
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return annotation.__name__
    names = {str: "string", int: "long", float: "double", bool: "boolean", bytes: "bytes", type(None): "null"}
    return names[annotation]


def closed_set(annotation: Any) -> tuple[str, ...] | None:
    """The values of a closed set of strings, wherever it stands in the annotation."""
    if typing.get_origin(annotation) is Literal:
        values = typing.get_args(annotation)
        return values if isinstance(values[0], str) else None
    found = [closed_set(each) for each in typing.get_args(annotation)]
    return next((each for each in found if each is not None), None)


def records_of(type_: AvroType) -> dict[str, Record]:
    match type_:
        case Record(name, fields):
            found = {name.removeprefix("headrace.v1."): type_}
            for field in fields:
                found |= records_of(field.type)
            return found
        case Array(inner) | Map(inner):
            return records_of(inner)
        case Union(branches):
            return {name: record for branch in branches for name, record in records_of(branch).items()}
        case _:
            return {}


CASES = [
    pytest.param(
        field, getattr(typed, name).model_fields[field.name], id=f"{kind.__name__}:{name}.{field.name}"
    )
    for kind, file in SCHEMA_NAMES.items()
    for name, record in records_of(shipped(file).root).items()
    for field in record.fields
    if field.name in getattr(typed, name).model_fields
]


@pytest.mark.parametrize("kind", KINDS)
def test_records_and_messages_have_the_same_fields(
    kind: type[Message],
) -> None:
    for name, record in records_of(shipped(SCHEMA_NAMES[kind]).root).items():
        fields = getattr(typed, name).model_fields
        assert {field.name for field in record.fields} == set(fields), name


@pytest.mark.parametrize(("field", "info"), CASES)
def test_a_field_has_the_type_of_its_python_field(field: AvroField, info: FieldInfo) -> None:
    if field.json:
        assert avro_form(field.type) == {"null", "string"}
        allowed = (dict[str, Any] | None, dict[str, Any] | bool | None, Any)
        assert info.annotation in allowed
    else:
        assert avro_form(field.type) == expected_form(info.annotation)
    assert field.values == closed_set(info.annotation)


@pytest.mark.parametrize(("field", "info"), CASES)
def test_a_field_has_the_default_of_its_python_field(field: AvroField, info: FieldInfo) -> None:
    default = default_value(field.type, field.default)
    if info.is_required():
        assert default is ABSENT
    else:
        expected = info.get_default(call_default_factory=True)
        assert default == (expected.model_dump() if isinstance(expected, Message) else expected)


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_and_field_is_documented_and_stands_in_our_namespace(kind: type[Message]) -> None:
    def visit(node: Any) -> None:
        if isinstance(node, list):
            for each in node:
                visit(each)
        elif isinstance(node, dict):
            if "name" in node:
                assert len(node.get("doc", "")) > 5, node["name"]
            for key in ("fields", "type", "items", "values"):
                if key in node and not (key == "values" and node["type"] != "map"):
                    visit(node[key])

    schema = json.loads(shipped_text(SCHEMA_NAMES[kind]))
    assert schema["namespace"] == "headrace.v1"
    visit(schema)


@pytest.mark.parametrize("kind", KINDS)
def test_every_schema_is_complete_in_itself(kind: type[Message]) -> None:
    fastavro.parse_schema(json.loads(shipped_text(SCHEMA_NAMES[kind])))


# A fingerprint is what messages in topics carry: a schema that ships and is changed is a new schema, and the old
# one must stay readable.
FINGERPRINTS = {
    "request": "5aafd598e763a717",
    "request_1": "63fcce3ed5ef7032",
    "result": "3dfc8f5f4ceff284",
    "reply": "34277194c3d34da1",
    "dead_letter": "047769e6c7e884dd",
    "cancel": "89c88ceb59ea1a9c",
}


@pytest.mark.parametrize(("name", "fingerprint"), FINGERPRINTS.items())
def test_a_schema_that_has_been_written_with_does_not_change_unnoticed(name: str, fingerprint: str) -> None:
    assert shipped(name).fingerprint == int(fingerprint, 16).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in FORMER_SCHEMAS.items() for name in names]
)
def test_what_was_written_with_a_schema_of_before_is_still_read(kind: type[Message], name: str) -> None:
    former = shipped(name)
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, json.loads(shipped_text(name)), {"id": "old", "prompt": "p"})
    value = b"\xc3\x01" + former.fingerprint + buffer.getvalue()
    decoded = Codec().decode(kind, value).message
    assert decoded.model_dump(exclude_defaults=True) == {"id": "old", "prompt": "p"}


def test_the_fingerprint_is_the_one_of_the_avro_specification() -> None:
    # 63dd24e7cc258f8a is the specification's fingerprint of "null".
    assert (
        fastavro.schema.fingerprint('"null"', "CRC-64-AVRO") == bytes.fromhex("63dd24e7cc258f8a")[::-1].hex()
    )
