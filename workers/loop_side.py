"""What the consumer thread tells the loop, carried over to the loop's thread in order. See `workers.moving.Loop`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.consumers.records import TopicPartition
from headrace.workers.requests import Requests
from headrace.workers.work import Work


class LoopSide:
    """`call` runs a function on the loop."""

    def __init__(self, call: Callable[[Callable[[], None]], None], requests: Requests) -> None:
        self._call = call
        self._requests = requests

    def deliver(self, works: list[Work]) -> None:
        self._call(lambda: self._requests.accept(works))

    def drop(self, lost: frozenset[TopicPartition]) -> None:
        self._call(lambda: self._requests.drop(lost))

    def hold(self, units: frozenset[int]) -> None:
        self._call(lambda: self._requests.hold(units))

    def abort(self, units: frozenset[int]) -> None:
        self._call(lambda: self._requests.abort(units))
