"""Avro's primitive types, written, and read strictly: any fault is met with its byte offset.

Nothing is allocated for a length before the bytes are known to be there. What libraries let through is
refused too: booleans other than 0 and 1, and overlong numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from headrace.schemas.errors import InvalidField, MessageError, Undecodable
from headrace.schemas.strict_json import pointer

Read = Callable[[bytes, int], tuple[Any, int]]  # (the data, where to start): the value, and where it ended
Write = Callable[[Any, bytearray], None]  # (the value, what its bytes are added to)

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


class Fault(Exception):
    """What is wrong with the bytes; each record, array and map on the way out adds its step to `path`."""

    def __init__(
        self,
        reason: str,
        offset: int,
        error: type[MessageError] = Undecodable,
        path: tuple[str | int, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset
        self.error = error
        self.path = path

    def within(self, step: str | int) -> Fault:
        """The same fault, seen from one level further out."""
        self.path = (step, *self.path)
        return self

    def translated(self, start: int) -> MessageError:
        """The error that callers see; the datum began at byte `start` of the message."""
        return self.error(self.reason, path=pointer(self.path), offset=start + self.offset)


def truncated(what: str, data: bytes, position: int) -> Fault:
    """The data ends too early."""
    return Fault(f"the bytes end where {what} should be", min(position, len(data)))


def _read_null(data: bytes, position: int) -> tuple[None, int]:
    return None, position


def _read_boolean(data: bytes, position: int) -> tuple[bool, int]:
    try:
        byte = data[position]
    except IndexError:
        raise truncated("a boolean", data, position) from None
    if byte > 1:
        raise Fault(f"a boolean of byte 0x{byte:02x}; 00 and 01 are the only ones", position)
    return byte == 1, position + 1


def read_long(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag number of up to 64 bits, in its shortest form."""
    try:
        byte = data[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        start, shift, unsigned = position, 0, 0
        while byte & 0x80:
            unsigned |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise Fault("a number of more than 64 bits", start)
            position += 1
            byte = data[position]
    except IndexError:
        raise truncated("a number", data, position) from None
    unsigned |= byte << shift
    if byte == 0:
        raise Fault("an overlong number: its last byte adds nothing", start)
    if unsigned >> 64:
        raise Fault("a number of more than 64 bits", start)
    return (unsigned >> 1) ^ -(unsigned & 1), position + 1


def _read_int(data: bytes, position: int) -> tuple[int, int]:
    value, end = read_long(data, position)
    if not -(2**31) <= value < 2**31:
        raise Fault(f"an int of {value}: more than 32 bits", position)
    return value, end


def _read_float(data: bytes, position: int) -> tuple[float, int]:
    end = position + 4
    if end > len(data):
        raise truncated("a float", data, position)
    return _FLOAT.unpack_from(data, position)[0], end


def _read_double(data: bytes, position: int) -> tuple[float, int]:
    end = position + 8
    if end > len(data):
        raise truncated("a double", data, position)
    return _DOUBLE.unpack_from(data, position)[0], end


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    length, start = read_long(data, position)
    end = start + length
    if length < 0 or end > len(data):
        raise wrong_length(length, data, position, start)
    return data[start:end], end


def read_string(data: bytes, position: int) -> tuple[str, int]:
    """A string of UTF-8."""
    length, start = read_long(data, position)
    end = start + length
    if length < 0 or end > len(data):
        raise wrong_length(length, data, position, start)
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise Fault(f"a string that is not UTF-8: {error.reason}", start + error.start) from None


def wrong_length(length: int, data: bytes, position: int, start: int) -> Fault:
    """A length, met at `position`, that the bytes from `start` on do not have."""
    if length < 0:
        return Fault(f"a length of {length}", position)
    return Fault(f"a length of {length} bytes, where {len(data) - start} are left", position)


PRIMITIVE_READERS: Final[dict[str, Read]] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": read_string,
}


# --- writing ------------------------------------------------------------------------------------------------------


def write_long(value: int, out: bytearray) -> None:
    """A number of up to 64 bits. Raises Fault for a larger one."""
    rest = (value << 1) ^ (value >> 63)
    if rest >> 64:
        raise Fault(f"{value} has more than 64 bits", len(out), InvalidField)
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)


def write_boolean(value: bool, out: bytearray) -> None:
    """A boolean."""
    out.append(1 if value else 0)


def write_double(value: float, out: bytearray) -> None:
    """A double."""
    out += _DOUBLE.pack(value)


def _write_bytes(value: bytes, out: bytearray) -> None:
    write_long(len(value), out)
    out += value


def write_string(value: str, out: bytearray) -> None:
    """A string of UTF-8. Raises Fault for a lone surrogate."""
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise Fault("a lone surrogate: half of a character", len(out), InvalidField) from None
    write_long(len(encoded), out)
    out += encoded


PRIMITIVE_WRITERS: Final[dict[str, Write]] = {
    "boolean": write_boolean,
    "long": write_long,
    "double": write_double,
    "bytes": _write_bytes,
    "string": write_string,
}
