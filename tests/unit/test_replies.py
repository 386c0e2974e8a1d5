"""What the replies to one request amount to, and the thread that reads them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES
from registry_twin import RegistryTwin
from waiting import wait_until

from headrace.consumers import replies
from headrace.consumers.records import Record
from headrace.consumers.replies import (
    Delivery,
    Elsewhere,
    Finished,
    ReplyReader,
    ReplyTrack,
    Restarted,
    Text,
    new_instance_id,
    reply_partition,
)
from headrace.producers.testing import ScriptedWorker
from headrace.schemas.avro_schema import Schema
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import HeadraceError, KafkaFailed, MessageError, RegistryFailed
from headrace.schemas.messages import Location, Reply, Request, Result
from headrace.topics.names import ContractNames

PLACE = Location(topic="t", partition=0, offset=0)


def delta(seq: int, text: str, *, attempt: int = 1, choice: int = 0) -> Reply:
    return Reply(id="r", seq=seq, kind="delta", delta=text, attempt=attempt, choice=choice)


def result_of(text: str) -> Result:
    worker = ScriptedWorker(text, ContractNames("headrace", "m", 1))
    return worker._result(Request(id="r", prompt="x"), PLACE, text=text)


# --- the track ---------------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES, deadline=None)
@given(pieces=st.lists(st.text(max_size=3), max_size=12), data=st.data())
def test_whatever_is_lost_doubled_or_late_the_text_is_a_beginning_of_the_answer(
    pieces: list[str], data: st.DataObject
) -> None:
    full = "".join(pieces)
    replies = [delta(seq, piece) for seq, piece in enumerate(pieces)]
    arriving = data.draw(st.lists(st.sampled_from(replies), max_size=30)) if replies else []
    track = ReplyTrack()
    streamed = ""
    for reply in arriving:
        step = track.accept(reply)
        assert step is None or isinstance(step, Text)
        streamed += step.text if step else ""
        assert full.startswith(streamed)
    assert track.text == streamed
    assert streamed + (track.rest(result_of(full)) or "") == full


@settings(max_examples=EXAMPLES, deadline=None)
@given(pieces=st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=12))
def test_deltas_that_come_in_order_are_streamed_whole(pieces: list[str]) -> None:
    track = ReplyTrack()
    for seq, piece in enumerate(pieces):
        assert track.accept(delta(seq, piece)) == Text(piece)
        assert track.accept(delta(seq, piece)) is None
    assert track.rest(result_of("".join(pieces))) == ""


def test_another_attempt_after_the_first_token_ends_the_stream() -> None:
    track = ReplyTrack()
    track.accept(delta(0, "Once"))
    assert track.accept(delta(0, "Twice", attempt=2)) == Restarted()


def test_another_attempt_before_the_first_token_is_the_one_that_counts() -> None:
    track = ReplyTrack()
    assert track.accept(delta(0, "", attempt=1)) is None
    assert track.accept(delta(0, "Once", attempt=2)) == Text("Once")
    assert track.accept(delta(1, " late", attempt=1)) is None
    assert track.text == "Once"


def test_a_result_that_does_not_continue_the_text_has_no_rest() -> None:
    track = ReplyTrack()
    track.accept(delta(0, "Once"))
    assert track.rest(result_of("Twice upon")) is None
    assert track.rest(result_of("Once upon")) == " upon"


def test_other_choices_keep_their_place_in_the_count_and_are_not_streamed() -> None:
    track = ReplyTrack()
    assert track.accept(delta(0, "a")) == Text("a")
    assert track.accept(delta(1, "b", choice=1)) is None
    assert track.accept(delta(2, "c")) == Text("c")


def test_a_final_a_duplicate_and_an_error() -> None:
    result = result_of("x")
    assert ReplyTrack().accept(Reply(id="r", seq=0, kind="final", result=result)) == Finished(result)
    assert ReplyTrack().accept(Reply(id="r", seq=0, kind="error", result=result)) == Finished(result)
    assert ReplyTrack().accept(Reply(id="r", seq=0, kind="duplicate", location=PLACE)) == Elsewhere(PLACE)
    assert ReplyTrack().accept(Reply(id="r", seq=0, kind="duplicate")) is None
    assert ReplyTrack().accept(Reply(id="r", seq=0, kind="error")) is None
    assert ReplyTrack(text="Once").accept(Reply(id="r", seq=1, kind="error")) == Restarted()


def test_an_instance_keeps_to_one_partition_and_instances_spread_over_all() -> None:
    instance = new_instance_id()
    assert len({reply_partition(instance, 32) for _ in range(10)}) == 1
    assert {reply_partition(new_instance_id(), 8) for _ in range(500)} == set(range(8))


# --- the thread --------------------------------------------------------------------------------------------------


class FakeTail:
    """Gives out what it was given, once; then waits, or raises what it was told to."""

    def __init__(self, records: list[Record], error: Exception | None = None) -> None:
        self.records = records
        self.error = error
        self.closed = False
        self._woken = threading.Event()

    def poll(self, timeout_s: float) -> list[Record]:
        if self.records:
            records, self.records = self.records, []
            return records
        if self.error is not None:
            raise self.error
        self._woken.wait(timeout_s)
        return []

    def wake_up(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self.closed = True


class Heard:
    def __init__(self, tail: FakeTail, registry: RegistryTwin | None = None) -> None:
        self.deliveries: list[Delivery] = []
        self.deaths: list[HeadraceError] = []
        codec = Codec(registry)
        decode: Callable[[bytes], Reply] = lambda value: codec.decode(Reply, value).message  # noqa: E731
        self.reader = ReplyReader(tail, "me", decode, self.deliveries.extend, self.deaths.append)
        self.reader.start()


def record(key: bytes | None, value: bytes | None) -> Record:
    return Record("replies", 0, 0, -1, key, value)


def test_only_replies_with_the_instances_own_correlation_ids_are_delivered() -> None:
    value = Codec().encode(delta(0, "mine"))
    others = [record(b"you:1", value), record(b"me", value), record(b"mean:1", value), record(None, value)]
    tail = FakeTail([*others, record(b"you:2", b"garbage"), record(b"me:7", value), record(b"me:8", None)])
    heard = Heard(tail)
    wait_until(lambda: heard.deliveries, 10, "the reply")
    heard.reader.close()
    assert heard.deliveries == [("me:7", delta(0, "mine"))]
    assert tail.closed
    assert heard.deaths == []


def test_a_reply_that_cannot_be_read_is_delivered_as_its_error_and_reading_goes_on() -> None:
    value = Codec().encode(delta(0, "next"))
    heard = Heard(FakeTail([record(b"me:1", b"\xff\xfe garbage"), record(b"me:2", value)]))
    wait_until(lambda: heard.deliveries, 10, "the replies")
    heard.reader.close()
    (first, error), second = heard.deliveries
    assert first == "me:1"
    assert isinstance(error, MessageError)
    assert second == ("me:2", delta(0, "next"))


class RestartingRegistry(RegistryTwin):
    """Does not answer for a number of times, once it has the schemas."""

    def __init__(self, times_down: int) -> None:
        super().__init__()
        self.times_down = times_down
        self.value = Codec(self).encode(delta(0, "framed"), Encoding.CONFLUENT, topic="replies")
        self.asked = 0

    def writer_schema(self, id_: int) -> Schema:
        self.asked += 1
        if self.asked <= self.times_down:
            raise RegistryFailed("the schema registry does not answer")
        return super().writer_schema(id_)


def test_a_registry_that_does_not_answer_is_waited_for_and_no_reply_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replies, "REGISTRY_AGAIN", 0.0)
    registry = RestartingRegistry(times_down=3)
    plain = Codec().encode(delta(0, "next"))
    with caplog.at_level(logging.WARNING):
        heard = Heard(FakeTail([record(b"me:1", registry.value), record(b"me:2", plain)]), registry)
        wait_until(lambda: heard.deliveries or heard.deaths, 10, "the replies")
        heard.reader.close()
    assert heard.deaths == []
    assert heard.deliveries == [("me:1", delta(0, "framed")), ("me:2", delta(0, "next"))]
    assert [each.message for each in caplog.records] == [
        "a reply cannot be read yet, trying on: the schema registry does not answer"
    ]


def test_a_reader_that_waits_for_the_registry_has_handed_on_what_came_before_and_can_be_closed() -> None:
    registry = RestartingRegistry(times_down=1_000_000)
    plain = Codec().encode(delta(0, "first"))
    tail = FakeTail([record(b"me:1", plain), record(b"me:2", registry.value), record(b"me:3", plain)])
    heard = Heard(tail, registry)
    wait_until(lambda: heard.deliveries or heard.deaths, 10, "the first reply")
    heard.reader.close()
    assert tail.closed
    assert heard.deaths == []
    assert heard.deliveries == [("me:1", delta(0, "first"))]


@pytest.mark.parametrize("error", [KafkaFailed("gone"), ZeroDivisionError("a defect")])
def test_a_thread_that_dies_says_so_once_and_lets_go_of_its_consumer(error: Exception) -> None:
    tail = FakeTail([], error)
    heard = Heard(tail)
    wait_until(lambda: heard.deaths, 10, "the death")
    heard.reader.close()
    assert len(heard.deaths) == 1
    assert str(error) in str(heard.deaths[0])
    assert tail.closed
