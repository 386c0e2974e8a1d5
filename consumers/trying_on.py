"""What a reading thread does until it is told to stop: it waits outages out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.schemas.errors import HeadraceError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable


def read_until(
    stop: threading.Event,
    read: Callable[[], None],
    *,
    failing: str,
    again_s: float,
    log: logging.Logger,
    level: int = logging.WARNING,
) -> None:
    """Call `read` until `stop` is set; it returns where it is to begin anew.

    `failing` says what is wrong where it raises, and `again_s` how long is waited then. What was not foreseen is waited
    out, too: a thread that ended would leave whoever relies on it waiting without a word.
    """
    while not stop.is_set():
        try:
            read()
        except HeadraceError as error:
            log.log(level, "%s, trying on: %s", failing, error)
            stop.wait(again_s)
        except Exception:
            log.exception("%s, trying on", failing)
            stop.wait(again_s)
