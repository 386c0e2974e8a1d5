"""The parts of an output: a file for each chunk of the input, and one of the rows that have no output."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, Protocol

import pyarrow as pa

from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.failures import OutputFailed
from headrace.producers.backfill.folder import Folder
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.source import Chunk, RowFault
from headrace.producers.backfill.table_files import (
    FileFormat,
    ParquetForm,
    format_of,
    json_line,
    json_lines,
    names_to_read,
    own_columns,
    parquet_file,
    table_of_lines,
)
from headrace.schemas.messages import JsonObject


class KnownPart(Protocol):
    """What is on record of a part that was written."""

    @property
    def number(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def file(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    @property
    def statuses(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """A part that was written: its file, and what is in it.

    Tokens are of requests that were made for its rows; a row that shares another's answer costs none. `asked` is how
    many were made. `codes` has the reasons of rows without an output.
    """

    number: int
    first_row: int
    rows: int
    file: str
    bytes: int
    sha256: str  # hexadecimal digits, of the file
    statuses: dict[str, int]
    codes: dict[str, int]
    prompt_tokens: int
    completion_tokens: int
    versions: dict[str, int]
    asked: int


def part_name(number: int, file_format: FileFormat) -> str:
    """The file of a part."""
    return f"part-{number:06d}.{file_format}"


def rejects_name(number: int) -> str:
    """The file of a part's rows that have no output; where all have one there is none."""
    return f"rejects-{number:06d}.jsonl"


def reject_count(part: KnownPart) -> int:
    """How many of a part's rows have no output."""
    return part.rows - part.statuses.get("ok", 0)


class PartWriter:
    """Writes parts. A part that is written again for the same rows and outcomes has the same bytes."""

    def __init__(self, columns: OutputColumns, file_format: FileFormat, about: Mapping[str, str]) -> None:
        """`about` is the job, for Parquet's metadata. Raises JobInvalid for columns that Parquet does not have."""
        self._columns = columns
        self._format: Final = file_format
        self._parquet = ParquetForm(columns, about_file(about)) if file_format == "parquet" else None

    def write(self, parts: Folder, into: Folder, chunk: Chunk, outcomes: Sequence[Outcome]) -> Part:
        """Write a chunk's part into `parts`, and before it what has no output into `into`.

        Raises OutputFailed; each file is then whole or as it was.
        """
        table = self._columns.table(chunk, outcomes)
        data = (
            json_lines(self._columns, chunk, table) if self._parquet is None else self._parquet.encoded(table)
        )
        rejects = "".join(map(json_line, _rejects(chunk, outcomes)))
        if rejects:
            into.write(rejects_name(chunk.number), rejects.encode())
        else:
            into.delete(rejects_name(chunk.number))
        name = part_name(chunk.number, self._format)
        parts.write(name, data)
        asked = [outcome for outcome in outcomes if outcome.asked]
        return Part(
            number=chunk.number,
            first_row=chunk.first_row,
            rows=len(chunk),
            file=name,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            statuses=_counts(outcome.status for outcome in outcomes),
            codes=_counts(outcome.code or outcome.status for outcome in outcomes if outcome.status != "ok"),
            prompt_tokens=sum(outcome.prompt_tokens for outcome in asked),
            completion_tokens=sum(outcome.completion_tokens for outcome in asked),
            versions=_counts(outcome.version for outcome in outcomes if outcome.version is not None),
            asked=len(asked),
        )


def read_part(parts: Folder, part: KnownPart, columns: OutputColumns) -> pa.Table:
    """What the job has added to the rows of a part (`OutputColumns.own_schema`).

    Raises OutputFailed where the file is not there or not what was written.
    """
    data = part_bytes(parts, part)
    shown = parts.shown(part.file)
    if format_of(part.file) == "jsonl":
        return table_of_lines(columns, data, shown)
    return own_columns(parquet_file(data).read(columns=names_to_read(columns)), columns, shown)


def part_bytes(parts: Folder, part: KnownPart) -> bytes:
    """The bytes of a part's file. Raises OutputFailed where they are not those that were written."""
    data = parts.read(part.file)
    if data is None:
        raise OutputFailed(f"{parts.shown(part.file)} is gone: put it back, or begin a new job")
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise OutputFailed(
            f"{parts.shown(part.file)} is not as it was written: put the former one back, or begin a new job"
        )
    return data


def about_file(about: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a Parquet file: the job's, under `headrace.`, and by which release it was written."""
    return {f"headrace.{name}": text for name, text in {**about, "release": version("headrace")}.items()}


def _rejects(chunk: Chunk, outcomes: Sequence[Outcome]) -> Iterable[JsonObject]:
    """A line for each row without an output."""
    return (reject_line(chunk, index, each) for index, each in enumerate(outcomes) if each.status != "ok")


def reject_line(chunk: Chunk, index: int, outcome: Outcome) -> JsonObject:
    """What is said of a chunk's row without an output. Rows are counted from 0, as in pandas and in requests' ids."""
    row = chunk.rows[index]
    fault = row if isinstance(row, RowFault) else None
    return {
        "row_index": chunk.first_row + index,
        "status": outcome.status,
        "code": outcome.code or (fault.code if fault else None),
        "reason": outcome.error or (fault.message if fault else None),
        "id": outcome.request_id,
        "input": fault.text if fault else row,
    }


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
