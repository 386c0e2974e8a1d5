"""The types of columns that JSON lines have, from all of them; and the columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from headrace.producers.backfill.failures import InputFailed
from headrace.producers.backfill.source import RowFault
from headrace.schemas import strict_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.schemas.messages import JsonObject, JsonValue

MAX_COLUMNS: Final = 10_000  # different keys; more are no columns but values

_MAX_EXACT: Final = 1 << 53  # integers up to here are exact as a double
_MAX_INT64: Final = (1 << 63) - 1


class ColumnKinds:
    """What each key's values are, row after row.

    All texts: string. All true or false: bool. All integers of 64 bits: int64. Integers and other numbers: float64,
    if that holds each integer exactly. Only nulls: string. Texts among numbers, true and false: string, the others as
    JSON has them (a film's title 1776 is "1776"). Anything else (nested, huge): string, with JSON text.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, type[Any]], None] = {}  # in order of their first appearance
        self._wide: dict[str, tuple[int, int]] = {}  # least and largest, where a double does not hold both

    def see(self, row: JsonObject) -> None:
        """Raises InputFailed for more different keys than a table has columns."""
        values = row.values()
        self._seen.update(dict.fromkeys(zip(row, map(type, values))))  # noqa: B905 (one dict's)
        for value in values:
            if type(value) is int and not -_MAX_EXACT <= value <= _MAX_EXACT:
                self._see_wide(row)
        if len(self._seen) > MAX_COLUMNS:
            self._refuse_too_many()

    def _see_wide(self, row: JsonObject) -> None:
        for name, value in row.items():
            if type(value) is int:
                least, largest = self._wide.get(name, (value, value))
                self._wide[name] = min(least, value), max(largest, value)

    def _refuse_too_many(self) -> None:
        if len({name for name, _ in self._seen}) > MAX_COLUMNS:
            raise InputFailed(
                f"its rows have more than {MAX_COLUMNS} different keys: what varies belongs into values"
            )

    def types(self) -> dict[str, pa.DataType]:
        """Of each column, in the order in which they first appeared."""
        return {name: self._type(name, kinds - {type(None)}) for name, kinds in self._kinds().items()}

    def as_json_text(self) -> set[str]:
        """The columns whose values are not one type's: they hold JSON text."""
        types, texts = self.types(), {str, type(None)}
        return {
            name for name, kinds in self._kinds().items() if types[name] == pa.string() and not kinds <= texts
        }

    def with_plain_texts(self) -> set[str]:
        """Those of them whose texts stand there as they are, without quotes: no value of theirs is nested."""
        return {name for name, kinds in self._kinds().items() if str in kinds and not kinds & {dict, list}}

    def _kinds(self) -> dict[str, set[type[Any]]]:
        kinds: dict[str, set[type[Any]]] = {}
        for name, kind in self._seen:
            kinds.setdefault(name, set()).add(kind)
        return kinds

    def _type(self, name: str, kinds: set[type[Any]]) -> pa.DataType:
        least, largest = self._wide.get(name, (0, 0))
        if kinds == {bool}:
            return pa.bool_()
        if kinds == {int} and least >= -_MAX_INT64 - 1 and largest <= _MAX_INT64:
            return pa.int64()
        if kinds in ({float}, {int, float}) and least >= -_MAX_EXACT and largest <= _MAX_EXACT:
            return pa.float64()
        return pa.string()


def column_of(
    name: str,
    kind: pa.DataType,
    rows: Sequence[JsonObject | RowFault],
    *,
    json_text: bool,
    plain_texts: bool = False,
) -> pa.Array[Any]:
    """A column of rows; null where a row does not have it, or cannot be read."""
    values: list[JsonValue] = [None if isinstance(row, RowFault) else row.get(name) for row in rows]
    if json_text:
        values = [
            value if value is None or (plain_texts and isinstance(value, str)) else strict_json.dump(value)
            for value in values
        ]
    return cast("pa.Array[Any]", pa.array(values, kind))
