"""How many rows may be asked about now: by what is outstanding and by what waits in the lane. Pure."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_TARGET = 256  # rows outstanding where nothing is known of the fleet
MOST_TARGET = (
    20_000  # rows: their requests, their places and, half of the time, their answers are held in memory
)
CAPACITIES = 4  # times what the fleet has in its engines: the next requests lie ready when one is answered
SECONDS_AHEAD = 10.0  # of answers at the present rate: a look at the lane is up to a second old


@dataclass(frozen=True, slots=True)
class Lane:
    """What is seen of the lane and of the group that serves it.

    `ahead`: requests of everybody that are not done. `capacity`: requests that the group's engines take at a time; 0:
    nobody serves it now, or it is not known yet. `rate`: answers to this job a second.
    """

    ahead: int
    capacity: int
    rate: float


def target(lane: Lane) -> int:
    """How many rows are to be outstanding so that no engine waits for the next."""
    wanted = max(LEAST_TARGET, CAPACITIES * lane.capacity, int(lane.rate * SECONDS_AHEAD))
    return min(MOST_TARGET, wanted)


def room(lane: Lane, outstanding: int) -> int:
    """How many more rows may be asked about.

    Others' requests in the lane count too: beyond twice the target nothing is added, whoever's it is, but for as much
    as keeps this job served beside them.
    """
    wanted = target(lane)
    least = min(wanted, max(LEAST_TARGET, lane.capacity))
    free_in_lane = 2 * wanted - max(lane.ahead, outstanding)
    allowed = max(free_in_lane, least - outstanding)
    return max(0, min(wanted - outstanding, allowed))
