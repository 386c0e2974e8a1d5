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

from headrace.schemas.avro_primitives import (
    PRIMITIVE_READERS,
    Fault,
    Read,
    read_long,
    read_string,
    truncated,
    wrong_length,
)
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
from headrace.schemas.errors import InvalidField, UnknownField
from headrace.schemas.strict_json import JsonFault, parse


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
                return _fixed(size)
            case Enumeration(symbols):
                return _enumeration(symbols)
            case Array(items):
                match_ = _counterpart(writer, ours)
                return _array(self.reader(items, match_.items if isinstance(match_, Array) else None))
            case Map(values):
                match_ = _counterpart(writer, ours)
                return _map(self.reader(values, match_.values if isinstance(match_, Map) else None))
            case Union(branches):
                return _union(
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
                for name, read, keep in fields:
                    value, position = read(data, position)
                    if keep:
                        record[name] = value
            except Fault as fault:
                raise fault.within(name) from None
            return position

        return read_into

    def _field(self, field: AvroField, ours: Record | None) -> tuple[str, Read, bool]:
        known = None if ours is None else ours.field(field.name)
        read = self.reader(field.type, None if known is None else known.type)
        if ours is None:
            return field.name, read, True
        if known is None:
            return field.name, _only_default(read, default_value(field.type, field.default)), False
        return field.name, _json_text(read) if known.json else read, True


def _counterpart(writer: AvroType, ours: AvroType | None) -> AvroType | None:
    """The branch of ours that a writer's type stands for, by kind; names may differ."""
    candidates = ours.branches if isinstance(ours, Union) else () if ours is None else (ours,)
    return next((each for each in candidates if type(each) is type(writer)), None)


def _fixed(size: int) -> Read:
    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + size
        if end > len(data):
            raise truncated(f"a fixed value of {size} bytes", data, position)
        return data[position:end], end

    return read


def _enumeration(symbols: tuple[str, ...]) -> Read:
    def read(data: bytes, position: int) -> tuple[str, int]:
        index, end = read_long(data, position)
        if not 0 <= index < len(symbols):
            raise Fault(f"an enum's symbol number {index}; it has {len(symbols)}", position)
        return symbols[index], end

    return read


def _union(readers: list[Read], branches: tuple[AvroType, ...]) -> Read:
    # A branch's number below 64 is one byte, twice the number; null needs no call.
    null = next(
        (2 * i for i, each in enumerate(branches) if isinstance(each, Primitive) and each.kind == "null"), -1
    )
    by_byte = {2 * i: reader for i, reader in enumerate(readers[:64])}

    def read(data: bytes, position: int) -> tuple[Any, int]:
        try:
            byte = data[position]
        except IndexError:
            raise truncated("a union's branch", data, position) from None
        if byte == null:
            return None, position + 1
        branch = by_byte.get(byte)
        if branch is not None:
            return branch(data, position + 1)
        index, end = read_long(data, position)
        if not 0 <= index < len(readers):
            raise Fault(f"a union's branch number {index}; it has {len(readers)}", position)
        return readers[index](data, end)

    return read


def _block(data: bytes, position: int) -> tuple[int, int, int | None]:
    """A block's head: how many items (0 ends it all), where they start, where they end if it says so."""
    count, start = read_long(data, position)
    size: int | None = None
    if count < 0:
        count = -count
        at = start
        size, start = read_long(data, at)
        if size < 0 or start + size > len(data):
            raise wrong_length(size, data, at, start)
    if count > len(data) - start:  # an item has at least a byte: avro_schema refuses others
        raise Fault(f"a count of {count} items, where {len(data) - start} bytes are left", position)
    return count, start, None if size is None else start + size


def _check_block_end(stated: int | None, position: int) -> None:
    if stated is not None and position != stated:
        raise Fault(f"a block whose stated size is off by {position - stated} bytes", position)


def _array(read_item: Read) -> Read:
    def read(data: bytes, position: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            count, position, stated = _block(data, position)
            if count == 0:
                return items, position
            try:
                for _ in range(count):
                    item, position = read_item(data, position)
                    items.append(item)
            except Fault as fault:
                raise fault.within(len(items)) from None
            _check_block_end(stated, position)

    return read


def _map(read_value: Read) -> Read:
    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            count, position, stated = _block(data, position)
            if count == 0:
                return found, position
            for _ in range(count):
                at = position
                key, position = read_string(data, position)
                if key in found:
                    raise Fault("this key is given twice", at, InvalidField, (key,))
                try:
                    found[key], position = read_value(data, position)
                except Fault as fault:
                    raise fault.within(key) from None
            _check_block_end(stated, position)

    return read


def _json_text(read: Read) -> Read:
    """For a field of ours that is a string of JSON text: its value."""

    def read_json(data: bytes, position: int) -> tuple[Any, int]:
        text, end = read(data, position)
        if text is None:
            return None, end
        if not isinstance(text, str):
            raise Fault("must be a string of JSON text", position, InvalidField)
        try:
            return parse(text), end
        except JsonFault as fault:
            where = "" if fault.index is None else f", at character {fault.index} of the text"
            raise Fault(fault.reason + where, position, InvalidField, fault.path) from None

    return read_json


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
