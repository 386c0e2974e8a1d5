"""The ids that were answered lately, in a table of fixed size. Pure.

An id is kept as its 64-bit hash, which Python keys anew in each process: that two of 50,000 ids are taken for one has a
chance of about one in ten thousand million, and nobody can make it happen from outside.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

GENERATIONS = 3


class RecentIds:
    """The ids of at least the last `window` additions, each with a number from 0 to 2**63 - 1. Window 0: none.

    Three tables of open addressing take turns: the fullest is never more than three quarters full, and the oldest is
    emptied when its turn comes. An id takes 16 bytes: its hash and its number. The memory of all three is taken at the
    first id, so that it does not grow with the traffic: 3 MB for 50,000 ids.
    """

    def __init__(self, window: int) -> None:
        self._keeps_none = window <= 0
        self._share = max(1, window // (GENERATIONS - 1))
        self._slots = 1 << (self._share * 4 // 3).bit_length()
        self._keys: list[array[int]] = []
        self._values: list[array[int]] = []
        self._count = 0  # in the newest table, which is the first

    def add(self, request_id: str, value: int) -> None:
        """Remember an id; what is remembered of it by now is replaced."""
        self.add_all([(request_id, value)])

    def add_all(self, ids: Iterable[tuple[str, int]]) -> None:
        """`add` for each, in this order: one call for a window of 50,000, of which a turn of the worker waits."""
        if self._keeps_none:
            return
        if not self._keys:
            self._keys = [self._empty() for _ in range(GENERATIONS)]
            self._values = [self._empty() for _ in range(GENERATIONS)]
        keys, values, mask = self._keys[0], self._values[0], self._slots - 1
        for request_id, value in ids:
            if self._count >= self._share:
                self._turn()
                keys, values = self._keys[0], self._values[0]
            key = _key(request_id)
            slot = key & mask
            while keys[slot] not in (0, key):
                slot = (slot + 1) & mask
            self._count += keys[slot] == 0
            keys[slot] = key
            values[slot] = value

    def find(self, request_id: str) -> int | None:
        """The number that was last remembered with an id; None: it is not among the recent ones."""
        key, mask = _key(request_id), self._slots - 1
        for keys, values in zip(self._keys, self._values, strict=True):
            slot = key & mask
            while keys[slot] not in (0, key):
                slot = (slot + 1) & mask
            if keys[slot] == key:
                return values[slot]
        return None

    def _turn(self) -> None:
        self._keys.pop()
        self._values.pop()
        self._keys.insert(0, self._empty())
        self._values.insert(0, self._empty())
        self._count = 0

    def _empty(self) -> array[int]:
        return array("q", bytes(8 * self._slots))


def _key(request_id: str) -> int:
    return hash(request_id) or 1  # 0 marks an empty slot
