"""Chunks, outcomes and folders for tests of a backfill's output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.producers.backfill.assembly import Places
from headrace.producers.backfill.folder import Folder
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.source import Chunk, RowFault

KEPT = pa.schema([pa.field("Title", pa.string(), nullable=False), pa.field("Year", pa.int64())])


def ok(value: Any, **fields: Any) -> Outcome:
    """A row's output."""
    return Outcome("ok", value, **fields)


def chunk_of(
    rows: Sequence[dict[str, Any] | RowFault], number: int = 0, size: int = 10, kept: pa.Schema = KEPT
) -> Chunk:
    """The rows as a chunk whose schema is `kept`."""
    found = [{} if isinstance(row, RowFault) else row for row in rows]
    arrays = [pa.array([row.get(field.name) for row in found], field.type) for field in kept]
    return Chunk(number, number * size, list(rows), pa.Table.from_arrays(arrays, schema=kept))


def numbered(count: int, number: int = 0, size: int = 10) -> Chunk:
    """A chunk of made-up films."""
    first = number * size
    return chunk_of([{"Title": f"film {first + i}", "Year": 1900 + i} for i in range(count)], number, size)


def places_in(directory: Path, file: str) -> Places:
    """The folders of a job whose output is this file."""
    beside = Folder.at(directory / f"{file}.headrace")
    return Places(
        beside.child("parts"),
        beside.child("rejects"),
        beside.child("waiting"),
        Folder.at(directory),
        file,
        f"{file.partition('.')[0]}.rejects.jsonl",
    )
