"""Replies to this client: the thread that reads them, and what those to one request amount to."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.records import Record
from headrace.schemas.errors import HeadraceError, KafkaFailed, MessageError, RegistryFailed, SideTaskDied
from headrace.schemas.messages import Location, Reply, Result

logger = logging.getLogger(__name__)

POLL_TIMEOUT = 1.0  # seconds
REGISTRY_AGAIN = 1.0  # seconds until a schema registry that did not answer is asked again

# (correlation id, the reply or why it cannot be read)
Delivery = tuple[str, Reply | MessageError]


# --- pure: what the replies to one request amount to --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """More text of the first choice."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The result is here."""

    result: Result


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The request was answered before: its result lies there."""

    location: Location


@dataclass(frozen=True, slots=True)
class Restarted:
    """What was streamed so far will not be continued."""


@dataclass(slots=True)
class ReplyTrack:
    """Puts the replies to one request in order.

    `text` is what was streamed of the first choice: the deltas of one attempt from 0 on, without a gap. A
    delta that comes twice (the request was asked again) is dropped; after a gap no more is streamed, and
    the final result brings the rest. So `text` is a beginning of the answer at all times.
    """

    text: str = ""
    attempt: int = 1
    next_seq: int = 0

    def accept(self, reply: Reply) -> Text | Finished | Elsewhere | Restarted | None:
        """What this reply changes; None: nothing."""
        if reply.result is not None:
            return Finished(reply.result)
        if reply.kind == "duplicate" and reply.location is not None:
            return Elsewhere(reply.location)
        if reply.kind == "delta":
            return self._delta(reply)
        if reply.kind == "error" and self.text:
            return Restarted()
        return None

    def _delta(self, reply: Reply) -> Text | Restarted | None:
        if reply.attempt > self.attempt:
            if self.text:
                return Restarted()
            self.attempt, self.next_seq = reply.attempt, 0
        if reply.attempt < self.attempt or reply.seq != self.next_seq:
            return None
        self.next_seq += 1
        if reply.choice != 0 or not reply.delta:
            return None
        self.text += reply.delta
        return Text(reply.delta)

    def rest(self, result: Result) -> str | None:
        """What of the result's text was not streamed yet; None where the two do not agree."""
        text = result.outputs[0].text if result.outputs else ""
        return text[len(self.text) :] if text.startswith(self.text) else None


# --- the thread ---------------------------------------------------------------------------------------


def reply_partition(instance_id: str, partitions: int) -> int:
    """The partition of the replies topic that a client instance reads."""
    return zlib.crc32(instance_id.encode()) % partitions


def new_instance_id() -> str:
    """Random, so that replies to a client that was here before reach nobody."""
    return uuid.uuid4().hex


class Tail(Protocol):
    """What the reader needs of `consumers.tail_reader.TailReader`."""

    def poll(self, timeout_s: float) -> Sequence[Record]: ...
    def wake_up(self) -> None: ...
    def close(self) -> None: ...


class ReplyReader:
    """Reads one partition of the replies topic in its own thread and hands on what belongs to one instance.

    `deliver` is called in that thread with all of a poll's replies that have the instance's correlation ids;
    `died` once, with the cause, if the thread ends without `close()`.
    """

    def __init__(
        self,
        tail: Tail,
        instance_id: str,
        decode: Callable[[bytes], Reply],
        deliver: Callable[[list[Delivery]], None],
        died: Callable[[HeadraceError], None],
    ) -> None:
        self._tail = tail
        self._prefix = f"{instance_id}:".encode()
        self._decode = decode
        self._deliver = deliver
        self._died = died
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-replies", daemon=True)

    def start(self) -> None:
        """Begin to read. The tail stands at its partition's end already."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading, wait for the thread, and close the consumer. Idempotent."""
        self._stop.set()
        self._tail.wake_up()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        cause: HeadraceError | None = None
        try:
            while not self._stop.is_set():
                self._read_once()
        except HeadraceError as error:
            cause = error
        except Exception as error:  # noqa: BLE001  whatever it was: nobody waits on a reader that is gone
            cause = SideTaskDied(f"{type(error).__name__}: {error}")
            cause.__cause__ = error
        try:
            self._tail.close()
        except KafkaFailed as error:
            logger.warning("closing the reply reader: %s", error)
        if cause is not None and not self._stop.is_set():
            self._died(cause)

    def _read_once(self) -> None:
        deliveries: list[Delivery] = []
        for record in self._tail.poll(POLL_TIMEOUT):
            if record.key is None or record.value is None or not record.key.startswith(self._prefix):
                continue  # another client's
            try:
                reply = self._read(record.value)
            except RegistryFailed as error:
                self._hand_on(deliveries)  # what could be read need not wait for what cannot
                deliveries = []
                reply = self._read_later(record.value, error)
                if reply is None:
                    return
            deliveries.append((record.key.decode("utf-8", "replace"), reply))
        self._hand_on(deliveries)

    def _hand_on(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            self._deliver(deliveries)

    def _read(self, value: bytes) -> Reply | MessageError:
        try:
            return self._decode(value)
        except MessageError as error:
            return error

    def _read_later(self, value: bytes, error: RegistryFailed) -> Reply | MessageError | None:
        """Try on until the registry answers; None: the reader was stopped.

        Nothing is wrong with the reply, and whoever waits for it has a timeout of its own. Those behind it wait too:
        the pieces of a stream must stay in order.
        """
        logger.warning("a reply cannot be read yet, trying on: %s", error)
        while not self._stop.wait(REGISTRY_AGAIN):
            with contextlib.suppress(RegistryFailed):
                return self._read(value)
        return None
