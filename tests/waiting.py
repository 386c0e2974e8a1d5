"""Waiting for a condition: the only way in which a test waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02


def wait_until(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """Call `condition` until it returns something true, and return that; else fail, naming `what`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}; last seen: {value!r}")
        time.sleep(POLL_S)
    return value
