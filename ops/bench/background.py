"""Work that goes on beside a scenario, in a thread of its own, while its `with` block lasts."""

from __future__ import annotations

import abc
import threading
from typing import TYPE_CHECKING, Self

from headrace.schemas.errors import HeadraceError

if TYPE_CHECKING:
    from types import TracebackType


class Background(abc.ABC):
    """A thread from `with` to its end. `run` does the work until `over` is set."""

    def __init__(self, name: str) -> None:
        self.over = threading.Event()
        self._failure: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abc.abstractmethod
    def run(self) -> None:
        """The work. In the thread."""

    def stopping(self) -> None:  # noqa: B027
        """Called once `over` is set: makes a `run` that waits for something else look at it."""

    def stopped(self) -> None:  # noqa: B027
        """Called when the thread has ended: close what `run` used."""

    def check(self) -> None:
        """Raise what has ended the work before its time."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self.stopping()
        self._thread.join()
        self.stopped()
        if error is None:
            self.check()

    def _run(self) -> None:
        try:
            self.run()
        except HeadraceError as failure:
            self._failure = failure
