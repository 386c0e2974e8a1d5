"""A job's state: what is written is read, whatever is wrong is said, and another job is told from this one."""

from __future__ import annotations

import pytest

from headrace.producers.backfill.failures import JobChanged, StateUnreadable
from headrace.producers.backfill.rounds import begin_again, rows_to_redo
from headrace.producers.backfill.state import (
    JobState,
    WrittenPart,
    check_same_job,
    read_state,
    state_bytes,
)


def part(number: int, **statuses: int) -> WrittenPart:
    rows = sum(statuses.values())
    return WrittenPart(
        number=number,
        first_row=10 * number,
        rows=rows,
        file=f"part-{number:06d}.parquet",
        bytes=100,
        sha256="00",
        statuses=statuses,
        prompt_tokens=2 * rows,
        completion_tokens=rows,
        asked=rows,
        codes={"invalid_field": statuses.get("rejected", 0)},
        versions={"3": statuses.get("ok", 0)},
    )


def state(*parts: WrittenPart, **changes: object) -> JobState:
    return JobState(
        job="tags-1",
        model="m",
        contract=1,
        identity={"input": "sha256:1", "prompt or parameters": "sha256:2"},
        rows=30,
        rows_per_part=10,
        lane_partitions=4,
        results_topic="headrace.m.c1.results",
        offsets={0: 5, 3: 7},
        parts=list(parts),
        created_ms=1,
        updated_ms=2,
        output="/data/tags.parquet",
    ).model_copy(update=changes)


def test_what_is_written_is_read() -> None:
    written = state(part(0, ok=10), part(2, ok=7, failed=2, rejected=1))
    read = read_state(state_bytes(written), "state.json")
    assert read == written
    assert read.done == {0, 2}
    assert read.statuses == {"ok": 17, "failed": 2, "rejected": 1}
    assert read.tokens == (40, 20)
    assert read.versions == {"3": 17}


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 2, "job": "x"}', b"\xff"])
def test_what_is_no_state_is_told_with_its_place(text: bytes) -> None:
    with pytest.raises(StateUnreadable, match=r"tags.parquet.headrace/state.json"):
        read_state(text, "tags.parquet.headrace/state.json")


def test_what_a_later_release_adds_is_passed_over() -> None:
    text = state_bytes(state()).replace(b'"job":', b'"mood": "good", "job":', 1)
    assert read_state(text, "x") == state()


def test_another_input_makes_another_job_and_is_named() -> None:
    with pytest.raises(JobChanged, match="another input") as caught:
        check_same_job(state(), {"input": "sha256:9", "prompt or parameters": "sha256:2"})
    assert "--anew" in str(caught.value)
    assert "prompt" not in str(caught.value).partition(". ")[0]


def test_a_part_that_is_written_again_takes_the_place_of_the_former() -> None:
    parts = state(part(2, ok=9, failed=1), part(0, ok=10)).with_part(part(2, ok=10))
    assert [(each.number, each.statuses) for each in parts] == [(0, {"ok": 10}), (2, {"ok": 10})]


def test_a_round_concerns_parts_that_have_such_rows() -> None:
    before = state(part(0, ok=10), part(1, ok=8, rejected=2), part(2, ok=9, failed=1), status="done")
    assert rows_to_redo(before, "failed") == 1
    assert rows_to_redo(before, "rejects") == 2
    again = begin_again(before, "failed")
    assert (again.round, again.done, again.status) == (1, {0, 1}, "running")
    assert begin_again(again, "failed") == again, "a round that was not finished goes on"
    assert begin_again(again, "rejects").round == 2
