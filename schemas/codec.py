"""Between bytes and messages: JSON, Avro's single-object encoding, and Confluent's framing.

The first byte tells which: `{` is JSON; C3 (then 01, and the 8-byte fingerprint of the writer's schema) is
single-object encoding; 00 (then the 4-byte id of the writer's schema in the registry) Confluent's framing.
In all three an unknown field is refused by name.

What is wrong with a message is a MessageError, and the same bytes will end so again. A registry that does
not answer is not the message's fault: that is RegistryFailed, and the message should be tried again later.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from pydantic import ValidationError

from headrace.schemas.avro_primitives import Fault
from headrace.schemas.avro_reading import RecordReader
from headrace.schemas.avro_schema import Array, AvroType, Record, Schema, Union, parse_schema, shipped
from headrace.schemas.avro_writing import RecordWriter
from headrace.schemas.errors import (
    HeadraceError,
    InvalidField,
    Undecodable,
    UnknownWriterSchema,
    UsageError,
)
from headrace.schemas.field_errors import explain
from headrace.schemas.messages import Cancel, DeadLetter, Message, Reply, Request, Result
from headrace.schemas.strict_json import JsonFault, dump, parse, pointer

if TYPE_CHECKING:
    from headrace.schemas.registry import SchemaRegistry

M = TypeVar("M", bound=Message)

# The file of schemas/avro/ that describes each kind of message.
SCHEMA_NAMES: Final[dict[type[Message], str]] = {
    Request: "request",
    Result: "result",
    Reply: "reply",
    DeadLetter: "dead_letter",
    Cancel: "cancel",
}

_JSON_BYTE: Final = b"{"
_SINGLE_OBJECT_MARKER: Final = b"\xc3\x01"
_SINGLE_OBJECT_HEAD: Final = 10  # bytes: the marker and the fingerprint
_CONFLUENT_MARKER: Final = b"\x00"
_CONFLUENT_HEAD: Final = 5  # bytes: the marker and the schema's id
_MAX_ID: Final = 256  # characters, as in messages.Identifier


def _no_number(_: str) -> None:
    """Not converted, since numbers of many digits cannot be."""


# Objects as pairs, so that a key that is given twice is seen.
_LENIENT: Final = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=_no_number, parse_float=_no_number, strict=False
)
_ID_COMES_FIRST: Final = re.compile(r'\{\s*"id"\s*:\s*("(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")')
_MAX_READERS: Final = 256  # kept by a registry's id; a producer may name every id that the registry has


class Encoding(Enum):
    """How a message is encoded."""

    JSON = "json"
    SINGLE_OBJECT = "single-object"
    CONFLUENT = "confluent"


@dataclass(frozen=True, slots=True)
class Decoded(Generic[M]):
    """A message, and the encoding that it came in: its answer goes out in the same."""

    message: M
    encoding: Encoding


@functools.cache
def _writer(kind: type[Message]) -> RecordWriter:
    return RecordWriter(_schema(kind).root)


def _schema(kind: type[Message]) -> Schema:
    return shipped(SCHEMA_NAMES[kind])


class Codec:
    """Decodes and encodes messages. One for a process; may be used from several threads."""

    def __init__(self, registry: SchemaRegistry | None = None) -> None:
        self._registry = registry
        self._by_fingerprint: dict[tuple[type[Message], bytes], RecordReader] = {}
        self._reader_by_id = functools.lru_cache(_MAX_READERS)(self._compile_reader_by_id)
        self._ids: dict[tuple[type[Message], str], int] = {}

    @classmethod
    def with_registry_at(cls, url: str | None) -> Codec:
        """A codec with the registry at a URL; None: without one. Raises SettingsError for what is no URL."""
        from headrace.schemas.registry import SchemaRegistry  # most have none

        return cls(None if url is None else SchemaRegistry(url))

    def add_writer_schema(self, kind: type[Message], text: str) -> None:
        """Makes messages readable that carry another schema's fingerprint. Raises UnknownWriterSchema."""
        schema = parse_schema(text)
        self._by_fingerprint[kind, schema.fingerprint] = RecordReader(schema.root, _schema(kind).root)

    def decode(self, kind: type[M], data: bytes | None) -> Decoded[M]:
        """The message that `data` encodes.

        Raises a MessageError with the field's JSON pointer, and the byte's offset where it is known;
        RegistryFailed where the registry was needed and did not answer.
        """
        encoding = self._encoding(kind, data)
        assert data  # checked there
        if encoding is Encoding.JSON:
            return Decoded(_from_json(kind, data), encoding)
        reader, start = self._reader(kind, data, encoding)
        try:
            fields = reader.read(data[start:])
        except Fault as fault:
            raise fault.translated(start) from None
        try:
            return Decoded(kind.model_validate(fields), encoding)
        except ValidationError as error:
            raise explain(error, fields) from None

    def encode(
        self, message: Message, encoding: Encoding | None = None, *, topic: str | None = None
    ) -> bytes:
        """The bytes of a message.

        Without `encoding`: Confluent's framing where a registry is configured, else single-object encoding.
        `topic` is needed for Confluent's framing: the subject is `<topic>-value`. A schema that is not
        registered there yet is registered.

        Raises InvalidField for what cannot be encoded (NaN in a JSON value, a lone surrogate) and
        RegistryFailed.
        """
        if encoding is None:
            encoding = Encoding.SINGLE_OBJECT if self._registry is None else Encoding.CONFLUENT
        if encoding is Encoding.JSON:
            return _to_json(message)
        kind = type(message)
        if encoding is Encoding.CONFLUENT:
            head = _CONFLUENT_MARKER + self._id(kind, topic).to_bytes(4, "big")
        else:
            head = _SINGLE_OBJECT_MARKER + _schema(kind).fingerprint
        try:
            return head + _writer(kind).write(message)
        except Fault as fault:
            raise InvalidField(fault.reason, path=pointer(fault.path)) from None

    def peek_id(self, kind: type[Message], data: bytes | None) -> str | None:
        """The id of a message that did not decode, where it can be read, for its result. Never raises."""
        try:
            found = self._peek(kind, data)
        except HeadraceError:
            return None
        is_id = isinstance(found, str) and 0 < len(found) <= _MAX_ID and not _has_surrogates(found)
        return found if is_id else None

    def _peek(self, kind: type[Message], data: bytes | None) -> Any:
        encoding = self._encoding(kind, data)
        assert data  # checked there
        if encoding is Encoding.JSON:
            return _peek_json(data)
        fields: dict[str, Any] = {}
        reader, start = self._reader(kind, data, encoding)
        with contextlib.suppress(Fault):  # what came before it has been read
            reader.read(data[start:], fields)
        return fields.get("id")

    def _encoding(self, kind: type[Message], data: bytes | None) -> Encoding:
        if not data:
            raise Undecodable(f"an empty value, where a {kind.__name__} should be")
        if data.startswith(_JSON_BYTE):
            return Encoding.JSON
        if data.startswith(_SINGLE_OBJECT_MARKER):
            return Encoding.SINGLE_OBJECT
        if data.startswith(_CONFLUENT_MARKER):
            return Encoding.CONFLUENT
        raise Undecodable(
            f"a value that begins with the bytes {data[:2].hex(' ')}; a {kind.__name__} begins with 7b "
            "(JSON), c3 01 (Avro single-object encoding) or 00 (Confluent's framing)",
            offset=0,
        )

    def _reader(self, kind: type[Message], data: bytes, encoding: Encoding) -> tuple[RecordReader, int]:
        """The reader for the writer's schema that `data` names, and where the datum starts."""
        if encoding is Encoding.SINGLE_OBJECT:
            if len(data) < _SINGLE_OBJECT_HEAD:
                raise Undecodable("the bytes end where a schema's fingerprint should be", offset=len(data))
            return self._reader_by_fingerprint(kind, data[2:_SINGLE_OBJECT_HEAD]), _SINGLE_OBJECT_HEAD
        if len(data) < _CONFLUENT_HEAD:
            raise Undecodable("the bytes end where a schema's id should be", offset=len(data))
        return self._reader_by_id(kind, int.from_bytes(data[1:_CONFLUENT_HEAD], "big")), _CONFLUENT_HEAD

    def _reader_by_fingerprint(self, kind: type[Message], fingerprint: bytes) -> RecordReader:
        found = self._by_fingerprint.get((kind, fingerprint))
        if found is not None:
            return found
        ours = _schema(kind)
        if fingerprint != ours.fingerprint:
            raise UnknownWriterSchema(_unknown_fingerprint(kind, fingerprint), offset=2)
        return self._by_fingerprint.setdefault((kind, fingerprint), RecordReader(ours.root, ours.root))

    def _compile_reader_by_id(self, kind: type[Message], id_: int) -> RecordReader:
        if self._registry is None:
            raise UnknownWriterSchema(
                f"a value in Confluent's framing (schema {id_}), and no schema registry is configured: "
                "set HEADRACE_SCHEMA_REGISTRY_URL",
                offset=1,
            )
        schema = self._registry.writer_schema(id_)
        return RecordReader(schema.root, _schema(kind).root)

    def _id(self, kind: type[Message], topic: str | None) -> int:
        if self._registry is None:
            raise UsageError("Confluent's framing needs a schema registry: set HEADRACE_SCHEMA_REGISTRY_URL")
        if topic is None:
            raise UsageError("Confluent's framing needs the topic: its subject names the schema")
        found = self._ids.get((kind, topic))
        if found is None:
            subject, text = f"{topic}-value", _schema(kind).text
            found = self._registry.id_of(subject, text)
            if found is None:
                found = self._registry.register(subject, text)
            self._ids[kind, topic] = found
        return found


def _unknown_fingerprint(kind: type[Message], fingerprint: bytes) -> str:
    for other in SCHEMA_NAMES:
        if _schema(other).fingerprint == fingerprint:
            return f"a {other.__name__}, where a {kind.__name__} should be"
    return (
        f"no schema is known with the fingerprint {fingerprint[::-1].hex()}; that of our {kind.__name__} is "
        f"{_schema(kind).fingerprint[::-1].hex()} (`headrace schemas export` writes it)"
    )


def _from_json(kind: type[M], data: bytes) -> M:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"JSON that is not UTF-8: {error.reason}", offset=error.start) from None
    try:
        fields = parse(text)
    except JsonFault as fault:
        if fault.index is not None:
            raise Undecodable(fault.reason, offset=len(text[: fault.index].encode())) from None
        raise InvalidField(fault.reason, path=pointer(fault.path)) from None
    try:
        return kind.model_validate_json(data)  # not the parsed fields: in JSON, bytes are base64
    except ValidationError as error:
        raise explain(error, fields) from None


def _peek_json(data: bytes) -> Any:
    """The value of the outermost `id`, as leniently as can be; None where it is given twice."""
    text = data.decode(errors="surrogateescape")
    try:
        pairs = _LENIENT.decode(text)
    except (ValueError, RecursionError):
        first = _ID_COMES_FIRST.match(text)  # cut off, or broken further on
        return None if first is None else json.loads(first[1], strict=False)
    ids = [value for key, value in pairs if key == "id"]
    return ids[0] if len(ids) == 1 else None


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _to_json(message: Message) -> bytes:
    try:
        return dump(_plain(message, _json_fields(type(message)))).encode()
    except JsonFault as fault:
        raise InvalidField(fault.reason, path=pointer(fault.path)) from None


def _plain(value: Any, json_fields: frozenset[tuple[str, str]]) -> Any:
    """A message as JSON has it: no fields that are None, bytes as base64, JSON values as they are."""
    if isinstance(value, Message):
        record = type(value).__name__
        return {
            name: each if (record, name) in json_fields else _plain(each, json_fields)
            for name, each in value.__dict__.items()
            if each is not None
        }
    if isinstance(value, list):
        return [_plain(each, json_fields) for each in cast("list[Any]", value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


@functools.cache
def _json_fields(kind: type[Message]) -> frozenset[tuple[str, str]]:
    """(record, field) of the fields that hold JSON values."""
    found: set[tuple[str, str]] = set()

    def visit(type_: AvroType) -> None:
        match type_:
            case Record(name, fields):
                for field in fields:
                    if field.json:
                        found.add((name.rpartition(".")[2], field.name))
                    visit(field.type)
            case Array(items):
                visit(items)
            case Union(branches):
                for branch in branches:
                    visit(branch)
            case _:
                pass

    visit(_schema(kind).root)
    return frozenset(found)
