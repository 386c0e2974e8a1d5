"""Between bytes and messages: JSON, Avro's single-object encoding, and Confluent's framing.

The first byte tells which: `{` is JSON; C3 (then 01, and the 8-byte fingerprint of the writer's schema) is
single-object encoding; 00 (then the 4-byte id of the writer's schema in the registry) Confluent's framing.
In all three an unknown field is refused by name.

Results of a contract may be written with a schema of its own, in which their values have types (`avro_form`). They
are read into the same `Result` as all others.

What is wrong with a message is a MessageError, and the same bytes will end so again. A registry that does
not answer is not the message's fault: that is RegistryFailed, and the message should be tried again later.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import ValidationError

from headrace.schemas.avro_primitives import Fault
from headrace.schemas.avro_reading import RecordReader
from headrace.schemas.avro_schema import Schema, parse_schema, shipped
from headrace.schemas.avro_writing import RecordWriter
from headrace.schemas.errors import (
    HeadraceError,
    InvalidField,
    RegistryFailed,
    SchemaIncompatible,
    Undecodable,
    UnknownWriterSchema,
    UsageError,
)
from headrace.schemas.field_errors import explain
from headrace.schemas.json_messages import id_in_json, message_from_json, message_to_json
from headrace.schemas.messages import Cancel, DeadLetter, Message, Reply, Request, Result
from headrace.schemas.strict_json import pointer

if TYPE_CHECKING:
    from headrace.schemas.registry import Compatibility, SchemaRegistry

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

# The file of schemas/avro/ that describes each kind of message.
SCHEMA_NAMES: Final[dict[type[Message], str]] = {
    Request: "request",
    Result: "result",
    Reply: "reply",
    DeadLetter: "dead_letter",
    Cancel: "cancel",
}

# Who must be able to read whom. Requests and cancels are written by callers and read by workers: a new worker
# reads what old callers wrote. Results and replies are written by workers and read by callers: old callers
# read what any new worker writes. Dead letters are kept long: tools older and newer than the worker read them.
COMPATIBILITY: Final[dict[type[Message], Compatibility]] = {
    Request: "BACKWARD",
    Cancel: "BACKWARD",
    Result: "FORWARD_TRANSITIVE",
    Reply: "FORWARD_TRANSITIVE",
    DeadLetter: "FULL_TRANSITIVE",
}

# Schemas that shipped before the present ones, by the names of their files: what was written with them lies in topics.
FORMER_SCHEMAS: Final[dict[type[Message], tuple[str, ...]]] = {Request: ("request_1",)}

_JSON_BYTE: Final = b"{"
_SINGLE_OBJECT_MARKER: Final = b"\xc3\x01"
_SINGLE_OBJECT_HEAD: Final = 10  # bytes: the marker and the fingerprint
_CONFLUENT_MARKER: Final = b"\x00"
_CONFLUENT_HEAD: Final = 5  # bytes: the marker and the schema's id
_MAX_ID: Final = 256  # characters, as in messages.Identifier


_MAX_READERS: Final = 256  # kept by a registry's id; a producer may name every id that the registry has
_ASK_AGAIN_AFTER_S: Final = 10  # for the schemas of contracts; asking for each message would flood


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


@dataclass(frozen=True, slots=True)
class TypedResults:
    """A contract's own schema of results (`contract_result_schema`), and its topic of results.

    A result that goes to another topic is written with the schema that ships: other contracts' results may lie
    there, and a subject has one line of schemas.
    """

    topic: str
    schema: str


@functools.cache
def _writer(kind: type[Message]) -> RecordWriter:
    return RecordWriter(_schema(kind).root)


def _schema(kind: type[Message]) -> Schema:
    return shipped(SCHEMA_NAMES[kind])


class Codec:
    """Decodes and encodes messages. One for a process; may be used from several threads."""

    def __init__(
        self,
        registry: SchemaRegistry | None = None,
        *,
        typed_results: TypedResults | None = None,
        result_schemas: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """`typed_results`: as `write_results_as` has it. `result_schemas` is asked for the contracts' schemas of
        results when a result has a fingerprint that is not known, every ten seconds at most; it may raise our errors.
        """
        self._registry = registry
        self._by_fingerprint: dict[tuple[type[Message], bytes], RecordReader] = {}
        self._reader_by_id = functools.lru_cache(_MAX_READERS)(self._compile_reader_by_id)
        self._ids: dict[tuple[str, bytes], int] = {}
        self._typed: _TypedWriter | None = None
        self._result_schemas = result_schemas
        self._ask_again_at = 0.0  # monotonic seconds
        if typed_results is not None:
            self.write_results_as(typed_results)

    @classmethod
    def with_registry_at(
        cls, url: str | None, *, result_schemas: Callable[[], Iterable[str]] | None = None
    ) -> Codec:
        """A codec with the registry at a URL; None: without one. Raises SettingsError for what is no URL."""
        from headrace.schemas.registry import SchemaRegistry  # most have none

        return cls(None if url is None else SchemaRegistry(url), result_schemas=result_schemas)

    def add_writer_schema(self, kind: type[Message], text: str) -> None:
        """Makes messages readable that carry another schema's fingerprint. Raises UnknownWriterSchema."""
        schema = parse_schema(text)
        self._by_fingerprint[kind, schema.fingerprint] = RecordReader(schema.root, _schema(kind).root)

    def write_results_as(self, typed: TypedResults) -> None:
        """From now on, results that go to that topic are written with that schema; and they are read. Any thread.

        Where the topic's subject has a schema already whose readers could not read them, they are written as if this
        had not been said, and a warning says so once. Raises UnknownWriterSchema.
        """
        self.add_writer_schema(Result, typed.schema)
        schema = parse_schema(typed.schema)
        self._typed = _TypedWriter(typed.topic, schema, RecordWriter(schema.root))

    def decode(self, kind: type[M], data: bytes | None) -> Decoded[M]:
        """The message that `data` encodes.

        Raises a MessageError with the field's JSON pointer, and the byte's offset where it is known;
        RegistryFailed where the registry was needed and did not answer.
        """
        encoding = self._encoding(kind, data)
        assert data  # checked there
        if encoding is Encoding.JSON:
            return Decoded(message_from_json(kind, data), encoding)
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
        kind = type(message)
        if encoding is Encoding.JSON:
            return message_to_json(message, _schema(kind).root)
        head, writer = self._head(kind, encoding, topic)
        try:
            return head + writer.write(message)
        except Fault as fault:
            raise InvalidField(fault.reason, path=pointer(fault.path)) from None

    def _head(self, kind: type[Message], encoding: Encoding, topic: str | None) -> tuple[bytes, RecordWriter]:
        """What comes before a message's datum, and what writes the datum."""
        typed = self._typed if kind is Result else None
        if typed is not None and typed.topic == topic:
            try:
                return self._marker(kind, encoding, topic, typed.schema), typed.writer
            except SchemaIncompatible as error:
                log.warning(
                    "results go to %s without types, their values as JSON text: %s; delete the subject's schemas once "
                    "no reader needs them, or begin a new contract",
                    topic, error.message,
                )  # fmt: skip
                self._typed = None
        return self._marker(kind, encoding, topic, _schema(kind)), _writer(kind)

    def _marker(self, kind: type[Message], encoding: Encoding, topic: str | None, schema: Schema) -> bytes:
        if encoding is Encoding.CONFLUENT:
            return _CONFLUENT_MARKER + self._id(kind, topic, schema).to_bytes(4, "big")
        return _SINGLE_OBJECT_MARKER + schema.fingerprint

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
            return id_in_json(data)
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
        if fingerprint == ours.fingerprint:
            return self._by_fingerprint.setdefault((kind, fingerprint), RecordReader(ours.root, ours.root))
        for former in map(shipped, FORMER_SCHEMAS.get(kind, ())):
            if fingerprint == former.fingerprint:
                reader = RecordReader(former.root, ours.root)
                return self._by_fingerprint.setdefault((kind, fingerprint), reader)
        if kind is Result and self._learn_result_schemas():
            found = self._by_fingerprint.get((kind, fingerprint))
            if found is not None:
                return found
        raise UnknownWriterSchema(_unknown_fingerprint(kind, fingerprint), offset=2)

    def _learn_result_schemas(self) -> bool:
        """Whether schemas were asked for: not where nobody is to be asked, nor again so soon."""
        if self._result_schemas is None or time.monotonic() < self._ask_again_at:
            return False
        self._ask_again_at = time.monotonic() + _ASK_AGAIN_AFTER_S
        for text in self._result_schemas():
            try:
                self.add_writer_schema(Result, text)
            except UnknownWriterSchema as error:  # that one is of no use; the others may be
                log.warning("a contract's schema of results cannot be read by: %s", error)
        return True

    def _compile_reader_by_id(self, kind: type[Message], id_: int) -> RecordReader:
        if self._registry is None:
            raise UnknownWriterSchema(
                f"a value in Confluent's framing (schema {id_}), and no schema registry is configured: "
                "set HEADRACE_SCHEMA_REGISTRY_URL",
                offset=1,
            )
        schema = self._registry.writer_schema(id_)
        return RecordReader(schema.root, _schema(kind).root)

    def _id(self, kind: type[Message], topic: str | None, schema: Schema) -> int:
        if self._registry is None:
            raise UsageError("Confluent's framing needs a schema registry: set HEADRACE_SCHEMA_REGISTRY_URL")
        if topic is None:
            raise UsageError("Confluent's framing needs the topic: its subject names the schema")
        found = self._ids.get((topic, schema.fingerprint))
        if found is None:
            subject = f"{topic}-value"
            found = self._registry.id_of(subject, schema.text)
            if found is None:
                found = _register(self._registry, subject, schema.text, COMPATIBILITY[kind])
            self._ids[topic, schema.fingerprint] = found
        return found


def _register(registry: SchemaRegistry, subject: str, text: str, level: Compatibility) -> int:
    """Registers a schema; its id. A subject that had no level of its own gets `level`.

    That is asked before: some registries say NONE of every subject that they have. Who may register need not be
    allowed to set levels, so that this cannot be done is no failure.
    """
    try:
        had_none = registry.compatibility(subject) is None
    except RegistryFailed:
        had_none = False
    id_ = registry.register(subject, text)
    if had_none:
        try:
            registry.set_compatibility(subject, level)
        except RegistryFailed as error:
            log.warning("%s should have the compatibility level %s: %s", subject, level, error)
    return id_


@dataclass(frozen=True, slots=True)
class _TypedWriter:
    topic: str
    schema: Schema
    writer: RecordWriter


def _unknown_fingerprint(kind: type[Message], fingerprint: bytes) -> str:
    for other in SCHEMA_NAMES:
        if _schema(other).fingerprint == fingerprint:
            return f"a {other.__name__}, where a {kind.__name__} should be"
    return (
        f"no schema is known with the fingerprint {fingerprint[::-1].hex()}; that of our {kind.__name__} is "
        f"{_schema(kind).fingerprint[::-1].hex()} (`headrace schemas export` writes it)"
    )


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
