"""The windows of recent ids of all units that a worker serves. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headrace.consumers.records import AnsweredId, TopicPartition
from headrace.schemas.messages import Location
from headrace.workers.asked import Asked, AskedIds
from headrace.workers.batch import Batch
from headrace.workers.work import Completion, Replay, ReplyAddress


class UnitWindows:
    """`AskedIds` by unit: one for each whose latest results were read back."""

    def __init__(self, window: int) -> None:
        """`window`: how many answered ids are remembered in each, at least."""
        self._window = window
        self._asked: dict[int, AskedIds] = {}

    def __contains__(self, unit: object) -> bool:
        return unit in self._asked

    def open(self, unit: int, ids: Iterable[AnsweredId], topic: str) -> None:
        """Begin a unit's window with the ids of its latest results, in that partition of `topic`."""
        self._asked[unit] = AskedIds(self._window)
        self._asked[unit].remember(ids, topic, unit)

    def ask(
        self,
        source: TopicPartition,
        request_id: str,
        offset: int,
        waiting: ReplyAddress | None,
        replay: Replay = "no",
    ) -> Asked | None:
        """Note a request's id. If it was seen before: what is known of it, with `waiting` added while it runs."""
        return self._asked[source.partition].ask(request_id, source, offset, waiting, replay)

    def revoked(
        self, source: TopicPartition, left: Collection[TopicPartition], in_transaction: Batch | None
    ) -> None:
        """A partition has gone. `left`: those that have not."""
        unit = source.partition
        if unit not in self._asked:
            return
        if any(other.partition == unit for other in left):
            under_way = in_transaction.completions if in_transaction else ()
            self._asked[unit].forget(source, [each.offset for each in under_way if each.source == source])
        else:
            del self._asked[unit]  # another owner may answer what this window does not know of then

    def answered(
        self, completions: Sequence[Completion], locations: Sequence[Location | None]
    ) -> list[tuple[Completion, ReplyAddress, Location | None]]:
        """These are committed, with their results at these places: who asked again meanwhile, and is to be told now.

        Of a tenure that has ended too, as long as the unit is ours: the result is there, whoever has its offset now.
        """
        to_tell: list[tuple[Completion, ReplyAddress, Location | None]] = []
        for completion, location in zip(completions, locations, strict=True):
            asked = self._asked.get(completion.source.partition)
            if asked is None or completion.request_id is None or completion.result is None:
                continue  # without a result it is a duplicate: the first with this id is the answer
            place = completion.request_id, completion.source, completion.offset
            to_tell += [
                (completion, address, location)
                for address in asked.answered(*place, location, completion.result.status)
            ]
        return to_tell

    def not_answered(self, dropped: Iterable[Completion]) -> None:
        """These were not committed, and their partitions are not ours any more."""
        for each in dropped:
            if each.source.partition in self._asked:
                self._asked[each.source.partition].forget(each.source)
