"""Parts of an output that was put together become files again, so that a round can write some anew."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from backfill_rows import KEPT, numbered, ok, places_in

from headrace.producers.backfill.assembly import assemble
from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.output_parts import TableOutput, lay_out_again
from headrace.producers.backfill.state import JobState

COLUMNS = OutputColumns.of(KEPT, None)
ABOUT = {"job": "j", "model": "m", "contract": "1"}
ROWS = 3


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
def test_parts_that_another_release_had_laid_out_before_it_was_killed_are_laid_out_again(
    tmp_path: Path, file_format: Literal["parquet", "jsonl"]
) -> None:
    """Parquet files say of which release they are, so theirs are other bytes; the state did not come to name them."""
    places = places_in(tmp_path, f"tags.{file_format}")
    output = TableOutput(places, COLUMNS, file_format, ABOUT)
    parts = [output.write(numbered(ROWS, number, ROWS), [ok("a")] * ROWS, 0) for number in range(2)]
    assemble(places, parts, COLUMNS, ABOUT)
    for part in parts:
        places.parts.delete(part.file)
    state = JobState(
        job="tags-1",
        model="tagger",
        contract=1,
        identity={},
        rows=2 * ROWS,
        rows_per_part=ROWS,
        lane_partitions=1,
        results_topic="t",
        offsets={},
        parts=parts,
        status="done",
        created_ms=0,
        updated_ms=0,
    )
    lay_out_again(places, state, COLUMNS, {**ABOUT, "job": "other bytes"})
    again = lay_out_again(places, state, COLUMNS, ABOUT)
    for part in again.parts:
        assert [each.status for each in output.earlier(part)] == ["ok"] * ROWS
