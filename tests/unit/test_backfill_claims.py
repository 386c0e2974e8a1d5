"""A process that takes a job over knows whether it has it, or another that began at the same moment."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from headrace.consumers.backfill_jobs import BackfillRecords, JobId, KnownJob, RunningJob, job_record
from headrace.consumers.records import RecordLocation
from headrace.producers.backfill import orders
from headrace.producers.backfill.failures import JobTaken
from headrace.producers.backfill.orders import OrdersLink
from headrace.producers.kafka import OutgoingRecord
from headrace.schemas.settings import Settings

JOB = JobId("tagger", 1, "tags-00000000")


class Topic:
    """The control topic: what is written to it is read at once, with what others write in the same moment."""

    def __init__(self) -> None:
        self.records = BackfillRecords()
        self.end = 0
        self.behind: list[OutgoingRecord] = []  # what comes right behind the next record

    def append(self, record: OutgoingRecord) -> int:
        offset, self.end = self.end, self.end + 1
        self.records.take(record.key or b"", record.value, offset)
        return offset


class Follower:
    """Reads it."""

    ready = True

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def run(self) -> None: ...
    def stop(self) -> None: ...

    def known(self, id_: JobId) -> KnownJob | None:
        return self._topic.records.jobs.get(id_)


class Producer:
    """Writes to it."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def send(self, record: OutgoingRecord) -> Future[RecordLocation]:
        sent: Future[RecordLocation] = Future()
        sent.set_result(RecordLocation("control", 0, self._topic.append(record)))
        while self._topic.behind:
            self._topic.append(self._topic.behind.pop(0))
        return sent

    def flush(self, _: float) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()

    def follower(_: Any) -> Follower:
        return Follower(made)

    def producer(_: Any) -> Producer:
        return Producer(made)

    monkeypatch.setattr(orders, "BackfillFollower", follower)
    monkeypatch.setattr(orders, "PlainProducer", producer)
    return made


def a_link() -> OrdersLink:
    return OrdersLink(Settings(bootstrap_servers="nowhere:1"), JOB, "tags.parquet")


def claim(link: OrdersLink) -> None:
    link.tell("running", rows=1, settled=0, failed=0)


def test_the_first_of_two_whose_words_are_read_together_is_told_that_the_job_is_taken(topic: Topic) -> None:
    """Not half a minute later, as if the topic could not be read."""
    other = RunningJob(
        status="running",
        output="tags.parquet",
        incarnation="other",
        host="elsewhere",
        rows=1,
        settled=0,
        failed=0,
        at=1,
    )
    topic.behind = [OutgoingRecord("control", *job_record(JOB, other))]
    with pytest.raises(JobTaken):
        claim(a_link())


def test_the_one_whose_word_is_last_has_the_job(topic: Topic) -> None:
    first, second = a_link(), a_link()
    claim(first)
    claim(second)
    second.check()
    with pytest.raises(JobTaken):
        first.check()
