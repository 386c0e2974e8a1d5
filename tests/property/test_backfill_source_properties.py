"""Whatever the table, its format, its files' borders and the chunks that are wanted: the same rows come out."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from backfill_inputs import WRITERS, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.producers.backfill.opening import open_source

NAMES = st.sampled_from(["a", "b", "é ü", "a.b", 'x"y', "c,d"])
# In CSV an empty text is null.
TEXTS = st.none() | st.text(min_size=1, max_size=8)


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    rows = draw(st.lists(st.tuples(*[TEXTS] * len(names)), min_size=1, max_size=40))
    return [{"row": str(number), **dict(zip(names, row, strict=True))} for number, row in enumerate(rows)]


@given(tables(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_format_gives_the_rows_that_were_written_in_any_chunks(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    suffix = data.draw(st.sampled_from(list(WRITERS)))
    borders = sorted(data.draw(st.sets(st.integers(1, len(rows)), max_size=3)) - {len(rows)})
    size = data.draw(st.integers(1, len(rows) + 2))
    numbers = range((len(rows) + size - 1) // size)
    wanted = data.draw(st.sets(st.sampled_from(numbers)) | st.just(set(numbers)))
    with tempfile.TemporaryDirectory() as folder:
        source = open_source(str(write_files(Path(folder) / "in", suffix, rows, borders)))
        chunks = list(source.chunks(size, lambda number: number in wanted))

    assert source.row_count == len(rows)
    assert [chunk.number for chunk in chunks] == sorted(wanted)
    for chunk in chunks:
        first = chunk.number * size
        assert chunk.first_row == first
        assert chunk.rows == chunk.kept.to_pylist() == rows[first : first + size]
        assert chunk.kept.schema == source.schema
        assert set(source.schema.types) == {pa.string()}
