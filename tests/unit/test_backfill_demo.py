"""The part of `make demo-backfill` that needs no broker: its count."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.consumers.records import RecordLocation
from headrace.ops.backfill_demo_count import Count, Topics, count_up
from headrace.ops.faults.verdict import Answer, Asked
from headrace.schemas.output_schema import OutputSchema

parquet: Any = import_module("pyarrow.parquet")  # its stubs are partly unknown
SCHEMA = OutputSchema(
    {"type": "object", "properties": {"mood": {"enum": ["dark", "sad"]}}, "required": ["mood"]}
)
DIGEST = "0" * 32
JOB = "tags-1"


def film(number: int, **changed: Any) -> dict[str, Any]:
    return {"Title": f"film {number}", "Release Date": "Jun 12 1998"} | changed


def row(number: int, **changed: Any) -> dict[str, Any]:
    """An output row as it should be."""
    own = {"mood": "dark", "headrace_status": "ok", "headrace_id": f"{JOB}.{number}.0.{DIGEST}"}
    return film(number) | own | changed


def counted(
    place: Path,
    rows: list[dict[str, Any]],
    *,
    answers: list[int] | None = None,
    rejects: str = "",
    generated: int | None = None,
) -> Count:
    """Three films, these rows, and results of the rows with these numbers: by default of each one."""
    (place / "films.jsonl").write_text("".join(json.dumps(film(number)) + "\n" for number in range(3)))
    parquet.write_table(pa.Table.from_pylist(rows), place / "tags.parquet")
    at = RecordLocation("topic", 0, 0)
    ids = [f"{JOB}.{number}.0.{DIGEST}" for number in range(3)]
    found = [
        Answer(ids[number], "ok", None, "{}", at, at, "demo", 1)
        for number in ([0, 1, 2] if answers is None else answers)
    ]
    topics = Topics(
        [Asked(id_, None, at) for id_ in ids], found, len(found) if generated is None else generated
    )
    return count_up(place / "films.jsonl", place / "tags.parquet", rejects, JOB, SCHEMA, topics)


def test_a_table_that_lines_up_with_its_input_passes(tmp_path: Path) -> None:
    count = counted(tmp_path, [row(0), row(1), row(2)])
    assert count.faults == []
    assert count.lines()[0] == "3 rows in = 3 rows out = 3 ok"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(0), row(1)], "the input has 3 rows, and the output 2"),
        ([row(0), row(2), row(1)], "row 1: Title is 'film 2', and 'film 1' in the input"),
        ([row(0), row(1, headrace_id=row(2)["headrace_id"]), row(2)], "row 1: its output is of request"),
        ([row(0), row(1, mood="bright"), row(2)], "row 1: its output is not valid"),
        ([row(0), row(1, headrace_status="failed"), row(2)], "row 1: is failed, and has an output"),
        ([row(0), row(1, headrace_status="failed", mood=None), row(2)], "the rejects are rows []"),
    ],
)
def test_a_row_that_is_lost_or_wrong_is_found(tmp_path: Path, rows: list[dict[str, Any]], said: str) -> None:
    count = counted(tmp_path, rows)
    assert not count.passed
    assert any(said in fault for fault in count.faults), count.faults


@pytest.mark.parametrize(
    ("answers", "generated", "said"),
    [
        ([0, 1], 2, "1 requests without a result"),
        ([0, 1, 2, 2], 4, "1 requests with several results"),
        ([0, 1, 2], 5, "2 generations were begun beyond one for each result"),
    ],
)
def test_a_result_that_is_lost_or_doubled_is_found(
    tmp_path: Path, answers: list[int], generated: int, said: str
) -> None:
    count = counted(tmp_path, [row(0), row(1), row(2)], answers=answers, generated=generated)
    assert any(said in fault for fault in count.faults), count.faults
