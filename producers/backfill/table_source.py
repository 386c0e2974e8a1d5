"""Inputs that are tables already: Parquet and Arrow files, whose types are known and whose rows are numbered."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from headrace.producers.backfill.failures import InputFailed
from headrace.producers.backfill.input_columns import (
    kept_names,
    partition_types,
    partition_values,
    refuse_in_both,
    refuse_twice,
    types_of,
)
from headrace.producers.backfill.input_digest import digest_of_files
from headrace.producers.backfill.input_tables import open_arrow, open_parquet
from headrace.producers.backfill.locations import reading
from headrace.producers.backfill.row_values import decoded_type, json_values, unreadable_reason
from headrace.producers.backfill.source import Chunk, RowFault
from headrace.schemas.errors import Undecodable
from headrace.schemas.strict_json import dump

if TYPE_CHECKING:
    from headrace.producers.backfill.locations import InputFile, Location
    from headrace.schemas.messages import JsonObject, JsonValue

_OPENERS: Final = {"parquet": open_parquet, "arrow": open_arrow}
_batches: Final[Any] = pa.RecordBatch  # whose stubs are partly unknown
_TEXT_LENGTH: Final = 1000  # characters of a faulty row that are kept


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of rows that reading can begin with."""

    file: InputFile
    index: int  # in its file
    first_row: int  # in the whole input


class TableSource:
    """A Source over Parquet or Arrow files. `format_name`: parquet or arrow.

    `unreadable`: the columns that rows do not have, since no JSON can hold their values, with the reason; `kept`
    may have them all the same.
    """

    def __init__(
        self,
        location: Location,
        format_name: str,
        keep: Sequence[str] | None,
        progress: Callable[[int], None],
    ) -> None:
        self._location = location
        self._open = _OPENERS[format_name]
        self._rows_of_pieces: dict[str, list[int]] = {}  # by the file's name
        self._file_types, self._pieces, self.row_count = self._look()
        self._partition_types = partition_types(location)
        refuse_in_both(self._partition_types, self._file_types, location.shown)
        known = self._file_types | self._partition_types
        if not self.row_count:
            raise InputFailed(f"{location.shown} has no rows")
        self.unreadable = {name: why for name, kind in known.items() if (why := unreadable_reason(kind))}
        self.columns = [name for name in known if name not in self.unreadable]
        names = kept_names(keep, list(known), location.shown)
        self.schema = pa.schema([pa.field(name, self._decoded(name, known[name])) for name in names])
        needed = {*self.columns, *names}
        self._read = [name for name in self._file_types if name in needed]
        self.digest = digest_of_files(location, format_name, progress)

    def _look(self) -> tuple[dict[str, pa.DataType], list[_Piece], int]:
        """The types that all files have, every piece, and the number of rows, as the files say themselves."""
        agreed: pa.Schema | None = None
        pieces: list[_Piece] = []
        rows = 0
        for file in self._location.files:
            with self._open(self._location, file) as table:
                refuse_twice(table.schema.names, self._place(file))
                agreed = agreed or table.schema
                self._refuse_other_schema(agreed, table.schema, file)
                self._rows_of_pieces[file.name] = table.pieces
                for index, count in enumerate(table.pieces):
                    pieces.append(_Piece(file, index, rows))
                    rows += count
        return types_of(agreed) if agreed else {}, pieces, rows

    def _refuse_other_schema(self, agreed: pa.Schema, schema: pa.Schema, file: InputFile) -> None:
        ours = {name: decoded_type(kind) for name, kind in types_of(schema).items()}
        theirs = {name: decoded_type(kind) for name, kind in types_of(agreed).items()}
        for name in {**theirs, **ours}:
            here, there = ours.get(name, "missing"), theirs.get(name, "missing")
            if here != there:
                raise InputFailed(
                    f"{self._location.shown}: column `{name}` is {here} in {file.name} "
                    f"and {there} in {self._location.files[0].name}"
                )

    def _place(self, file: InputFile) -> str:
        return f"{self._location.shown}: {file.name}"

    def _decoded(self, name: str, kind: pa.DataType) -> pa.DataType:
        decoded = decoded_type(kind)
        try:
            _as_type(cast("pa.Array[Any]", pa.array([], kind)), decoded)
        except pa.ArrowException as error:
            raise InputFailed(
                f"{self._location.shown}: column `{name}` of {kind} cannot be kept ({error}); leave it out of `keep`"
            ) from error
        return decoded

    def chunks(self, size: int, wanted: Callable[[int], bool]) -> Iterator[Chunk]:
        reader = _Reader(self._pieces, self._batches)
        for number in range((self.row_count + size - 1) // size):
            if wanted(number):
                first, last = number * size, min((number + 1) * size, self.row_count)
                yield self._chunk(number, first, reader.read(first, last))

    def _batches(self, piece: _Piece) -> Iterator[tuple[InputFile, pa.RecordBatch]]:
        """From a piece to the end of its file."""
        with self._open(self._location, piece.file) as table, reading(self._location.shown, piece.file):
            # With other row counts, rows would be taken for others.
            as_it_was = table.pieces == self._rows_of_pieces[piece.file.name]
            if not (as_it_was and set(self._file_types) <= set(table.schema.names)):
                raise InputFailed(f"{self._place(piece.file)} has changed since it was opened")
            columns = self._read if len(self._read) < len(table.schema) else None
            for batch in table.batches(piece.index, columns):
                yield piece.file, batch

    def _chunk(self, number: int, first_row: int, found: Iterator[tuple[InputFile, pa.RecordBatch]]) -> Chunk:
        rows: list[JsonObject | RowFault] = []
        kept: list[pa.RecordBatch] = []
        for file, batch in found:
            with reading(self._location.shown, file):
                constants = partition_values(file, self._partition_types)
                batch_rows = self._rows(batch, constants)
                rows += batch_rows
                kept.append(self._kept(batch, constants, batch_rows))
        return Chunk(number, first_row, rows, pa.Table.from_batches(kept, self.schema))

    def _rows(
        self, batch: pa.RecordBatch, constants: dict[str, str | int | None]
    ) -> list[JsonObject | RowFault]:
        names = [name for name in self.columns if name not in constants]
        faults: dict[int, str] = {}
        columns = [_values(_column(batch, name), name, faults) for name in names]
        pairs = zip(*columns, strict=True) if columns else ((),) * batch.num_rows
        rows: list[JsonObject | RowFault] = [dict(zip(names, row)) | constants for row in pairs]  # noqa: B905 (30 % slower)
        for index, message in faults.items():
            rows[index] = RowFault(Undecodable.code, message, dump(rows[index])[:_TEXT_LENGTH])
        return rows

    def _kept(
        self, batch: pa.RecordBatch, constants: dict[str, str | int | None], rows: list[JsonObject | RowFault]
    ) -> pa.RecordBatch:
        arrays = [
            _constant(constants[name], batch.num_rows, kind)
            if name in constants
            else _as_type(_column(batch, name), kind)
            for name, kind in types_of(self.schema).items()
        ]
        if any(isinstance(row, RowFault) for row in rows):
            places = [None if isinstance(row, RowFault) else place for place, row in enumerate(rows)]
            arrays = [_taken(array, places) for array in arrays]
        return _batches.from_arrays(arrays, schema=self.schema)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array[Any]:
    return cast("pa.Array[Any]", batch.column(name))


def _constant(value: str | int | None, count: int, kind: pa.DataType) -> pa.Array[Any]:
    return cast("pa.Array[Any]", pa.array([value] * count, kind))


def _taken(array: pa.Array[Any], places: list[int | None]) -> pa.Array[Any]:
    """Null where the place is null."""
    return cast("Any", array).take(pa.array(places, pa.int64()))


def _as_type(array: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    if isinstance(array, pa.DictionaryArray):
        array = cast("pa.Array[Any]", array.dictionary_decode())
    return array if array.type == kind else array.cast(kind)


def _values(column: pa.Array[Any], name: str, faults: dict[int, str]) -> list[JsonValue]:
    """A column's values; where one cannot be had (text that is no UTF-8), its row gets a fault and a null."""
    try:
        return json_values(column)
    except (ValueError, OverflowError):
        pass
    values: list[JsonValue] = []
    for index in range(len(column)):
        try:
            values += json_values(column.slice(index, 1))
        except (ValueError, OverflowError) as error:
            faults.setdefault(index, f"column `{name}`: {_reason(error)}")
            values.append(None)
    return values


def _reason(error: ValueError | OverflowError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"bytes that are no UTF-8 (at byte {error.start})"
    return str(error)[:200]


class _Reader:
    """Reads stretches of rows, each behind the last one, and jumps where a whole piece lies between them."""

    def __init__(
        self,
        pieces: list[_Piece],
        batches: Callable[[_Piece], Iterator[tuple[InputFile, pa.RecordBatch]]],
    ) -> None:
        self._pieces = pieces
        self._starts = [piece.first_row for piece in pieces]
        self._open = batches
        self._found: Iterator[tuple[InputFile, pa.RecordBatch]] = iter(())
        self._row = -1  # the first one that has not been taken
        self._rest: tuple[InputFile, pa.RecordBatch] | None = None  # begins at `_row`

    def read(self, first: int, last: int) -> Iterator[tuple[InputFile, pa.RecordBatch]]:
        """Rows first to last - 1 and the file of each batch of them."""
        if self._row < 0 or self._piece_of(first) != self._piece_of(self._row):
            self._go_to(first)
        while self._row < last:
            file, batch = self._next()
            begin = self._row
            skipped = min(max(first - begin, 0), batch.num_rows)
            taken = min(batch.num_rows, last - begin)
            self._row = begin + taken
            self._rest = (file, batch.slice(taken)) if taken < batch.num_rows else None
            if taken > skipped:
                yield file, batch.slice(skipped, taken - skipped)

    def _piece_of(self, row: int) -> int:
        return bisect_right(self._starts, row) - 1  # the last one to begin there: those before it are empty

    def _go_to(self, row: int) -> None:
        piece = self._pieces[self._piece_of(row)]
        self._rest = None
        self._found = self._open(piece)
        self._row = piece.first_row

    def _next(self) -> tuple[InputFile, pa.RecordBatch]:
        if self._rest:
            return self._rest
        found = next(self._found, None)
        if found is None:  # the file's end: the next one begins at this row
            self._go_to(self._row)
            found = next(self._found, None)
        if found is None:
            raise InputFailed("the input has fewer rows than when it was opened")
        return found
