"""What holds of the codec for every message and for every string of bytes."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_strategies import json_values, messages
from property_examples import EXAMPLES
from registry_twin import RegistryTwin

from headrace.schemas.avro_primitives import Fault
from headrace.schemas.avro_reading import RecordReader
from headrace.schemas.avro_schema import FREE_VALUES, VALUES_PER_BYTE, parse_schema, shipped
from headrace.schemas.codec import SCHEMA_NAMES, Codec, Encoding
from headrace.schemas.errors import MessageError, UnknownWriterSchema
from headrace.schemas.messages import Message

CODEC = Codec(RegistryTwin())
KINDS = list(SCHEMA_NAMES)
PARSED = {kind: fastavro.parse_schema(json.loads(shipped(name).text)) for kind, name in SCHEMA_NAMES.items()}
encodings = st.sampled_from(Encoding)


def encode(message: Message, encoding: Encoding) -> bytes:
    return CODEC.encode(message, encoding, topic="some.topic")


@settings(max_examples=EXAMPLES, deadline=None)
@given(messages, encodings)
def test_every_message_survives_every_encoding(message: Message, encoding: Encoding) -> None:
    decoded = CODEC.decode(type(message), encode(message, encoding))
    assert decoded.message == message
    assert decoded.encoding is encoding


JSON_FIELDS = {
    ("Request", "variables"),
    ("Function", "parameters"),
    ("OutputConstraint", "json_schema"),
    ("Output", "value"),
}


def as_avro(value: Any) -> Any:
    """A message as fastavro takes it: JSON values as text."""
    if isinstance(value, list):
        return [as_avro(each) for each in value]
    if not isinstance(value, Message):
        return value
    record = type(value).__name__
    return {
        name: json.dumps(each) if (record, name) in JSON_FIELDS and each is not None else as_avro(each)
        for name, each in value.__dict__.items()
    }


@settings(max_examples=EXAMPLES, deadline=None)
@given(messages)
def test_fastavro_reads_what_we_write_and_we_read_what_it_writes(message: Message) -> None:
    kind = type(message)
    data = encode(message, Encoding.SINGLE_OBJECT)
    theirs = fastavro.schemaless_reader(io.BytesIO(data[10:]), PARSED[kind], None)
    assert isinstance(theirs, dict)
    again = io.BytesIO()
    fastavro.schemaless_writer(again, PARSED[kind], theirs)
    assert again.getvalue() == data[10:]

    written = io.BytesIO()
    fastavro.schemaless_writer(written, PARSED[kind], as_avro(message))
    assert CODEC.decode(kind, data[:10] + written.getvalue()).message == message


def refused_or_read(kind: type[Message], data: bytes) -> None:
    refusal: MessageError | None = None
    try:
        CODEC.decode(kind, data)
    except MessageError as error:
        refusal = error
    if refusal is not None:
        assert refusal.message
        assert refusal.offset is None or 0 <= refusal.offset <= len(data)
    found = CODEC.peek_id(kind, data)
    assert found is None or 0 < len(found) <= 256


HEADS = [b"", b"{", b'{"id":', b"\xc3\x01", b"\x00", b"\x00\x00\x00\x00\x01"]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from(HEADS), st.booleans(), st.binary(max_size=80))
def test_arbitrary_bytes_are_read_or_refused(
    kind: type[Message], head: bytes, framed: bool, rest: bytes
) -> None:
    if framed:
        head = b"\xc3\x01" + shipped(SCHEMA_NAMES[kind]).fingerprint
    refused_or_read(kind, head + rest)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[type[Message], bytes]:
    """A valid message with a few bits flipped, bytes removed or bytes put in."""
    message = draw(messages)
    data = bytearray(encode(message, draw(encodings)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(["flip", "cut", "drop", "insert"])):
            case "flip" if data:
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[place:]
            case "drop":
                del data[place : place + draw(st.integers(1, 4))]
            case _:
                data[place:place] = draw(st.binary(min_size=1, max_size=10))
    return type(message), bytes(data)


@settings(max_examples=EXAMPLES, deadline=None)
@given(damaged())
def test_damaged_messages_are_read_or_refused(case: tuple[type[Message], bytes]) -> None:
    refused_or_read(*case)


@settings(max_examples=EXAMPLES, deadline=None)
@given(messages, st.data())
def test_every_truncation_of_an_avro_message_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encode(message, Encoding.SINGLE_OBJECT)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MessageError):
        CODEC.decode(type(message), whole[:cut])


@settings(max_examples=EXAMPLES, deadline=None)
@given(json_values)
def test_any_json_as_a_writers_schema_is_read_or_refused(schema: Any) -> None:
    with contextlib.suppress(UnknownWriterSchema):
        parse_schema(json.dumps({"type": "record", "name": "R", "fields": schema}))


# Schemas of any shape: small messages of theirs must not become large values.
types: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
    | st.integers(0, 3).map(lambda size: {"type": "fixed", "name": "F", "size": size})
    | st.just({"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda values: {"type": "map", "values": values}, inner)
        | st.lists(inner, min_size=1, max_size=3)
        | st.lists(inner, max_size=4).map(lambda fields: {"type": "record", "name": "N", "fields": fields})
    ),
    max_leaves=10,
)


def named(type_: Any, names: list[str]) -> Any:
    """The same type, every name its own, and the fields of records named."""
    if isinstance(type_, list):
        return [named(each, names) for each in type_]
    if not isinstance(type_, dict):
        return type_
    made = {key: named(each, names) if key in ("items", "values") else each for key, each in type_.items()}
    if "name" in made:
        names.append("")
        made["name"] = f"T{len(names)}"
    if "fields" in made:
        made["fields"] = [{"name": f"f{i}", "type": named(f, names)} for i, f in enumerate(made["fields"])]
    return made


def count_values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(count_values(each) for each in value.values())
    return 1 + sum(count_values(each) for each in value) if isinstance(value, list) else 1


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(types, max_size=4), st.lists(st.integers(0, 255) | st.integers(0, 8), max_size=200).map(bytes)
)
def test_no_message_has_more_values_than_its_bytes_warrant(fields: list[Any], data: bytes) -> None:
    text = json.dumps(named({"type": "record", "name": "Root", "fields": fields}, []))
    try:
        root = parse_schema(text).root
    except UnknownWriterSchema:
        return
    record: dict[str, Any] = {}
    with contextlib.suppress(Fault):
        RecordReader(root, root).read(data, record)
    assert count_values(record) <= VALUES_PER_BYTE * len(data) + FREE_VALUES


@settings(max_examples=EXAMPLES, deadline=None)
@given(messages, encodings)
def test_the_id_of_a_message_that_is_refused_is_still_read(message: Message, encoding: Encoding) -> None:
    data = encode(message, encoding)
    id_ = getattr(message, "id", None)
    damaged = data[:-1] + b',"zz":1}' if encoding is Encoding.JSON else data + b"\x00"
    with pytest.raises(MessageError):
        CODEC.decode(type(message), damaged)
    assert CODEC.peek_id(type(message), damaged) == (id_ or None)
