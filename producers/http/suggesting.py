"""What somebody may have meant by a name that there is not."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from headrace.producers.http.refusing import shortened

if TYPE_CHECKING:
    from collections.abc import Collection

_CLOSE_ENOUGH = 0.75  # of difflib's ratio: `temprature`, `max_token`, `top_probs`; not `provider`
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def suggestion(name: str, known: Collection[str], *, within: str = "") -> tuple[str, str]:
    """The name as a `param`, below `within`, and a sentence with the known one that it looks like, or none."""
    place = f"{within}." if within else ""
    close = closest(name, known)
    return place + shortened(name), f"Did you mean '{place}{close}'?" if close else ""


def closest(name: str, known: Collection[str]) -> str | None:
    """The known name that this one looks like, whatever its letters' case and however its words are joined."""
    if len(name) > 2 * max(map(len, known), default=0):
        return None  # nor is it worth comparing
    snake = _WORD_BEGINS.sub("_", name.strip()).replace("-", "_").lower()
    joined = {each.replace("_", "").lower(): each for each in known}
    same = joined.get(snake.replace("_", ""))
    if same is not None:
        return same
    close = difflib.get_close_matches(snake, known, n=1, cutoff=_CLOSE_ENOUGH)
    return close[0] if close else None
