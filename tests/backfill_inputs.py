"""Inputs of a backfill in every format, written for a test."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = Sequence[dict[str, Any]]


def _table(rows: Rows) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], pa.string()) for name in rows[0]})


def _parquet(rows: Rows) -> bytes:
    sink = io.BytesIO()
    pq.write_table(_table(rows), sink, row_group_size=3)
    return sink.getvalue()


def _arrow(open_writer: Callable[..., Any]) -> Callable[[Rows], bytes]:
    def written(rows: Rows) -> bytes:
        sink = io.BytesIO()
        table = _table(rows)
        with open_writer(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
        return sink.getvalue()

    return written


def _delimited(delimiter: str) -> Callable[[Rows], bytes]:
    def written(rows: Rows) -> bytes:
        text = io.StringIO()
        writer = csv.DictWriter(
            text, list(rows[0]), delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL
        )
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()

    return written


def jsonl(rows: Rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


WRITERS: dict[str, Callable[[Rows], bytes]] = {
    "parquet": _parquet,
    "arrow": _arrow(pa.ipc.new_file),
    "arrows": _arrow(pa.ipc.new_stream),
    "csv": _delimited(","),
    "tsv": _delimited("\t"),
    "jsonl": jsonl,
    "csv.gz": lambda rows: gzip.compress(_delimited(",")(rows)),
    "jsonl.zst": lambda rows: _zstd(jsonl(rows)),
    "ndjson.bz2": lambda rows: bz2.compress(jsonl(rows)),
}


def write_files(folder: Path, suffix: str, rows: Rows, borders: Sequence[int] = ()) -> Path:
    """A folder of files that have `rows` together: one ends at each border."""
    folder.mkdir(parents=True, exist_ok=True)
    edges = [0, *borders, len(rows)]
    for number, (start, end) in enumerate(pairwise(edges)):
        (folder / f"part-{number:03}.{suffix}").write_bytes(WRITERS[suffix](rows[start:end]))
    return folder
