"""Parquet and Arrow files as batches of rows, from any row group or batch on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import pyarrow as pa
import pyarrow.fs as arrow_fs
import pyarrow.parquet as pq
import pyarrow.types as pt

from headrace.producers.backfill.failures import InputFailed
from headrace.producers.backfill.locations import reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.producers.backfill.locations import InputFile, Location

BATCH_ROWS: Final = 2048  # decoded at once, whatever the size of row groups
_BUFFER_BYTES: Final = 1 << 20  # read ahead of each column of a Parquet file

_FILE_MAGIC: Final = b"ARROW1"
_FEATHER_1_MAGIC: Final = b"FEA1"

_parquet: Final[Any] = pq  # its stubs are partly unknown
_ipc: Final[Any] = pa.ipc  # likewise


class InputTable(Protocol):
    """An open file. `pieces`: how many rows there are in each stretch that reading can begin with."""

    schema: pa.Schema
    pieces: list[int]

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

    def batches(self, piece: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        """All rows from a piece on; of all columns, or of these."""
        ...


class ParquetTable:
    """A Parquet file: a piece is a row group, and none is decoded whole."""

    def __init__(self, opened: pa.NativeFile) -> None:
        self._file = _parquet.ParquetFile(opened, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        self.schema: pa.Schema = self._file.schema_arrow
        metadata = self._file.metadata
        self.pieces: list[int] = [
            metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close(force=True)

    def batches(self, piece: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        groups = list(range(piece, len(self.pieces)))
        return self._file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False)


class ArrowFile:
    """An Arrow IPC file, also called Feather: a piece is a record batch."""

    def __init__(self, opened: pa.NativeFile) -> None:
        self._opened = opened
        self.schema: pa.Schema = _ipc.open_file(opened).schema
        counting = self._reader(_cheapest_column(self.schema))
        self.pieces: list[int] = [
            counting.get_batch(index).num_rows for index in range(counting.num_record_batches)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def _reader(self, columns: list[int] | None) -> Any:
        return _ipc.open_file(self._opened, options=_reading_of(columns))

    def batches(self, piece: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        reader = self._reader(_places(self.schema, columns))
        for index in range(piece, len(self.pieces)):
            yield from _sliced(reader.get_batch(index))


class ArrowStream:
    """An Arrow IPC stream: one piece, since it can only be read from its begin."""

    def __init__(self, opened: pa.NativeFile) -> None:
        self._opened = opened
        self.schema: pa.Schema = _ipc.open_stream(opened).schema
        self.pieces: list[int] = [
            sum(batch.num_rows for batch in self._reader(_cheapest_column(self.schema)))
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def _reader(self, columns: list[int] | None) -> Any:
        self._opened.seek(0)
        return _ipc.open_stream(self._opened, options=_reading_of(columns))

    def batches(self, piece: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        for batch in self._reader(_places(self.schema, columns)):
            yield from _sliced(batch)


def open_parquet(location: Location, file: InputFile) -> InputTable:
    """Raises InputFailed."""
    opened = location.open_random(file)
    with reading(location.shown, file):
        return ParquetTable(opened)


def open_arrow(location: Location, file: InputFile) -> InputTable:
    """Local files are mapped into memory, so that a batch of any size is not copied. Raises InputFailed."""
    with reading(location.shown, file):
        local = isinstance(location.file_system, arrow_fs.LocalFileSystem) and file.size > 0
        opened = pa.memory_map(file.path) if local else location.file_system.open_input_file(file.path)
        magic = opened.read(len(_FILE_MAGIC))
        opened.seek(0)
        if magic.startswith(_FEATHER_1_MAGIC):
            raise InputFailed(f"{location.shown}: {file.name} is Feather version 1; version 2 is read")
        return ArrowFile(opened) if magic == _FILE_MAGIC else ArrowStream(opened)


def _reading_of(columns: list[int] | None) -> Any:
    return _ipc.IpcReadOptions(included_fields=columns, use_threads=False)


def _places(schema: pa.Schema, columns: list[str] | None) -> list[int] | None:
    return None if columns is None else [schema.get_field_index(name) for name in columns]


def _cheapest_column(schema: pa.Schema) -> list[int] | None:
    """What is read of each batch to see how many rows it has."""
    widths = [(_width(kind), place) for place, kind in enumerate(schema.types)]
    return [min(widths)[1]] if widths else None


def _width(kind: Any) -> int:
    return kind.bit_width if pt.is_primitive(kind) else 1 << 30


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)
