"""From what became of a request to the records that say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from packages import a_package

from headrace.consumers.records import Record, TopicPartition
from headrace.producers.kafka import OutgoingRecord
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import InvalidField, ResultTooLarge, TopicNotAllowed
from headrace.schemas.messages import DeadLetter, ErrorDetail, Output, Request, Result
from headrace.topics.names import ContractNames
from headrace.workers.answers import Answers, Served
from headrace.workers.intake import work_of
from headrace.workers.work import Completion, Work

NAMES = ContractNames("headrace", "tagger", 1)
SOURCE = TopicPartition(NAMES.requests("interactive"), 5)
REPLY_HEADERS: list[tuple[str, bytes | None]] = [
    ("reply-topic", b"headrace.replies"),
    ("reply-partition", b"3"),
    ("correlation-id", b"client:1"),
    ("traceparent", b"00-aa-bb-01"),
]
LIMIT = 10_000  # bytes, of this test's records


def fits(record: OutgoingRecord) -> None:
    size = len(record.value or b"")
    if size > LIMIT:
        raise ResultTooLarge(f"{size} bytes are more than {LIMIT}")


def answers(directory: Path, allowed: tuple[str, ...] = ()) -> Answers:
    return Answers(
        package=a_package(directory),
        names=NAMES,
        slot="slot-1",
        codec=Codec(),
        check_size=fits,
        allowed_result_topics=allowed,
    )


def a_work(
    value: bytes, headers: list[tuple[str, bytes | None]] | None = None, key: bytes | None = b"k"
) -> Work:
    record = Record(SOURCE.topic, 5, 17, 1_000, key, value, headers or [])
    return work_of(record, source=SOURCE, epoch=2, lane="interactive", codec=Codec())


def ok(text: str = "fine") -> Served:
    return Served("ok", outputs=[Output(text=text, finish_reason="stop")])


def result_in(completion: Completion) -> Result:
    return Codec().decode(Result, completion.records[0].value).message


def letter_in(completion: Completion) -> DeadLetter:
    return Codec().decode(DeadLetter, completion.records[-1].value).message


def test_an_ok_result_goes_to_results_in_the_partition_of_its_request(tmp_path: Path) -> None:
    work = a_work(b'{"id":"a","key":"customer-7","prompt":"x","attributes":{"shop":"3"}}', REPLY_HEADERS)
    completion = answers(tmp_path).completion(work, ok())
    (record,) = completion.records
    assert (record.topic, record.key, record.partition) == (NAMES.results, b"customer-7", 5)
    headers = dict(record.headers)
    assert (headers["status"], headers["model-version"], headers["request-id"]) == (b"ok", b"1", b"a")
    assert headers["traceparent"] == b"00-aa-bb-01"
    result = result_in(completion)
    assert result.attributes == {"shop": "3"}
    assert (result.provenance.source_partition, result.provenance.source_offset) == (5, 17)
    assert completion.urgent, "an interactive request commits at once"


def test_a_json_request_gets_a_json_result_and_an_avro_request_an_avro_one(tmp_path: Path) -> None:
    json_request = b'{"id":"a","prompt":"x"}'
    avro_request = Codec().encode(Codec().decode(Request, json_request).message, Encoding.SINGLE_OBJECT)
    made = answers(tmp_path)
    assert (made.completion(a_work(json_request), ok()).records[0].value or b"").startswith(b"{")
    assert (made.completion(a_work(avro_request), ok()).records[0].value or b"").startswith(b"\xc3\x01")


@pytest.mark.parametrize("status", ["rejected", "failed", "invalid_output", "truncated"])
def test_what_is_not_ok_leaves_its_bytes_in_dead(tmp_path: Path, status: str) -> None:
    value = b'{"id":"a","prompt":"x"}'
    served = Served(status, error=ErrorDetail(code="why", message="because", path="/prompt"))  # type: ignore[arg-type]
    completion = answers(tmp_path).completion(a_work(value, REPLY_HEADERS), served)
    assert [record.topic for record in completion.records] == [NAMES.results, NAMES.dead]
    letter = letter_in(completion)
    assert (letter.value, letter.key, letter.code, letter.path) == (value, b"k", "why", "/prompt")
    assert [(each.key, each.value) for each in letter.headers] == REPLY_HEADERS
    assert (letter.source.partition, letter.source.offset) == (5, 17)


@pytest.mark.parametrize("status", ["expired", "cancelled"])
def test_what_was_given_up_on_purpose_leaves_no_dead_letter(tmp_path: Path, status: str) -> None:
    served = Served(status, error=ErrorDetail(code=status, message="given up"))  # type: ignore[arg-type]
    completion = answers(tmp_path).completion(a_work(b'{"id":"a","prompt":"x"}'), served)
    assert [record.topic for record in completion.records] == [NAMES.results]


def test_undecodable_bytes_have_a_dead_letter_and_whoever_waits_is_told_by_correlation_id(
    tmp_path: Path,
) -> None:
    work = a_work(b"\x07garbage", REPLY_HEADERS)
    assert work.error is not None
    completion = answers(tmp_path).rejection(work, work.error)
    assert [record.topic for record in completion.records] == [NAMES.dead]
    assert letter_in(completion).value == b"\x07garbage"
    assert completion.result is not None
    assert (completion.result.id, completion.result.status) == ("client:1", "rejected")
    assert len(completion.reply_to) == 1


def test_a_result_too_large_for_its_topic_fails_and_the_commit_can_succeed(tmp_path: Path) -> None:
    completion = answers(tmp_path).completion(a_work(b'{"id":"a","prompt":"x"}'), ok("y" * LIMIT))
    result = result_in(completion)
    assert result.status == "failed"
    assert result.error is not None
    assert result.error.code == "result_too_large"
    assert result.outputs == []
    assert all(len(record.value or b"") <= LIMIT for record in completion.records)


def test_a_request_too_large_for_dead_is_named_by_where_it_lies(tmp_path: Path) -> None:
    value = b'{"id":"a","prompt":"' + b"x" * LIMIT + b'"}'
    served = Served("rejected", error=ErrorDetail(code="prompt_too_long", message="too long"))
    completion = answers(tmp_path).completion(a_work(value), served)
    letter = letter_in(completion)
    assert letter.value is None
    assert f"{SOURCE.topic}-5 at offset 17" in letter.message
    assert all(len(record.value or b"") <= LIMIT for record in completion.records)


def test_huge_attributes_do_not_stop_the_failed_result(tmp_path: Path) -> None:
    value = b'{"id":"a","prompt":"x","attributes":{"a":"' + b"x" * LIMIT + b'"}}'
    completion = answers(tmp_path).completion(a_work(value), ok())
    assert all(len(record.value or b"") <= LIMIT for record in completion.records)
    assert result_in(completion).attributes == {}


def test_a_result_topic_must_be_allowed(tmp_path: Path) -> None:
    work = a_work(b'{"id":"a","prompt":"x","result_topic":"tenant.7.results"}')
    with pytest.raises(TopicNotAllowed, match=r"tenant\.7\.results"):
        answers(tmp_path).check_result_topic(work)
    allowing = answers(tmp_path, ("tenant.*",))
    allowing.check_result_topic(work)
    assert allowing.completion(work, ok()).records[0].topic == "tenant.7.results"


def test_a_refused_result_topic_is_answered_in_the_contracts_own(tmp_path: Path) -> None:
    work = a_work(b'{"id":"a","prompt":"x","result_topic":"somewhere"}')
    completion = answers(tmp_path).rejection(work, TopicNotAllowed("no", path="/result_topic"))
    assert completion.records[0].topic == NAMES.results


def test_a_reply_topic_must_be_allowed(tmp_path: Path) -> None:
    headers: list[tuple[str, bytes | None]] = [("reply-topic", b"payments"), *REPLY_HEADERS[1:]]
    with pytest.raises(TopicNotAllowed, match="payments"):
        answers(tmp_path).check_reply_topic(a_work(b'{"id":"a","prompt":"x"}', headers))


def test_an_error_message_never_grows_with_its_input(tmp_path: Path) -> None:
    work = a_work(b'{"id":"a","prompt":"x"}')
    completion = answers(tmp_path).rejection(work, InvalidField("x" * 100_000))
    assert completion.result is not None
    assert completion.result.error is not None
    assert len(completion.result.error.message) == 2_000
