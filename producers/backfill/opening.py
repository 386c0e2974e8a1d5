"""Opens a job's input, whatever its format: `open_source`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.producers.backfill.failures import InputFailed
from headrace.producers.backfill.locations import locate
from headrace.producers.backfill.table_source import TableSource
from headrace.producers.backfill.text_source import COMPRESSIONS, TextSource

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from headrace.producers.backfill.locations import InputFile, Location

FORMATS: Final = {
    "parquet": (".parquet", ".pq", ".parq"),
    "arrow": (".arrow", ".arrows", ".feather", ".ipc"),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "jsonl": (".jsonl", ".ndjson"),
}
_TABLES: Final = ("parquet", "arrow")


def open_source(
    location: str,
    *,
    file_system: FileSystem | None = None,
    format: str | None = None,  # noqa: A002 (what the job file calls it)
    keep: Sequence[str] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> TableSource | TextSource:
    """Opens what a job reads: a path, directory, pattern or URI (`locations.py`), or a path in a `file_system`.

    `format`: one of FORMATS; by default the file's suffix says it. `keep`: the columns of the output, in its order;
    all of the input's by default. `progress` is told how many bytes have been read and how many there are: text is
    read whole here, and so are tables up to 64 MiB. Of compressed text there is no telling how many: None.

    Raises InputFailed, with what to do, for an input that is not there, is empty, is no table or several ones.
    """
    if format is not None and format not in FORMATS:
        raise InputFailed(f"`{format}` is no format; there are {', '.join(FORMATS)}")
    found = locate(location, file_system)
    format_name = format or _format_of_all(found)
    total = None if any(_compressed(file) for file in found.files) else sum(file.size for file in found.files)
    read = 0

    def add(count: int) -> None:
        nonlocal read
        if count and progress:
            read += count
            progress(read, total)

    if format_name in _TABLES:
        return TableSource(found, format_name, keep, add)
    return TextSource(found, format_name, keep, add)


def _format_of_all(found: Location) -> str:
    first = _format_of(found.files[0], found.shown)
    for file in found.files:
        other = _format_of(file, found.shown)
        if other != first:
            raise InputFailed(
                f"{found.shown} has files of several formats: {found.files[0].name} is {first}, "
                f"{file.name} is {other}; name one kind with a pattern (`*.parquet`)"
            )
    return first


def _format_of(file: InputFile, shown: str) -> str:
    """Raises InputFailed for a suffix that is not known."""
    compression = _compressed(file)
    name = file.path.rpartition("/")[2].casefold().removesuffix(compression)
    found = next((form for form, ends in FORMATS.items() if name.endswith(ends)), None)
    if found is None:
        known = ", ".join(end for ends in FORMATS.values() for end in ends)
        hint = (
            " (a .json file is one document; if it has a row in each line, say jsonl)"
            if name.endswith(".json")
            else ""
        )
        raise InputFailed(
            f"{shown}: the name of {file.name} does not say its format: known are {known}; "
            f"--input-format ({', '.join(FORMATS)}) says it{hint}"
        )
    if compression and found in _TABLES:
        raise InputFailed(
            f"{shown}: {file.name} is {found} compressed as a whole, which cannot be read in parts"
        )
    return found


def _compressed(file: InputFile) -> str:
    """The suffix of its compression, or nothing."""
    return next((end for end in COMPRESSIONS if file.path.endswith(end)), "")
