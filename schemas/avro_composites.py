"""Avro's composite types, read strictly, from readers of what they are made of. What libraries let through is
refused: equal keys in a map, sizes of blocks that lie.
"""

from __future__ import annotations

from typing import Any

from headrace.schemas.avro_primitives import Fault, Read, read_long, read_string, truncated, wrong_length
from headrace.schemas.avro_schema import AvroType, Primitive
from headrace.schemas.errors import InvalidField


def fixed_reader(size: int) -> Read:
    """Bytes of a known number."""

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + size
        if end > len(data):
            raise truncated(f"a fixed value of {size} bytes", data, position)
        return data[position:end], end

    return read


def enumeration_reader(symbols: tuple[str, ...]) -> Read:
    """One of the symbols."""

    def read(data: bytes, position: int) -> tuple[str, int]:
        index, end = read_long(data, position)
        if not 0 <= index < len(symbols):
            raise Fault(f"an enum's symbol number {index}; it has {len(symbols)}", position)
        return symbols[index], end

    return read


def union_reader(readers: list[Read], branches: tuple[AvroType, ...]) -> Read:
    """A value of one of the branches, which `readers` read."""
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


def array_reader(read_item: Read) -> Read:
    """A list of what `read_item` reads."""

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


def map_reader(read_value: Read) -> Read:
    """A dictionary of what `read_value` reads; a key that is given twice is a fault."""

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
