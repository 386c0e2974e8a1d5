"""What the engine has room for, and which lane may have how much of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.schemas.messages import LANES

RESERVE = 16  # a sixteenth is kept for interactive
RESERVE_FROM = 4  # sequences; with fewer, a reserve of one would be too much
_BOUNDLESS = 1 << 60  # tokens, where nobody knows how many the KV cache holds


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine takes.

    `sequences` that one step takes, `kv_tokens` that its KV cache holds (None: not known, no limit), and `queued_ahead`
    sequences that may wait inside it for the next step.
    """

    sequences: int
    kv_tokens: int | None
    queued_ahead: int


class Need(NamedTuple):
    """What a request takes: sequences, and tokens, of its prompt and of all its completions together."""

    sequences: int
    tokens: int


class HeldUp(NamedTuple):
    """A lane whose turn it is: what its next request needs, and the outermost part that lacks room for it."""

    lane: int
    need: Need
    short_of: int


class Usage:
    """What is in flight, held against the parts of the room that lanes may fill.

    The parts lie in one another. Part 0 is all the room, part 1 what the lanes from `standard` on may fill together,
    part 2 what `backfill` may: a lane's requests count in its own part and in those around it. Lanes are given by
    their place in `LANES`.
    """

    def __init__(self, room: Room, backfill_share: float) -> None:
        if room.sequences < 1 or room.queued_ahead < 0 or (room.kv_tokens is not None and room.kv_tokens < 1):
            raise ValueError(f"there is no room to admit anything: {room}")
        if not 0 < backfill_share <= 1:
            raise ValueError(f"backfill_share is above 0 and at most 1; given: {backfill_share}")
        self._sequence_limits = _sequence_limits(room, backfill_share)
        self._token_limits = _token_limits(room.kv_tokens or _BOUNDLESS, backfill_share)
        self._sequences = [0] * len(LANES)  # by part
        self._tokens = [0] * len(LANES)  # by part

    @property
    def tokens(self) -> int:
        """Of all that is in flight."""
        return self._tokens[0]

    @property
    def full(self) -> bool:
        """Whether not even one more sequence has a place."""
        return self._sequences[0] >= self._sequence_limits[0]

    def add(self, lane: int, need: Need) -> None:
        """Count one in."""
        for part in range(lane + 1):
            self._sequences[part] += need.sequences
            self._tokens[part] += need.tokens

    def remove(self, lane: int, need: Need) -> None:
        """Count one out."""
        for part in range(lane + 1):
            self._sequences[part] -= need.sequences
            self._tokens[part] -= need.tokens

    def short_of(self, lane: int, need: Need) -> int | None:
        """The outermost part that lacks room for a request; None: there is room."""
        for part in range(lane + 1):
            sequences = self._sequences[part]
            if sequences == 0:
                break  # whatever the request's size, this part and those in it will never be emptier
            if (
                sequences + need.sequences > self._sequence_limits[part]
                or self._tokens[part] + need.tokens > self._token_limits[part]
            ):
                return part
        return None

    def may_pass(self, lane: int, need: Need, held_up: HeldUp) -> bool:
        """Whether a request may go before one whose turn it is and which lacks room.

        It may where it does not count in the part that lacks room; and where, in each part from that one on, all that
        is in flight from the lanes above the one held up still leaves room for that lane's own part, or for a request
        larger than it.
        """
        if lane < held_up.short_of:
            return True
        if lane > held_up.lane:
            return False
        own_sequences = max(self._sequence_limits[held_up.lane], held_up.need.sequences)
        own_tokens = max(self._token_limits[held_up.lane], held_up.need.tokens)
        for part in range(held_up.short_of, lane + 1):
            sequences = self._sequences[part] - self._sequences[held_up.lane] + need.sequences
            tokens = self._tokens[part] - self._tokens[held_up.lane] + need.tokens
            if sequences > self._sequence_limits[part] - own_sequences:
                return False
            if tokens > self._token_limits[part] - own_tokens:
                return False
        return True


def _sequence_limits(room: Room, backfill_share: float) -> tuple[int, int, int]:
    total = room.sequences + room.queued_ahead
    reserve = max(1, room.sequences // RESERVE) if room.sequences >= RESERVE_FROM else 0
    lower = total - reserve
    # Some may wait in the engine only where backfill may fill it: elsewhere a share of it is never without a place,
    # and there a place would stay empty for a step after each completion.
    ahead = room.queued_ahead if backfill_share == 1 else 0
    return total, lower, min(lower, max(1, int(room.sequences * backfill_share) + ahead))


def _token_limits(kv_tokens: int, backfill_share: float) -> tuple[int, int, int]:
    lower = max(1, kv_tokens - kv_tokens // RESERVE)
    return kv_tokens, lower, min(lower, max(1, int(kv_tokens * backfill_share)))
