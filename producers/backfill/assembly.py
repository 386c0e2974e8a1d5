"""One file of all parts, parts of that file again, and the file read by part. Never more than a part is in memory."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.failures import JobInvalid, OutputFailed
from headrace.producers.backfill.folder import Folder
from headrace.producers.backfill.parts import (
    KnownPart,
    about_file,
    part_bytes,
    reject_count,
    rejects_name,
)
from headrace.producers.backfill.table_files import (
    FileFormat,
    ParquetForm,
    format_of,
    names_to_read,
    own_columns,
    parquet_file,
    table_of_lines,
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where a job's files are: the folders of its parts and of their rejects, and the files that are put together.

    `waiting` has parts that are to take others' places: see `replacing`. `file` is empty where the parts themselves are
    the output.
    """

    parts: Folder
    rejects: Folder
    waiting: Folder
    folder: Folder
    file: str
    rejects_file: str


@dataclass(frozen=True, slots=True)
class Assembled:
    """A file that was put together; without a name and a digest where the parts are the output."""

    file: str
    rows: int
    rejects: int  # lines of the rejects' file; without any there is none
    bytes: int
    sha256: str  # hexadecimal digits


def assemble(
    places: Places,
    parts: Sequence[KnownPart],
    columns: OutputColumns,
    about: Mapping[str, str],
    progress: Callable[[int], None] = lambda rows: None,
) -> Assembled:
    """Put the parts together in their order, and their rejects: files that are complete, or as they were.

    `progress` is told the rows so far. Parts stay: `remove_parts`. Raises OutputFailed.
    """
    ordered = _in_order(parts)
    rejects = sum(map(reject_count, ordered))
    if rejects:
        with places.folder.open_output(places.rejects_file) as sink:
            for part in ordered:
                if reject_count(part):
                    sink.write(_rejects_of(places, part))
    else:
        places.folder.delete(places.rejects_file)
    if not places.file:
        return Assembled(
            "", sum(part.rows for part in ordered), rejects, sum(part.bytes for part in ordered), ""
        )
    with places.folder.open_output(places.file) as stream:
        sink = _Hashing(stream)
        is_parquet = _format_in(ordered, places.file) == "parquet"
        write = _parquet_writer if is_parquet else _bytes_writer
        with write(sink, columns, about) as add:
            rows = 0
            for part in ordered:
                add(part_bytes(places.parts, part))
                rows += part.rows
                progress(rows)
    return Assembled(places.file, rows, rejects, sink.bytes, sink.hexdigest())


def remove_parts(
    places: Places, parts: Sequence[KnownPart], check: Callable[[], None] = lambda: None
) -> None:
    """Remove the files of parts and of their rejects, and the folders where nothing is left in them.

    `check` comes before each, and raises where they are not to be removed any more.
    """
    for part in parts:
        check()
        places.parts.delete(part.file)
        if reject_count(part):
            check()
            places.rejects.delete(rejects_name(part.number))
    check()
    places.parts.delete_if_empty()
    places.rejects.delete_if_empty()


@dataclass(frozen=True, slots=True)
class UnpackedPart:
    """What is new of a part that was laid out again: another release of pyarrow may write other bytes."""

    number: int
    bytes: int
    sha256: str


def unpack(
    places: Places, parts: Sequence[KnownPart], columns: OutputColumns, about: Mapping[str, str]
) -> Iterator[UnpackedPart]:
    """Lay out the parts and rejects of an assembled file again, so that some can be written anew.

    The file must be as it was assembled of just these parts. One whose file is there as it should be is left as it is:
    where this was interrupted, it is done again. Raises OutputFailed.
    """
    ordered = _in_order(parts)
    _unpack_rejects(places, ordered)
    is_parquet = _format_in(ordered, places.file) == "parquet"
    parquet = ParquetForm(columns, about_file(about)) if is_parquet else None
    with AssembledFile.opened(places.folder, places.file, ordered, columns) as assembled:
        for part in ordered:
            with contextlib.suppress(OutputFailed):
                part_bytes(places.parts, part)
                continue
            data = assembled.bytes_of(part) if parquet is None else parquet.encoded(assembled.whole(part))
            places.parts.write(part.file, data)
            yield UnpackedPart(part.number, len(data), hashlib.sha256(data).hexdigest())


class AssembledFile:
    """A file that was put together of parts, read by part."""

    def __init__(
        self,
        stream: pa.NativeFile,
        folder: Folder,
        name: str,
        parts: Sequence[KnownPart],
        columns: OutputColumns,
    ) -> None:
        """Raises OutputFailed where it cannot be such a file."""
        self._stream = stream
        self._shown = folder.shown(name)
        self._columns = columns
        self._parts = _in_order(parts)
        self._position = {part.number: index for index, part in enumerate(self._parts)}
        self._parquet: Any = None
        if _format_in(self._parts, name) == "parquet":
            try:
                self._parquet = parquet_file(stream)
            except (pa.ArrowException, OSError) as error:
                raise OutputFailed(f"{self._shown} is no Parquet file: {error}") from error
            self._check(self._parquet.num_row_groups == len(self._parts))
        else:
            self._check(stream.size() == sum(part.bytes for part in self._parts))

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, folder: Folder, name: str, parts: Sequence[KnownPart], columns: OutputColumns
    ) -> Generator[AssembledFile]:
        """The file for as long as the block. Raises OutputFailed."""
        with folder.open_input(name) as stream:
            yield cls(stream, folder, name, parts, columns)

    def table(self, part: KnownPart) -> pa.Table:
        """What the job has added to the rows of a part, as `read_part`. Raises OutputFailed."""
        if self._parquet is None:
            return table_of_lines(self._columns, self.bytes_of(part), self._shown)
        return own_columns(self._group(part, names_to_read(self._columns)), self._columns, self._shown)

    def whole(self, part: KnownPart) -> pa.Table:
        """All columns of a part, of a Parquet file. Raises OutputFailed."""
        return self._group(part, None)

    def bytes_of(self, part: KnownPart) -> bytes:
        """The lines of a part, of a JSONL file. Raises OutputFailed."""
        before = self._parts[: self._position[part.number]]
        with self._reading():
            self._stream.seek(sum(each.bytes for each in before))
            data = self._stream.read(part.bytes)
        self._check(hashlib.sha256(data).hexdigest() == part.sha256)
        return data

    def _group(self, part: KnownPart, names: list[str] | None) -> pa.Table:
        with self._reading():
            table: pa.Table = self._parquet.read_row_group(self._position[part.number], columns=names)
        self._check(table.num_rows == part.rows)
        return table

    @contextlib.contextmanager
    def _reading(self) -> Generator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise OutputFailed(f"cannot read {self._shown}: {error}") from error

    def _check(self, is_as_written: bool) -> None:
        if not is_as_written:
            raise OutputFailed(
                f"{self._shown} is not as it was written: put the former one back, or begin a new job"
            )


# --- rejects ------------------------------------------------------------------------------------------------------


def _rejects_of(places: Places, part: KnownPart) -> bytes:
    name = rejects_name(part.number)
    data = places.rejects.read(name)
    if data is None or data.count(b"\n") != reject_count(part):
        raise OutputFailed(
            f"{places.rejects.shown(name)} does not have the rejects of its part: begin a new job"
        )
    return data


def _unpack_rejects(places: Places, parts: Sequence[KnownPart]) -> None:
    """Before the parts: where one is there, so are its rejects."""
    missing = {
        part.number
        for part in parts
        if reject_count(part) and places.rejects.size(rejects_name(part.number)) is None
    }
    if not missing:
        return
    with places.folder.open_input(places.rejects_file) as stream:
        buffered = io.BufferedReader(cast("Any", stream))
        for part in parts:
            lines = [buffered.readline() for _ in range(reject_count(part))]
            if not all(lines):
                raise OutputFailed(
                    f"{places.folder.shown(places.rejects_file)} has fewer rejects than were written"
                )
            if part.number in missing:
                places.rejects.write(rejects_name(part.number), b"".join(lines))


# --- files ----------------------------------------------------------------------------------------------------------


class _Hashing:
    """A stream that knows what went through it, as pyarrow takes Python's files."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self._sha256.update(data)
        self.bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        """What is above closes the stream."""

    def close(self) -> None:
        """What is above closes the stream."""

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


@contextlib.contextmanager
def _bytes_writer(
    sink: _Hashing, _: OutputColumns, __: Mapping[str, str]
) -> Generator[Callable[[bytes], object]]:
    yield sink.write


@contextlib.contextmanager
def _parquet_writer(
    sink: _Hashing, columns: OutputColumns, about: Mapping[str, str]
) -> Generator[Callable[[bytes], object]]:
    form = ParquetForm(columns, about_file(about))
    with form.writer(pa.PythonFile(cast("Any", sink), mode="w")) as writer:
        yield lambda data: form.write_group(writer, parquet_file(data).read())


def _format_in(parts: Sequence[KnownPart], file: str) -> FileFormat:
    """The format of a file of these parts: theirs, since a job may say another one than the file's name.

    Without parts there are no rows, and the name has to do; where it says nothing, no lines are as good as any file.
    """
    if parts:
        return format_of(parts[0].file)
    try:
        return format_of(file)
    except JobInvalid:
        return "jsonl"


def _in_order(parts: Sequence[KnownPart]) -> list[KnownPart]:
    """Raises OutputFailed where one is missing: the file would not line up with the input."""
    ordered = sorted(parts, key=lambda part: part.number)
    if [part.number for part in ordered] != list(range(len(ordered))):
        raise OutputFailed("not all parts are there yet: run the job again to go on")
    return ordered
