"""A running job's line to the control topic: it says where it stands, and hears what operators want of it."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING

from headrace.consumers.backfill_jobs import (
    BackfillFollower,
    JobId,
    Order,
    OrderKind,
    RunningJob,
    RunStatus,
    job_record,
    order_record,
)
from headrace.producers.backfill.failures import JobTaken
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.errors import KafkaUnavailable
from headrace.topics.names import control_topic

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

WRITE_WITHIN_S = 30.0
READY_WITHIN_S = 30.0
FRESH_MS = 30_000  # a process that has said something since is taken to be alive


def host_name() -> str:
    """This process, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


class OrdersLink:
    """Every call waits for the brokers, but for `order` and `check`."""

    def __init__(self, settings: Settings, id_: JobId, output: str) -> None:
        """Connect, and read what the control topic says. Raises TopicsError, KafkaUnavailable, KafkaFailed."""
        self.id = id_
        self.incarnation = uuid.uuid4().hex
        self._output = output
        self._topic = control_topic(settings.prefix)
        self._claimed = False
        self._producer = PlainProducer(settings)
        self._follower = BackfillFollower(settings)
        self._thread = threading.Thread(target=self._follower.run, name="backfill orders", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + READY_WITHIN_S
        while not self._follower.ready:
            if time.monotonic() > deadline:
                self.close()
                raise KafkaUnavailable(
                    f"{self._topic} could not be read within {READY_WITHIN_S:g} s; try again"
                )
            time.sleep(0.02)

    def other_process(self) -> RunningJob | None:
        """A process that seems to run the job at this moment: it has said so within half a minute."""
        known = self._follower.known(self.id)
        running = None if known is None else known.running
        if (
            running is None
            or running.incarnation == self.incarnation
            or running.status not in ("running", "paused")
        ):
            return None
        return running if time.time() * 1000 - running.at < FRESH_MS else None

    def order(self) -> Order | None:
        """What an operator wants of the job."""
        known = self._follower.known(self.id)
        return None if known is None else known.order

    def tell(self, status: RunStatus, *, rows: int, settled: int, failed: int) -> None:
        """Say where the job stands. The first word takes the job over from any other process.

        Raises KafkaUnavailable, KafkaFailed.
        """
        running = RunningJob(
            incarnation=self.incarnation,
            host=host_name(),
            output=self._output,
            status=status,
            rows=rows,
            settled=settled,
            failed=failed,
            at=int(time.time() * 1000),
        )
        offset = self._write(*job_record(self.id, running))
        if not self._claimed:
            self._await_own_claim(offset)

    def _await_own_claim(self, offset: int) -> None:
        """Until it was read back: the record at this offset. Raises JobTaken where another's came right after it."""
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            known = self._follower.known(self.id)
            if known is not None and known.running is not None and known.claim > offset:
                self._claimed = True
                self.check()
                return
            if (
                known is not None
                and known.running is not None
                and known.running.incarnation == self.incarnation
            ):
                self._claimed = True
                return
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"{self._topic} could not be read within {READY_WITHIN_S:g} s; try again"
                )
            time.sleep(0.02)

    def check(self) -> None:
        """Raises JobTaken once another process has taken the job over."""
        known = self._follower.known(self.id)
        running = None if known is None else known.running
        if self._claimed and running is not None and running.incarnation != self.incarnation:
            raise JobTaken(f"job {self.id.job} is run by another process now: {running.host}")

    def close(self) -> None:
        """Disconnect."""
        self._follower.stop()
        self._thread.join(WRITE_WITHIN_S)
        self._producer.close()

    def _write(self, key: bytes, value: bytes | None) -> int:
        """The record's offset."""
        sent = self._producer.send(OutgoingRecord(self._topic, key, value))
        self._producer.flush(WRITE_WITHIN_S)
        return sent.result(WRITE_WITHIN_S).offset


def give_order(settings: Settings, id_: JobId, order: OrderKind, by: str) -> None:
    """Write what an operator wants of a job; `run` takes the order before it back.

    Raises KafkaUnavailable, KafkaFailed, TopicMissing.
    """
    given = None if order == "run" else Order(order=order, by=by, at=int(time.time() * 1000))
    key, value = order_record(id_, given)
    producer = PlainProducer(settings)
    try:
        sent = producer.send(OutgoingRecord(control_topic(settings.prefix), key, value))
        producer.flush(WRITE_WITHIN_S)
        sent.result(WRITE_WITHIN_S)
    finally:
        producer.close()
