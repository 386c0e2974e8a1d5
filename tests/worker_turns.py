"""What tests of the worker's core share: a clock that they turn, requests, and a worker that is let run for a while."""

from __future__ import annotations

import json

import pytest
from fake_kafka import FakeKafka, Message
from fake_worker import METADATA_LIMIT, Clock, FakeWorker

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.starting import Acceptance
from headrace.consumers.suspicion import Suspicion
from headrace.workers import moving as moving_module
from headrace.workers import openings as openings_module
from headrace.workers import partitions as partitions_module
from headrace.workers import pump as pump_module
from headrace.workers import refusals as refusals_module


def clock_by_hand(patch: pytest.MonkeyPatch) -> Clock:
    """In the place of `time` in every module of the consumer thread; and polls of four records."""
    clock = Clock()
    for module in (pump_module, partitions_module, openings_module, moving_module, refusals_module):
        patch.setattr(module, "time", clock)
    for module in (pump_module, partitions_module):
        patch.setattr(module, "MAX_POLL_RECORDS", 4)
    return clock


def send(
    kafka: FakeKafka, tp: TopicPartition, request_id: str, reply_topic: str = "", **more: object
) -> None:
    """Append a request."""
    headers: list[tuple[str, bytes | None]] = []
    if reply_topic:
        headers = [("reply-topic", reply_topic.encode()), ("reply-partition", b"0"), ("correlation-id", b"c")]
    value = json.dumps({"id": request_id, "prompt": "x", **more}).encode()
    kafka.append(tp, Message(value, tuple(headers)))


def run(worker: FakeWorker, clock: Clock, turns: int = 6) -> None:
    """Poll and commit, without finishing anything."""
    for _ in range(turns):
        clock.now += 0.2
        worker.pump.turn()
        if worker.batch is not None:
            worker.commit()


def until_begun(worker: FakeWorker, works: int = 1) -> None:
    """Turn and commit until the loop has so many works: nothing is begun before its mark is committed."""
    for _ in range(10):
        if len(worker.works) >= works and worker.batch is None and not worker.ledger.in_transaction:
            return
        worker.pump.turn()
        if worker.batch is not None:
            worker.commit()
    raise AssertionError(f"{len(worker.works)} works have begun, not {works}")


def accept(kafka: FakeKafka, tp: TopicPartition) -> None:
    """What an operator does about a parked partition."""
    kafka.accepted[tp] = Acceptance(kafka.committed.get(tp), kafka.beginnings[tp], "a@b", 0)
    kafka.control_revision += 1


def progress_of(kafka: FakeKafka, tp: TopicPartition) -> Progress:
    """What the committed metadata says."""
    point = kafka.committed[tp]
    return offset_encoding.decode(point.metadata, point.offset, METADATA_LIMIT)


def suspect(kafka: FakeKafka, tp: TopicPartition, suspects: dict[int, Suspicion]) -> None:
    """Let earlier lives have committed these suspects, whose requests are in the log."""
    for offset in range(len(kafka.logs[tp]), max(suspects) + 1):
        send(kafka, tp, f"r{offset}")
    metadata = offset_encoding.encode(0, Progress(0, suspects=suspects), METADATA_LIMIT)
    kafka.committed[tp] = CommitPoint(0, metadata)
