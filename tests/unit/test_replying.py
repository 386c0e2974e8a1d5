"""One caller's bad reply address does not delay the replies to all others, and no reply is worth the worker."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from headrace.consumers.records import RecordLocation
from headrace.producers.kafka import OutgoingRecord
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import HeadraceError, KafkaUnavailable, TopicMissing
from headrace.workers import replying as replying_module
from headrace.workers.replying import ReplySender
from headrace.workers.work import ReplyAddress

GOOD = ReplyAddress("replies", 0, "good")


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Producer:
    """Knows one topic with one partition; asking for another takes three seconds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tried: list[str] = []
        self.sent: list[str] = []
        self.flush_fails = False
        self.defect: Exception | None = None

    def send(self, record: OutgoingRecord) -> Future[RecordLocation]:
        if self.defect is not None:
            defect, self.defect = self.defect, None
            raise defect
        answer: Future[RecordLocation] = Future()
        self.tried.append(record.topic)
        if record.topic != "replies":
            self.clock.now += 3
            answer.set_exception(TopicMissing("no such topic"))
        elif record.partition != 0:
            answer.set_exception(TopicMissing("no such partition"))
        else:
            self.sent.append(str(record.key))
            answer.set_result(RecordLocation(record.topic, 0, len(self.sent)))
        return answer

    def flush(self, timeout_s: float) -> None:
        if self.flush_fails:
            raise KafkaUnavailable("no answer")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(replying_module, "time", made)
    return made


def reply(sender: ReplySender, address: ReplyAddress) -> None:
    sender.duplicate(address, "a", Encoding.JSON, None)


def run(sender: ReplySender) -> None:
    sender.stop()
    sender.run()


def test_a_reply_topic_that_does_not_exist_costs_its_wait_once(clock: Clock) -> None:
    producer = Producer(clock)
    sender = ReplySender(producer, Codec(), model="m")
    for _ in range(10):
        reply(sender, ReplyAddress("nowhere", 0, "bad"))
        reply(sender, GOOD)
    run(sender)
    assert producer.tried.count("nowhere") == 1
    assert len(producer.sent) == 10
    clock.now += replying_module.MISSING_KEPT_S
    reply(sender, ReplyAddress("nowhere", 0, "bad"))
    run(sender)
    assert producer.tried.count("nowhere") == 2, "it may have been made since"


def test_a_partition_that_does_not_exist_silences_nobody_else(clock: Clock) -> None:
    producer = Producer(clock)
    sender = ReplySender(producer, Codec(), model="m")
    reply(sender, ReplyAddress("replies", 999, "bad"))
    reply(sender, GOOD)
    run(sender)
    assert len(producer.sent) == 1


def test_stopping_does_not_wait_for_room_in_a_full_queue(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replying_module, "MAX_QUEUED", 3)
    producer = Producer(clock)
    sender = ReplySender(producer, Codec(), model="m")
    for _ in range(10):
        reply(sender, GOOD)
    run(sender)
    assert len(producer.sent) == 3


@pytest.mark.parametrize("defect", [RuntimeError("closed"), HeadraceError("no")])
def test_a_reply_that_cannot_be_sent_does_not_end_the_thread(clock: Clock, defect: Exception) -> None:
    producer = Producer(clock)
    producer.defect = defect
    producer.flush_fails = True
    sender = ReplySender(producer, Codec(), model="m")
    reply(sender, GOOD)
    reply(sender, GOOD)
    run(sender)
    assert len(producer.sent) == 1
