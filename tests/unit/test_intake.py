"""From a polled record to work: what is wrong with it is kept beside it, never raised."""

import pytest

from headrace.consumers.records import Record, TopicPartition
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import InvalidField
from headrace.workers.intake import reply_address, work_of
from headrace.workers.work import ReplyAddress, Work

SOURCE = TopicPartition("requests", 2)
REPLY_HEADERS = [("reply-topic", b"headrace.replies"), ("reply-partition", b"7"), ("correlation-id", b"c:1")]


def read(value: bytes | None, headers: list[tuple[str, bytes | None]] | None = None) -> Work:
    record = Record("requests", 2, 9, 1_700_000_000_000, b"key", value, headers or [])
    return work_of(record, source=SOURCE, epoch=4, lane="standard", codec=Codec())


def test_a_good_record_is_a_request_with_its_place_and_its_reply_address() -> None:
    work = read(b'{"id":"a","prompt":"hello"}', [*REPLY_HEADERS])
    assert work.error is None
    assert work.request is not None
    assert (work.request_id, work.offset, work.epoch, work.encoding) == ("a", 9, 4, Encoding.JSON)
    assert work.reply_to == ReplyAddress("headrace.replies", 7, "c:1")


@pytest.mark.parametrize(
    ("value", "request_id", "code"),
    [
        (b'{"id":"a","prompt":"x","bogus":1}', "a", "unknown_field"),
        (b'{"id":"a","prompt":"x","messages":[{"role":"user","content":"y"}]}', "a", "invalid_field"),
        (b'{"id":"a","prompt":"x","sampling":{"max_tokens":0}}', "a", "invalid_field"),
        (b'{"id":"a","prompt":', "a", "undecodable"),
        (b"\x07garbage", None, "undecodable"),
        (b"", None, "undecodable"),
        (None, None, "undecodable"),
    ],
)
def test_a_bad_message_keeps_its_reason_its_bytes_and_where_readable_its_id(
    value: bytes | None, request_id: str | None, code: str
) -> None:
    work = read(value)
    assert work.request is None
    assert work.error is not None
    assert (work.error.code, work.request_id, work.value) == (code, request_id, value)


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ([("reply-topic", b"t"), ("reply-partition", b"1")], "correlation-id"),
        ([("reply-topic", b"t"), ("correlation-id", b"c")], "reply-partition"),
        ([("reply-topic", b"t"), ("correlation-id", b"c"), ("reply-partition", b"-1")], "reply-partition"),
        (
            [("reply-topic", b"t"), ("correlation-id", b"c"), ("reply-partition", "٣".encode())],
            "reply-partition",
        ),
        ([("reply-topic", b"\xff"), ("correlation-id", b"c"), ("reply-partition", b"1")], "UTF-8"),
    ],
)
def test_a_reply_address_that_cannot_be_used_is_refused_by_name(
    headers: list[tuple[str, bytes | None]], named: str
) -> None:
    with pytest.raises(InvalidField, match=named):
        reply_address(headers)


def test_without_a_reply_topic_nobody_waits() -> None:
    assert reply_address([("traceparent", b"00-1-2-01")]) is None
