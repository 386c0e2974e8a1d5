"""OpenAI's batch files: a line in, a line out, whatever it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from backfill_batches import COMPLETIONS, HI, a_chunk, a_line, a_mapping
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai_parts import CREATED, a_failed_result, a_result, an_output

from headrace.producers.backfill.batch_ids import UniqueLines
from headrace.producers.backfill.batch_lines import BatchLines, BatchPart
from headrace.producers.backfill.failures import BatchCallRefused, BatchLineInvalid
from headrace.producers.backfill.openai_batch import BatchMapping, batch_model
from headrace.producers.backfill.outcome import Outcome, without_cost
from headrace.producers.backfill.source import Chunk, RowFault
from headrace.schemas.errors import MessageError
from headrace.schemas.messages import JsonObject, Request, Result


def written(
    rows: Sequence[JsonObject | RowFault], *outcomes: Outcome, mapping: BatchMapping | None = None
) -> BatchPart:
    lines = BatchLines(mapping or a_mapping(), "tags-1", created=CREATED)
    return lines.of(a_chunk(rows, first_row=7), outcomes)


def refusal(error: MessageError) -> Outcome:
    """As the job makes it of a row that no request can be made of."""
    return Outcome("rejected", code=error.code, error=str(error), asked=False)


def the_line(part: bytes) -> Any:
    assert part.endswith(b"\n")
    assert part.count(b"\n") == 1
    return json.loads(part)


def failed(line: JsonObject | RowFault, outcome: Outcome, mapping: BatchMapping | None = None) -> Any:
    """The one line of the error file."""
    part = written([line], outcome, mapping=mapping)
    assert part.output == b""
    return the_line(part.errors)


def answered(line: JsonObject, result: Result, mapping: BatchMapping | None = None) -> Any:
    """The one line of the output file."""
    mapping = mapping or a_mapping()
    part = written([line], mapping.outcome_of(result), mapping=mapping)
    assert part.errors == b""
    return the_line(part.output)


# --- calls ----------------------------------------------------------------------------------------------------


def test_a_line_becomes_the_request_that_the_endpoint_would_make_of_it() -> None:
    line = a_line(max_tokens=5, temperature=0.5, metadata={"k": "v"}, prompt_cache_key="p", n=2)
    fields = a_mapping(tenant="films", attributes={"for": "test"}).request_of(line)
    assert fields == {
        "messages": HI, "sampling": {"max_tokens": 5, "temperature": 0.5, "n": 2}, "tenant": "films",
        "attributes": {"for": "test", "metadata.k": "v", "prompt_cache_key": "p"},
    }  # fmt: skip
    Request.model_validate(fields | {"id": "1"})
    assert a_mapping().request_of(a_line(COMPLETIONS)) == {"prompt": "Hi"}


def test_a_model_goes_by_any_name_that_means_the_contract_of_the_job() -> None:
    for name in ("tagger", "tagger@1", "gpt-4o-mini"):
        assert a_mapping().request_of(a_line(model=name)) == {"messages": HI}


def test_the_first_line_that_names_a_model_says_what_the_job_asks() -> None:
    lines: list[JsonObject | RowFault] = [
        RowFault("undecodable", "no JSON", "{"),
        {"body": 5},
        a_line(model="x"),
    ]
    assert batch_model(lines) == "x"
    assert batch_model(lines[:2]) is None


def test_a_line_of_another_model_is_refused_as_a_line() -> None:
    with pytest.raises(
        BatchCallRefused, match="The model `teller` is teller@1, and this batch runs on tagger@1"
    ) as it:
        a_mapping().request_of(a_line(model="teller"))
    assert (it.value.failure.status, it.value.failure.reason, it.value.path) == (
        400,
        "mismatched_model",
        "/body/model",
    )
    with pytest.raises(BatchCallRefused, match="does not exist") as unknown:
        a_mapping().request_of(a_line(model="gpt-4o"))
    assert unknown.value.failure.status == 404


def test_a_job_that_names_its_model_takes_lines_whose_models_mean_nothing_here() -> None:
    mapping = a_mapping(model="tagger")
    assert mapping.request_of(a_line(model="gpt-4o")) == {"messages": HI}
    with pytest.raises(BatchCallRefused, match="The model `teller` is teller@1"):
        mapping.request_of(a_line(model="teller"))


@pytest.mark.parametrize(
    ("line", "reason", "path"),
    [
        (a_line(custom_id=None), "missing_required_parameter", "/custom_id"),
        (a_line(custom_id=""), "missing_required_parameter", "/custom_id"),
        (a_line(custom_id=5), "invalid_value", "/custom_id"),
        (a_line(method="GET"), "invalid_value", "/method"),
        (a_line("/v1/embeddings"), "invalid_url", "/url"),
        (a_line() | {"url": 5}, "invalid_url", "/url"),
        (a_line() | {"body": None}, "missing_required_parameter", "/body"),
        (a_line() | {"body": [1]}, "invalid_value", "/body"),
        ({}, "missing_required_parameter", "/custom_id"),
    ],
)
def test_a_line_that_is_no_call_is_an_error_without_a_response(
    line: JsonObject, reason: str, path: str
) -> None:
    with pytest.raises(BatchLineInvalid) as raised:
        a_mapping().request_of(line)
    assert raised.value.path == path
    written_line = failed(line, refusal(raised.value))
    assert written_line["response"] is None
    assert written_line["error"] == {"code": reason, "message": f"row 7: {raised.value.message}"}
    assert written_line["custom_id"] == (line["custom_id"] if line.get("custom_id") == "a" else None)


@pytest.mark.parametrize(
    ("line", "param", "path"),
    [
        (a_line(stream=True), "stream", "/body/stream"),
        (a_line(temprature=1), "temprature", "/body/temprature"),
        (a_line(temperature=-1), "temperature", "/body/temperature"),
        (a_line(n=9), "n", "/body/n"),
        (
            a_line(messages=[{"role": "user", "content": 5}]),
            "messages[0].content",
            "/body/messages/0/content",
        ),
        (a_line(COMPLETIONS, prompt=["a", "b"]), "prompt", "/body/prompt"),
        (a_line(service_tier="priority"), "service_tier", "/body/service_tier"),
        (a_line(priority=-1), "priority", "/body/priority"),
        (a_line(model=None), "model", "/body/model"),
    ],
)
def test_a_call_that_the_endpoint_refuses_is_a_400_that_names_the_parameter(
    line: JsonObject, param: str, path: str
) -> None:
    with pytest.raises(BatchCallRefused) as raised:
        a_mapping().request_of(line)
    assert raised.value.path == path
    written_line = failed(line, refusal(raised.value))
    response = written_line["response"]
    assert (written_line["custom_id"], written_line["error"], response["status_code"]) == ("a", None, 400)
    assert response["body"]["error"]["param"] == param
    assert response["request_id"].startswith("req_")


def test_what_asks_for_no_haste_goes_through_the_lane_of_the_job() -> None:
    for line in (
        a_line(service_tier="auto"),
        a_line(service_tier="flex"),
        a_line(priority=3),
        a_line(priority=0),
    ):
        assert a_mapping().request_of(line) == {"messages": HI}
        assert answered(line, a_result())["response"]["body"]["service_tier"] == "flex"


# --- answers --------------------------------------------------------------------------------------------------


def test_an_answer_is_a_chat_completion_as_the_official_client_reads_it() -> None:
    line = answered(
        a_line(model="gpt-4o-mini", n=2), a_result(an_output("A"), an_output("B"), id="tags-1.7.1.ab")
    )
    assert list(line) == ["id", "custom_id", "response", "error"]
    assert line["id"].startswith("batch_req_")
    assert (line["custom_id"], line["error"]) == ("a", None)
    assert (line["response"]["status_code"], line["response"]["request_id"]) == (200, "tags-1.7.1.ab")
    body = ChatCompletion.model_validate(line["response"]["body"])
    assert [choice.message.content for choice in body.choices] == ["A", "B"]
    assert (body.model, body.created) == ("gpt-4o-mini", CREATED)
    assert body.usage is not None
    assert body.usage.total_tokens == 17


def test_an_answer_to_a_prompt_is_a_completion() -> None:
    line = answered(a_line(COMPLETIONS), a_result(an_output("A")))
    assert Completion.model_validate(line["response"]["body"]).choices[0].text == "A"


def test_a_forced_call_of_a_tool_is_read_from_the_output() -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    output = an_output('{"name": "f", "arguments": {"x": 1}}')
    body = ChatCompletion.model_validate(answered(a_line(**tools), a_result(output))["response"]["body"])
    assert body.choices[0].message.tool_calls is not None
    broken = failed(a_line(**tools), a_mapping().outcome_of(a_result(an_output("no"))))
    assert broken["response"]["status_code"] == 422


@pytest.mark.parametrize(
    ("result", "status", "param"),
    [
        (a_failed_result("failed", "engine_error"), 500, None),
        (a_failed_result("rejected", "invalid_field", path="/sampling/top_p"), 400, "top_p"),
        (
            a_failed_result("rejected", "prompt_too_long", "the prompt has 9 tokens; the model holds 5"),
            400,
            "messages",
        ),
        (a_failed_result("invalid_output", "schema_violated", path="/a"), 422, None),
    ],
)
def test_a_call_that_went_wrong_has_the_response_of_the_endpoint(
    result: Result, status: int, param: str
) -> None:
    response = failed(a_line(), a_mapping().outcome_of(result))["response"]
    assert (response["status_code"], response["request_id"]) == (status, "r-1")
    assert response["body"]["error"]["param"] == param


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome("expired", code="expired", error="too late"), "batch_expired"),
        (Outcome("cancelled", code="cancelled", error="given up"), "batch_cancelled"),
        (Outcome("rejected", code="request_too_large", error="too large", asked=False), "request_too_large"),
    ],
)
def test_a_call_that_came_to_no_answer_is_an_error_without_a_response(outcome: Outcome, code: str) -> None:
    line = failed(a_line(), outcome)
    assert (line["response"], line["error"]["code"]) == (None, code)


def test_a_line_that_shares_anothers_answer_is_answered_in_its_own_terms() -> None:
    mapping = a_mapping()
    outcome = without_cost(mapping.outcome_of(a_result()))
    kept = replace(outcome, value=json.loads(json.dumps(outcome.value)))
    part = written([a_line(custom_id="b", model="gpt-4o-mini")], kept, mapping=mapping)
    line = the_line(part.output)
    assert (line["custom_id"], line["response"]["body"]["model"]) == ("b", "gpt-4o-mini")


def test_lines_stand_in_the_order_of_the_input_in_both_files_and_are_the_same_each_time() -> None:
    mapping = a_mapping()
    ok = mapping.outcome_of(a_result())
    rows = [
        a_line(custom_id="a"),
        RowFault("undecodable", "no JSON", '{"custom_id": "b", '),
        a_line(custom_id="c"),
        a_line(custom_id="d"),
    ]
    outcomes = (
        ok,
        refusal(MessageError("no JSON")),
        mapping.outcome_of(a_failed_result("failed", "failed")),
        ok,
    )
    part = written(rows, *outcomes, mapping=mapping)
    assert [json.loads(line)["custom_id"] for line in part.output.splitlines()] == ["a", "d"]
    assert [json.loads(line)["custom_id"] for line in part.errors.splitlines()] == [None, "c"]
    assert part == written(rows, *outcomes, mapping=a_mapping())
    ids = [json.loads(line)["id"] for line in (part.output + part.errors).splitlines()]
    assert len(set(ids)) == 4


def test_what_was_written_of_a_row_can_be_read_back_and_is_written_again_as_it_was() -> None:
    mapping = a_mapping()
    results = [
        a_result(id="tags-1.8.1.ab"),
        a_failed_result("failed", "engine_error"),
        a_failed_result("truncated", "truncated"),
        a_failed_result("expired", "expired"),
        a_failed_result("rejected", "prompt_too_long"),
    ]
    rows: list[JsonObject | RowFault] = [a_line(custom_id=each) for each in "abcde"]
    rows += [a_line(stream=True), RowFault("undecodable", "no JSON", "{")]
    refused = Outcome("rejected", code="refused", error="...", asked=False)
    outcomes = [*map(mapping.outcome_of, results), refused, refused]
    part = written(rows, *outcomes, mapping=mapping)
    lines = BatchLines(mapping, "tags-1", created=CREATED + 5)
    earlier = lines.earlier(part, 7, 8)
    assert earlier.pop() is None, "a row of the next part"
    found = [each for each in earlier if each is not None]
    assert [each.status for each in found] == [each.status for each in outcomes]
    assert [each.asked for each in found] == [True, True, True, False, True, False, False]
    assert (found[0].prompt_tokens, found[0].completion_tokens, found[0].request_id) == (
        12,
        5,
        "tags-1.8.1.ab",
    )
    assert (found[1].code, found[1].error) == ("engine_error", "so it is")
    assert lines.of(a_chunk(rows, first_row=7), found) == part


# --- ids ------------------------------------------------------------------------------------------------------


class Lines:
    """A Source of these rows."""

    schema = pa.schema([])
    digest = "sha256:00"

    def __init__(self, rows: Sequence[JsonObject | RowFault]) -> None:
        self.rows = list(rows)
        self.row_count = len(self.rows)

    def chunks(self, size: int, wanted: Callable[[int], bool]) -> Iterator[Chunk]:
        for first in range(0, len(self.rows), size):
            if wanted(first // size):
                rows = self.rows[first : first + size]
                yield Chunk(first // size, first, rows, pa.table({"n": [0] * len(rows)}))


def test_a_line_whose_id_stood_in_an_earlier_one_is_no_call_also_when_that_one_is_passed_over() -> None:
    fault = RowFault("undecodable", "no JSON", "{")
    lines = Lines(
        [a_line(custom_id=each) for each in "abcab"] + [fault, fault, {}, {}, a_line(custom_id="a")]
    )
    unique = UniqueLines(lines)
    assert (unique.row_count, unique.digest, unique.schema) == (10, lines.digest, lines.schema)
    found = [row for chunk in unique.chunks(4, lambda _: True) for row in chunk.rows]
    messages = {n: row.message for n, row in enumerate(found) if isinstance(row, RowFault) and row != fault}
    assert messages == {
        3: "the custom_id is that of row 0 already",
        4: "the custom_id is that of row 1 already",
        9: "the custom_id is that of row 0 already",
    }
    assert [row for chunk in unique.chunks(4, lambda n: n == 1) for row in chunk.rows] == found[4:8]
    line = failed(found[4], Outcome("rejected", code="duplicate_custom_id", error="...", asked=False))
    assert (line["custom_id"], line["error"]["code"]) == ("b", "duplicate_custom_id")


@pytest.mark.parametrize("ids", ["", "a", "ab"])
def test_a_file_of_unique_ids_is_as_it_is(ids: str) -> None:
    lines = Lines([a_line(custom_id=each) for each in ids])
    assert [row for chunk in UniqueLines(lines).chunks(4, lambda _: True) for row in chunk.rows] == lines.rows


def test_the_digest_is_of_the_contract_and_of_how_names_are_taken() -> None:
    assert a_mapping().digest == a_mapping({"type": "object"}, tenant="x").digest
    assert a_mapping().digest != a_mapping(model="tagger").digest
