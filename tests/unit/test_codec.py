"""The three encodings, and what is said of a message that does not hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from registry_twin import RegistryTwin

from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import (
    InvalidField,
    MessageError,
    RegistryFailed,
    Undecodable,
    UnknownField,
    UnknownWriterSchema,
    UsageError,
)
from headrace.schemas.messages import (
    Cancel,
    DeadLetter,
    Header,
    Location,
    Output,
    Provenance,
    Request,
    Result,
    Sampling,
)

CODEC = Codec()
REQUEST = Request(id="r-1", prompt="Say hello.", sampling=Sampling(max_tokens=5), attributes={"k": "v"})


def refusal(data: bytes | str | dict[str, Any], kind: type[Any] = Request) -> MessageError:
    if isinstance(data, dict):
        data = json.dumps(data)
    with pytest.raises(MessageError) as caught:
        CODEC.decode(kind, data.encode() if isinstance(data, str) else data)
    return caught.value


# --- which encoding ---------------------------------------------------------------------------------------


def test_without_a_registry_messages_go_out_in_single_object_encoding() -> None:
    data = CODEC.encode(REQUEST)
    assert data[:2] == b"\xc3\x01"
    assert CODEC.decode(Request, data).encoding is Encoding.SINGLE_OBJECT


def test_with_a_registry_messages_go_out_in_confluents_framing() -> None:
    registry = RegistryTwin()
    codec = Codec(registry)
    data = codec.encode(REQUEST, topic="m.requests")
    assert data[:5] == b"\x00\x00\x00\x00\x01"
    assert registry.subjects == {"m.requests-value": {1}}
    assert codec.decode(Request, data).encoding is Encoding.CONFLUENT


def test_json_is_told_by_its_first_byte_and_may_end_in_white_space() -> None:
    decoded = CODEC.decode(Request, b'{"id": "r-1", "prompt": "Say hello."} \r\n')
    assert decoded.encoding is Encoding.JSON
    assert decoded.message == Request(id="r-1", prompt="Say hello.")


def test_json_leaves_out_what_is_absent_and_keeps_nulls_inside_json_values() -> None:
    data = CODEC.encode(Request(id="r", variables={"a": None, "b": [None]}), Encoding.JSON)
    expected = {"id": "r", "variables": {"a": None, "b": [None]}, "stream": False, "attributes": {}}
    assert json.loads(data) == expected


def test_bytes_are_base64_in_json() -> None:
    letter = DeadLetter(
        code="undecodable",
        message="no message",
        source=Location(topic="t", partition=0, offset=7),
        value=b"\xff\xfe\xfb",
        headers=[Header(key="h", value=b"\x00")],
        time=1,
    )
    data = CODEC.encode(letter, Encoding.JSON)
    assert json.loads(data)["value"] == "//77"
    assert CODEC.decode(DeadLetter, data).message == letter


def test_the_registry_is_asked_once_for_a_topic_and_once_for_an_id() -> None:
    registry = RegistryTwin()
    codec = Codec(registry)
    data = codec.encode(REQUEST, topic="t")
    codec.decode(Request, data)
    asked = registry.asked
    codec.decode(Request, codec.encode(REQUEST, topic="t"))
    assert registry.asked == asked


def test_a_registry_that_does_not_answer_is_not_the_messages_fault() -> None:
    registry = RegistryTwin()
    data = Codec(registry).encode(REQUEST, topic="t")
    registry.down = True
    codec = Codec(registry)
    with pytest.raises(RegistryFailed) as caught:
        codec.decode(Request, data)
    assert not isinstance(caught.value, MessageError)
    assert codec.peek_id(Request, data) is None
    registry.down = False
    assert codec.decode(Request, data).message == REQUEST


def test_an_id_that_the_registry_does_not_have_is_the_messages_fault() -> None:
    with pytest.raises(UnknownWriterSchema):
        Codec(RegistryTwin()).decode(Request, b"\x00\x00\x00\x00\x09abc")


def test_confluents_framing_without_a_registry_says_what_to_set() -> None:
    error = refusal(b"\x00\x00\x00\x00\x09abc")
    assert isinstance(error, UnknownWriterSchema)
    assert "HEADRACE_SCHEMA_REGISTRY_URL" in error.message
    with pytest.raises(UsageError, match="HEADRACE_SCHEMA_REGISTRY_URL"):
        CODEC.encode(REQUEST, Encoding.CONFLUENT, topic="t")
    with pytest.raises(UsageError, match="topic"):
        Codec(RegistryTwin()).encode(REQUEST, Encoding.CONFLUENT)


def test_a_message_of_another_kind_is_named() -> None:
    error = refusal(CODEC.encode(REQUEST), Result)
    assert isinstance(error, UnknownWriterSchema)
    assert error.message == "a Request, where a Result should be"


def test_a_fingerprint_that_is_not_known_is_named_as_a_number() -> None:
    error = refusal(b"\xc3\x01" + bytes(range(8)) + b"abc")
    assert isinstance(error, UnknownWriterSchema)
    assert "0706050403020100" in error.message
    assert error.offset == 2


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"", None),
        (b"\xc3", 0),
        (b"\xc3\x02aaaaaaaaaa", 0),
        (b"\xef\xbb\xbf{}", 0),
        (b" {}", 0),
        (b"hello", 0),
    ],
)
def test_other_first_bytes_are_refused_with_what_was_met(data: bytes, offset: int | None) -> None:
    error = refusal(data)
    assert isinstance(error, Undecodable)
    assert error.offset == offset
    if data:
        assert data[:2].hex(" ") in error.message


def test_no_value_at_all_is_refused() -> None:
    with pytest.raises(Undecodable, match="an empty value"):
        CODEC.decode(Request, None)


# --- what is said -----------------------------------------------------------------------------------------

CHAT = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("fields", "path", "said"),
    [
        ({"prompt": "a"}, "/id", "this field is missing"),
        ({"id": ""}, "/id", "must have at least 1 character"),
        ({"id": "r"}, None, "exactly one of messages, prompt, variables; given: none"),
        ({"id": "r", "prompt": "a", "messages": [CHAT]}, None, "given: messages and prompt"),
        ({"id": "r", "prompt": 5}, "/prompt", "must be a string; given: a number"),
        ({"id": "r", "prompt": "a", "stream": "yes"}, "/stream", "must be true or false"),
        ({"id": "r", "variables": []}, "/variables", "must be an object; given: an array"),
        ({"id": "r", "messages": []}, "/messages", "at least 1 item"),
        ({"id": "r", "messages": [CHAT, {"role": "user", "content": 5}]}, "/messages/1/content",
         "must be a string or an array; given: a number"),
        ({"id": "r", "messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "/messages/0/content/0/text", "this field is missing"),
        ({"id": "r", "messages": [{"role": "robot", "content": "a"}]}, "/messages/0/role", "must be 'system'"),
        ({"id": "r", "messages": [{"role": "tool", "content": "a"}]}, "/messages/0", "tool_call_id belongs"),
        ({"id": "r", "prompt": "a", "sampling": {"max_tokens": 0}}, "/sampling/max_tokens",
         "must be greater than or equal to 1"),
        ({"id": "r", "prompt": "a", "sampling": {"seed": 1.0}}, "/sampling/seed", "must be a whole number"),
        ({"id": "r", "prompt": "a", "sampling": {"stop": ["a", 1]}}, "/sampling/stop/1", "must be a string"),
        ({"id": "r", "prompt": "a", "output": {}}, "/output", "exactly one of json_schema, regex"),
        ({"id": "r", "prompt": "a", "attributes": {"a/b~c": 1}}, "/attributes/a~1b~0c", "must be a string"),
    ],
)  # fmt: skip
def test_a_field_that_does_not_hold_is_named_with_a_sentence(
    fields: dict[str, Any], path: str | None, said: str
) -> None:
    error = refusal(fields)
    assert isinstance(error, InvalidField)
    assert error.path == path
    assert said in error.message
    assert "Input" not in error.message


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"id": "r", "prompt": "a", "temperature": 1}, "/temperature"),
        ({"id": "r", "promt": "a"}, "/promt"),  # before the missing prompt, which follows from it
        ({"id": "r", "prompt": "a", "sampling": {"temprature": 1}}, "/sampling/temprature"),
        ({"id": "r", "messages": [CHAT | {"x": None}]}, "/messages/0/x"),
        ({"id": "r", "messages": [{"role": "user", "content": [{"type": "text", "text": "", "y": 1}]}]},
         "/messages/0/content/0/y"),
    ],
)  # fmt: skip
def test_an_unknown_field_of_json_is_refused_by_name(fields: dict[str, Any], path: str) -> None:
    error = refusal(fields)
    assert isinstance(error, UnknownField)
    assert error.path == path
    assert repr(path.rpartition("/")[2]) in error.message


def test_an_unknown_key_of_a_megabyte_is_not_echoed() -> None:
    error = refusal({"id": "r", "prompt": "a", "k" * 1_000_000: 1})
    assert len(str(error)) < 400


# --- the id of what was refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ('{"id":"r-1","prompt":5}', "r-1"),
        ('{"prompt":5,"id":"r-1"}', "r-1"),
        ('{"id":"r-1","prompt":"cut off', "r-1"),
        ('{ "id" : "a\\"b\\u00e9" , "variables":' + "[" * 100_000, 'a"bé'),
        ('{"id":"r-1","variables":{"a":1' + "0" * 10_000 + "}}", "r-1"),
        ('{"id":"r-1","variables":{"a":"\\ud800"}}', "r-1"),
        ('{"id":"r-1","prompt":"\xff"', "r-1"),
        ('{"id":"r-\xff","prompt":"a"}', None),
        ('{"id":"a","id":"b","prompt":"x"}', None),  # whose would it be?
        ('{"tools":[{"id":"inner"}],"prompt":5}', None),
        ('{"tools":{"id":"inner"},"prompt":', None),
        ('{"id":5}', None),
        ('{"id":""}', None),
        ('{"id":"\\ud800"}', None),
        ('{"id":"' + "x" * 257 + '"}', None),
        ("{", None),
        ("", None),
    ],
)
def test_the_id_is_read_from_json_that_was_refused(text: str, id_: str | None) -> None:
    data = text.encode("latin-1")
    with pytest.raises(MessageError):
        CODEC.decode(Request, data)
    assert CODEC.peek_id(Request, data) == id_


def test_the_id_is_read_from_avro_that_breaks_off_after_it() -> None:
    data = CODEC.encode(REQUEST)
    assert CODEC.peek_id(Request, data[: 10 + 1 + len("r-1")]) == "r-1"
    assert CODEC.peek_id(Request, data[: 10 + len("r-1")]) is None


# --- what cannot be encoded -------------------------------------------------------------------------------

PROVENANCE = Provenance(
    model="m", version="1", contract=1, engine="e", engine_version="1", slot="s", source_topic="t",
    source_partition=0, source_offset=2**64,
)  # fmt: skip


@pytest.mark.parametrize("encoding", [Encoding.JSON, Encoding.SINGLE_OBJECT])
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), None),
        (float("inf"), None),
        (object(), None),
        ({"a": ["\ud800"]}, "/a/0"),
        ({"\udfff": 1}, "/\\udfff"),
        (b"bytes", None),
    ],
)
def test_a_value_that_is_not_json_is_refused_when_it_is_written(
    value: Any, path: str | None, encoding: Encoding
) -> None:
    result = Result(
        id="r", status="ok", outputs=[Output(text="", finish_reason="stop", value=value)],
        provenance=PROVENANCE.model_copy(update={"source_offset": 0}),
    )  # fmt: skip
    with pytest.raises(InvalidField) as caught:
        CODEC.encode(result, encoding)
    if path is not None or encoding is Encoding.SINGLE_OBJECT:
        assert caught.value.path == "/outputs/0/value" + (path or "")


def test_a_value_nested_beyond_what_is_read_is_refused_when_it_is_written() -> None:
    deep: Any = None
    for _ in range(200):
        deep = [deep]
    for encoding in (Encoding.JSON, Encoding.SINGLE_OBJECT):
        with pytest.raises(InvalidField, match="nested more than 128 deep"):
            CODEC.encode(Request(id="r", variables={"deep": deep}), encoding)


def test_a_number_beyond_64_bits_is_refused_in_avro() -> None:
    with pytest.raises(InvalidField) as caught:
        CODEC.encode(Result(id="r", status="ok", provenance=PROVENANCE))
    assert caught.value.path == "/provenance/source_offset"


def test_a_lone_surrogate_in_a_key_is_refused() -> None:
    # Pydantic refuses them in strings, and not in the keys of a mapping.
    request = Request(id="r", prompt="a", attributes={"\ud800": "v"})
    for encoding in (Encoding.JSON, Encoding.SINGLE_OBJECT):
        with pytest.raises(InvalidField) as caught:
            CODEC.encode(request, encoding)
        assert caught.value.path == "/attributes/\\ud800"


def test_messages_with_rules_of_their_own_are_held_to_them() -> None:
    error = refusal({"id": "a", "job": "b", "time": 1}, Cancel)
    assert isinstance(error, InvalidField)
    assert error.message == "exactly one of id, job"
