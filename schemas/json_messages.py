"""Messages as JSON: strictly read and written, and the id of one that did not decode."""

from __future__ import annotations

import base64
import functools
import json
import re
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError

from headrace.schemas.avro_schema import Array, AvroType, Record, Union
from headrace.schemas.errors import InvalidField, Undecodable
from headrace.schemas.field_errors import explain
from headrace.schemas.messages import Message
from headrace.schemas.strict_json import JsonFault, dump, parse, pointer

M = TypeVar("M", bound=Message)


def _no_number(_: str) -> None:
    """Not converted, since numbers of many digits cannot be."""


# Objects as pairs, so that a key that is given twice is seen.
_LENIENT: Final = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=_no_number, parse_float=_no_number, strict=False
)
_ID_COMES_FIRST: Final = re.compile(r'\{\s*"id"\s*:\s*("(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")')


def message_from_json(kind: type[M], data: bytes) -> M:
    """The message of a JSON text. Raises Undecodable, InvalidField or UnknownField."""
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


def id_in_json(data: bytes) -> Any:
    """The value of the outermost `id`, as leniently as can be; None where it is given twice."""
    text = data.decode(errors="surrogateescape")
    try:
        pairs = _LENIENT.decode(text)
    except (ValueError, RecursionError):
        first = _ID_COMES_FIRST.match(text)  # cut off, or broken further on
        return None if first is None else json.loads(first[1], strict=False)
    ids = [value for key, value in pairs if key == "id"]
    return ids[0] if len(ids) == 1 else None


def message_to_json(message: Message, schema: Record) -> bytes:
    """The JSON of a message, which `schema` describes. Raises InvalidField for what JSON has not."""
    try:
        return dump(_plain(message, _json_fields(schema))).encode()
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
def _json_fields(schema: Record) -> frozenset[tuple[str, str]]:
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

    visit(schema)
    return frozenset(found)
