"""The ids that were answered lately, in 16 bytes each. Pure.

An id is kept as its 64-bit hash, which Python keys anew in each process: that two of 50,000 ids are taken for one has a
chance of about one in ten thousand million, and nobody can make it happen from outside.
"""

from __future__ import annotations

from array import array

GENERATIONS = 3


class RecentIds:
    """The ids of at least the last `window` additions, each with a number of 0 or above.

    Three tables of open addressing take turns: the fullest is never more than three quarters full, and the oldest is
    emptied when its turn comes. Their memory is taken at the first id, so that it does not grow with the traffic.
    """

    def __init__(self, window: int) -> None:
        self._share = max(1, window // (GENERATIONS - 1))
        self._slots = 1 << (self._share * 4 // 3).bit_length()
        self._keys: list[array[int]] = []
        self._values: list[array[int]] = []
        self._count = 0  # in the newest table, which is the first

    def add(self, request_id: str, value: int) -> None:
        """Remember an id; what is remembered of it by now is replaced."""
        if not self._keys:
            self._keys = [self._empty() for _ in range(GENERATIONS)]
            self._values = [self._empty() for _ in range(GENERATIONS)]
        if self._count >= self._share:
            self._turn()
        key = _key(request_id)
        slot = self._slot(self._keys[0], key)
        self._count += self._keys[0][slot] == 0
        self._keys[0][slot] = key
        self._values[0][slot] = value

    def find(self, request_id: str) -> int | None:
        """The number that was last remembered with an id; None: it is not among the recent ones."""
        key = _key(request_id)
        for keys, values in zip(self._keys, self._values, strict=True):
            slot = self._slot(keys, key)
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

    def _slot(self, keys: array[int], key: int) -> int:
        """Where a key is, or would be."""
        slot = key & (self._slots - 1)
        while keys[slot] not in (0, key):
            slot = (slot + 1) & (self._slots - 1)
        return slot


def _key(request_id: str) -> int:
    return hash(request_id) or 1  # 0 marks an empty slot
