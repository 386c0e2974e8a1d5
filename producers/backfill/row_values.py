"""Columns of Arrow as the JSON values that a mapping sees.

integers, booleans, text      as they are
floats                        NaN and the infinities are null; float32 by its shortest text (0.1, not 0.10000000149)
decimals                      text, with all digits (`"12.50"`)
dates, times, timestamps      ISO 8601 text; with a time zone: in UTC, with `Z`
durations                     ISO 8601 text, in seconds (`PT90.5S`)
UUIDs                         text
lists, structs, maps          arrays and objects; a map's keys as text
dictionary-encoded            what is encoded
binary, intervals             not to be had: `unreadable_reason` says so, and rows go without the column
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonValue

_types: Final[Any] = pt  # its stubs are partly unknown
_arrow: Final[Any] = pa  # likewise
_compute: Final[Any] = pc  # likewise
_UNIT_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def unreadable_reason(kind: pa.DataType) -> str | None:
    """Why values of this type cannot be part of a row; None where they can."""
    if isinstance(kind, pa.UuidType):
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return unreadable_reason(kind.storage_type)
    if _is_binary(kind):
        return f"{kind} is bytes, which no prompt can hold"
    if _types.is_interval(kind) or _types.is_union(kind):
        return f"{kind} has no form in JSON"
    inner = _inner_types(kind)
    return next((reason for each in inner if (reason := unreadable_reason(each))), None)


def decoded_type(kind: Any) -> pa.DataType:
    """A type without its dictionary and run-end encoding, at any depth."""
    if _is_encoded(kind):
        return decoded_type(kind.value_type)
    if _types.is_struct(kind):
        return pa.struct([_decoded_field(kind.field(index)) for index in range(kind.num_fields)])
    if _types.is_map(kind):
        return _arrow.map_(_decoded_field(kind.key_field), _decoded_field(kind.item_field), kind.keys_sorted)
    if _types.is_fixed_size_list(kind):
        return _arrow.list_(_decoded_field(kind.value_field), kind.list_size)
    if _types.is_large_list(kind):
        return pa.large_list(_decoded_field(kind.value_field))
    if _types.is_list(kind):
        return pa.list_(_decoded_field(kind.value_field))
    return kind


def _decoded_field(field: Any) -> Any:
    return field.with_type(decoded_type(field.type))


def _is_binary(kind: pa.DataType) -> bool:
    return (
        _types.is_binary(kind)
        or _types.is_large_binary(kind)
        or _types.is_fixed_size_binary(kind)
        or _types.is_binary_view(kind)
    )


def _inner_types(kind: Any) -> list[pa.DataType]:
    if _is_encoded(kind):
        return [kind.value_type]
    return [kind.field(index).type for index in range(kind.num_fields)] if _types.is_nested(kind) else []


def json_values(array: Any) -> list[JsonValue]:
    """The values of an array whose type is readable. Raises ValueError for one that no JSON text can hold."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        if isinstance(kind, pa.UuidType):
            stored = cast("list[bytes | None]", array.storage.to_pylist())
            return [None if value is None else str(uuid.UUID(bytes=value)) for value in stored]
        return json_values(array.storage)
    for matches, convert in _CONVERSIONS:
        if matches(kind):
            return convert(array)
    return array.to_pylist()


def _floats(array: Any) -> list[JsonValue]:
    if not _types.is_float64(array.type):
        array = array.cast(pa.float32()).cast(pa.string()).cast(pa.float64())
    values = cast("list[float | None]", array.to_pylist())
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _decimals(array: Any) -> list[JsonValue]:
    return [None if value is None else format(value, "f") for value in array.to_pylist()]


def _moments(array: Any) -> list[JsonValue]:
    """Dates and times: Arrow's own text, which has any year, with a `T`, and without zeros that say nothing."""
    kind = array.type
    zone = ""
    if _types.is_timestamp(kind) and kind.tz is not None:
        array, zone = array.cast(pa.timestamp(kind.unit)), "Z"
    texts = cast("list[str | None]", array.cast(pa.string()).to_pylist())
    return [None if text is None else _moment(text) + zone for text in texts]


def _moment(text: str) -> str:
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace(" ", "T")


def _durations(array: Any) -> list[JsonValue]:
    digits = _UNIT_DIGITS[array.type.unit]
    counts = cast("list[int | None]", array.cast(pa.int64()).to_pylist())
    return [None if count is None else _duration(count, digits) for count in counts]


def _duration(count: int, digits: int) -> str:
    seconds, fraction = divmod(abs(count), 10**digits)
    text = f"{seconds}.{fraction:0{digits}}".rstrip("0").rstrip(".") if fraction else str(seconds)
    return f"{'-' if count < 0 else ''}PT{text}S"


def _decoded(array: Any) -> list[JsonValue]:
    if _types.is_dictionary(array.type):
        values = json_values(array.dictionary)
        places = cast("list[int | None]", array.indices.to_pylist())
        return [None if place is None else values[place] for place in places]
    return json_values(_compute.run_end_decode(array))


def _structs(array: Any) -> list[JsonValue]:
    names = cast("list[str]", [array.type.field(index).name for index in range(array.type.num_fields)])
    if not names:
        return [{} if there else None for there in _are_valid(array)]
    columns = [json_values(child) for child in array.flatten()]
    rows = zip(*columns, strict=True)
    return [
        dict(zip(names, row, strict=True)) if there else None
        for there, row in zip(_are_valid(array), rows, strict=True)
    ]


def _lists(array: Any) -> list[JsonValue]:
    values = iter(json_values(array.flatten()))  # of lists that are there, without what null ones hide
    lengths = cast("list[int | None]", _compute.list_value_length(array).to_pylist())
    return [None if length is None else [next(values) for _ in range(length)] for length in lengths]


def _maps(array: Any) -> list[JsonValue]:
    offsets = cast("list[int]", array.offsets.to_pylist())
    first, count = offsets[0], offsets[-1] - offsets[0]
    keys = [_key(key) for key in json_values(array.keys.slice(first, count))]
    items = json_values(array.items.slice(first, count))
    ranges = [(start - first, end - first) for start, end in pairwise(offsets)]
    return [
        dict(zip(keys[start:end], items[start:end], strict=True)) if there else None
        for there, (start, end) in zip(_are_valid(array), ranges, strict=True)
    ]


def _key(value: JsonValue) -> str:
    return value if isinstance(value, str) else str(value)


def _are_valid(array: Any) -> Iterator[bool]:
    return iter(cast("list[bool]", array.is_valid().to_pylist()))


def _is_list(kind: pa.DataType) -> bool:
    return (
        _types.is_list(kind)
        or _types.is_large_list(kind)
        or _types.is_fixed_size_list(kind)
        or _types.is_list_view(kind)
        or _types.is_large_list_view(kind)
    )


def _is_moment(kind: pa.DataType) -> bool:
    return _types.is_date(kind) or _types.is_time(kind) or _types.is_timestamp(kind)


def _is_encoded(kind: pa.DataType) -> bool:
    return _types.is_dictionary(kind) or _types.is_run_end_encoded(kind)


_CONVERSIONS: Final[
    list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array[Any]], list[JsonValue]]]]
] = [
    (_types.is_floating, _floats),
    (_types.is_decimal, _decimals),
    (_is_moment, _moments),
    (_types.is_duration, _durations),
    (_is_encoded, _decoded),
    (_types.is_struct, _structs),
    (_types.is_map, _maps),  # before lists, which it is one of
    (_is_list, _lists),
]
