"""Parts of a batch job: lines of answers, beside them those of errors, with counts that are as the lines say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from backfill_batches import a_chunk, a_line, a_mapping
from backfill_rows import places_in
from openai_parts import CREATED, a_failed_result, a_result, an_output

from headrace.producers.backfill.assembly import Places, assemble
from headrace.producers.backfill.batch_lines import BatchLines
from headrace.producers.backfill.batch_output import BatchOutput
from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.failures import OutputFailed
from headrace.producers.backfill.outcome import Outcome, without_cost
from headrace.producers.backfill.output_parts import lay_out_again
from headrace.producers.backfill.parts import reject_count
from headrace.producers.backfill.rounds import Redo, cost_of_replaced
from headrace.producers.backfill.source import Chunk, RowFault
from headrace.producers.backfill.state import JobState, WrittenPart

DIGEST = "ab" * 16
MAPPING = a_mapping()
ANSWER = MAPPING.outcome_of(a_result(an_output("Heat"), id=f"tags-1.0.0.{DIGEST}"))
FAILED = MAPPING.outcome_of(a_failed_result("failed", "engine_error"))
REFUSED = Outcome("rejected", code="batch_call_refused", error="...", asked=False)
CHUNK = a_chunk(
    [
        a_line(custom_id="a"),
        a_line(custom_id="b"),
        a_line(custom_id="c"),
        a_line(stream=True),
        RowFault("x", "y", "{"),
    ]
)
OUTCOMES = [ANSWER, without_cost(ANSWER), FAILED, REFUSED, REFUSED]
COLUMNS = OutputColumns.of(CHUNK.kept.schema, None)


def an_output_in(directory: Path, created: int = CREATED) -> tuple[BatchOutput, Places]:
    places = places_in(directory, "answers.jsonl")
    return BatchOutput(places, BatchLines(MAPPING, "tags-1", created=created)), places


def shifted(chunk: Chunk) -> Chunk:
    """The same rows as the input's second part."""
    return replace(chunk, number=1, first_row=len(chunk))


def state_of(parts: list[WrittenPart]) -> JobState:
    return JobState(
        job="tags-1",
        model="tagger",
        contract=1,
        identity={},
        rows=10,
        rows_per_part=5,
        lane_partitions=1,
        results_topic="t",
        offsets={},
        parts=parts,
        created_ms=0,
        updated_ms=0,
    )


def test_counts_are_those_of_the_lines_and_a_shared_answer_costs_once(tmp_path: Path) -> None:
    output, places = an_output_in(tmp_path)
    part = output.write(CHUNK, OUTCOMES, 0)
    assert part.statuses == {"failed": 1, "ok": 2, "rejected": 2}
    assert part.codes == {"engine_error": 1, "unsupported_parameter": 1, "x": 1}
    assert part.prompt_tokens == ANSWER.prompt_tokens + FAILED.prompt_tokens
    assert part.completion_tokens == ANSWER.completion_tokens + FAILED.completion_tokens
    assert part.asked == 2
    answers = places.parts.read(part.file) or b""
    assert [json.loads(line)["custom_id"] for line in answers.splitlines()] == ["a", "b"]
    errors = places.rejects.read("rejects-000000.jsonl") or b""
    assert errors.count(b"\n") == reject_count(part) == 3


def test_an_answer_that_cannot_be_told_counts_as_the_error_that_its_line_is(tmp_path: Path) -> None:
    """The call wanted JSON; what came is none, though the worker was content with it."""
    chunk = a_chunk([a_line(tools=[], response_format={"type": "json_object"})])
    output, places = an_output_in(tmp_path)
    part = output.write(chunk, [MAPPING.outcome_of(a_result())], 0)
    lines = (places.rejects.read("rejects-000000.jsonl") or b"").count(b"\n")
    assert sum(part.statuses.values()) == 1
    assert lines == reject_count(part)


def test_a_part_is_read_back_with_the_same_counts_and_written_again_as_it_was(tmp_path: Path) -> None:
    output, places = an_output_in(tmp_path)
    part = output.write(CHUNK, OUTCOMES, 0)
    files = [places.parts.read(part.file), places.rejects.read("rejects-000000.jsonl")]
    later, _ = an_output_in(tmp_path, created=CREATED + 60)
    earlier = later.earlier(part)
    assert [each.status for each in earlier] == ["ok", "ok", "failed", "rejected", "rejected"]
    again = later.write(CHUNK, earlier, 1)
    later.put_in_place(again)
    assert [places.parts.read(part.file), places.rejects.read("rejects-000000.jsonl")] == files
    assert (again.statuses, again.codes, again.sha256) == (part.statuses, part.codes, part.sha256)
    # What a call without an answer has cost stands in no line.
    assert (again.prompt_tokens, again.completion_tokens) == (ANSWER.prompt_tokens, ANSWER.completion_tokens)


@pytest.mark.parametrize("redo", ["failed", "rejects"])
def test_what_calls_without_an_answer_have_cost_is_told_for_a_round_of_either_kind(
    tmp_path: Path, redo: Redo
) -> None:
    """The round writes the part anew, and the lines that it keeps tell no cost."""
    output, _ = an_output_in(tmp_path)
    part = output.write(CHUNK, OUTCOMES, 0)
    state = state_of([part]).model_copy(update={"redo": redo})
    assert cost_of_replaced(state, 0) == (FAILED.prompt_tokens, FAILED.completion_tokens)
    again = output.write(CHUNK, output.earlier(part), 1)
    output.put_in_place(again)
    kept = (again.prompt_tokens + FAILED.prompt_tokens, again.completion_tokens + FAILED.completion_tokens)
    assert kept == (part.prompt_tokens, part.completion_tokens)
    assert cost_of_replaced(state_of([again]).model_copy(update={"redo": redo}), 0) == (0, 0)


def test_parts_are_put_together_and_taken_apart_again(tmp_path: Path) -> None:
    output, places = an_output_in(tmp_path)
    parts = [output.write(CHUNK, OUTCOMES, 0), output.write(shifted(CHUNK), OUTCOMES, 0)]
    assembled = assemble(places, parts, COLUMNS, {})
    assert assembled.rejects == 6
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 4
    for part in parts:
        places.parts.delete(part.file)
        places.rejects.delete(f"rejects-{part.number:06d}.jsonl")
    state = state_of(parts)
    assert lay_out_again(places, state, COLUMNS, {}).parts == parts
    assert [each.status for each in output.earlier(parts[1])] == [
        "ok",
        "ok",
        "failed",
        "rejected",
        "rejected",
    ]


@pytest.mark.parametrize("harm", ["answers changed", "errors gone", "errors torn"])
def test_a_part_that_is_not_as_it_was_written_is_said(tmp_path: Path, harm: str) -> None:
    output, places = an_output_in(tmp_path)
    part = output.write(CHUNK, OUTCOMES, 0)
    if harm == "answers changed":
        places.parts.write(part.file, b"{}\n")
    elif harm == "errors gone":
        places.rejects.delete("rejects-000000.jsonl")
    else:
        places.rejects.write("rejects-000000.jsonl", b'{"id": \n')
    with pytest.raises(OutputFailed):
        output.earlier(part)


def test_a_row_that_has_failed_so_far_is_told_as_its_line_will_be(tmp_path: Path) -> None:
    output, places = an_output_in(tmp_path)
    told = b"".join(output.failure_line(CHUNK, index, OUTCOMES[index]) for index in (2, 3, 4))
    output.write(CHUNK, OUTCOMES, 0)
    assert told == places.rejects.read("rejects-000000.jsonl")
