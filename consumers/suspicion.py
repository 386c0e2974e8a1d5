"""Which requests may be the ones that kill their engine: deaths counted for each offset. Pure.

A *death* is that of an engine, or of a worker that vanished without a word. Everything that was in flight at
it is a suspect: an offset that is not done and has deaths. From the second death on a suspect is held back, until a
trial: then chosen suspects are handed to the engine again, and a death during the trial is held against them alone.

A worker's mode says how its deaths are to be counted; it is committed beside the offsets, since a
successor must count a death that its predecessor did not live to count:

`open`    no trial. Whatever was in flight gets a death, except what was held back (two deaths
          or more, and not on trial).
`trial`   some suspects are on trial beside ordinary requests. Those on trial get a death, the bystanders none.
`alone`   one suspect has the engine to itself. It gets a death; where the cause is unknown, one more of those
          at which it was alone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Mode = Literal["open", "trial", "alone"]
MODES: tuple[Mode, ...] = ("open", "trial", "alone")

HELD_BACK_FROM = 2  # deaths: a first one suspects nobody, since machines vanish for reasons of their own


class Suspicion(NamedTuple):
    """What is held against an offset that is not done."""

    deaths: int = 0  # of an engine, or of a worker without a word, at which it was in flight
    alone: int = 0  # those of them, of unknown cause, at which it was alone in the engine
    on_trial: bool = False


UNSUSPECTED = Suspicion()


def is_counted(before: Suspicion, mode: Mode) -> bool:
    """Whether a death in `mode` is held against an offset that was, or may have been, in flight."""
    if mode == "open":
        return before.on_trial or before.deaths < HELD_BACK_FROM
    return before.on_trial


def one_more_death(before: Suspicion, *, alone: bool) -> Suspicion:
    """The suspicion after a death; `alone`: of unknown cause, and nothing else was in the engine."""
    return before._replace(deaths=before.deaths + 1, alone=before.alone + alone)
