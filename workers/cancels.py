"""Cancels: wishes that a request, or all of a job, be given up.

Every worker reads all of them, with a consumer that belongs to no group, since nobody knows which worker has the
request, or will have it. A cancel holds for what was appended before it: an id that is asked for again is meant.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import Record
from headrace.consumers.tail_reader import TailReader
from headrace.schemas.codec import Codec
from headrace.schemas.errors import HeadraceError, MessageError, RegistryFailed
from headrace.schemas.messages import Cancel
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.workers.work import Work

log = logging.getLogger(__name__)

REMEMBERED = 50_000  # cancels, the newest: one whose request has not come by then will hardly find it
POLL_S = 5.0  # `stop()` ends it early
RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancel as it counts."""

    reason: str
    appended_ms: int  # of the cancel's record, ms since the epoch


class Cancels:
    """What was cancelled lately, by id and by job. Pure."""

    def __init__(self) -> None:
        self._by_target: OrderedDict[tuple[str, str], Cancelled] = OrderedDict()

    def note(self, cancel: Cancel, appended_ms: int) -> None:
        """Remember a cancel."""
        target = ("id", cancel.id) if cancel.id is not None else ("job", cancel.job or "")
        self._by_target[target] = Cancelled(cancel.reason, appended_ms)
        self._by_target.move_to_end(target)
        while len(self._by_target) > REMEMBERED:
            self._by_target.popitem(last=False)

    def of(self, work: Work) -> Cancelled | None:
        """The cancel that holds for a request, if there is one."""
        if not self._by_target or work.request is None:
            return None
        targets = [("id", work.request.id)]
        if work.request.job is not None:
            targets.append(("job", work.request.job))
        for target in targets:
            found = self._by_target.get(target)
            if found is not None and work.appended_ms <= found.appended_ms:
                return found
        return None


class CancelReader:
    """Reads the topic of cancels from its beginning: what is in it has not expired. `run` is a thread's body."""

    def __init__(
        self, settings: Settings, names: ContractNames, codec: Codec, noted: Callable[[Cancel, int], None]
    ) -> None:
        self._settings = settings
        self._names = names
        self._codec = codec
        self._noted = noted
        self._stop = threading.Event()
        self._reader: TailReader | None = None

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()
        if (reader := self._reader) is not None:
            reader.wake_up()

    def run(self) -> None:
        """Read until `stop()`. A topic that is not there is waited for: without it nothing can be cancelled."""
        said = False
        while not self._stop.is_set():
            try:
                self._read()
            except HeadraceError as error:
                if not said:
                    log.warning("cancels cannot be read, trying on: %s", error)
                    said = True
                self._stop.wait(RETRY_S)

    def _read(self) -> None:
        partitions = partitions_of(self._settings, [self._names.cancels])[self._names.cancels]
        reader = self._reader = TailReader(self._settings, partitions, "beginning")
        try:
            while not self._stop.is_set():
                for record in reader.poll(POLL_S):
                    self._take(record)
        finally:
            self._reader = None
            reader.close()

    def _take(self, record: Record) -> None:
        try:
            cancel = self._codec.decode(Cancel, record.value).message
        except (MessageError, RegistryFailed) as error:
            log.warning("a cancel at %s-%d offset %d cannot be read: %s", *record.location, error)
            return
        self._noted(cancel, record.timestamp_ms)
