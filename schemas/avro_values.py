"""JSON values by the types of a contract's results (`avro_form` derives them), and back.

Every value that is written comes back as it was, but for the order of keys. What the types cannot hold is not
written: Unfit. In a record null stands for a property that is absent, where its field has null for a default; an
explicit null, like a property that has no field, is in the record's `rest`, as JSON text.
"""

from __future__ import annotations

import math
from typing import Any, cast

from headrace.schemas.avro_composites import array_reader, enumeration_reader, map_reader, union_reader
from headrace.schemas.avro_primitives import (
    PRIMITIVE_READERS,
    PRIMITIVE_WRITERS,
    Fault,
    Read,
    Write,
    write_double,
    write_long,
    write_string,
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
)
from headrace.schemas.errors import InvalidField
from headrace.schemas.strict_json import JsonFault, dump, parse


class Unfit(Exception):
    """The value has no place in the type."""


# --- reading ------------------------------------------------------------------------------------------------------


def value_reader(type_: AvroType) -> Read:
    """A reader of JSON values, for any type: it may be a stranger's. Raises Fault for what JSON has not."""
    match type_:
        case Primitive("string", json=True):
            return json_text_reader(PRIMITIVE_READERS["string"])
        case Primitive("float" | "double" as kind):
            return _finite(PRIMITIVE_READERS[kind])
        case Primitive("bytes") | Fixed():
            return _no_json
        case Primitive(kind):
            return PRIMITIVE_READERS[kind]
        case Enumeration(symbols):
            return enumeration_reader(symbols)
        case Array(items):
            return array_reader(value_reader(items))
        case Map(values):
            return map_reader(value_reader(values))
        case Union(branches):
            return union_reader([value_reader(branch) for branch in branches], branches)
        case Record(_, fields):
            return _record_reader(fields)


def json_text_reader(read: Read) -> Read:
    """The value of a JSON text that `read` reads; None where there is none."""

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


def _finite(read: Read) -> Read:
    def read_finite(data: bytes, position: int) -> tuple[float, int]:
        value, end = read(data, position)
        if not math.isfinite(value):
            raise Fault(f"{value} is not JSON", position, InvalidField)
        return value, end

    return read_finite


def _no_json(data: bytes, position: int) -> tuple[Any, int]:
    raise Fault("bytes are not JSON", position, InvalidField)


def _record_reader(fields: tuple[AvroField, ...]) -> Read:
    steps = tuple((field.json_name or field.name, _field_reader(field), field.rest) for field in fields)

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        name = ""
        try:
            for name, read_field, is_rest in steps:
                at = position
                value, position = read_field(data, position)
                if is_rest:
                    _add_rest(found, value, at)
                elif value is not ABSENT:
                    found[name] = value
        except Fault as fault:
            raise fault.within(name) from None
        return found, position

    return read


def _field_reader(field: AvroField) -> Read:
    """A property's value, or ABSENT. The text `null` is a value, and Avro's null none."""
    read = value_reader(field.type)
    if not field.may_be_absent:
        return read

    def read_present(data: bytes, position: int) -> tuple[Any, int]:
        if data[position : position + 1] == b"\0":  # the first branch, null; an index of 0 has no other form
            return ABSENT, position + 1
        return read(data, position)

    return read_present


def _add_rest(found: dict[str, Any], rest: Any, position: int) -> None:
    if not isinstance(rest, dict):
        raise Fault("must be a map", position, InvalidField)
    given = cast("dict[str, Any]", rest)
    twice = next((key for key in given if key in found), None)
    if twice is not None:
        raise Fault("this property has a field of its own", position, InvalidField, (twice,))
    found.update(given)


# --- writing ------------------------------------------------------------------------------------------------------


def value_writer(type_: AvroType) -> Write:
    """A writer of JSON values, for the types that `avro_form` makes. It raises Unfit."""
    match type_:
        case Primitive("string", json=True):
            return _write_json_text
        case Primitive("string"):
            return _write_text
        case Primitive("long"):
            return _write_integer
        case Primitive("double"):
            return _write_number
        case Primitive("boolean"):
            return _write_boolean
        case Array(items):
            return _array_writer(value_writer(items))
        case Map(values):
            return _map_writer(value_writer(values))
        case Union((Primitive("null"), only)):
            return _nullable_writer(value_writer(only))
        case Record(_, fields):
            return _RecordWriter(fields).write
        case _:
            raise TypeError(f"no type of a contract's results: {type_}")


def _write_json_text(value: Any, out: bytearray) -> None:
    try:
        write_string(dump(value), out)
    except (JsonFault, Fault):
        raise Unfit from None


def _write_text(value: Any, out: bytearray) -> None:
    if not isinstance(value, str):
        raise Unfit
    try:
        write_string(value, out)
    except Fault:
        raise Unfit from None


def _write_integer(value: Any, out: bytearray) -> None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise Unfit
    write_long(value, out)


def _write_number(value: Any, out: bytearray) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise Unfit
    try:
        number = float(value)
    except OverflowError:
        raise Unfit from None
    if number != value or math.isinf(number):  # NaN is not itself
        raise Unfit
    write_double(number, out)


def _write_boolean(value: Any, out: bytearray) -> None:
    if not isinstance(value, bool):
        raise Unfit
    PRIMITIVE_WRITERS["boolean"](value, out)


def _array_writer(write_item: Write) -> Write:
    def write(value: Any, out: bytearray) -> None:
        if not isinstance(value, list):
            raise Unfit
        items = cast("list[Any]", value)
        if items:
            write_long(len(items), out)
            for item in items:
                write_item(item, out)
        out.append(0)

    return write


def _map_writer(write_value: Write) -> Write:
    def write(value: Any, out: bytearray) -> None:
        if not isinstance(value, dict):
            raise Unfit
        members = cast("dict[str, Any]", value)
        if members:
            write_long(len(members), out)
            for key, member in members.items():
                _write_text(key, out)
                write_value(member, out)
        out.append(0)

    return write


def _nullable_writer(write_only: Write) -> Write:
    def write(value: Any, out: bytearray) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(2)
            write_only(value, out)

    return write


class _RecordWriter:
    def __init__(self, fields: tuple[AvroField, ...]) -> None:
        self._steps = tuple(
            (field.json_name or field.name, _FieldWriter(field)) for field in fields if not field.rest
        )
        self._names = frozenset(name for name, _ in self._steps)
        rest = [value_writer(field.type) for field in fields if field.rest]
        self._write_rest = rest[0] if rest else None

    def write(self, value: Any, out: bytearray) -> None:
        if not isinstance(value, dict):
            raise Unfit
        members = cast("dict[str, Any]", value)
        rest = {name: member for name, member in members.items() if name not in self._names}
        for name, field in self._steps:
            if name not in members:
                field.write_absence(out)
            elif members[name] is None and field.takes_null_for_absence:
                field.write_absence(out)
                rest[name] = None
            else:
                field.write(members[name], out)
        if self._write_rest is not None:
            self._write_rest(rest, out)
        elif rest:
            raise Unfit


class _FieldWriter:
    """Writes one property of an object, or that it is absent."""

    def __init__(self, field: AvroField) -> None:
        self._may_be_absent = field.may_be_absent
        self._write = value_writer(field.type)
        self.takes_null_for_absence = False
        if field.may_be_absent:
            assert isinstance(field.type, Union), "null is one of its types"
            only = field.type.branches[1]
            self._write = value_writer(only)
            # JSON text has a null of its own.
            self.takes_null_for_absence = not (isinstance(only, Primitive) and only.json)

    def write_absence(self, out: bytearray) -> None:
        if not self._may_be_absent:
            raise Unfit
        out.append(0)

    def write(self, value: Any, out: bytearray) -> None:
        if self._may_be_absent:
            out.append(2)
        self._write(value, out)
