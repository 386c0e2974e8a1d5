"""The string that is committed beside an offset: the done set above it, the started mark, the suspects. Pure.

    h1;<mark - frontier>;<form><done set, base64url>;<CRC-32, 8 hex digits>
    h2;<mark - frontier>;<form><done set, base64url>;<suspects, base64url>;<CRC-32, 8 hex digits>
    h2;<mark - frontier>;<form><done set, base64url>;<CRC-32, 8 hex digits>

`h1` is written where there is no suspect and the mode is `open`: members of an older release read it. `h2`
says more: the mode, and the suspects if there are any.

A *hole* is an offset at or above the frontier that is not done and has a done offset above it; with a done
set that is not empty the frontier is the first hole. The done set has two forms:

runs: for each hole the number of done offsets between it and the next (after the last hole: the number of
done offsets there are), a LEB128 varint each. No done set: no bytes.
bitmap: a bit for each offset from frontier + 1 on, 1 for done, the lowest bit of a byte first, no zero byte
at the end.

The shorter is written, runs where they are equal. One letter tells form and mode:

            open    trial   alone
    runs    r       s       t
    bitmap  b       c       d

so that **`h2` without suspects is exactly as long as `h1`**: what fits as `h1` fits with any mode, and the
suspects take only what is left of the limit. Those that do not fit are left out (see `what_fits`), never
a part of the done set.

Suspects: the offsets that are not done are numbered from the frontier on (its number is 0), so that what is done among
them interrupts nothing. For each run of numbers with one and the same suspicion, three or four varints:
the numbers between the run before and this one, its length - 1, `(deaths - 1) * 4 + 2 * (alone > 0) +
on_trial`, and, where alone > 0, `alone - 1`.

The checksum covers the frontier too, so a string that was moved to another offset is refused. There is one
string for each state: what does not come out again letter for letter when it is encoded anew is refused.
The empty string is not ours: it stands for "nothing above the offset is done, and nothing was in flight".

**Runs never grow when a hole is done.** A hole's run of `a` and the next one's of `b` become
one of `a + 1 + b`, and size(a + 1 + b) <= size(a) + size(b): with sizes i and j, a + 1 + b <= 128**i +
128**j - 1, which is below 128**i * 128**j = 128**(i + j), since (128**i - 1) * (128**j - 1) > 0. Doing
the first hole drops its run, doing the last one merges as above. So what fits while all holes are open
fits whatever completes, in any order. By the same inequality a run of suspects that is left out never
makes the rest longer.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from headrace.consumers.suspect_encoding import (
    NotSuspects,
    read_suspects,
    runs_within,
    suspect_runs,
    written_runs,
)
from headrace.consumers.suspicion import MODES, Mode, Suspicion
from headrace.consumers.varints import NotNumbers, put_varint, read_varints, varint_size
from headrace.schemas.errors import OffsetsTooLong, UnreadableOffsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NEWEST_FORMAT = 2
END = 2**63 - 1  # Kafka's largest offset
FRAME = len("h1;") + len(str(END)) + len(";r") + len(";01234567")  # characters around the base64url, at most
SMALLEST_LIMIT = 64  # characters; leaves two holes at any distance from each other
NO_SUSPECTS: Mapping[int, Suspicion] = MappingProxyType({})
_RUNS, _BITMAP = "rst", "bcd"  # in the order of MODES
_FORM = re.compile(
    r"(h[12]);(0|[1-9][0-9]{0,18});([rstbcd])([A-Za-z0-9_-]*)(?:;([A-Za-z0-9_-]+))?;([0-9a-f]{8})", re.ASCII
)
_VERSION = re.compile(r"h([1-9][0-9]{0,8});", re.ASCII)


class Progress(NamedTuple):
    """What a commit says beside the frontier: the started mark, the done offsets above the frontier, the suspects.

    `done` is in ascending order; its ranges are neither empty nor adjacent, and begin above the frontier.
    `suspects` are at or above the frontier and not done, each with at least one death.
    """

    started: int
    done: tuple[range, ...] = ()
    suspects: Mapping[int, Suspicion] = NO_SUSPECTS
    mode: Mode = "open"


class RunSize(NamedTuple):
    """Bytes of the done set as runs, and the number of holes in it."""

    size: int
    holes: int


def payload_budget(limit: int) -> int:
    """Bytes of a done set that fit into a string of `limit` characters, whatever the mark and the mode."""
    return _decoded_length(limit - FRAME)


def run_size(frontier: int, done: Sequence[range]) -> RunSize:
    """The size of the done set as runs, without making them."""
    size = holes = 0
    end = frontier
    for run in done:
        size += run.start - end - 1 + varint_size(len(run))
        holes += run.start - end
        end = run.stop
    return RunSize(size, holes)


def bitmap_size(frontier: int, end: int) -> int:
    """Bytes of the bitmap for a done set whose last offset is `end - 1`."""
    return max(0, end - frontier - 1 + 7) // 8


def undone(frontier: int, done: Sequence[range], end: int) -> Iterator[range]:
    """What is not done from the frontier on and below `end`: ranges in ascending order, none empty."""
    start = frontier
    for run in done:
        if start >= end:
            return
        if run.start > start:
            yield range(start, min(run.start, end))
        start = run.stop
    if start < end:
        yield range(start, end)


def what_fits(frontier: int, progress: Progress, limit: int, newest_format: int) -> Progress:
    """The part of this state that a string of `limit` characters can say, in a format up to the newest one.

    The done set and the mark always stay. Format 1 has neither suspects nor a mode. Where not all suspects
    fit, whole runs are left out, the least suspected first: those on trial stay longest, then those with
    the most deaths, and of two alike the one nearer to the frontier.
    """
    if newest_format < 2:
        return progress._replace(suspects=NO_SUSPECTS, mode="open")
    if not progress.suspects:
        return progress
    done = progress.done
    size = min(run_size(frontier, done).size, bitmap_size(frontier, done[-1].stop)) if done else 0
    fixed = len("h2;") + len(str(progress.started - frontier)) + len(";r") + len(";") + len(";01234567")
    runs = suspect_runs(progress.suspects, frontier, done)
    kept = runs_within(runs, _decoded_length(limit - fixed - _encoded_length(size)))
    if len(kept) == len(runs):
        return progress
    return progress._replace(suspects={offset: run.suspicion for run in kept for offset in run.offsets})


def encode(frontier: int, progress: Progress, limit: int) -> str:
    """The string for this state. Raises OffsetsTooLong when it has more than `limit` characters."""
    done = progress.done
    runs = run_size(frontier, done).size
    bits = bitmap_size(frontier, done[-1].stop) if done else 0
    if min(runs, bits) > limit:  # checked before anything of that size is made
        raise _too_long(frontier, _encoded_length(min(runs, bits)), limit)
    letters, payload = (_RUNS, _runs(frontier, done)) if runs <= bits else (_BITMAP, _bitmap(frontier, done))
    version = "h2" if progress.suspects or progress.mode != "open" else "h1"
    letter = letters[MODES.index(progress.mode)]
    body = f"{version};{progress.started - frontier};{letter}{_base64(payload)}"
    if progress.suspects:
        body += f";{_base64(written_runs(suspect_runs(progress.suspects, frontier, done)))}"
    encoded = f"{body};{_checksum(frontier, body)}"
    if len(encoded) > limit:
        raise _too_long(frontier, len(encoded), limit)
    return encoded


def decode(metadata: str, frontier: int, limit: int) -> Progress:
    """What a committed string says. Raises UnreadableOffsets for any that `encode` would not have written."""
    if metadata == "":
        return Progress(started=frontier)
    version = _VERSION.match(metadata)
    if version is not None and int(version[1]) > NEWEST_FORMAT:
        raise _unreadable(
            f"a newer release of Headrace wrote it (format h{version[1]}, this one reads up to h{NEWEST_FORMAT}); "
            "run that release"
        )
    if len(metadata) > limit:
        raise _unreadable(f"{len(metadata)} characters, more than {limit}")
    match = _FORM.fullmatch(metadata)
    if match is None:
        raise _unreadable("not of the form h1;<mark>;<done set>;<checksum> or h2;...")
    _, ahead, letter, done_set, suspects, checksum = match.groups()
    if _checksum(frontier, metadata.rpartition(";")[0]) != checksum:
        raise _unreadable(f"its checksum is not that of this string at offset {frontier}")
    try:
        progress = _read(frontier, frontier + int(ahead), letter, done_set, suspects)
    except (NotNumbers, NotSuspects) as error:
        raise _unreadable(str(error)) from None
    if encode(frontier, progress, limit) != metadata:
        raise _unreadable("it is not the one string for what it says")
    return progress


def _read(frontier: int, mark: int, letter: str, done_set: str, suspects: str | None) -> Progress:
    read = _read_runs if letter in _RUNS else _read_bitmap
    done = tuple(read(frontier, _bytes(done_set)))
    if mark > END or (done and done[-1].stop > END):
        raise _unreadable("it reaches beyond the largest offset")
    mode = MODES[(_RUNS if letter in _RUNS else _BITMAP).index(letter)]
    if not suspects:
        return Progress(mark, done, mode=mode)
    return Progress(mark, done, read_suspects(_bytes(suspects), undone(frontier, done, END)), mode)


def _runs(frontier: int, done: Sequence[range]) -> bytes:
    payload = bytearray()
    end = frontier
    for run in done:
        payload += bytes(run.start - end - 1)  # holes next to each other: no done offset between them
        put_varint(payload, len(run))
        end = run.stop
    return bytes(payload)


def _read_runs(frontier: int, payload: bytes) -> Iterator[range]:
    hole = frontier
    for number in read_varints(payload):
        if number:
            yield range(hole + 1, hole + 1 + number)
        hole += 1 + number


def _bitmap(frontier: int, done: Sequence[range]) -> bytes:
    digits: list[str] = []
    end = frontier + 1
    for run in done:
        digits += "0" * (run.start - end), "1" * len(run)
        end = run.stop
    bits = "".join(digits)
    return int(bits[::-1], 2).to_bytes(-(-len(bits) // 8), "little")


def _read_bitmap(frontier: int, payload: bytes) -> Iterator[range]:
    bits = f"{int.from_bytes(payload, 'little'):b}"[::-1]
    for ones in re.finditer("1+", bits):
        yield range(frontier + 1 + ones.start(), frontier + 1 + ones.end())


def _base64(payload: bytes) -> str:
    return base64.urlsafe_b64encode(payload).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """What is in base64url without its padding; no bytes where it can be none."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if len(text) % 4 != 1 else b""


def _encoded_length(size: int) -> int:
    """Characters of `size` bytes in base64url."""
    return -(-size * 4 // 3)


def _decoded_length(characters: int) -> int:
    """Bytes that base64url of so many characters can hold."""
    return max(0, characters * 3 // 4)


def _checksum(frontier: int, body: str) -> str:
    return f"{zlib.crc32(f'{frontier};{body}'.encode()):08x}"


def _unreadable(why: str) -> UnreadableOffsets:
    return UnreadableOffsets(f"the metadata of a committed offset cannot be read: {why}")


def _too_long(frontier: int, length: int, limit: int) -> OffsetsTooLong:
    return OffsetsTooLong(
        f"what is done above offset {frontier} takes {length} characters of {limit}: "
        "an offset was polled for which there was no room"
    )
