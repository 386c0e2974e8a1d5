"""Dead letters: which are meant, which is a request's newest, where a replay goes, and what is shown of one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES
from rich.console import Console

from headrace.consumers.dead_letters import DeadLetterFilter, ReadDeadLetter, decoded, header_text, ok_ids
from headrace.consumers.records import Record, RecordLocation, TopicPartition
from headrace.ops.cli import dead_rows, reading_line
from headrace.ops.cli.dead_rows import DeadCounts, DeadRows
from headrace.ops.cli.reading_line import ReadingLine
from headrace.ops.dead_letters import (
    OUTSTANDING,
    OUTSTANDING_BYTES,
    Newest,
    Sending,
    Tally,
    lane_of,
    partition_for,
)
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.codec import Codec
from headrace.schemas.errors import KafkaUnavailable, MessageError, ResultTooLarge, UsageError
from headrace.schemas.messages import DeadLetter, Header, Location
from headrace.topics.names import ContractNames
from headrace.workers.intake import work_of

NAMES = ContractNames("headrace", "tagger", 1)
NOON = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)


def lies_at(offset: int, partition: int = 0, topic: str = NAMES.dead) -> Location:
    return Location(topic=topic, partition=partition, offset=offset)


def a_letter(**fields: Any) -> DeadLetter:
    defaults: dict[str, Any] = {
        "id": "a",
        "code": "engine_error",
        "message": "it broke",
        "source": lies_at(17, 3, NAMES.requests("standard")),
        "value": b'{"id": "a", "prompt": "x"}',
        "time": NOON,
    }
    return DeadLetter(**defaults | fields)


def a_record(letter: DeadLetter | None = None, timestamp_ms: int = NOON, **headers: str | None) -> Record:
    named = tuple((name.replace("_", "-"), value and value.encode()) for name, value in headers.items())
    value = b"nonsense" if letter is None else Codec().encode(letter)
    return Record(NAMES.dead, 0, 5, timestamp_ms, b"a", value, named)


def as_read(letter: DeadLetter, **headers: str | None) -> ReadDeadLetter:
    return decoded(a_record(letter, **headers), Codec())


# --- which are meant ---


def test_the_header_of_a_name_is_the_first_and_one_without_a_value_is_none() -> None:
    headers = [("x", None), ("id", b"\xff"), ("id", b"later")]
    assert [header_text(headers, name) for name in ("x", "id", "y")] == [None, "\ufffd", None]


@pytest.mark.parametrize(
    ("wanted", "seen", "read"),
    [
        (DeadLetterFilter(), True, True),
        (DeadLetterFilter(ids=frozenset("ab")), True, True),
        (DeadLetterFilter(ids=frozenset("b")), False, False),
        (DeadLetterFilter(codes=frozenset(["engine_error"])), True, True),
        (DeadLetterFilter(codes=frozenset(["undecodable"])), False, False),
        (DeadLetterFilter(versions=frozenset("34")), True, True),
        (DeadLetterFilter(versions=frozenset("4")), False, True),
        (DeadLetterFilter(ids=frozenset("a"), codes=frozenset(["undecodable"])), False, False),
    ],
)
def test_a_filter_decides_by_the_headers_and_again_by_the_letter(
    wanted: DeadLetterFilter, seen: bool, read: bool
) -> None:
    letter = a_letter()
    record = a_record(letter, request_id="a", error_code="engine_error", model_version="3")
    assert (wanted.may_want(record), wanted.wants(letter)) == (seen, read)


def test_what_has_no_headers_is_ruled_out_by_its_version_alone() -> None:
    record = a_record(a_letter())
    assert DeadLetterFilter(ids=frozenset("b"), codes=frozenset("c")).may_want(record)
    assert not DeadLetterFilter(versions=frozenset("3")).may_want(record)


def test_a_letter_without_an_id_is_not_meant_where_ids_are() -> None:
    assert not DeadLetterFilter(ids=frozenset("a")).wants(a_letter(id=None))


def test_a_range_of_time_holds_its_beginning_and_not_its_end() -> None:
    def moment(ms: int) -> datetime:
        return datetime.fromtimestamp(ms / 1000, UTC)

    wanted = DeadLetterFilter(since=moment(NOON), until=moment(NOON + 5000))
    seen = [wanted.may_want(a_record(a_letter(), NOON + ms)) for ms in (-1, 0, 4999, 5000)]
    assert seen == [False, True, True, False]
    assert wanted.may_want(a_record(a_letter(), -1)), "a log without times rules nothing out"


def test_only_results_that_are_ok_count_as_answers() -> None:
    records = [
        a_record(status="ok", request_id="a"),
        a_record(status="failed", request_id="b"),
        a_record(request_id="c"),
        a_record(status="ok"),
    ]
    assert list(ok_ids(records)) == ["a"]


# --- a replay's own headers ---


def test_a_first_dead_letter_is_its_own_origin_and_that_of_a_replay_names_the_first() -> None:
    first = as_read(a_letter(), model_version="3")
    assert (first.replays, first.origin, first.model_version) == (0, f"{NAMES.dead}-0@5", "3")
    headers = [
        Header(key="headrace-replay", value=b"2"),
        Header(key="headrace-replay-of", value=b"somewhere-1@2"),
    ]
    later = as_read(a_letter(headers=headers))
    assert (later.replays, later.origin, later.model_version) == (2, "somewhere-1@2", None)


@pytest.mark.parametrize("count", [b"two", b"-1", "²".encode(), b"9" * 5000, b"", None])
def test_a_count_that_is_none_begins_anew(count: bytes | None) -> None:
    assert as_read(a_letter(headers=[Header(key="headrace-replay", value=count)])).replays == 0


@pytest.mark.parametrize(
    ("headers", "replay", "deadline"),
    [
        ([], "no", 5),
        ([("headrace-replay", b"1")], "unless_ok", None),
        ([("headrace-replay", None), ("headrace-replay-again", b"")], "again", None),
        ([("headrace-replay-again", b"true")], "no", 5),
    ],
)
def test_a_worker_knows_a_replay_by_its_headers_and_forgets_its_deadline(
    headers: list[tuple[str, bytes | None]], replay: str, deadline: int | None
) -> None:
    source = TopicPartition(NAMES.requests("standard"), 0)
    value = b'{"id": "a", "prompt": "x", "deadline": 5}'
    record = Record(*source, 0, 1000, None, value, headers)
    work = work_of(record, source=source, epoch=1, lane="standard", codec=Codec())
    assert work.request is not None
    assert (work.replay, work.request.deadline, work.value) == (replay, deadline, value)


# --- the newest of each request ---


def test_of_a_request_the_last_place_counts_and_what_is_struck_out_does_not() -> None:
    newest = Newest()
    assert [newest.put("a", lies_at(1)), newest.put("b", lies_at(2)), newest.put("a", lies_at(3))] == [
        True,
        True,
        False,
    ]
    assert not newest.is_newest("a", lies_at(1))
    assert newest.is_newest("a", lies_at(3))
    assert not newest.is_newest("a", lies_at(3, partition=1))
    assert not newest.is_newest("c", lies_at(1))
    assert [newest.strike_out("a"), newest.strike_out("a"), newest.strike_out("c")] == [True, False, False]
    assert not newest.is_newest("a", lies_at(3))
    assert newest.is_newest("b", lies_at(2))
    assert len(newest) == 2


def test_more_requests_than_it_takes_are_refused_with_what_to_do() -> None:
    newest = Newest(most=2)
    for name in "aba":
        newest.put(name, lies_at(1))
    with pytest.raises(UsageError, match="--since and --until"):
        newest.put("c", lies_at(1))


@given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.none() | st.tuples(st.integers(0, 5), st.integers(0, 2**43))),
        max_size=60,
    ),
    st.integers(0, 2000),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_table_of_the_newest_is_a_dictionary_in_less_memory(
    steps: list[tuple[int, tuple[int, int] | None]], filling: int
) -> None:
    newest, model = Newest(), dict[str, Location | None]()
    for number in range(filling):
        newest.put(str(number), lies_at(number))
        model[str(number)] = lies_at(number)
    for number, to in steps:
        name = str(number)
        if to is None:
            assert newest.strike_out(name) == (model.get(name) is not None)
            if name in model:
                model[name] = None
        else:
            assert newest.put(name, lies_at(to[1], to[0])) == (name not in model)
            model[name] = lies_at(to[1], to[0])
    assert len(newest) == len(model)
    assert all(place is None or newest.is_newest(name, place) for name, place in model.items())
    assert len(newest._keys) <= max(1024, 4 * len(model))


# --- where it goes ---


@pytest.mark.parametrize(
    ("counts", "key", "partition"),
    [
        ((4, 4), b"k", 3),  # its own unit, whatever its key
        ((4, 4), None, 3),
        ((4, 2), b"k", None),  # that of its key
        ((4, 2), None, 1),
        ((3, 3), b"k", None),  # the topic was made anew with fewer
        ((3, 3), None, 0),
    ],
)
def test_a_replay_goes_to_its_own_unit_where_there_are_as_many(
    counts: tuple[int, int], key: bytes | None, partition: int | None
) -> None:
    target = ContractNames("headrace", "tagger", 2).requests("backfill")
    partitions: Mapping[str, int] = dict(zip((NAMES.requests("standard"), target), counts, strict=True))
    assert partition_for(a_letter(key=key), target, partitions) == partition


def test_the_lane_is_that_of_a_topic_of_the_contract() -> None:
    other = ContractNames("headrace", "tagger", 11)
    topics = [NAMES.requests("backfill"), NAMES.results, other.requests("standard"), ""]
    assert [lane_of(NAMES, topic) for topic in topics] == ["backfill", None, None, None]


# --- sending ---


class SlowProducer:
    """Acknowledges a record when it is waited for, and counts what is not acknowledged."""

    def __init__(self, outcome: Callable[[int], BaseException | None] = lambda number: None) -> None:
        self.sent = self.acknowledged = self.most = self.most_bytes = self.bytes = 0
        self._outcome = outcome

    def send(self, record: OutgoingRecord) -> Future[RecordLocation]:
        producer, number, size = self, self.sent, len(record.value or b"")
        self.sent += 1
        self.bytes += size
        self.most = max(self.most, self.sent - self.acknowledged)
        self.most_bytes = max(self.most_bytes, self.bytes)

        class WhenAsked(Future[RecordLocation]):
            def result(self, timeout: float | None = None) -> RecordLocation:
                producer.acknowledged += 1
                producer.bytes -= size
                error = producer._outcome(number)
                if error is not None:
                    raise error
                return RecordLocation(record.topic, 0, 0)

        return WhenAsked()


def sending(producer: SlowProducer) -> tuple[Sending, Tally]:
    tally = Tally()
    return Sending(cast("PlainProducer", producer), tally), tally


def test_what_is_outstanding_is_bounded_in_records_and_in_bytes() -> None:
    small, large = SlowProducer(), SlowProducer()
    for producer, size, count in ((small, 10, 2000), (large, 3_000_000, 30)):
        out, tally = sending(producer)
        for number in range(count):
            out.send(lies_at(number), OutgoingRecord("t", None, b"x" * size))
        out.finish()
        assert tally.acknowledged == producer.acknowledged == count
    assert small.most == OUTSTANDING
    assert OUTSTANDING_BYTES - 3_000_000 < large.most_bytes <= OUTSTANDING_BYTES


def test_a_record_that_is_too_large_is_named_and_the_others_are_sent() -> None:
    out, tally = sending(SlowProducer(lambda number: ResultTooLarge("9 MiB") if number == 1 else None))
    for number in range(3):
        out.send(lies_at(number), OutgoingRecord("t", None, b"x"))
    out.finish()
    assert tally.acknowledged == 2
    assert dict(tally.refused) == {"it is too large for the topic now": 1}
    assert tally.examples == ["0:1 it is too large for the topic now: 9 MiB"]


def test_when_kafka_is_gone_what_it_has_is_counted_before_the_error_is_told() -> None:
    out, tally = sending(SlowProducer(lambda number: KafkaUnavailable("gone") if number == 1 else None))
    for number in range(4):
        out.send(lies_at(number), OutgoingRecord("t", None, b"x"))
    with pytest.raises(KafkaUnavailable, match="gone"):
        out.finish()
    assert tally.acknowledged == 3


# --- what is shown ---


def text_of(show: Callable[[Console], None], width: int = 160) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width))
    return file.getvalue()


@pytest.mark.parametrize(
    ("width", "place"), [(80, "01-31 12:00:00"), (160, "2026-01-31 12:00:00"), (160, "standard 3:17")]
)
def test_a_row_says_when_why_who_and_where_and_nothing_to_the_terminal(width: int, place: str) -> None:
    letter = a_letter(message="\x1b[31mred\nand more", path="/sampling", id="film-17")
    shown = text_of(lambda console: DeadRows(console, as_json=False).add(as_read(letter), letter), width)
    head, row = shown.splitlines()
    assert head.split("  ")[0] == "time"
    for part in (place, "engine_error", "film-17", "0:5", "/sampling: "):
        assert part in row
    assert len(row) <= width
    assert "\x1b" not in shown


def test_counts_are_by_code_the_most_frequent_first_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_rows, "MOST_CODES", 2)
    counts = DeadCounts()
    for place, code in enumerate(["rare", "often", "often", "third", "fourth", "third"]):
        counts.add(a_letter(code=code, time=NOON + 1000 * place))
    lines = text_of(lambda console: counts.show(console, as_json=True)).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"code": "(others)", "count": 3, "first": NOON + 3000, "last": NOON + 5000},
        {"code": "often", "count": 2, "first": NOON + 1000, "last": NOON + 2000},
        {"code": "rare", "count": 1, "first": NOON, "last": NOON},
    ]
    table = text_of(lambda console: counts.show(console, as_json=False)).splitlines()
    assert table[0].split() == ["code", "count", "first", "last"]
    assert table[2].split() == ["often", "2", "2026-01-31", "12:00:01", "2026-01-31", "12:00:02"]


def described(letter: DeadLetter, note: str | None = None) -> str:
    return dead_rows.described(as_read(letter, model_version="3"), letter, Codec(), note=note)


def test_all_of_a_dead_letter_is_shown_and_its_request_decoded() -> None:
    headers = [Header(key="x", value=b"\xff\x00"), Header(key="y", value=None)]
    letter = a_letter(key="schlüssel".encode(), headers=headers, path="/prompt", attempt=2)
    text = described(letter, "a note")
    for line in (
        "id             a",
        "code           engine_error",
        "message        it broke",
        "path           /prompt",
        "written        2026-01-31 12:00:00 UTC",
        f"dead at        {NAMES.dead} 0:5",
        f"lay in         {NAMES.requests('standard')} 3:17",
        "model version  3",
        "attempt        2",
        "note           a note",
        "key            schlüssel",
        "header         x: 0xff00",
        "header         y: null",
        '  "prompt": "x",',
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (None, ["value: null"]),
        (b"{nonsense \x1b[31m", ["cannot be decoded", "{nonsense \N{REPLACEMENT CHARACTER}[31m"]),
        (bytes(range(256)) * 2, ["0000  00 01 02", "0040  40 41 42", "@ABCDEFGHIJKLMNO", "--raw writes all"]),
    ],
)
def test_a_value_that_is_no_request_is_shown_as_it_is(value: bytes | None, parts: list[str]) -> None:
    text = described(a_letter(value=value))
    for part in parts:
        assert part in text
    assert "\x1b" not in text


def test_as_json_the_bytes_are_there_and_what_they_say() -> None:
    letter = a_letter(key=b"\xff")
    shown = json.loads(dead_rows.as_json(as_read(letter), letter, Codec()))
    assert shown["letter"]["key"] == "/w=="
    assert (shown["request"]["prompt"], shown["cannot_be_decoded"]) == ("x", None)
    broken = a_letter(value=b"\xff")
    shown = json.loads(dead_rows.as_json(as_read(broken), broken, Codec()))
    assert shown["request"] is None
    assert "ff" in shown["cannot_be_decoded"]


def test_a_time_that_no_calendar_has_is_a_dash() -> None:
    assert dead_rows.moment(2**53 - 1) == "-"


def test_a_record_that_is_no_dead_letter_is_an_error_of_its_own() -> None:
    found = decoded(a_record(), Codec())
    assert isinstance(found.letter, MessageError)
    assert (found.replays, found.location) == (0, lies_at(5))


class Terminal(io.StringIO):
    def __init__(self, *, is_one: bool) -> None:
        super().__init__()
        self._is_one = is_one

    def isatty(self) -> bool:
        return self._is_one


@pytest.mark.parametrize(
    ("is_one", "said"),
    [
        (True, "\r\x1b[Kreading: 1,000 of 9 offsets\r\x1b[Kreading: 6,000 of 9 offsets\r\x1b[K"),
        (False, "reading: 6,000 of 9 offsets\n"),
    ],
)
def test_a_long_read_says_how_far_it_is(is_one: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(reading_line.time, "monotonic", lambda: now[0])
    stream = Terminal(is_one=is_one)
    line = ReadingLine(stream)
    for seconds in (0.1, 1.0, 6.0, 6.1):
        now[0] = seconds
        line("reading", int(1000 * seconds), 9)
    line.clear()
    line.clear()
    assert stream.getvalue() == said
