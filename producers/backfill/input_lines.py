"""Lines of a text file with the byte at which each begins, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headrace.producers.backfill.failures import InputFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_BYTES: Final = 4 << 20  # of a read: one request to an object store
MAX_LINE_BYTES: Final = 16 << 20  # what is longer is not held

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_UTF_16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


class ByteStream(Protocol):
    """What lines are read from."""

    def read(self, nbytes: int, /) -> bytes: ...
    def seekable(self) -> bool: ...
    def seek(self, position: int, /) -> object: ...


class OverlongLine(bytes):
    """The begin of a line of `length` bytes, longer than `MAX_LINE_BYTES`."""

    length: int


class LineReader:
    """Lines without their line feed. `offset`: the byte at which the next one begins, in the decompressed text."""

    def __init__(self, stream: ByteStream, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._stream = stream
        self._block_bytes = block_bytes
        self._ready: list[bytes] = []  # the next one last
        self._rest = b""  # the begin of a line whose end has not been read
        self._ended = False
        self.offset = 0

    def next_line(self) -> bytes | None:
        """None at the end. An OverlongLine has only its begin."""
        while not self._ready:
            if self._ended:
                return None
            self._fill()
        line = self._ready.pop()
        self.offset += _length(line) + 1
        return line

    def push_back(self, lines: Sequence[bytes]) -> None:
        """Gives the last lines that were taken once more."""
        self._ready += reversed(lines)
        self.offset -= sum(_length(line) + 1 for line in lines)

    def skip_to(self, offset: int) -> None:
        """Goes on with the line that begins at `offset`, which is not before the present one."""
        if self._stream.seekable():
            self._stream.seek(offset)
            self._ready, self._rest, self._ended = [], b"", False
            self.offset = offset
        while self.offset < offset and self.next_line() is not None:
            pass

    def _fill(self) -> None:
        block = self._stream.read(self._block_bytes)
        if not block:
            self._ended = True
            lines = self._rest.split(b"\n")  # several, where a line that was too long ended in the last block
            if not lines[-1]:
                lines.pop()
            lines.reverse()
            self._ready, self._rest = lines, b""
            return
        if self.offset == 0 and not self._rest:
            block = self._without_mark(block)
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()
        lines.reverse()
        self._ready = lines
        if len(self._rest) > MAX_LINE_BYTES:
            self._pass_over()

    def _without_mark(self, block: bytes) -> bytes:
        if block.startswith(_UTF_16_MARKS):
            raise InputFailed("it is UTF-16; UTF-8 is read")
        if block.startswith(_BYTE_ORDER_MARK):
            self.offset = len(_BYTE_ORDER_MARK)
            return block[len(_BYTE_ORDER_MARK) :]
        return block

    def _pass_over(self) -> None:
        """Reads to the end of a line that is too long, keeping its begin."""
        line = OverlongLine(self._rest[:MAX_LINE_BYTES])
        line.length = len(self._rest)
        self._rest = b""
        while block := self._stream.read(self._block_bytes):
            before, feed, after = block.partition(b"\n")
            line.length += len(before)
            if feed:
                self._rest = after  # whole lines too: the next fill splits them, also at the end of the file
                break
        self._ready.insert(0, line)


def _length(line: bytes) -> int:
    return line.length if isinstance(line, OverlongLine) else len(line)
