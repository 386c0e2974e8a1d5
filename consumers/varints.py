"""LEB128: numbers in as few bytes as they need, seven bits each, the lowest first. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_VARINT = 9  # bytes of a number up to 2**63 - 1


class NotNumbers(Exception):
    """These bytes are no sequence of such numbers."""


def varint_size(number: int) -> int:
    """Bytes of `number`."""
    return max(1, -(-number.bit_length() // 7))


def put_varint(payload: bytearray, number: int) -> None:
    """Append `number`, which is not negative."""
    while number > 0x7F:
        payload.append(number & 0x7F | 0x80)
        number >>= 7
    payload.append(number)


def read_varints(payload: bytes) -> Iterator[int]:
    """The numbers, lazily. Raises NotNumbers for one of more than nine bytes, and at the end for half of one."""
    number = shift = 0
    for byte in payload:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 7 * LARGEST_VARINT:
            raise NotNumbers("a number in it is too long")
        if byte & 0x80:
            continue
        yield number
        number = shift = 0
    if shift:
        raise NotNumbers("it ends within a number")
