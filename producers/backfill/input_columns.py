"""Which columns an input has and which of them the output keeps; the checks that every format shares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.producers.backfill.failures import InputFailed
from headrace.producers.backfill.locations import close_to

if TYPE_CHECKING:
    from headrace.producers.backfill.locations import InputFile, Location

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def refuse_twice(names: Iterable[str], shown: str) -> None:
    """Raises InputFailed where two columns have one name: nobody could say which is meant."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputFailed(f"{shown}: two columns are called `{name}`")
        seen.add(name)


def kept_names(keep: Sequence[str] | None, known: Sequence[str], shown: str) -> list[str]:
    """The columns of the output, in its order: `keep`, or all. Raises InputFailed for one that is not there."""
    if keep is None:
        return list(known)
    refuse_twice(keep, "keep")
    there = set(known)
    for name in keep:
        if name not in there:
            raise InputFailed(f"{shown} has no column `{name}`; {_what_is_there(name, known)}")
    return list(keep)


def _what_is_there(name: str, known: Sequence[str]) -> str:
    close = close_to(name, known)
    if close:
        return f"is it {close}?"
    listed = ", ".join(f"`{each}`" for each in known[:20])
    return f"there are {listed}{' and others' if len(known) > 20 else ''}"


def types_of(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The type of each column, in the schema's order. Names are taken to differ."""
    return dict(zip(schema.names, schema.types, strict=True))


def partition_types(location: Location) -> dict[str, pa.DataType]:
    """The columns that stand in the names of folders (`year=2024/`): int64 where all are written as integers are.

    `01` is no integer: as text it keeps its zero. Raises InputFailed where files do not have the same ones.
    """
    first = location.files[0]
    names = list(first.partition)
    for file in location.files:
        if set(file.partition) != set(names):
            raise InputFailed(
                f"{location.shown}: {first.name} lies in folders of {_listed(names)}, "
                f"{file.name} of {_listed(file.partition)}"
            )
    return {name: _partition_type([file.partition[name] for file in location.files]) for name in names}


def _partition_type(texts: list[str | None]) -> pa.DataType:
    given = [text for text in texts if text is not None]
    return pa.int64() if given and all(_INTEGER.fullmatch(text) for text in given) else pa.string()


def partition_values(file: InputFile, types: dict[str, pa.DataType]) -> dict[str, str | int | None]:
    """What a file's rows have in those columns."""
    found: dict[str, str | int | None] = {}
    for name, kind in types.items():
        text = file.partition[name]
        found[name] = int(text) if text is not None and kind == pa.int64() else text
    return found


def refuse_in_both(partitions: Iterable[str], names: Iterable[str], shown: str) -> None:
    """Raises InputFailed where a folder's name and the files have the same column."""
    both = set(partitions) & set(names)
    if both:
        name = min(both)
        raise InputFailed(f"{shown}: column `{name}` stands in the files and in the names of their folders")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "no column"
