"""How far a long read is, on standard error: a live line on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LIVE_S = 0.2  # between two states of a live line
FIRST_AFTER_S = 5.0  # of a log: what takes less says nothing; then a line each
EVERY_S = 10.0
ERASE = "\r\x1b[K"


class ReadingLine:
    """Call it with what is read, how many offsets of it are behind, and of how many."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._next_at = time.monotonic() + (LIVE_S if self._live else FIRST_AFTER_S)
        self._shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + (LIVE_S if self._live else EVERY_S)
        text = f"{what}: {done:,} of {total:,} offsets"
        self._stream.write(f"{ERASE}{text}" if self._live else f"{text}\n")
        self._stream.flush()
        self._shown = self._live

    def clear(self) -> None:
        """Take the live line away, before anything else is printed."""
        if self._shown:
            self._stream.write(ERASE)
            self._stream.flush()
            self._shown = False
