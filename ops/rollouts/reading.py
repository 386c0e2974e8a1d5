"""Reads the results of a contract for a rollout, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.consumers.results import POLL_RECORDS, ReadResult, ResultReader
from headrace.consumers.trying_on import read_until
from headrace.ops.rollouts.watching import Answer
from headrace.schemas.errors import MessageError

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

log = logging.getLogger(__name__)

TRY_AGAIN_S = 2.0


class AnswerReader:
    """From a time on, for as long as it is not closed. Outages are waited out, and it goes on where it stood."""

    def __init__(self, settings: Settings, names: ContractNames, since_ms: int) -> None:
        """`since_ms`: since the epoch. Reading begins at once."""
        self._settings = settings
        self._names = names
        self._since_ms = since_ms
        self._read: deque[Answer] = deque()
        self._seen: dict[int, int] = {}  # by partition, the offset that was read last
        self._stop = threading.Event()
        # All that was there when reading began has been taken note of. Not while it is to begin again, after an outage.
        self.caught_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"results of {names.base}", daemon=True)
        self._thread.start()

    def take(self) -> list[Answer]:
        """What has come since the last call."""
        taken: list[Answer] = []
        while self._read:
            taken.append(self._read.popleft())
        return taken

    def close(self) -> None:
        """Read no more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        read_until(
            self._stop,
            self._follow,
            failing=f"the results of {self._names.base} cannot be read",
            again_s=TRY_AGAIN_S,
            log=log,
        )

    def _follow(self) -> None:
        try:
            self._read_on()
        finally:
            self.caught_up.clear()

    def _read_on(self) -> None:
        start = datetime.fromtimestamp(self._since_ms / 1000, UTC)
        with ResultReader(self._settings, self._names, start=start, follow=True) as reader:
            left = POLL_RECORDS  # of what was fetched already when the end was reached
            for found in reader:
                if self._stop.is_set():
                    return
                if found is not None:
                    self._note(found)
                if not reader.is_behind:
                    left -= 1
                    if found is None or left == 0:
                        self.caught_up.set()

    def _note(self, found: ReadResult) -> None:
        place = found.location
        if place.offset <= self._seen.get(place.partition, -1):
            return  # read again after an outage
        self._seen[place.partition] = place.offset
        result = found.result
        if isinstance(result, MessageError):
            log.warning("a result that cannot be read is not counted: %s", result)
            return
        timings = result.timings
        self._read.append(
            Answer(
                result.provenance.version,
                result.status,
                max(0.0, timings.total_ms - timings.queued_ms),
                result.usage.completion_tokens,
                found.timestamp_ms,
                result.provenance.source_partition,
            )
        )
