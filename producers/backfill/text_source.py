"""Inputs that are lines of text: JSON Lines, CSV and TSV. One scan says what a table would say of itself."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

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
from headrace.producers.backfill.input_digest import InputDigest
from headrace.producers.backfill.input_lines import ByteStream, LineReader
from headrace.producers.backfill.json_columns import ColumnKinds, column_of
from headrace.producers.backfill.locations import reading
from headrace.producers.backfill.source import Chunk, RowFault
from headrace.producers.backfill.text_records import CsvRecords, JsonRecords, Records

if TYPE_CHECKING:
    from headrace.producers.backfill.locations import InputFile, Location
    from headrace.schemas.messages import JsonObject

COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}  # suffix to pyarrow's name
DELIMITERS: Final = {"csv": ",", "tsv": "\t"}

_MARK_ROWS: Final = 1000  # between two places that reading can begin with


class TextSource:
    """A Source over files of lines. `format_name`: jsonl, csv or tsv.

    `columns`: what rows may have. `row_count` counts what cannot be read too, but no blank lines.
    """

    def __init__(
        self,
        location: Location,
        format_name: str,
        keep: Sequence[str] | None,
        progress: Callable[[int], None],
    ) -> None:
        self.unreadable: dict[str, str] = {}  # as of a TableSource: any text can be part of a row
        self._location = location
        self._format = format_name
        self._progress = progress
        self._headers: dict[str, list[str]] = {}  # of CSV, by the file's name
        self._marks = _Marks()
        self._partition_types = partition_types(location)
        self._constants = {
            file.name: partition_values(file, self._partition_types) for file in location.files
        }
        self._kinds = ColumnKinds()
        self.row_count, self.digest = self._scan()
        types = self._types()
        refuse_in_both(self._partition_types, types, location.shown)
        types |= self._partition_types
        self.columns = list(types)
        self.schema = pa.schema(
            [(name, types[name]) for name in kept_names(keep, self.columns, location.shown)]
        )
        self._as_json_text, self._plain = self._kinds.as_json_text(), self._kinds.with_plain_texts()

    # --- the scan ---------------------------------------------------------------------------------------------------

    def _scan(self) -> tuple[int, str]:
        """The number of rows and the digest; on the way come headers, marks and types."""
        digest = InputDigest(self._format)
        rows = readable = 0
        first_fault: RowFault | None = None
        for index, file in enumerate(self._location.files):
            with self._opened(file) as stream, self._reading(file):
                scanned = _Scanned(stream)
                lines = LineReader(scanned)
                records = self._begin(file, lines)
                while records:
                    if rows % _MARK_ROWS == 0 or not self._marks.has(index):
                        self._marks.add(rows, index, lines.offset)
                    record = records.next_record()
                    self._progress(scanned.taken())
                    if record is None:
                        break
                    rows += 1
                    if isinstance(record, RowFault):
                        first_fault = first_fault or record
                    else:
                        readable += 1
                        if self._format == "jsonl":
                            self._kinds.see(record)
                digest.add(file, scanned.sum.digest(), scanned.size)
        if not rows:
            raise InputFailed(f"{self._location.shown} has no rows")
        if not readable and first_fault:
            raise InputFailed(
                f"{self._location.shown}: no row can be read as {self._format}: {first_fault.message}"
            )
        return rows, str(digest)

    def _begin(self, file: InputFile, lines: LineReader) -> Records | None:
        """The records of a file that has not been read before; None of an empty one. Raises InputFailed."""
        if self._format == "jsonl":
            return JsonRecords(lines)
        records = CsvRecords(lines, DELIMITERS[self._format])
        header = records.read_header()
        if isinstance(header, RowFault):
            raise InputFailed(f"the header cannot be read: {header.message}")
        if header is None:
            return None
        refuse_twice(header, file.name)
        agreed_file = next(iter(self._headers), file.name)
        agreed = self._headers.setdefault(agreed_file, header)
        for name in (*agreed, *header):
            if (name in agreed) != (name in header):
                there, missing = (agreed_file, file.name) if name in agreed else (file.name, agreed_file)
                raise InputFailed(f"column `{name}` is in {there} and not in {missing}")
        self._headers[file.name] = header
        return records

    def _types(self) -> dict[str, pa.DataType]:
        if self._format == "jsonl":
            return self._kinds.types()
        return dict.fromkeys(next(iter(self._headers.values())), pa.string())

    # --- chunks -----------------------------------------------------------------------------------------------------

    def chunks(self, size: int, wanted: Callable[[int], bool]) -> Iterator[Chunk]:
        place = _Place(self)
        try:
            for number in range((self.row_count + size - 1) // size):
                if wanted(number):
                    first, last = number * size, min((number + 1) * size, self.row_count)
                    yield self._chunk(number, first, place.read(first, last))
        finally:
            place.close()

    def _chunk(self, number: int, first_row: int, rows: list[JsonObject | RowFault]) -> Chunk:
        arrays = [
            column_of(name, kind, rows, json_text=name in self._as_json_text, plain_texts=name in self._plain)
            for name, kind in types_of(self.schema).items()
        ]
        return Chunk(number, first_row, rows, pa.Table.from_arrays(arrays, schema=self.schema))

    # --- what a place in the input needs ----------------------------------------------------------------------------

    @property
    def shown(self) -> str:
        """The input's location."""
        return self._location.shown

    @property
    def files(self) -> tuple[InputFile, ...]:
        return self._location.files

    def mark_before(self, row: int) -> tuple[int, int, int]:
        """The last place at or before a row that can be begun with: its row, its file's index, its byte there."""
        return self._marks.before(row)

    def open_at(self, file: InputFile) -> tuple[pa.NativeFile, LineReader]:
        """Raises InputFailed."""
        opened = self._open(file)
        with self._reading(file):
            if opened.seekable() and opened.size() != file.size:
                raise InputFailed("it has changed since it was opened")
        return opened, LineReader(opened)

    def records_of(self, file: InputFile, lines: LineReader) -> Records:
        """The records from a mark on."""
        if self._format == "jsonl":
            return JsonRecords(lines)
        return CsvRecords(lines, DELIMITERS[self._format], self._headers[file.name])

    def with_constants(self, file: InputFile, record: JsonObject | RowFault) -> JsonObject | RowFault:
        """A row with what the names of its folders say."""
        constants = self._constants[file.name]
        return {**record, **constants} if constants and not isinstance(record, RowFault) else record

    def _open(self, file: InputFile) -> pa.NativeFile:
        compression = next((name for end, name in COMPRESSIONS.items() if file.path.endswith(end)), None)
        if compression is None:
            return self._location.open_random(file)
        return self._location.open_stream(file, compression)

    @contextmanager
    def _opened(self, file: InputFile) -> Generator[pa.NativeFile]:
        opened = self._open(file)
        try:
            yield opened
        finally:
            opened.close()

    @contextmanager
    def _reading(self, file: InputFile) -> Generator[None]:
        """Faults of a file as a whole, with its name."""
        with reading(self._location.shown, file):
            try:
                yield
            except InputFailed as error:
                shown = self._location.shown
                place = shown if shown.endswith(file.name) else f"{shown}: {file.name}"
                raise InputFailed(f"{place}: {error.message}") from error


class _Scanned:
    """A stream whose content is digested while it is read."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._not_told = 0
        self.sum = hashlib.sha256()
        self.size = 0

    def read(self, nbytes: int, /) -> bytes:
        block = self._stream.read(nbytes)
        self.sum.update(block)
        self.size += len(block)
        self._not_told += len(block)
        return block

    def seekable(self) -> bool:
        return False

    def seek(self, position: int, /) -> object:
        raise NotImplementedError

    def taken(self) -> int:
        """Bytes read since the last call."""
        told, self._not_told = self._not_told, 0
        return told


class _Marks:
    """Places at which reading can begin, in order: three integers each."""

    def __init__(self) -> None:
        self._rows, self._files, self._offsets = array("q"), array("q"), array("q")

    def has(self, file: int) -> bool:
        """Whether the last one lies in this file."""
        return bool(self._files) and self._files[-1] == file

    def add(self, row: int, file: int, offset: int) -> None:
        self._rows.append(row)
        self._files.append(file)
        self._offsets.append(offset)

    def before(self, row: int) -> tuple[int, int, int]:
        index = bisect_right(self._rows, row) - 1
        return self._rows[index], self._files[index], self._offsets[index]


class _Place:
    """Where in the input reading is. Goes on from there, or from the last mark before what is wanted."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._file: int = -1  # its index
        self._opened: pa.NativeFile | None = None
        self._lines: LineReader | None = None
        self._records: Records | None = None
        self._row = 0  # that comes next

    def read(self, first: int, last: int) -> list[JsonObject | RowFault]:
        """Rows first to last - 1. Raises InputFailed."""
        try:
            return self._read(first, last)
        except (OSError, pa.ArrowException):
            with reading(self._source.shown, self._source.files[self._file]):
                raise

    def _read(self, first: int, last: int) -> list[JsonObject | RowFault]:
        mark = self._source.mark_before(first)
        if self._records is None or not mark[0] <= self._row <= first or mark[1] != self._file:
            self._go_to(*mark)
        while self._row < first:
            self._next()
        return [self._next() for _ in range(first, last)]

    def _go_to(self, row: int, file: int, offset: int) -> None:
        if self._lines is None or file != self._file or offset < self._lines.offset:
            self.close()
            self._opened, self._lines = self._source.open_at(self._source.files[file])
            self._file = file
        self._lines.skip_to(offset)
        self._records = self._source.records_of(self._source.files[file], self._lines)
        self._row = row

    def _next(self) -> JsonObject | RowFault:
        if self._records is None or (record := self._records.next_record()) is None:
            mark = self._source.mark_before(self._row)  # the next file's begin, at the end of this one
            if mark[1] <= self._file:
                raise InputFailed(f"{self._source.files[self._file].name} has changed since it was opened")
            self._go_to(*mark)
            return self._next()
        self._row += 1
        return self._source.with_constants(self._source.files[self._file], record)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = self._lines = self._records = None
