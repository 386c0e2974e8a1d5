"""Bytes that were made to do harm: each is refused with its field and byte, and nothing is allocated for it."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import pytest

from headrace.schemas.avro_primitives import Fault
from headrace.schemas.avro_reading import RecordReader
from headrace.schemas.avro_schema import parse_schema
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import InvalidField, MessageError, Undecodable, UnknownWriterSchema
from headrace.schemas.messages import Request
from headrace.schemas.strict_json import pointer

CODEC = Codec()
HEAD = CODEC.encode(Request(id="r", prompt="a"))[:10]


def long(value: int) -> bytes:
    """A number as Avro has it."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return long(len(data)) + data


def record(*fields: tuple[str, Any]) -> str:
    """The text of a writer's schema with these fields."""
    made = [{"name": name, "type": type_} for name, type_ in fields]
    return json.dumps({"type": "record", "name": "R", "fields": made})


def fault_of(type_: Any, data: bytes) -> Fault:
    """The fault met in a record of a string `a`, here empty, and a field `f` of the type."""
    root = parse_schema(record(("a", "string"), ("f", type_))).root
    with pytest.raises(Fault) as caught:
        RecordReader(root, root).read(b"\x00" + data)
    return caught.value


OVERLONG = b"\x80\x00"
ELEVEN_BYTES = b"\xff" * 10 + b"\x01"
SIXTY_FIVE_BITS = b"\x80" * 9 + b"\x02"
HUNDRED_MB = long(100_000_000)
INTS = {"type": "array", "items": "long"}
STRINGS = {"type": "map", "values": "string"}
COLOURS = {"type": "enum", "name": "E", "symbols": ["RED", "BLUE"]}
EIGHT = {"type": "fixed", "name": "F", "size": 8}
GIANT = {"type": "fixed", "name": "F", "size": 2**40}


@pytest.mark.parametrize(
    ("type_", "data", "path", "offset", "said"),
    [
        ("boolean", b"", "/f", 1, "the bytes end where a boolean should be"),
        ("boolean", b"\x02", "/f", 1, "a boolean of byte 0x02"),
        ("boolean", b"\xff", "/f", 1, "a boolean of byte 0xff"),
        ("long", b"", "/f", 1, "the bytes end where a number should be"),
        ("long", b"\x80", "/f", 2, "the bytes end where a number should be"),
        ("long", OVERLONG, "/f", 1, "an overlong number"),
        ("long", ELEVEN_BYTES, "/f", 1, "more than 64 bits"),
        ("long", b"\x80" * 100_000, "/f", 1, "more than 64 bits"),
        ("long", SIXTY_FIVE_BITS, "/f", 1, "more than 64 bits"),
        ("int", long(2**31), "/f", 1, "more than 32 bits"),
        ("int", long(-(2**31) - 1), "/f", 1, "more than 32 bits"),
        ("float", b"\0\0\0", "/f", 1, "the bytes end where a float should be"),
        ("double", b"\0" * 7, "/f", 1, "the bytes end where a double should be"),
        ("bytes", HUNDRED_MB + b"abc", "/f", 1, "a length of 100000000 bytes, where 3 are left"),
        ("bytes", long(-1), "/f", 1, "a length of -1"),
        ("string", HUNDRED_MB + b"abc", "/f", 1, "a length of 100000000 bytes, where 3 are left"),
        ("string", long(-(2**63)) + b"abc", "/f", 1, "a length of -9223372036854775808"),
        ("string", string(b"ab\xff"), "/f", 4, "not UTF-8"),
        ("string", string(b"\xed\xa0\x80"), "/f", 2, "not UTF-8"),  # a surrogate
        ("string", string(b"\xc0\x80"), "/f", 2, "not UTF-8"),  # an overlong NUL
        (EIGHT, b"\0" * 7, "/f", 1, "the bytes end where a fixed value of 8 bytes should be"),
        (GIANT, b"\0" * 7, "/f", 1, "the bytes end where a fixed value"),
        (COLOURS, long(2), "/f", 1, "symbol number 2; it has 2"),
        (COLOURS, long(-1), "/f", 1, "symbol number -1"),
        (["null", "string"], b"", "/f", 1, "the bytes end where a union's branch should be"),
        (["null", "string"], long(2), "/f", 1, "branch number 2; it has 2"),
        (["null", "string"], long(-1), "/f", 1, "branch number -1"),
        (["null", "string"], b"\x80\x00", "/f", 1, "an overlong number"),
        (["null", "string"], long(1) + HUNDRED_MB, "/f", 2, "a length of 100000000"),
        (INTS, long(2**62), "/f", 1, "a count of 4611686018427387904 items"),
        (INTS, long(-(2**63)) + long(0), "/f", 1, "a count of 9223372036854775808 items"),
        (INTS, long(2) + long(1), "/f", 1, "a count of 2 items, where 1 bytes are left"),
        (INTS, long(2) + long(1) + b"\x80", "/f/1", 4, "the bytes end where a number should be"),
        (INTS, long(-1) + long(-5) + long(1) + b"\0", "/f", 2, "a length of -5"),
        (INTS, long(-1) + long(2**40) + long(1) + b"\0", "/f", 2, "a length of 1099511627776"),
        (INTS, long(-1) + long(2) + long(1) + b"\0", "/f", 4, "a block whose stated size is off by -1"),
        (STRINGS, long(1) + string("k") + HUNDRED_MB, "/f/k", 4, "a length of 100000000"),
        (STRINGS, long(2) + string("k") + string("") + string("k") + string("") + b"\0", "/f/k", 5,
         "this key is given twice"),
        ("null", b"more", None, 1, "bytes left over after the end of the message: 4"),
    ],
)  # fmt: skip
def test_a_fault_is_met_with_its_field_and_byte(
    type_: Any, data: bytes, path: str | None, offset: int, said: str
) -> None:
    fault = fault_of(type_, data)
    assert said in fault.reason
    assert (pointer(fault.path), fault.offset) == (path, offset)


@pytest.mark.parametrize(
    ("type_", "data", "value"),
    [
        ("long", b"\xff" * 9 + b"\x01", -(2**63)),
        ("long", b"\xfe" + b"\xff" * 8 + b"\x01", 2**63 - 1),
        ("int", long(-(2**31)), -(2**31)),
        ("float", struct.pack("<f", 1.5), 1.5),
        (EIGHT, b"12345678", b"12345678"),
        (COLOURS, long(1), "BLUE"),
        (INTS, long(1) + long(7) + long(-2) + long(2) + long(8) + long(9) + b"\0", [7, 8, 9]),
        (STRINGS, long(-1) + long(4) + string("k") + string("v") + b"\0", {"k": "v"}),
        ("null", b"", None),
    ],
)
def test_what_is_unusual_and_right_is_read(type_: Any, data: bytes, value: Any) -> None:
    root = parse_schema(record(("f", type_))).root
    assert RecordReader(root, root).read(data) == {"f": value}


@pytest.mark.parametrize(
    "data",
    [
        HEAD + HUNDRED_MB + b"abc",
        HEAD + string("r") + b"\0" + long(1) + long(2**40) + b"abc",
        HEAD + string("r") + b"\0" + long(1) + long(-(2**40)) + long(2**50) + b"abc",
        b"{" + b'"a":[' * 1000,
        b'{"id":1' + b"0" * 100_000 + b"}",
    ],
)
def test_nothing_is_allocated_for_a_length_that_the_message_does_not_have(data: bytes) -> None:
    with pytest.raises(MessageError):  # once before, so that what is built for good is not counted
        CODEC.decode(Request, data)
    tracemalloc.start()
    try:
        with pytest.raises(MessageError):
            CODEC.decode(Request, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * len(data) + 100_000


def test_a_fault_inside_a_message_says_field_and_byte_of_the_whole_value() -> None:
    data = CODEC.encode(Request(id="r", prompt="ab"))
    place = data.index(b"ab")
    with pytest.raises(Undecodable) as caught:
        CODEC.decode(Request, data[:place] + b"a\xff" + data[place + 2 :])
    assert (caught.value.path, caught.value.offset) == ("/prompt", place + 1)


# --- JSON text ------------------------------------------------------------------------------------------

TEXTS = [
    ('{"a":{"b":1,"b":2}}', "/a/b", "this key is given twice"),
    ('{"a":[0,{"b":{"c":1,"d":2,"c":1}}]}', "/a/1/b/c", "this key is given twice"),
    ('{"a":1e999}', "/a", "beyond a double's range"),
    ('{"a":[-1e999]}', "/a/0", "beyond a double's range"),
    ('{"a":NaN}', "/a", "NaN is not JSON"),
    ('{"a":[1,-Infinity]}', "/a/1", "-Infinity is not JSON"),
    ('{"a":1' + "0" * 5000 + "}", "/a", "an integer of 5001 digits"),
    ('{"a":"\\ud800"}', "/a", "a lone surrogate"),
    ('{"a":"\\udc00\\ud800"}', "/a", "a lone surrogate"),
    ('{"\\udfff":1}', "/\\udfff", "a lone surrogate"),
    ('{"a":' + "[" * 130 + "]" * 130 + "}", "/a/0/0/0/0/0/0/0", "nested more than 128 deep"),
    ('{"a":' + '{"a":' * 130 + "1" + "}" * 131, "/a/a/a/a/a/a/a/a", "nested more than 128 deep"),
    ('{"a":' + "[" * 100_000, None, "nested more than 128 deep"),
]


@pytest.mark.parametrize(("text", "path", "said"), TEXTS)
def test_json_that_readers_take_differently_is_refused_with_its_place(
    text: str, path: str | None, said: str
) -> None:
    with pytest.raises(MessageError, match=said) as caught:
        CODEC.decode(Request, text.encode())
    assert caught.value.path == path


@pytest.mark.parametrize(("text", "path", "said"), TEXTS)
def test_json_text_in_an_avro_field_is_held_to_the_same(text: str, path: str | None, said: str) -> None:
    data = CODEC.encode(Request(id="r", variables={"PLACE": 0}))
    at = data.index(b'{"PLACE":0}')
    with pytest.raises(InvalidField, match=said) as caught:
        CODEC.decode(Request, data[: at - 1] + string(text) + data[at + 11 :])
    outer = "/variables" + (path or "")
    assert caught.value.path == outer
    assert caught.value.offset == at - 1 - 1  # where the union begins


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ('{"a":}', 5),
        ('{"ä":}', 6),
        ('{"a":1}x', 7),
        ('{"a":"\n"}', 6),
        ("{'a':1}", 1),
        ('{"a":1,}', 7),
        ("{", 1),
    ],
)
def test_broken_json_is_refused_with_the_byte(text: str, offset: int) -> None:
    with pytest.raises(Undecodable, match="not JSON") as caught:
        CODEC.decode(Request, text.encode())
    assert caught.value.offset == offset


def test_json_that_is_not_utf_8_is_refused_with_the_byte() -> None:
    with pytest.raises(Undecodable, match="not UTF-8") as caught:
        CODEC.decode(Request, b'{"id":"\xff"}')
    assert caught.value.offset == 7


def test_nesting_and_numbers_within_the_bounds_are_read() -> None:
    deep: Any = 10**308
    for _ in range(120):
        deep = [deep]
    request = Request(id="r", variables={"deep": deep, "pair": "\U0001f600", "brackets": "[{" * 500})
    for encoding in (Encoding.JSON, Encoding.SINGLE_OBJECT):
        assert CODEC.decode(Request, CODEC.encode(request, encoding)).message == request


# --- a writer's schema that was made to do harm ---------------------------------------------------------

EMPTY = {"type": "record", "name": "Empty", "fields": []}
SMALL_OR_LARGE = {
    "type": "record",
    "name": "S",
    "fields": [
        {"name": "u", "type": ["null", "double"]},
        *({"name": f"n{i}", "type": "null"} for i in range(9)),
    ],
}
NULLS = {"type": "record", "name": "N", "fields": [{"name": f"n{i}", "type": "null"} for i in range(9)]}


def doubling(levels: int, *innermost: dict[str, Any]) -> list[tuple[str, Any]]:
    """Each record holds the one before twice: 2 to the power of `levels` values, and as often `innermost`."""
    fields: list[tuple[str, Any]] = [("f0", {"type": "record", "name": "D0", "fields": [*innermost]})]
    for level in range(1, levels):
        halves = [{"name": half, "type": f"D{level - 1}"} for half in ("a", "b")]
        fields.append((f"f{level}", {"type": "record", "name": f"D{level}", "fields": halves}))
    return fields


def nested(levels: int) -> Any:
    type_: Any = "long"
    for _ in range(levels):
        type_ = {"type": "array", "items": type_}
    return type_


SELF = {"type": "record", "name": "S", "fields": [{"name": "s", "type": ["null", "S"]}]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('"string"', "not a record"),
        ('["null", "string"]', "not a record"),
        ('{"type":"record"}', "not Avro"),
        ('{"type":"record","name":"R"}{}', "not JSON"),
        ('{"type":"record","name":"R","fields":[{"name":"a"}]}', "not Avro"),
        ('{"type":"record","name":"R","fields":"no"}', "not Avro"),
        (record(("a", "nothing")), "not Avro"),
        (record(("a", "long"), ("a", "long")), "two fields have one name"),
        (record(("a", SELF)), "it contains itself"),
        (record(("a", {"type": "array", "items": "R"})), "it contains itself"),
        (record(("a", {"type": "array", "items": "null"})), "takes too few bytes"),
        (record(("a", {"type": "array", "items": EMPTY})), "takes too few bytes"),
        (record(("a", {"type": "array", "items": NULLS})), "takes too few bytes"),
        (record(("a", {"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}})), "too few"),
        (record(("a", {"type": "map", "values": NULLS})), "takes too few bytes"),
        (record(("a", {"type": "array", "items": SMALL_OR_LARGE})), "takes too few bytes"),
        (record(*doubling(40)), "without bytes could have more than 10000 values"),
        (record(("a", nested(70))), "nested more than 64 deep"),
        (record(("a", [])), "it has no branch"),
        (record(("a", {"type": "fixed", "name": "F", "size": -1})), "not a number of bytes"),
        (record(("a", {"type": "fixed", "name": "F", "size": "8"})), "not a number of bytes"),
        ('{"type":"record","name":"R","fields":[],"doc":"' + "x" * 1_000_001 + '"}', "characters"),
        (
            '{"type":"record","name":"R","__fastavro_parsed":true,"fields":[{"name":"a","type":"??"}]}',
            "not Avro",
        ),
    ],
)
def test_a_writers_schema_that_would_do_harm_is_refused(text: str, said: str) -> None:
    with pytest.raises(UnknownWriterSchema, match=said) as caught:
        parse_schema(text)
    assert len(str(caught.value)) < 600


def test_a_record_that_is_referred_to_often_is_compiled_once() -> None:
    root = parse_schema(record(*doubling(40, {"name": "n", "type": "long"}))).root
    reader = RecordReader(root, root)  # would take years otherwise
    with pytest.raises(Fault) as caught:
        reader.read(long(1) + long(2) + long(3))
    assert pointer(caught.value.path) == "/f2/a/a/n"


def test_a_schema_that_fastavro_has_parsed_and_dumped_is_the_same_schema() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": {"type": "long"}}]}
    plain = {
        "type": "record",
        "name": "R",
        "namespace": "com.acme",
        "fields": [{"name": "a", "type": inner}, {"name": "b", "type": "com.acme.Inner"}],
    }
    dumped = plain | {"__fastavro_parsed": True, "__named_schemas": {"com.acme.R": "whatever"}}
    assert parse_schema(json.dumps(dumped)).fingerprint == parse_schema(json.dumps(plain)).fingerprint
