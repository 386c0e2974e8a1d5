"""The digest of an input: what it holds decides, not where it lies or when it was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.producers.backfill.locations import reading

if TYPE_CHECKING:
    from headrace.producers.backfill.locations import InputFile, Location

MIB: Final = 1 << 20
WHOLE_BYTES: Final = 64 * MIB  # up to this much, shared by all files, is digested whole
PIECES: Final = 16  # of a MiB each, shared by all files: what is digested of larger ones


class InputDigest:
    """Gathers what the files of an input hold, in their order."""

    def __init__(self, format_name: str) -> None:
        self._sum = hashlib.sha256(f"headrace input 1 {format_name}\n".encode())

    def add(self, file: InputFile, content: bytes, size: int) -> None:
        """`content`: a digest of what the file holds; `size` in bytes. Its Hive partition is data too."""
        line = [list(file.partition.items()), size, content.hex()]
        self._sum.update(json.dumps(line).encode() + b"\n")

    def __str__(self) -> str:
        return f"sha256:{self._sum.hexdigest()}"


def digest_of_files(location: Location, format_name: str, progress: Callable[[int], None]) -> str:
    """Of files that need not be read to be opened.

    All of what they hold, up to 64 MiB for one file; of larger ones the size and 16 MiB evenly spread, the last one
    among them, where Parquet and Arrow files keep what they say of all the others. Many files share these bounds,
    but each gives a MiB at least. `progress` is told of bytes. Raises InputFailed.
    """
    whole = max(MIB, WHOLE_BYTES // len(location.files))
    pieces = max(1, PIECES // len(location.files))
    digest = InputDigest(format_name)
    for file in location.files:
        content = hashlib.sha256()
        with location.open_random(file) as opened, reading(location.shown, file):
            for start, length in _pieces(file.size, whole, pieces):
                opened.seek(start)
                content.update(opened.read(length))
        digest.add(file, content.digest(), file.size)
        progress(file.size)
    return str(digest)


def _pieces(size: int, whole: int, pieces: int) -> list[tuple[int, int]]:
    """(start, length) of each piece of a file of `size` bytes that is read."""
    if size <= whole:
        return [(start, min(MIB, size - start)) for start in range(0, size, MIB)]
    last = size - MIB
    starts = [last * index // (pieces - 1) for index in range(pieces)] if pieces > 1 else [last]
    return [(start, MIB) for start in starts]
