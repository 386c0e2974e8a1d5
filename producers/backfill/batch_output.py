"""A batch job's parts as its run writes and reads them: lines of the output file, and of the error file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.producers.backfill.batch_lines import BatchLines, BatchPart
from headrace.producers.backfill.failures import OutputFailed
from headrace.producers.backfill.parts import part_bytes, part_name, reject_count, rejects_name
from headrace.producers.backfill.replacing import places_of_round, put_in_place
from headrace.producers.backfill.rounds import untold_costs
from headrace.producers.backfill.state import WrittenPart
from headrace.schemas.strict_json import JsonFault

if TYPE_CHECKING:
    from headrace.producers.backfill.assembly import Places
    from headrace.producers.backfill.outcome import Outcome
    from headrace.producers.backfill.source import Chunk


class BatchOutput:
    """A part has a line for each call that was answered, and beside it lie those of the others: see `run_ports.Output`.

    Rows are counted by what their lines say, so that a part that is read again has the same counts.
    """

    def __init__(self, places: Places, lines: BatchLines) -> None:
        self._places, self._lines = places, lines

    def write(self, chunk: Chunk, outcomes: Sequence[Outcome], round_: int) -> WrittenPart:
        found = self._lines.of(chunk, outcomes)
        errors = rejects_name(chunk.number)
        places = places_of_round(self._places, round_)
        if found.errors:
            places.rejects.write(errors, found.errors)
        else:
            places.rejects.delete(errors)
        name = part_name(chunk.number, "jsonl")
        places.parts.write(name, found.output)
        asked = [outcome for outcome in outcomes if outcome.asked]
        return WrittenPart(
            number=chunk.number,
            first_row=chunk.first_row,
            rows=len(chunk),
            file=name,
            bytes=len(found.output),
            sha256=hashlib.sha256(found.output).hexdigest(),
            statuses=_counts(said.status for said in found.told),
            codes=_counts(said.code or said.status for said in found.told if said.status != "ok"),
            prompt_tokens=sum(outcome.prompt_tokens for outcome in asked),
            completion_tokens=sum(outcome.completion_tokens for outcome in asked),
            versions=_counts(outcome.version for outcome in outcomes if outcome.version is not None),
            asked=len(asked),
            round=round_,
            bad_costs=untold_costs(outcomes, found.told),
        )

    def put_in_place(self, part: WrittenPart) -> None:
        put_in_place(self._places, part)

    def earlier(self, part: WrittenPart) -> list[Outcome]:
        output = part_bytes(self._places.parts, part)
        errors = b""
        name = rejects_name(part.number)
        shown = self._places.rejects.shown(name)
        if reject_count(part):
            errors = self._places.rejects.read(name) or b""
        try:
            found = self._lines.earlier(BatchPart(output, errors), part.first_row, part.rows)
        except JsonFault as fault:
            raise OutputFailed(f"{shown} is not as it was written: {fault.reason}") from None
        outcomes = [each for each in found if each is not None]
        if len(outcomes) != part.rows:
            raise OutputFailed(f"{shown} does not have the errors of its part: begin a new job")
        return outcomes

    def failure_line(self, chunk: Chunk, index: int, outcome: Outcome) -> bytes:
        return self._lines.error_line(chunk.first_row + index, chunk.rows[index], outcome)


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
