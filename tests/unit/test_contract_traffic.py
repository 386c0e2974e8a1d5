"""Who asks a contract, as far as offsets and its newest request say it."""

from __future__ import annotations

import pytest

from headrace.consumers.contract_traffic import Newest, Offsets, newest_partition, seen_of, waiting_of
from headrace.consumers.records import CommitPoint, Record, TopicPartition
from headrace.ops.contract_listing import caller_of, per_minute, shown_age
from headrace.schemas.codec import Codec
from headrace.schemas.headers import REPLAY_OF, REPLY_PARTITION, REPLY_TOPIC
from headrace.schemas.messages import Request

ZERO, ONE, TWO = (TopicPartition("h.tagger.c1.requests.standard", number) for number in range(3))
BY_HTTP = {"http.body": "sha256:0", "user": "anna"}


def offsets(ends: dict[TopicPartition, int], **others: dict[TopicPartition, int]) -> Offsets:
    return Offsets(others.get("beginnings", dict.fromkeys(ends, 0)), ends, {}, {})


def test_what_is_committed_waits_no_more_and_what_retention_took_neither() -> None:
    found = offsets({ZERO: 10, ONE: 10, TWO: 10}, beginnings={ZERO: 0, ONE: 0, TWO: 8})
    assert waiting_of(found, {ZERO: CommitPoint(7, ""), ONE: CommitPoint(10, "")}) == 3 + 0 + 2


def test_the_newest_request_is_that_of_the_greatest_time() -> None:
    found = Offsets({}, {}, {}, {ZERO: Newest(4, 100), ONE: Newest(0, 200), TWO: Newest(-1, -1)})
    assert newest_partition(found) == ONE
    assert newest_partition(Offsets({}, {}, {}, {TWO: Newest(-1, -1)})) is None


def a_record(value: bytes | None, **headers: str) -> Record:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Record(*ZERO, 5, 1000, b"k", value, [(name, each.encode()) for name, each in named.items()])


def test_a_request_says_who_sent_it() -> None:
    request = Request(id="r1", prompt="x", tenant="search", job="nightly", attributes=BY_HTTP)
    record = a_record(
        Codec().encode(request), **{REPLY_TOPIC: "h.replies", REPLY_PARTITION: "3", REPLAY_OF: "d-0@1"}
    )
    last = seen_of(record, Codec())
    assert (last.at_ms, last.id, last.key, last.place) == (1000, "r1", "k", ZERO)
    assert caller_of(last) == (
        "tenant search, job nightly, user anna, replies to h.replies-3, sent again because of d-0@1"
    )


def test_a_request_that_says_nothing_is_named_by_its_key_and_id() -> None:
    last = seen_of(a_record(Codec().encode(Request(id="r1", prompt="x"))), Codec())
    assert caller_of(last) == "not said (key k, id r1)"


@pytest.mark.parametrize("value", [None, b"", b"\x00", b"{"])
def test_a_request_that_cannot_be_read_still_says_where_replies_go(value: bytes | None) -> None:
    last = seen_of(a_record(value, **{REPLY_TOPIC: "h.replies"}), Codec())
    assert last.id is None
    assert caller_of(last).startswith("replies to h.replies-?, cannot be read: ")


def test_a_callers_words_do_not_break_the_table() -> None:
    many = {f"a{number}": "x" for number in range(5)} | {"a0": "line\n\x1b[31m" + "y" * 100}
    said = caller_of(seen_of(a_record(Codec().encode(Request(id="r", prompt="x", attributes=many))), Codec()))
    assert said.isprintable()
    assert said.endswith("2 more attributes")
    assert len(said) < 120


@pytest.mark.parametrize(
    ("requests", "shown"), [(0, "0"), (1, "0.2"), (12, "2.4"), (50, "10"), (10_000, "2,000")]
)
def test_rates(requests: int, shown: str) -> None:
    assert per_minute(requests, 300) == shown


@pytest.mark.parametrize(
    ("at_ms", "shown"),
    [
        (-1, "at an unknown time"),
        (10**9 + 5, "0 s ago"),
        (10**9 - 119_000, "119 s ago"),
        (10**9 - 120_000, "2 min ago"),
        (10**9 - 7_200_000, "2 h ago"),
        (10**9 - 3 * 86_400_000, "3 days ago"),
    ],
)
def test_ages(at_ms: int, shown: str) -> None:
    assert shown_age(at_ms, 10**9) == shown
