"""What happened when: a log of faults that a person can read."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Event:
    """One line. `in_flight`: requests that the target was working on just before; None where that is no question."""

    seconds: float  # since the timeline began
    what: str
    target: str
    text: str
    in_flight: int | None = None

    def line(self) -> str:
        """The event in columns."""
        busy = "" if self.in_flight is None else f"{self.in_flight} in flight"
        return f"{self.seconds:7.1f} s  {self.what:<16} {self.target:<9} {busy:<13} {self.text}".rstrip()


class Timeline:
    """Events in order, kept in memory and, where there is a `path`, in a file. From any thread.

    `show` is called with each, in the thread that noted it.
    """

    def __init__(self, path: Path | None = None, *, show: Callable[[Event], None] = lambda _: None) -> None:
        self._path = path
        self._show = show
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.events: list[Event] = []

    def begin(self) -> None:
        """Count from now on."""
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def note(self, what: str, target: str = "", text: str = "", *, in_flight: int | None = None) -> Event:
        """Add an event that happens now."""
        with self._lock:
            event = Event(self.seconds, what, target, text, in_flight)
            self.events.append(event)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(event.line() + "\n")
            self._show(event)
        return event
