"""One request of a key at a time, and those of a partition in the order of their offsets. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from headrace.consumers.records import TopicPartition
from headrace.workers.work import Work

Tenant = str | None  # requests without a tenant are one tenant like another


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits to be admitted.

    `prompt` is an estimate in tokens; `max_tokens` is of each of its `sequences`, None where nobody set it.
    """

    work: Work
    lane: int  # its place in LANES
    tenant: Tenant
    arrival: int  # the how-manieth that was offered
    sequences: int
    prompt: int
    max_tokens: int | None
    line: KeyLine | None = None  # None: it has no key that orders it
    queued: bool = False  # in the queue of its lane; else it is behind another request of its key
    gone: bool = False  # admitted, taken back or expired

    @property
    def ready(self) -> bool:
        """Whether it may be the next of its lane, as far as its key is concerned."""
        if self.gone:
            return False
        if self.line is None:
            return True
        if self.line.first(self.work.source) is not self:
            return False
        # What runs alone waits until nothing at all is in flight, its key included.
        return self.work.alone or not self.line.in_flight


class KeyLine:
    """The requests of one key that wait, by partition, and whether one of the key is in flight."""

    __slots__ = ("_waiting", "in_flight", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.in_flight = False
        self._waiting: dict[TopicPartition, list[tuple[int, int, Waiting]]] = {}

    def add(self, waiting: Waiting) -> None:
        """Put one into its place: by offset, whenever it was offered."""
        entry = (waiting.work.offset, waiting.arrival, waiting)
        heapq.heappush(self._waiting.setdefault(waiting.work.source, []), entry)

    def first(self, source: TopicPartition) -> Waiting | None:
        """The lowest offset of the key that waits in a partition."""
        waiting = self._waiting.get(source, [])
        while waiting and waiting[0][2].gone:
            heapq.heappop(waiting)
        return waiting[0][2] if waiting else None

    def heads(self) -> list[Waiting]:
        """The first of each partition. A partition where none waits is forgotten."""
        found: list[Waiting] = []
        for source in list(self._waiting):
            head = self.first(source)
            if head is None:
                del self._waiting[source]
            else:
                found.append(head)
        return found

    def sweep(self) -> None:
        """Let go of everything that is gone."""
        for source, waiting in self._waiting.items():
            kept = [entry for entry in waiting if not entry[2].gone]
            heapq.heapify(kept)
            self._waiting[source] = kept
