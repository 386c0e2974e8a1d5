"""The string that is committed beside an offset: the done set above it and the started mark. Pure.

    h1;<started mark - frontier>;r<done runs, base64url>;<CRC-32, 8 hex digits>
    h1;<started mark - frontier>;b<bitmap, base64url>;<CRC-32, 8 hex digits>

`h1` is the version. A *hole* is an offset at or above the frontier that is not done and has a done offset
above it; with a done set that is not empty the frontier is the first hole. The two forms of the done set:

`r`: for each hole the number of done offsets between it and the next (after the last hole: the number of
done offsets there are), a LEB128 varint each. No done set: no bytes.
`b`: a bit for each offset from frontier + 1 on, 1 for done, the lowest bit of a byte first, no zero byte
at the end.

The shorter is written, `r` where they are equal. The checksum covers the frontier too, so a string that
was moved to another offset is refused. There is one string for each state: what does not come out again
letter for letter when it is encoded anew is refused. The empty string is not ours: it stands for "nothing
above the offset is done".

**The size of `r` never grows when a hole is done.** A hole's run of `a` and the next one's of `b` become
one of `a + 1 + b`, and size(a + 1 + b) <= size(a) + size(b): with sizes i and j, a + 1 + b <= 128**i +
128**j - 1, which is below 128**i * 128**j = 128**(i + j), since (128**i - 1) * (128**j - 1) > 0. Doing
the first hole drops its run, doing the last one merges as above. So what fits while all holes are open
fits whatever completes, in any order.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import TYPE_CHECKING, NamedTuple

from headrace.schemas.errors import OffsetsTooLong, UnreadableOffsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

END = 2**63 - 1  # Kafka's largest offset
LARGEST_VARINT = 9  # bytes of a number up to END
FRAME = len("h1;") + len(str(END)) + len(";r") + len(";01234567")  # characters around the base64url, at most
SMALLEST_LIMIT = 64  # characters; leaves two holes at any distance from each other
_FORM = re.compile(r"h1;(0|[1-9][0-9]{0,18});([rb])([A-Za-z0-9_-]*);([0-9a-f]{8})", re.ASCII)


class Progress(NamedTuple):
    """What a commit says beside the frontier: the started mark, and the done offsets above the frontier.

    `done` is in ascending order; its ranges are neither empty nor adjacent, and begin above the frontier.
    """

    started: int
    done: tuple[range, ...] = ()


class RunSize(NamedTuple):
    """Bytes of the form `r`, and the number of holes in it."""

    size: int
    holes: int


def payload_budget(limit: int) -> int:
    """Bytes of a form that fit into a string of `limit` characters, whatever the started mark."""
    return (limit - FRAME) * 3 // 4


def varint_size(number: int) -> int:
    """Bytes of `number` as a varint."""
    return max(1, -(-number.bit_length() // 7))


def run_size(frontier: int, done: Sequence[range]) -> RunSize:
    """The size of the form `r`, without making it."""
    size = holes = 0
    end = frontier
    for run in done:
        size += run.start - end - 1 + varint_size(len(run))
        holes += run.start - end
        end = run.stop
    return RunSize(size, holes)


def bitmap_size(frontier: int, end: int) -> int:
    """Bytes of the form `b` for a done set whose last offset is `end - 1`."""
    return max(0, end - frontier - 1 + 7) // 8


def encode(frontier: int, progress: Progress, limit: int) -> str:
    """The string for this state. Raises OffsetsTooLong when it has more than `limit` characters."""
    done = progress.done
    runs = run_size(frontier, done).size
    bits = bitmap_size(frontier, done[-1].stop) if done else 0
    if min(runs, bits) > limit:  # checked before anything of that size is made
        raise _too_long(frontier, min(runs, bits) * 4 // 3, limit)
    form, payload = ("r", _runs(frontier, done)) if runs <= bits else ("b", _bitmap(frontier, done))
    text = base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
    body = f"h1;{progress.started - frontier};{form}{text}"
    encoded = f"{body};{_checksum(frontier, body)}"
    if len(encoded) > limit:
        raise _too_long(frontier, len(encoded), limit)
    return encoded


def decode(metadata: str, frontier: int, limit: int) -> Progress:
    """What a committed string says. Raises UnreadableOffsets for any that `encode` would not have written."""
    if metadata == "":
        return Progress(started=frontier)
    if len(metadata) > limit:
        raise _unreadable(f"{len(metadata)} characters, more than {limit}")
    match = _FORM.fullmatch(metadata)
    if match is None:
        raise _unreadable("not of the form h1;<mark>;<done set>;<checksum>")
    ahead, form, text, checksum = match.groups()
    if _checksum(frontier, metadata.rpartition(";")[0]) != checksum:
        raise _unreadable(f"its checksum is not that of this string at offset {frontier}")
    payload = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if len(text) % 4 != 1 else b""
    read = _read_runs if form == "r" else _read_bitmap
    progress = Progress(started=frontier + int(ahead), done=tuple(read(frontier, payload)))
    if progress.started > END or (progress.done and progress.done[-1].stop > END):
        raise _unreadable("it reaches beyond the largest offset")
    if encode(frontier, progress, limit) != metadata:
        raise _unreadable("it is not the one string for what it says")
    return progress


def _runs(frontier: int, done: Sequence[range]) -> bytes:
    payload = bytearray()
    end = frontier
    for run in done:
        payload += bytes(run.start - end - 1)  # holes next to each other: no done offset between them
        number = len(run)
        while number > 0x7F:
            payload.append(number & 0x7F | 0x80)
            number >>= 7
        payload.append(number)
        end = run.stop
    return bytes(payload)


def _read_runs(frontier: int, payload: bytes) -> Iterator[range]:
    hole = frontier
    number = shift = 0
    for byte in payload:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 7 * LARGEST_VARINT:
            raise _unreadable("a number in it is too long")
        if byte & 0x80:
            continue
        if number:
            yield range(hole + 1, hole + 1 + number)
        hole += 1 + number
        number = shift = 0
    if shift:
        raise _unreadable("it ends within a number")


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


def _checksum(frontier: int, body: str) -> str:
    return f"{zlib.crc32(f'{frontier};{body}'.encode()):08x}"


def _unreadable(why: str) -> UnreadableOffsets:
    return UnreadableOffsets(f"the metadata of a committed offset cannot be read: {why}")


def _too_long(frontier: int, length: int, limit: int) -> OffsetsTooLong:
    return OffsetsTooLong(
        f"what is done above offset {frontier} takes {length} characters of {limit}: "
        "an offset was polled for which there was no room"
    )
