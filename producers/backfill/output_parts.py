"""A job's parts as its run writes and reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from headrace.producers.backfill.assembly import Places, UnpackedPart, unpack
from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.parts import PartWriter, read_part, reject_line
from headrace.producers.backfill.replacing import places_of_round, put_in_place
from headrace.producers.backfill.rounds import bad_costs
from headrace.producers.backfill.source import Chunk
from headrace.producers.backfill.state import JobState, WrittenPart
from headrace.producers.backfill.table_files import json_line

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.producers.backfill.table_files import FileFormat
    from headrace.schemas.messages import Status


class TableOutput:
    """Parts with a row for each of the input's: see `run.Output`."""

    def __init__(
        self, places: Places, columns: OutputColumns, file_format: FileFormat, about: Mapping[str, str]
    ) -> None:
        """Raises JobInvalid for columns that the format does not have."""
        self._places, self._columns = places, columns
        self._writer = PartWriter(columns, file_format, about)

    def write(self, chunk: Chunk, outcomes: Sequence[Outcome], round_: int) -> WrittenPart:
        places = places_of_round(self._places, round_)
        part = self._writer.write(places.parts, places.rejects, chunk, outcomes)
        return WrittenPart(
            number=part.number,
            first_row=part.first_row,
            rows=part.rows,
            file=part.file,
            bytes=part.bytes,
            sha256=part.sha256,
            statuses=part.statuses,
            codes=part.codes,
            prompt_tokens=part.prompt_tokens,
            completion_tokens=part.completion_tokens,
            versions=part.versions,
            asked=part.asked,
            round=round_,
            bad_costs=bad_costs(outcomes),
        )

    def put_in_place(self, part: WrittenPart) -> None:
        put_in_place(self._places, part)

    def earlier(self, part: WrittenPart) -> list[Outcome]:
        return list(outcomes_in(read_part(self._places.parts, part, self._columns), self._columns))

    def failure_line(self, chunk: Chunk, index: int, outcome: Outcome) -> bytes:
        return json_line(reject_line(chunk, index, outcome)).encode()


def outcomes_in(table: pa.Table, columns: OutputColumns) -> Iterator[Outcome]:
    """The outcomes that a table's own columns tell of, row by row."""
    for row in table.to_pylist():
        error = cast("str | None", row["headrace_error"])
        status = cast("Status", row["headrace_status"])
        code, _, said = (error or "").partition(": ") if status != "ok" else ("", "", error)
        prompt, completion = row["headrace_prompt_tokens"] or 0, row["headrace_completion_tokens"] or 0
        yield Outcome(
            status,
            code=code or None,
            error=said or None,
            prompt_tokens=prompt,
            completion_tokens=completion,
            version=row["headrace_version"],
            request_id=row["headrace_id"],
            asked=prompt + completion > 0,
            columns=columns.columns_of(row),
        )


def lay_out_again(
    places: Places, state: JobState, columns: OutputColumns, about: Mapping[str, str]
) -> JobState:
    """The state once the parts of an output that was put together are files again. Raises OutputFailed.

    Until the state says so, parts that lie there may be another release's, whose bytes are others.
    """
    are_there = all(places.parts.size(part.file) is not None for part in state.parts)
    if not places.file or (state.status != "done" and are_there):
        return state
    changed: dict[int, UnpackedPart] = {
        part.number: part for part in unpack(places, state.parts, columns, about)
    }
    parts = [
        part.model_copy(update={"bytes": changed[part.number].bytes, "sha256": changed[part.number].sha256})
        if part.number in changed
        else part
        for part in state.parts
    ]
    return state.model_copy(update={"parts": parts})
