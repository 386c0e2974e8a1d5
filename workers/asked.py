"""Which requests of one unit were asked for, so that none is generated twice. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headrace.consumers.records import AnsweredId, RecordLocation, TopicPartition
from headrace.schemas.messages import Location, Status
from headrace.workers.recent_ids import RecentIds
from headrace.workers.work import Replay, ReplyAddress

_OFFSET_BITS = 44  # 17 million million records: enough for any partition


@dataclass(slots=True)
class Asked:
    """A request id that was seen: who else waits for it and, once it is answered, where the result lies."""

    source: TopicPartition | None  # and
    offset: int  # of the request that runs: its completion is the answer. None and -1: answered
    waiting: tuple[ReplyAddress, ...] = ()
    answered: bool = False
    place: RecordLocation | None = None

    @property
    def location(self) -> Location | None:
        """Where the result lies; None: not answered yet, or not known."""
        return Location(**self.place._asdict()) if self.place else None


class AskedIds:
    """The ids of one unit, whatever lane they came in: all that run, and those that were answered lately.

    "Answered" is any result but a rejection, not `ok` alone: a request has one result, and who wants another asks
    under another id. A rejection costs nothing and speaks only for its own message: a malformed one may bear the id of
    a good one that is still to be answered.

    A replay, that is, a dead letter's request sent again, is answered by an `ok` alone: it runs unless one is known of
    its id. So the window tells `ok` from the rest, and no other answer takes the place of an `ok`. A replay that says
    "again" runs whatever was answered. What runs is never run beside itself, by no kind of request.

    Of several requests with one id, the first that `ask` sees runs; each other is a duplicate, whose offset may be
    committed as done, with nothing published, before the one that runs is answered. That needs no rule of order,
    neither in a lane nor between them, since the id's answer hangs on the offset of the one that runs, and on that
    alone:

    - The worker dies with neither offset committed: the successor sees both again, in whatever order, and one runs.
    - It dies with the duplicate's offset committed alone: the other is not done, is read again, and runs.
    - The one that runs cannot be done without a result: both stand in one transaction, whatever the status is. From
      then on the id is in the window, which the successor reads back from the results, so that the duplicate, if it
      is read again, is found answered.
    - One of the lanes begins a new tenure: what ran from it is read again, unless it was committed, and then it is
      in the window. A duplicate that is read meanwhile runs in its place, and the other is the duplicate.

    What a crash does lose is who waited: the duplicate's reply address. It is had by asking again.
    """

    def __init__(self, window: int) -> None:
        """`window`: how many answered ids are remembered, at least; 0: none."""
        self._running: dict[str, Asked] = {}
        self._answered = RecentIds(window)
        self._places: list[tuple[str, int]] = []  # topics and partitions that results lie in: hardly ever two

    def remember(self, ids: Iterable[AnsweredId], topic: str, partition: int) -> None:
        """Fill the window, before anything is asked: the oldest first."""
        first = self._number_of((topic, partition), 0)
        self._answered.add_all(
            (request_id, self._entry(request_id, first + offset, ok=ok)) for request_id, offset, ok in ids
        )

    def ask(
        self,
        request_id: str,
        source: TopicPartition,
        offset: int,
        waiting: ReplyAddress | None,
        replay: Replay = "no",
    ) -> Asked | None:
        """Note an id. None: it is to run, or this very record runs already (its partition was read again).

        Otherwise what is known of the id, with `waiting` added while it runs.
        """
        running = self._running.get(request_id)
        if running is not None:
            if (running.source, running.offset) == (source, offset):
                return None
            if waiting is not None:
                running.waiting += (waiting,)
            return running
        entry = self._answered.find(request_id)
        if entry is not None and (replay == "no" or (replay == "unless_ok" and _is_ok(entry))):
            return Asked(None, -1, answered=True, place=self._place(entry >> 1))
        self._running[request_id] = Asked(source, offset)
        return None

    def answered(
        self,
        request_id: str,
        source: TopicPartition,
        offset: int,
        location: Location | None,
        status: Status = "ok",
    ) -> tuple[ReplyAddress, ...]:
        """The request at `offset` was answered; returns who asked for it again meanwhile.

        Nobody, if it was not this request that ran under the id but was refused before. A rejection is no answer to
        the id: a message that could not be served does not speak for one that can, which was sent before or after it.
        """
        running = self._running.get(request_id)
        if running is not None:
            if (running.source, running.offset) != (source, offset):
                return ()
            del self._running[request_id]
        if status != "rejected":
            self._answered.add(request_id, self._entry(request_id, self._number(location), ok=status == "ok"))
        return running.waiting if running else ()

    def forget(self, source: TopicPartition, in_transaction: Collection[int] = ()) -> None:
        """Nothing of this partition runs any more: it went, or began a new tenure. Who waited for it is dropped.

        But for the offsets whose results are in a transaction under way: if it is committed, they are answered, and a
        duplicate that another lane brings meanwhile must not run. To be called again without them if it was not.
        """
        gone = [
            request_id
            for request_id, asked in self._running.items()
            if asked.source == source and asked.offset not in in_transaction
        ]
        for request_id in gone:
            del self._running[request_id]

    def _entry(self, request_id: str, number: int, *, ok: bool) -> int:
        """What the window is to have of an answer that lies there: that of an `ok` which it knows, unless this is one.

        So a replay that fails after an `ok` does not make room for another replay.
        """
        if not ok:
            known = self._answered.find(request_id)
            if known is not None and _is_ok(known):
                return known
        return number << 1 | ok

    def _number(self, location: Location | None) -> int:
        return self._number_of((location.topic, location.partition), location.offset) if location else 0

    def _number_of(self, place: tuple[str, int], offset: int) -> int:
        """A location as one number above 0."""
        if place not in self._places:
            self._places.append(place)
        return self._places.index(place) << _OFFSET_BITS | (offset + 1)

    def _place(self, number: int) -> RecordLocation | None:
        if number == 0:
            return None
        topic, partition = self._places[number >> _OFFSET_BITS]
        return RecordLocation(topic, partition, (number & ((1 << _OFFSET_BITS) - 1)) - 1)


def _is_ok(entry: int) -> bool:
    return bool(entry & 1)
