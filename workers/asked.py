"""Which requests of one partition were asked for, so that none is generated twice. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.consumers.records import RecordLocation
from headrace.schemas.messages import Location
from headrace.workers.recent_ids import RecentIds
from headrace.workers.work import ReplyAddress

REMEMBERED_IDS = 50_000  # answered ones, at least: the dedupe window of a partition
_OFFSET_BITS = 44  # 17 million million records: enough for any partition


@dataclass(slots=True)
class Asked:
    """A request id that was seen: who else waits for it and, once it is answered, where the result lies."""

    offset: int  # of the request that was the first with this id: its completion is the answer; -1: not known any more
    waiting: tuple[ReplyAddress, ...] = ()
    answered: bool = False
    place: RecordLocation | None = None

    @property
    def location(self) -> Location | None:
        """Where the result lies; None: not answered yet, or not known."""
        return Location(**self.place._asdict()) if self.place else None


class AskedIds:
    """The ids of one tenure: all that run, and those that were answered lately."""

    def __init__(self) -> None:
        self._running: dict[str, Asked] = {}
        self._answered = RecentIds(REMEMBERED_IDS)
        self._places: list[tuple[str, int]] = []  # topics and partitions that results lie in: hardly ever two

    def ask(self, request_id: str, offset: int, waiting: ReplyAddress | None) -> Asked | None:
        """Note an id. If it was seen before: what is known of it, with `waiting` added while it runs."""
        running = self._running.get(request_id)
        if running is not None:
            if waiting is not None:
                running.waiting += (waiting,)
            return running
        answered = self._answered.find(request_id)
        if answered is not None:
            return Asked(-1, answered=True, place=self._place(answered))
        self._running[request_id] = Asked(offset)
        return None

    def answered(self, request_id: str, offset: int, location: Location | None) -> tuple[ReplyAddress, ...]:
        """The request at `offset` was answered; returns who asked for it again meanwhile.

        Nobody, if another request has the id: then this one was refused for itself.
        """
        running = self._running.get(request_id)
        if running is None or running.offset != offset:
            return ()
        del self._running[request_id]
        self._answered.add(request_id, self._value(location))
        return running.waiting

    def _value(self, location: Location | None) -> int:
        if location is None:
            return 0
        place = (location.topic, location.partition)
        if place not in self._places:
            self._places.append(place)
        return self._places.index(place) << _OFFSET_BITS | (location.offset + 1)

    def _place(self, value: int) -> RecordLocation | None:
        if value == 0:
            return None
        topic, partition = self._places[value >> _OFFSET_BITS]
        return RecordLocation(topic, partition, (value & ((1 << _OFFSET_BITS) - 1)) - 1)
