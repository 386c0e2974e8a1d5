"""Suspects as bytes: runs of offsets that are not done and have the same suspicion. Pure.

The format stands in `offset_encoding`. An offset's *number* counts the offsets that are not done from the frontier on
and below it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.consumers.suspicion import Suspicion
from headrace.consumers.varints import put_varint, read_varints, varint_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# More than can be outstanding with 65,536 characters of metadata; a forged string must not fill the memory.
MOST_SUSPECTS = 2**19
MOST_DEATHS = 2**31


class NotSuspects(Exception):
    """These bytes name no suspects."""


class SuspectRun(NamedTuple):
    """Suspects whose numbers follow each other, with one and the same suspicion."""

    first: int  # the number of the first one
    offsets: list[int]  # ascending
    suspicion: Suspicion


def suspect_runs(suspects: Mapping[int, Suspicion], frontier: int, done: Sequence[range]) -> list[SuspectRun]:
    """The longest runs of these suspects, in ascending order."""
    runs: list[SuspectRun] = []
    done_below = at = 0
    for offset in sorted(suspects):
        while at < len(done) and done[at].stop <= offset:
            done_below += len(done[at])
            at += 1
        number, suspicion = offset - frontier - done_below, suspects[offset]
        last = runs[-1] if runs else None
        if last and last.suspicion == suspicion and last.first + len(last.offsets) == number:
            last.offsets.append(offset)
        else:
            runs.append(SuspectRun(number, [offset], suspicion))
    return runs


def runs_within(runs: list[SuspectRun], budget: int) -> list[SuspectRun]:
    """The most suspected of the runs, as many as `budget` bytes and MOST_SUSPECTS hold; in ascending order."""
    if _fit(runs, budget):
        return runs
    by_suspicion = sorted(runs, key=_least_suspected_last)
    fitting, too_many = 0, len(runs)
    while too_many - fitting > 1:  # one run more never makes it shorter, so halving finds the bound
        tried = (fitting + too_many) // 2
        if _fit(sorted(by_suspicion[:tried]), budget):
            fitting = tried
        else:
            too_many = tried
    return sorted(by_suspicion[:fitting])


def written_runs(runs: list[SuspectRun]) -> bytes:
    """The bytes of these runs."""
    payload = bytearray()
    for number in _numbers(runs):
        put_varint(payload, number)
    return bytes(payload)


def read_suspects(payload: bytes, undone: Iterable[range]) -> dict[int, Suspicion]:
    """The suspects in `payload`, ascending; `undone`: the offsets that are not done, from the frontier on.

    Raises NotSuspects, and NotNumbers where it is no sequence of numbers.
    """
    left = deque(undone)
    suspects: dict[int, Suspicion] = {}
    numbers = read_varints(payload)
    for skipped in numbers:
        length, kind = _next(numbers) + 1, _next(numbers)
        alone = _next(numbers) + 1 if kind & 2 else 0
        suspicion = Suspicion((kind >> 2) + 1, alone, bool(kind & 1))
        if not alone <= suspicion.deaths <= MOST_DEATHS:
            raise NotSuspects("it tells of deaths that cannot have been")
        if len(suspects) + length > MOST_SUSPECTS:
            raise NotSuspects(f"it names more than {MOST_SUSPECTS} suspects")
        for _ in _take(left, skipped):
            pass
        for offsets in _take(left, length):
            suspects.update(dict.fromkeys(offsets, suspicion))
    return suspects


def _least_suspected_last(run: SuspectRun) -> tuple[bool, int, int, int]:
    deaths, alone, on_trial = run.suspicion
    return not on_trial, -deaths, -alone, run.first


def _fit(runs: list[SuspectRun], budget: int) -> bool:
    suspects = sum(len(run.offsets) for run in runs)
    return suspects <= MOST_SUSPECTS and sum(map(varint_size, _numbers(runs))) <= budget


def _numbers(runs: list[SuspectRun]) -> Iterator[int]:
    end = 0
    for first, offsets, (deaths, alone, on_trial) in runs:
        yield first - end
        yield len(offsets) - 1
        yield (deaths - 1) * 4 + 2 * (alone > 0) + on_trial
        if alone:
            yield alone - 1
        end = first + len(offsets)


def _next(numbers: Iterator[int]) -> int:
    number = next(numbers, None)
    if number is None:
        raise NotSuspects("it ends within a run of suspects")
    return number


def _take(left: deque[range], count: int) -> Iterator[range]:
    """Take the first `count` offsets away from what is left."""
    while count:
        if not left:
            raise NotSuspects("its suspects reach beyond the largest offset")
        first = left.popleft()
        if len(first) > count:
            left.appendleft(first[count:])
        yield first[:count]
        count -= min(count, len(first))
