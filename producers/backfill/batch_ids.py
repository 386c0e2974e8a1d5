"""A batch file whose `custom_id`s are each one line's alone: a later line with one that was there is no call."""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute

from headrace.producers.backfill.openai_batch import custom_id_of
from headrace.producers.backfill.source import RowFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.producers.backfill.source import Chunk, Source

DUPLICATE: Final = "duplicate_custom_id"
_COMPUTE: Final = cast("Any", pyarrow.compute)  # its stubs are partly unknown
_LINES_READ: Final = 10_000  # at a time
_NONE: Final = 0  # in place of the hash, of a line without an id


class UniqueLines:
    """A Source of a batch file's lines. Reads them all once, before the first chunk.

    Ids are compared by 64 bits of their digests, 8 bytes a line: among 10 million lines two differing ids pass for
    the same once in some 300,000 files.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._first_of: dict[int, int] | None = None

    @property
    def schema(self) -> pa.Schema:
        """See `Source`."""
        return self._source.schema

    @property
    def row_count(self) -> int:
        """See `Source`."""
        return self._source.row_count

    @property
    def digest(self) -> str:
        """See `Source`."""
        return self._source.digest

    def chunks(self, size: int, wanted: Callable[[int], bool]) -> Iterator[Chunk]:
        """See `Source`."""
        if self._first_of is None:
            self._first_of = _first_rows(self._source)
        for chunk in self._source.chunks(size, wanted):
            yield _without_duplicates(chunk, self._first_of) if self._first_of else chunk


def _without_duplicates(chunk: Chunk, first_of: dict[int, int]) -> Chunk:
    rows = list(chunk.rows)
    for place, line in enumerate(rows):
        first = first_of.get(chunk.first_row + place)
        if first is not None and isinstance(line, dict):
            message = f"the custom_id is that of row {first} already"
            rows[place] = RowFault(DUPLICATE, message, json.dumps(line, ensure_ascii=False))
    return replace(chunk, rows=rows)


def _first_rows(source: Source) -> dict[int, int]:
    """The rows whose id stands in an earlier row, and the first such row."""
    hashes = array("Q")
    for chunk in source.chunks(_LINES_READ, lambda _: True):
        hashes.extend(_hash(custom_id_of(line)) if isinstance(line, dict) else _NONE for line in chunk.rows)
    if len(hashes) < 2:
        return {}
    values = pa.Array.from_buffers(pa.uint64(), len(hashes), [None, pa.py_buffer(hashes)])
    order = _COMPUTE.array_sort_indices(values)  # stable: rows of one id stay in order
    in_order = values.take(order)
    is_same = _COMPUTE.equal(in_order.slice(1), in_order.slice(0, len(hashes) - 1))
    places = _COMPUTE.indices_nonzero(is_same)
    first_of: dict[int, int] = {}
    for before, row in zip(_ints(order.take(places)), _ints(order.slice(1).take(places)), strict=True):
        if hashes[row] != _NONE:
            first_of[row] = first_of.get(before, before)
    return first_of


def _ints(numbers: pa.Array[Any]) -> list[int]:
    return cast("list[int]", numbers.to_pylist())


def _hash(custom_id: str | None) -> int:
    if custom_id is None:
        return _NONE
    digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1
