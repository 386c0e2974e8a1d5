"""Replies to those who wait: tokens as they come, and the result once it is committed.

Replies leave from a producer without transactions, in a thread of its own: `send()` of a Kafka client may wait for
metadata or for room, and neither the loop nor the commit thread has time for that. A reply that cannot be sent is
counted and lost; the caller asks again with the same id.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.records import RecordLocation
from headrace.producers.kafka import OutgoingRecord
from headrace.schemas import headers as header
from headrace.schemas import metrics
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import HeadraceError, TopicMissing
from headrace.schemas.messages import Location, Reply, Result
from headrace.workers.answers import milliseconds_since
from headrace.workers.engine import Delta
from headrace.workers.work import ReplyAddress, Work

log = logging.getLogger(__name__)

COALESCE_S = 0.025  # a stream's texts leave at once, those that follow faster than this together
MAX_QUEUED = 50_000  # replies; beyond it brokers are out of reach, and memory counts more
# Asking for a topic that does not exist takes the producer seconds: others' replies are not to wait for that again.
MISSING_KEPT_S = 60.0
SLOW_S = 0.5  # no send takes so long that does not wait for a topic
MAX_MISSING = 1_000  # topics that are remembered as missing


@dataclass(frozen=True, slots=True)
class _Outgoing:
    address: ReplyAddress
    reply: Reply
    encoding: Encoding


class Producer(Protocol):
    """What is needed of `producers.kafka.PlainProducer`."""

    def send(self, record: OutgoingRecord) -> Future[RecordLocation]:
        """Queue a record; the future tells what became of it."""
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait for all that was queued."""
        ...


class ReplySender:
    """Sends replies. `final`, `duplicate` and `delta` may be called from any thread; `run` is the thread's body."""

    def __init__(self, producer: Producer, codec: Codec, *, model: str) -> None:
        self._producer = producer
        self._codec = codec
        self.model = model
        # Without a bound of its own: `stop()` must get in even where the thread has died.
        self._queue: queue.SimpleQueue[_Outgoing | None] = queue.SimpleQueue()
        self._missing: dict[str, float] = {}  # topic: until when it is believed to be missing

    def final(
        self, address: ReplyAddress, result: Result, encoding: Encoding, seq: int, location: Location | None
    ) -> None:
        """The result, after its commit."""
        reply = Reply(
            id=result.id,
            attempt=result.provenance.attempt,
            seq=seq,
            kind="final",
            result=result,
            location=location,
        )
        self._put(_Outgoing(address, reply, encoding))

    def duplicate(
        self, address: ReplyAddress, request_id: str, encoding: Encoding, location: Location | None
    ) -> None:
        """Says that the id was answered before, and where."""
        reply = Reply(id=request_id, seq=0, kind="duplicate", location=location)
        self._put(_Outgoing(address, reply, encoding))

    def delta(
        self,
        address: ReplyAddress,
        request_id: str,
        encoding: Encoding,
        seq: int,
        delta: Delta,
        *,
        attempt: int = 1,
    ) -> None:
        """Some more text of a choice. A reader of the stream begins anew with a higher `attempt`."""
        reply = Reply(
            id=request_id, attempt=attempt, seq=seq, kind="delta", choice=delta.choice, delta=delta.text
        )
        self._put(_Outgoing(address, reply, encoding))

    def _put(self, outgoing: _Outgoing) -> None:
        if self._queue.qsize() >= MAX_QUEUED:
            metrics.REPLIES.labels(self.model, "lost").inc()
        else:
            self._queue.put(outgoing)

    def run(self) -> None:
        """Send until `stop()`, then what was queued before it."""
        while (outgoing := self._queue.get()) is not None:
            self._send(outgoing)
        try:
            self._producer.flush(timeout_s=5)
        except HeadraceError as error:
            log.warning("some replies could not be sent: %s", error)

    def stop(self) -> None:
        """Let `run` return once everything queued so far is sent."""
        self._queue.put(None)

    def _send(self, outgoing: _Outgoing) -> None:
        address, reply = outgoing.address, outgoing.reply
        if time.monotonic() < self._missing.get(address.topic, 0.0):
            metrics.REPLIES.labels(self.model, "lost").inc()
            return
        encoding = Encoding.JSON if outgoing.encoding is Encoding.JSON else None
        try:
            record = OutgoingRecord(
                address.topic,
                address.correlation_id.encode(),
                self._codec.encode(reply, encoding, topic=address.topic),
                ((header.CORRELATION_ID, address.correlation_id.encode()),),
                address.partition,
            )
            began = time.monotonic()
            sent = self._producer.send(record)
        except HeadraceError as error:
            self._lost(reply, error)
            return
        except Exception as error:
            # A defect of ours, or of a library: that reply is lost, the others are not.
            log.exception("a reply to request %s failed in a way that was not foreseen", reply.id)
            self._lost(reply, error)
            return
        # At once it is only a partition that the topic does not have.
        waited = time.monotonic() - began > SLOW_S
        if waited and sent.done() and isinstance(sent.exception(), TopicMissing):
            self._remember_missing(address.topic)
        sent.add_done_callback(lambda done: self._sent(reply, done))

    def _remember_missing(self, topic: str) -> None:
        if len(self._missing) >= MAX_MISSING:
            self._missing.clear()
        self._missing[topic] = time.monotonic() + MISSING_KEPT_S

    def _sent(self, reply: Reply, done: Future[RecordLocation]) -> None:
        error = done.exception()
        if error is None:
            metrics.REPLIES.labels(self.model, reply.kind).inc()
        else:
            self._lost(reply, error)

    def _lost(self, reply: Reply, error: BaseException) -> None:
        metrics.REPLIES.labels(self.model, "lost").inc()
        log.warning("a %s reply to request %s could not be sent: %s", reply.kind, reply.id, error)


class DeltaStream:
    """One request's tokens on their way to its caller: at once, but those that come fast together. Loop only.

    So the first never waits, and neither does any token of a stream that is slower than `COALESCE_S`.
    """

    def __init__(self, replies: ReplySender, work: Work) -> None:
        self._replies = replies
        self._work = work
        self._buffered: dict[int, list[str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0  # by the loop's clock: not before this does anything leave
        self._seq = 0
        self.first_token_ms: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether any text was taken: it is on its way, or will be."""
        return self.first_token_ms is not None

    def add(self, delta: Delta) -> None:
        """Take some text."""
        if not delta.text:
            return
        self._buffered.setdefault(delta.choice, []).append(delta.text)
        if self.first_token_ms is None:
            self.first_token_ms = milliseconds_since(self._work.appended_ms)
            metrics.FIRST_TOKEN_SECONDS.labels(self._replies.model, self._work.lane).observe(
                self.first_token_ms / 1000
            )
        if self._timer is None:
            self._flush_or_wait()

    def _flush_or_wait(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._next_at:
            self._next_at = now + COALESCE_S
            self._flush()
        else:
            self._timer = loop.call_at(self._next_at, self._when_due)

    def _when_due(self) -> None:
        self._timer = None
        self._flush_or_wait()

    def close(self) -> int:
        """Send what is left; the sequence number that comes next."""
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        return self._seq

    def _flush(self) -> None:
        buffered, self._buffered = self._buffered, {}
        address, request_id = self._work.reply_to, self._work.request_id
        if address is None or request_id is None:
            return
        for choice, texts in buffered.items():
            delta = Delta(choice, "".join(texts))
            self._replies.delta(
                address, request_id, self._work.encoding, self._seq, delta, attempt=self._work.deaths + 1
            )
            self._seq += 1
