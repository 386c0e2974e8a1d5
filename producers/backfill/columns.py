"""The columns of a job's output: fixed before the first row, from the input's schema and the output schema. Pure.

First what is kept of the input; then what was asked for, a column for each property of an output schema that is an
object's (an input column's name taken, whatever its case, it has `_output` behind it), else one column `output`; then
what became of the row:

    headrace_status             `ok`, or why there is no output; outputs of other rows are null
    headrace_error              code and sentence; of an `ok` row, what of its output has no place in the columns
    headrace_prompt_tokens      of the row's prompt
    headrace_completion_tokens  generated for it
    headrace_version            of the model
    headrace_id                 of the request, under which its result lies in `results`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import pyarrow as pa

from headrace.producers.backfill.failures import JobInvalid
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.output_forms import (
    JSON_TEXT,
    Form,
    Losses,
    field_of,
    forms_of,
    restored_or_none,
    stored_or_none,
)
from headrace.producers.backfill.source import Chunk
from headrace.schemas.errors import OutputDoesNotFit
from headrace.schemas.messages import JsonObject

WHOLE: Final = "output"  # the column of an output that is no object with properties, or is text
REST: Final = "additional"  # the column of properties that the output schema admits without naming them
SUFFIX: Final = "_output"
MAX_LOSSES: Final = 5  # told of one row; of the others the number

STATUS: Final = "headrace_status"
ERROR: Final = "headrace_error"
ID: Final = "headrace_id"
ROW_FIELDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field(STATUS, pa.string()),
    pa.field(ERROR, pa.string()),
    pa.field("headrace_prompt_tokens", pa.int64()),
    pa.field("headrace_completion_tokens", pa.int64()),
    pa.field("headrace_version", pa.string()),
    pa.field(ID, pa.string()),
)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the output: of a property, of those that are not named (`REST`), or of the whole (`WHOLE`).

    `key` is what it would be called if nothing were kept of the input: jobs with the same output schema agree on it.
    """

    of: str
    key: str
    name: str
    form: Form


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """The columns of one job. `schema` is that of every table; `own_schema` lacks what is kept of the input."""

    kept: pa.Schema
    _columns: tuple[_Column, ...]
    _is_object: bool
    _rest: bool  # whether the last column is for what is not named

    @classmethod
    def of(cls, kept: pa.Schema, output: JsonObject | bool | None) -> OutputColumns:
        """The columns for a contract's output schema; None: its outputs are text.

        Raises JobInvalid for names of the input that cannot be in the output, InvalidSchema for what is no schema.
        """
        keys, taken = _names_taken(pa.schema([])), _names_taken(kept)
        forms = forms_of(output)
        wanted = list(forms.properties.items()) if forms.whole is None else [(WHOLE, forms.whole)]
        if forms.is_open:
            wanted.append((REST, JSON_TEXT))
        columns = tuple(_Column(of, _unused(of, keys), _unused(of, taken), form) for of, form in wanted)
        # Those of a row that cannot be read are null, whatever the input's own schema says.
        nullable = [field.with_nullable(True) for field in cast("Iterable[pa.Field[Any]]", kept)]
        return cls(pa.schema(nullable), columns, forms.whole is None, forms.is_open)

    @property
    def own_schema(self) -> pa.Schema:
        """Of the columns that the job adds to its input."""
        return pa.schema([*(field_of(each.name, each.form) for each in self._columns), *ROW_FIELDS])

    @property
    def schema(self) -> pa.Schema:
        """Of the whole output."""
        fields = [
            *cast("Iterable[pa.Field[Any]]", self.kept),
            *cast("Iterable[pa.Field[Any]]", self.own_schema),
        ]
        return pa.schema(fields)

    @property
    def names(self) -> dict[str, str]:
        """Of the columns that hold outputs, by key: what they would be called if nothing were kept of the input."""
        return {column.key: column.name for column in self._columns}

    def without_input(self, names: Mapping[str, str]) -> OutputColumns:
        """The columns of another job with the same output schema, of which `names` are known."""
        columns = tuple(replace(column, name=names.get(column.key, column.name)) for column in self._columns)
        return replace(self, kept=pa.schema([]), _columns=columns)

    def columns_of(self, row: JsonObject) -> JsonObject:
        """Of a row of a table with these columns what `Outcome.columns` has: its outputs by key."""
        return {column.key: row[column.name] for column in self._columns}

    def table(self, chunk: Chunk, outcomes: Sequence[Outcome]) -> pa.Table:
        """The rows of a chunk with what became of them; `outcomes[i]` is of `chunk.rows[i]`.

        Whatever the values are: what does not fit is null, and its row says so in `headrace_error`, its status kept.
        """
        if len(outcomes) != len(chunk):
            raise ValueError(f"{len(outcomes)} outcomes for {len(chunk)} rows")
        losses = [Losses([]) for _ in outcomes]
        stored = [self._stored(outcome, lost) for outcome, lost in zip(outcomes, losses, strict=True)]
        arrays: list[Any] = list(chunk.kept.columns)
        for index, column in enumerate(self._columns):
            arrays.append(_array([row[index] for row in stored], column, losses))
        arrays += [
            pa.array([outcome.status for outcome in outcomes], pa.string()),
            pa.array([_error(*each) for each in zip(outcomes, losses, strict=True)], pa.string()),
            pa.array([outcome.prompt_tokens for outcome in outcomes], pa.int64()),
            pa.array([outcome.completion_tokens for outcome in outcomes], pa.int64()),
            pa.array([outcome.version for outcome in outcomes], pa.string()),
            pa.array([outcome.request_id for outcome in outcomes], pa.string()),
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def json_rows(self, table: pa.Table) -> Iterable[JsonObject]:
        """The rows of a table's own columns as JSON: what is JSON text in the table is the value itself."""
        forms = {column.name: column.form for column in self._columns}
        for row in table.select(self.own_schema.names).to_pylist():
            yield {
                name: restored_or_none(forms[name], value) if name in forms else value
                for name, value in row.items()
            }

    def own_table(self, rows: Sequence[JsonObject]) -> pa.Table:
        """The table of own columns whose `json_rows` these are, among other columns. Raises ValueError for others."""
        arrays: list[Any] = []
        for column in self._columns:
            losses = Losses([])
            values = [
                stored_or_none(column.form, row.get(column.name), (column.name,), losses) for row in rows
            ]
            if losses.said:
                raise ValueError(losses.said[0])
            arrays.append(pa.array(values, column.form.type))
        arrays += [pa.array([row.get(field.name) for row in rows], field.type) for field in ROW_FIELDS]
        return pa.Table.from_arrays(arrays, schema=self.own_schema)

    def _stored(self, outcome: Outcome, losses: Losses) -> list[Any]:
        """What the columns have of one row."""
        if outcome.status != "ok":
            return [None] * len(self._columns)
        if outcome.columns is not None:
            return [outcome.columns.get(column.key) for column in self._columns]
        value = outcome.value
        if not self._is_object:
            return [stored_or_none(self._columns[0].form, value, (), losses)]
        if not isinstance(value, dict):
            if value is not None:
                losses.note((), value, "is no object")
            return [None] * len(self._columns)
        return self._members(cast("JsonObject", value), losses)

    def _members(self, value: JsonObject, losses: Losses) -> list[Any]:
        named = self._columns[:-1] if self._rest else self._columns
        found = [stored_or_none(column.form, value.get(column.of), (column.of,), losses) for column in named]
        rest = {name: value[name] for name in value.keys() - {column.of for column in named}}
        if self._rest:
            # Sorted, as everything must come out the same when it is written again.
            found.append(JSON_TEXT.stored(dict(sorted(rest.items())), (), losses) if rest else None)
        else:
            for name in sorted(rest):
                losses.note((name,), rest[name], "has no column")
        return found


def _array(values: list[Any], column: _Column, losses: Sequence[Losses]) -> Any:
    try:
        return pa.array(values, column.form.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass  # columns of an output of another schema: which rows are they?
    for index, value in enumerate(values):
        try:
            pa.array([value], column.form.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            losses[index].note((column.of,), value, f"does not fit {column.form.type}")
            values[index] = None
    return pa.array(values, column.form.type)


def _error(outcome: Outcome, losses: Losses) -> str | None:
    """Code and sentence: `output_does_not_fit: /size: 10000000000000000000 does not fit an integer of 64 bits`."""
    parts = [part for part in (outcome.code, outcome.error) if part]
    said = [": ".join(parts)] if parts else []
    if losses.said:
        more = len(losses.said) - MAX_LOSSES
        told = [*losses.said[:MAX_LOSSES], *([f"and {more} more"] if more > 0 else [])]
        said.append(f"{OutputDoesNotFit.code}: {'; '.join(told)}")
    return "; ".join(said).encode(errors="backslashreplace").decode() if said else None


def _names_taken(kept: pa.Schema) -> set[str]:
    """In lower case, as many who read tables tell no more. Raises JobInvalid."""
    ours = {field.name for field in ROW_FIELDS}
    for name, count in Counter(kept.names).items():
        if count > 1:
            raise JobInvalid(
                f"{count} columns of the input are called {name!r}: leave them out by `keep`, or rename them"
            )
        if name.lower() in ours:
            raise JobInvalid(
                f"the input has a column {name!r}, as the output will: leave it out by `keep`, or rename it"
            )
    return {name.lower() for name in kept.names} | ours


def _unused(name: str, taken: set[str]) -> str:
    while name.lower() in taken:
        name += SUFFIX
    taken.add(name.lower())
    return name
