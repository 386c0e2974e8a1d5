"""Deliberate bugs in consumers/offsets.py and its encoding: the properties must find every one.

Each is a function of pytest's monkeypatch that changes one thing for the duration of a test, and names the
property that finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import CommitPoint

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, tuple[str, Bug]] = {}  # name: (the property that finds it, the bug)


def found_by(law: str) -> Callable[[Bug], Bug]:
    def register(apply: Bug) -> Bug:
        BUGS[apply.__name__] = law, apply
        return apply

    return register


def _replace(patch: pytest.MonkeyPatch, name: str, value: object) -> None:
    patch.setattr(PartitionOffsets, name, value)


# --- completions ---


@found_by("tenures")
def a_completion_of_another_tenure_counts(patch: pytest.MonkeyPatch) -> None:
    done = PartitionOffsets.done
    _replace(patch, "done", lambda self, offset, epoch: done(self, offset, self.epoch))


@found_by("tenures")
def a_second_completion_counts(patch: pytest.MonkeyPatch) -> None:
    done = PartitionOffsets.done
    _replace(patch, "done", lambda self, offset, epoch: done(self, offset, epoch) or offset < self.position)


@found_by("tenures")
def a_completion_finishes_all_before_it(patch: pytest.MonkeyPatch) -> None:
    def done(self: PartitionOffsets, offset: int, epoch: int) -> bool:
        known = epoch == self.epoch and offset in self._outstanding
        for below in [open_ for open_ in self._outstanding if open_ <= offset and known]:
            del self._outstanding[below]
        return known

    _replace(patch, "done", done)


# --- frontier and position ---


@found_by("tenures")
def the_frontier_is_the_last_hole(patch: pytest.MonkeyPatch) -> None:
    _replace(
        patch,
        "frontier",
        property(lambda self: next(reversed(self._outstanding)) if self._outstanding else self.position),
    )


@found_by("tenures")
def the_position_is_committed(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "frontier", property(lambda self: self.position))


@found_by("tenures")
def the_frontier_is_one_too_high(patch: pytest.MonkeyPatch) -> None:
    frontier = PartitionOffsets.frontier.fget
    assert frontier
    _replace(patch, "frontier", property(lambda self: frontier(self) + bool(self._outstanding)))


@found_by("tenures")
def markers_are_not_passed(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "advance", lambda self, position: None)


@found_by("tenures")
def an_advance_forgets_what_is_outstanding(patch: pytest.MonkeyPatch) -> None:
    advance = PartitionOffsets.advance
    _replace(patch, "advance", lambda self, position: (self._outstanding.clear(), advance(self, position))[1])


# --- recovery ---


@found_by("tenures")
def what_was_done_is_polled_again(patch: pytest.MonkeyPatch) -> None:
    def polled(self: PartitionOffsets, offset: int) -> bool:
        self._recovered.clear()
        return original(self, offset)

    original = PartitionOffsets.polled
    _replace(patch, "polled", polled)


@found_by("checked_tenures")
def what_is_not_polled_again_is_not_committed_again(patch: pytest.MonkeyPatch) -> None:
    def done_above(self: PartitionOffsets, frontier: int) -> Iterator[range]:
        return (run for run in original(self, frontier) if run.start < self.position)

    original = PartitionOffsets._done_above
    _replace(patch, "_done_above", done_above)


@found_by("tenures")
def recovered_runs_are_one_too_long(patch: pytest.MonkeyPatch) -> None:
    decode = offset_encoding.decode

    def longer(metadata: str, frontier: int, limit: int) -> Progress:
        progress = decode(metadata, frontier, limit)
        return progress._replace(done=tuple(range(run.start, run.stop + 1) for run in progress.done))

    patch.setattr(offset_encoding, "decode", longer)


@found_by("mutation")
def unreadable_metadata_counts_as_empty(patch: pytest.MonkeyPatch) -> None:
    decode = offset_encoding.decode

    def lenient(metadata: str, frontier: int, limit: int) -> Progress:
        try:
            return decode(metadata, frontier, limit)
        except offset_encoding.UnreadableOffsets:
            return Progress(started=frontier)

    patch.setattr(offset_encoding, "decode", lenient)


# --- the done set ---


@found_by("tenures")
def what_is_done_after_the_last_hole_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def done_above(self: PartitionOffsets, frontier: int) -> Iterator[range]:
        last = next(reversed(self._outstanding), frontier)
        return (run for run in original(self, frontier) if run.start <= last)

    original = PartitionOffsets._done_above
    _replace(patch, "_done_above", done_above)


@found_by("tenures")
def the_first_done_run_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = PartitionOffsets._done_above
    _replace(patch, "_done_above", lambda self, frontier: iter(list(original(self, frontier))[1:]))


@found_by("round_trip")
def the_bitmap_begins_at_the_frontier(patch: pytest.MonkeyPatch) -> None:
    bitmap = offset_encoding._bitmap
    patch.setattr(offset_encoding, "_bitmap", lambda frontier, done: bitmap(frontier - 1, done))


@found_by("mutation")
def the_checksum_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offset_encoding, "_checksum", lambda frontier, body: "00000000")


@found_by("round_trip")
def empty_runs_are_not_written(patch: pytest.MonkeyPatch) -> None:
    def runs(frontier: int, done: tuple[range, ...]) -> bytes:
        return bytes(len(run) for run in done if len(run) < 128) if done else b""

    patch.setattr(offset_encoding, "_runs", runs)


# --- the started mark ---


@found_by("tenures")
def the_started_mark_is_what_was_started_last(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "start", lambda self, offset: setattr(self, "_started", offset + 1))


@found_by("tenures")
def the_started_mark_is_one_too_low(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "start", lambda self, offset: setattr(self, "_started", max(self._started, offset)))


@found_by("tenures")
def the_started_mark_is_not_recovered(patch: pytest.MonkeyPatch) -> None:
    decode = offset_encoding.decode
    patch.setattr(
        offset_encoding, "decode", lambda *of: (lambda progress: Progress(of[1], progress.done))(decode(*of))
    )


# --- room ---


@found_by("room")
def everything_fits(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "fits", lambda self, offset: True)


@found_by("room")
def one_byte_an_offset_is_reckoned_with(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "room", lambda self: max(self._budget - self._size, 0 if self._outstanding else 1))


@found_by("recovery_room")
def a_successor_waits_for_space_in_its_predecessors_metadata(patch: pytest.MonkeyPatch) -> None:
    def room(self: PartitionOffsets) -> int:
        return max((self._budget - self._size) // 9, 0 if self._outstanding else 1)

    _replace(patch, "room", room)


@found_by("recovery_room")
def what_is_outstanding_does_not_count_after_a_recovery(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "room", lambda self: self._budget // 9)


@found_by("room")
def the_growth_of_the_run_before_is_left_out(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "_growth", lambda self, offset, done_to: 1)


@found_by("room")
def holes_above_the_last_done_offset_are_left_out(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "_size_of", lambda self, frontier, done: offset_encoding.run_size(frontier, done).size)


@found_by("tenures")
def no_room_is_left_for_a_single_offset(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, "room", lambda self: 0)


@found_by("tenures")
def a_changed_mark_is_no_change(patch: pytest.MonkeyPatch) -> None:
    changed = PartitionOffsets.changed_since
    _replace(
        patch, "changed_since", lambda self, point: changed(self, point and CommitPoint(point.offset, ""))
    )
