"""Reading Avro's binary encoding strictly: any fault is met with its field and byte offset.

A writer's schema and ours are compiled into one reader (closures, one for each type), so that a message costs
no look-up. What libraries let through is refused: equal keys in a map, sizes of blocks that lie, bytes
left over.

Where the writer's record has a field that ours lacks, its value must be the field's default (null where it
has none), and is dropped; anything else is an unknown field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.schemas.avro_composites import (
    array_reader,
    enumeration_reader,
    fixed_reader,
    map_reader,
    union_reader,
)
from headrace.schemas.avro_primitives import PRIMITIVE_READERS, Fault, Read
from headrace.schemas.avro_schema import (
    ABSENT,
    Array,
    AvroField,
    AvroType,
    Enumeration,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
    default_value,
)
from headrace.schemas.avro_values import json_text_reader, value_reader
from headrace.schemas.errors import UnknownField


class RecordReader:
    """Reads one message written by `writer` into the fields of `ours`."""

    def __init__(self, writer: Record, ours: Record) -> None:
        self._read_into = _Compiler().record_into(writer, ours)

    def read(self, data: bytes, into: dict[str, Any] | None = None) -> dict[str, Any]:
        """The fields of the message; `into` is filled as far as the reading comes. Raises Fault."""
        record: dict[str, Any] = {} if into is None else into
        end = self._read_into(data, 0, record)
        if end != len(data):
            raise Fault(f"bytes left over after the end of the message: {len(data) - end}", end)
        return record


class _Compiler:
    """Makes readers, one for each pair of a writer's record and the record of ours that it stands for."""

    def __init__(self) -> None:
        self._records: dict[tuple[int, int], Read] = {}

    def reader(self, writer: AvroType, ours: AvroType | None) -> Read:
        match writer:
            case Primitive(kind):
                return PRIMITIVE_READERS[kind]
            case Fixed(size):
                return fixed_reader(size)
            case Enumeration(symbols):
                return enumeration_reader(symbols)
            case Array(items):
                match_ = _counterpart(writer, ours)
                return array_reader(self.reader(items, match_.items if isinstance(match_, Array) else None))
            case Map(values):
                match_ = _counterpart(writer, ours)
                return map_reader(self.reader(values, match_.values if isinstance(match_, Map) else None))
            case Union(branches):
                return union_reader(
                    [self.reader(branch, _counterpart(branch, ours)) for branch in branches], branches
                )
            case Record():
                match_ = _counterpart(writer, ours)
                return self._record(writer, match_ if isinstance(match_, Record) else None)

    def _record(self, writer: Record, ours: Record | None) -> Read:
        key = (id(writer), id(ours))
        if key not in self._records:
            read_into = self.record_into(writer, ours)

            def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
                record: dict[str, Any] = {}
                return record, read_into(data, position, record)

            self._records[key] = read
        return self._records[key]

    def record_into(self, writer: Record, ours: Record | None) -> Callable[[bytes, int, dict[str, Any]], int]:
        """Reads a record's fields into a dictionary. Without a counterpart of ours all fields are kept."""
        fields = tuple(self._field(field, ours) for field in writer.fields)

        def read_into(data: bytes, position: int, record: dict[str, Any]) -> int:
            name = ""
            try:
                for name, read, target, only_given in fields:  # noqa: B007 - it is said where a fault is met
                    value, position = read(data, position)
                    if target is not None and not (only_given and value is None):
                        record[target] = value
            except Fault as fault:
                raise fault.within(name) from None
            return position

        return read_into

    def _field(self, field: AvroField, ours: Record | None) -> tuple[str, Read, str | None, bool]:
        """The field's name, its reader, what to keep it as (None: not at all), whether only what is not null."""
        name = field.name
        if ours is None:
            return name, self.reader(field.type, None), name, False
        replaced = None if field.instead_of is None else ours.field(field.instead_of)
        if replaced is not None and replaced.json:
            return name, json_text_reader(self.reader(field.type, None)), replaced.name, True
        known = ours.field(name)
        if known is None:
            read = self.reader(field.type, None)
            return name, _only_default(read, default_value(field.type, field.default)), None, False
        if known.json and field.typed:
            return name, value_reader(field.type), name, False
        read = self.reader(field.type, known.type)
        return name, json_text_reader(read) if known.json else read, name, False


def _counterpart(writer: AvroType, ours: AvroType | None) -> AvroType | None:
    """The branch of ours that a writer's type stands for, by kind; names may differ."""
    candidates = ours.branches if isinstance(ours, Union) else () if ours is None else (ours,)
    return next((each for each in candidates if type(each) is type(writer)), None)


def _only_default(read: Read, default: Any) -> Read:
    """For a field that ours lack: lets its default through, or null where it has none."""
    allowed = None if default is ABSENT else default

    def read_unknown(data: bytes, position: int) -> tuple[None, int]:
        value, end = read(data, position)
        if value != allowed:
            reason = "an unknown field of the writer's schema, with a value other than its default"
            raise Fault(reason, position, UnknownField)
        return None, end

    return read_unknown
