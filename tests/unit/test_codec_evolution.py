"""Messages written by other schemas than ours: older ones, newer ones, and other people's."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from registry_twin import RegistryTwin

from headrace.schemas.avro_schema import ABSENT, default_value, parse_schema, shipped_text
from headrace.schemas.codec import Codec
from headrace.schemas.errors import InvalidField, MessageError, UnknownField
from headrace.schemas.messages import ChatMessage, Request, Sampling, TextPart

CHAT: dict[str, Any] = {
    "type": "record",
    "name": "Turn",  # not our name: names of records do not matter
    "fields": [{"name": "role", "type": "string"}, {"name": "content", "type": "string"}],
}


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "com.acme.Ask", "fields": [{"name": "id", "type": "string"}, *fields]}


def written(writer: dict[str, Any], value: dict[str, Any]) -> tuple[Codec, bytes]:
    """A codec with a registry that has the writer's schema, and the value as a foreign producer writes it."""
    registry = RegistryTwin()
    id_ = registry.register("s", json.dumps(writer))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), value)
    return Codec(registry), b"\x00" + id_.to_bytes(4, "big") + out.getvalue()


def read(writer: dict[str, Any], value: dict[str, Any]) -> Request:
    codec, data = written(writer, value)
    return codec.decode(Request, data).message


def refusal(writer: dict[str, Any], value: dict[str, Any]) -> MessageError:
    with pytest.raises(MessageError) as caught:
        read(writer, value)
    return caught.value


PROMPT = {"name": "prompt", "type": "string"}


def test_fields_that_the_writer_lacks_have_our_defaults() -> None:
    assert read(schema(PROMPT), {"id": "r", "prompt": "a"}) == Request(id="r", prompt="a")


def test_fields_may_stand_in_any_order() -> None:
    writer = {"type": "record", "name": "R", "fields": [PROMPT, {"name": "id", "type": "string"}]}
    assert read(writer, {"id": "r", "prompt": "a"}) == Request(id="r", prompt="a")


def test_a_required_field_that_the_writer_lacks_is_named() -> None:
    writer = {"type": "record", "name": "R", "fields": [PROMPT]}
    error = refusal(writer, {"prompt": "a"})
    assert isinstance(error, InvalidField)
    assert error.path == "/id"


def test_int_and_float_are_promoted() -> None:
    sampling = {
        "type": "record",
        "name": "S",
        "fields": [{"name": "max_tokens", "type": "int"}, {"name": "temperature", "type": "int"},
                   {"name": "top_p", "type": "float"}],
    }  # fmt: skip
    found = read(
        schema(PROMPT, {"name": "sampling", "type": sampling}),
        {"id": "r", "prompt": "a", "sampling": {"max_tokens": 5, "temperature": 1, "top_p": 0.5}},
    )
    assert found.sampling == Sampling(max_tokens=5, temperature=1.0, top_p=0.5)


def test_an_enum_is_read_where_ours_is_a_string() -> None:
    turn = {
        "type": "record",
        "name": "Turn",
        "fields": [
            {"name": "role", "type": {"type": "enum", "name": "Role", "symbols": ["system", "user"]}},
            {"name": "content", "type": "string"},
        ],
    }
    messages = {"name": "messages", "type": {"type": "array", "items": turn}}
    found = read(schema(messages), {"id": "r", "messages": [{"role": "user", "content": "hi"}]})
    assert found.messages == [ChatMessage(role="user", content="hi")]


def test_a_union_in_another_order_is_read() -> None:
    part = {"type": "record", "name": "Part", "fields": [{"name": "text", "type": "string"}]}
    content = [{"type": "array", "items": part}, "string", "null"]
    turn = {**CHAT, "fields": [CHAT["fields"][0], {"name": "content", "type": content}]}
    messages = {"name": "messages", "type": {"type": "array", "items": turn}}
    found = read(schema(messages), {"id": "r", "messages": [{"role": "user", "content": [{"text": "hi"}]}]})
    assert found.messages == [ChatMessage(role="user", content=[TextPart(text="hi")])]


@pytest.mark.parametrize(
    ("type_", "default", "value"),
    [
        ("long", 7, 7),
        ("double", 1, 1.0),
        ("string", "x", "x"),
        ("bytes", "\u00ff", b"\xff"),
        (["null", "string"], None, None),
        (["null", "string"], ABSENT, None),  # no default, and null
        ("null", ABSENT, None),
        ({"type": "array", "items": "long"}, [1, 2], [1, 2]),
        ({"type": "map", "values": "long"}, {"a": 1}, {"a": 1}),
        (
            {"type": "record", "name": "I", "fields": [{"name": "a", "type": "long", "default": 3}]},
            {},
            {"a": 3},
        ),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u0001\u0002", b"\x01\x02"),
    ],
)
def test_a_field_that_ours_lack_is_dropped_where_it_has_its_default(
    type_: Any, default: Any, value: Any
) -> None:
    field = {"name": "colour", "type": type_} | ({} if default is ABSENT else {"default": default})
    found = read(schema(field, PROMPT), {"id": "r", "prompt": "a", "colour": value})
    assert found == Request(id="r", prompt="a")


@pytest.mark.parametrize(
    ("type_", "default", "value"),
    [
        ("long", 7, 8),
        ("long", ABSENT, 0),
        ("string", ABSENT, ""),
        ("boolean", ABSENT, False),
        (["null", "string"], None, "x"),
        (["string", "null"], "x", "y"),
        (["string", "null"], "x", None),  # null is said, where x would have been assumed
        ({"type": "array", "items": "long"}, [], [1]),
        ({"type": "array", "items": "long"}, ABSENT, []),
        ({"type": "map", "values": "long"}, {"a": 1}, {"a": 2}),
    ],
)
def test_a_field_that_ours_lack_is_refused_by_name_where_it_says_something(
    type_: Any, default: Any, value: Any
) -> None:
    field = {"name": "colour", "type": type_} | ({} if default is ABSENT else {"default": default})
    codec, data = written(schema(field, PROMPT), {"id": "r", "prompt": "a", "colour": value})
    with pytest.raises(UnknownField) as caught:
        codec.decode(Request, data)
    assert caught.value.path == "/colour"
    assert caught.value.offset == 5 + 2  # the head, and the id
    assert codec.peek_id(Request, data) == "r"


def test_an_unknown_field_deep_inside_is_refused_with_its_path() -> None:
    turn = {
        **CHAT,
        "fields": [*CHAT["fields"], {"name": "mood", "type": ["null", "string"], "default": None}],
    }
    messages = {"name": "messages", "type": ["null", {"type": "array", "items": turn}]}
    said = {"role": "user", "content": "hi", "mood": None}
    assert read(schema(messages), {"id": "r", "messages": [said]}).messages
    error = refusal(schema(messages), {"id": "r", "messages": [said, said | {"mood": "glad"}]})
    assert isinstance(error, UnknownField)
    assert error.path == "/messages/1/mood"


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ({"name": "prompt", "type": "long"}, 5, "/prompt"),
        ({"name": "prompt", "type": "bytes"}, b"a", "/prompt"),
        ({"name": "messages", "type": "string"}, "hi", "/messages"),
        ({"name": "messages", "type": {"type": "array", "items": "string"}}, ["hi"], "/messages/0"),
        ({"name": "prompt", "type": CHAT}, {"role": "user", "content": "a"}, "/prompt"),
        ({"name": "variables", "type": {"type": "map", "values": "string"}}, {"a": "b"}, "/variables"),
        ({"name": "variables", "type": "bytes"}, b"{}", "/variables"),
        ({"name": "variables", "type": "string"}, "[]", "/variables"),
        ({"name": "variables", "type": "string"}, "{", "/variables"),
        ({"name": "deadline", "type": "double"}, 5.0, "/deadline"),
    ],
)
def test_a_type_at_odds_with_ours_is_refused_with_its_path(
    field: dict[str, Any], value: Any, path: str
) -> None:
    error = refusal(schema(field), {"id": "r", field["name"]: value})
    assert isinstance(error, InvalidField)
    assert error.path == path


def test_an_older_schema_of_ours_is_read_by_its_fingerprint_once_it_is_known() -> None:
    older = json.loads(shipped_text("request"))
    older["fields"] = [field for field in older["fields"] if field["name"] != "tenant"]
    text = json.dumps(older)
    fingerprint = parse_schema(text).fingerprint
    out = io.BytesIO()
    fields = {field["name"]: field.get("default") for field in older["fields"]} | {"id": "r", "prompt": "a"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(older), fields)
    data = b"\xc3\x01" + fingerprint + out.getvalue()
    codec = Codec()
    with pytest.raises(MessageError, match="no schema is known"):
        codec.decode(Request, data)
    codec.add_writer_schema(Request, text)
    assert codec.decode(Request, data).message == Request(id="r", prompt="a")


@pytest.mark.parametrize(
    ("type_", "default"),
    [("long", "x"), ("string", 5), ("boolean", 1), ("bytes", 1), ({"type": "array", "items": "long"}, ["x"])],
)
def test_a_default_that_does_not_fit_its_type_is_of_no_use(type_: Any, default: Any) -> None:
    root = parse_schema(json.dumps(schema({"name": "f", "type": type_}))).root
    assert default_value(root.fields[1].type, default) is ABSENT
