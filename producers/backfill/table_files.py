"""The formats of an output: a job's tables as bytes, the same for the same rows, and read back."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.producers.backfill.columns import ID, OutputColumns
from headrace.producers.backfill.failures import JobInvalid, OutputFailed
from headrace.producers.backfill.source import Chunk
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.strict_json import JsonFault, dump

FileFormat = Literal["parquet", "jsonl"]
_parquet: Final[Any] = pq  # its stubs are partly unknown
COMPRESSION: Final = "zstd"


def format_of(name: str) -> FileFormat:
    """The format of a file by its name. Raises JobInvalid."""
    for suffix, found in (
        (".parquet", "parquet"),
        (".pq", "parquet"),
        (".jsonl", "jsonl"),
        (".ndjson", "jsonl"),
    ):
        if name.lower().endswith(suffix):
            return cast("FileFormat", found)
    raise JobInvalid(f"the output {name!r} is neither .parquet nor .jsonl: name it so, or name a directory")


def parquet_file(source: Any) -> Any:
    """A `pyarrow.parquet.ParquetFile` of a stream or of bytes. Raises pyarrow.ArrowException for what is none."""
    return _parquet.ParquetFile(pa.BufferReader(source) if isinstance(source, (bytes, pa.Buffer)) else source)


class ParquetForm:
    """How a job's tables are written as Parquet: zstd, dictionaries but for ids, the job in the file's metadata."""

    def __init__(self, columns: OutputColumns, metadata: Mapping[str, str]) -> None:
        """Raises JobInvalid for a column of the input that Parquet has no type for."""
        self._columns = columns
        unnamed: Any = columns.schema
        self.schema: pa.Schema = unnamed.with_metadata(dict(sorted(metadata.items())))
        self._dictionaries = [path for path in self._leaves() if path != ID]

    def _leaves(self) -> list[str]:
        """The paths of the columns as Parquet has them: those of structs and lists have one for each leaf."""
        for field in cast("list[pa.Field[Any]]", list(self.schema)):
            try:
                _parquet.write_table(pa.schema([field]).empty_table(), io.BytesIO())
            except (pa.ArrowException, ValueError) as error:
                raise JobInvalid(
                    f"the input's column {field.name!r} is of type {field.type}, which Parquet does not have: leave it "
                    f"out by `keep`, or write JSONL ({error})"
                ) from error
        written = io.BytesIO()
        _parquet.write_table(self.schema.empty_table(), written)
        schema: Any = parquet_file(written).schema
        return [schema.column(index).path for index in range(len(schema))]

    def writer(self, sink: Any) -> Any:
        """A ParquetWriter; every table that it is given becomes a row group."""
        return _parquet.ParquetWriter(
            sink, self.schema, compression=COMPRESSION, use_dictionary=self._dictionaries
        )

    def write_group(self, writer: Any, table: pa.Table) -> None:
        """The table as one row group."""
        writer.write_table(table.cast(self.schema), row_group_size=max(1, table.num_rows))

    def encoded(self, table: pa.Table) -> pa.Buffer:
        """A whole file with the table as its one row group."""
        sink = pa.BufferOutputStream()
        with self.writer(sink) as writer:
            self.write_group(writer, table)
        return sink.getvalue()


def own_columns(table: pa.Table, columns: OutputColumns, shown: str) -> pa.Table:
    """What the job has added to its input, of a table read from Parquet. Raises OutputFailed where it is another's."""
    own = columns.own_schema
    present = set(table.column_names)
    missing = [name for name in own.names if name not in present]
    if missing:
        raise OutputFailed(
            f"{shown} lacks the columns {', '.join(missing)}: another job wrote it, or it was changed"
        )
    found = table.select(own.names)
    if not found.schema.equals(own, check_metadata=False):
        raise OutputFailed(
            f"{shown} has columns of other types: it was written for another output schema, or changed"
        )
    return pa.Table.from_arrays(cast("list[Any]", found.columns), schema=own)


def names_to_read(columns: OutputColumns) -> list[str] | None:
    """What Parquet has to read for `own_columns`; None for everything, where a name could be taken for a path."""
    names = columns.own_schema.names
    return None if any("." in name or not name for name in names) else names


def json_lines(columns: OutputColumns, chunk: Chunk, table: pa.Table) -> bytes:
    """A chunk's table as JSONL: columns in order, the input's as they are there, JSON text as the value it is."""
    kept = columns.kept.names
    lines: list[str] = []
    for row, own in zip(chunk.rows, columns.json_rows(table), strict=True):
        known: JsonObject = row if isinstance(row, dict) else {}
        lines.append(json_line({**{name: known.get(name) for name in kept}, **own}))
    return "".join(lines).encode()


def table_of_lines(columns: OutputColumns, data: bytes, shown: str) -> pa.Table:
    """The own columns of `json_lines`. Raises OutputFailed where they are no such lines."""
    try:
        return columns.own_table([json.loads(line) for line in data.splitlines()])
    except (ValueError, AttributeError, TypeError, pa.ArrowException) as error:
        raise OutputFailed(f"{shown} is not as a job with this output schema writes it: {error}") from error


def json_line(value: JsonObject) -> str:
    """The value as one line of JSON, and with its end. What JSON does not have becomes what comes nearest."""
    try:
        return dump(value) + "\n"
    except JsonFault:
        return json.dumps(_nearest(value), separators=(",", ":"), default=str) + "\n"


def _nearest(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _nearest(each) for name, each in cast("JsonObject", value).items()}
    if isinstance(value, list):
        return [_nearest(each) for each in cast("list[JsonValue]", value)]
    return value
