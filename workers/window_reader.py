"""Reads which ids were answered lately in the units that are newly ours: their dedupe windows."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from headrace.consumers.recent_results import RecentResults
from headrace.consumers.records import AnsweredId
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

log = logging.getLogger(__name__)

READ_DEADLINE_S = 60.0  # of one unit: 50,000 results of 2 kB are 100 MB
RETRY_S = 1.0  # nothing of the unit is served before its window is known
IDLE_CLOSE_S = 60.0  # units come in groups: the connections are kept so long after the last

Ids = list[AnsweredId]


class ResultsEnd(Protocol):
    """What is used of `RecentResults`."""

    def read(self, partition: int, window: int, deadline_s: float) -> Ids:
        """The answered ids of the last records of a partition, the oldest first. Raises KafkaFailed."""
        ...

    def give_up(self) -> None:
        """Make the read that is under way end soon with an error. From any thread."""
        ...

    def close(self) -> None:
        """Close the connections. Never raises."""
        ...


class WindowReader:
    """Answers `ask(unit)` with `tell(unit, ids)`, one unit after the other. `run` is a thread's body.

    `tell` is called from that thread. Who hands what it is told to another thread asks there whether it is still
    wanted (`take`), since meanwhile the unit may have gone and come back.
    """

    def __init__(
        self,
        settings: Settings,
        names: ContractNames,
        window: int,
        tell: Callable[[int, Ids], None],
        *,
        open_results: Callable[[Settings, str], ResultsEnd] = RecentResults,
    ) -> None:
        self._settings = settings
        self._topic = names.results
        self._window = window
        self._tell = tell
        self._open_results = open_results
        self._reader: ResultsEnd | None = None
        self._changed = threading.Condition()  # guards all below
        self._wanted: OrderedDict[int, object] = (
            OrderedDict()
        )  # by unit, the next first: a token for each asking
        self._told: dict[int, Ids] = {}  # what was told for the last asking, until it is taken
        self._stopped = False

    # --- from any thread ---

    def ask(self, unit: int) -> None:
        """Have a unit's window read from now on; what an earlier asking brings is not wanted any more.

        To be called when the unit's committed offsets are known: a transaction of its last owner that could still
        end is then decided, and its results lie where they are found.
        """
        with self._changed:
            self._told.pop(unit, None)
            self._wanted[unit] = object()
            self._changed.notify()

    def forget(self, unit: int) -> None:
        """The unit is not ours any more: its window is not wanted."""
        with self._changed:
            self._told.pop(unit, None)
            self._wanted.pop(unit, None)

    def take(self, unit: int, ids: Ids) -> bool:
        """Whether these ids are what the unit's last asking brought; once. False: drop them, others come or none."""
        with self._changed:
            if self._told.get(unit) is not ids:
                return False
            del self._told[unit]
            return True

    def stop(self) -> None:
        """Let `run` return soon."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
            if self._reader is not None:
                self._reader.give_up()

    # --- its thread ---

    def run(self) -> None:
        """Read what is asked for until `stop()`. What cannot be read is tried again until it can, or is forgotten.

        That holds for a topic of results that does not exist, too: nothing could be published then.
        """
        said = False
        try:
            while (wanted := self._next()) is not None:
                unit, token = wanted
                try:
                    ids = self._read(unit)
                except HeadraceError as error:
                    self._close()
                    if not said and not self._stopped:
                        log.warning("the last results of unit %d cannot be read, trying on: %s", unit, error)
                        said = True
                    self._put_off(unit)
                else:
                    said = False
                    self._answer(unit, token, ids)
        finally:
            self._close()

    def _next(self) -> tuple[int, object] | None:
        """The unit to read next, waited for; None: stopped."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._stopped or self._wanted, IDLE_CLOSE_S):
                    return None if self._stopped else next(iter(self._wanted.items()))
            self._close()

    def _read(self, unit: int) -> Ids:
        if self._window == 0:
            return []
        if self._reader is None:
            reader = self._open_results(self._settings, self._topic)
            with self._changed:
                self._reader = reader
                if self._stopped:
                    reader.give_up()
        return self._reader.read(unit, self._window, READ_DEADLINE_S)

    def _answer(self, unit: int, token: object, ids: Ids) -> None:
        with self._changed:
            if self._wanted.get(unit) is not token:
                return  # forgotten meanwhile, or asked for again: then others may have published since
            del self._wanted[unit]
            self._told[unit] = ids
        self._tell(unit, ids)

    def _put_off(self, unit: int) -> None:
        """Let the others have their turn, and time pass."""
        with self._changed:
            if unit in self._wanted:
                self._wanted.move_to_end(unit)
            self._changed.wait_for(lambda: self._stopped, RETRY_S)

    def _close(self) -> None:
        with self._changed:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
