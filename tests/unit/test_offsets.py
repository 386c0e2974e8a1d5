"""The offsets of one partition: an example of each rule."""

from __future__ import annotations

import tracemalloc

import pytest

from headrace.consumers.offset_encoding import Progress, decode, encode
from headrace.consumers.offsets import METADATA_LIMIT, PartitionOffsets
from headrace.consumers.records import CommitPoint
from headrace.schemas.errors import OffsetsTooLong, UnreadableOffsets


def fresh(beginning: int = 0, limit: int = METADATA_LIMIT, block: int = 128) -> PartitionOffsets:
    return PartitionOffsets(None, epoch=1, beginning=beginning, end=beginning, limit=limit, block=block)


def next_tenure(point: CommitPoint, end: int = 0, limit: int = METADATA_LIMIT) -> PartitionOffsets:
    return PartitionOffsets(point, epoch=2, beginning=0, end=end, limit=limit)


def poll(offsets: PartitionOffsets, *numbers: int) -> None:
    for number in numbers:
        assert offsets.polled(number)


def says(point: CommitPoint) -> Progress:
    return decode(point.metadata, point.offset, METADATA_LIMIT)


def test_nothing_committed_begins_at_the_beginning() -> None:
    offsets = fresh(beginning=7)
    assert (offsets.position, offsets.frontier, offsets.started, offsets.outstanding) == (7, 7, 7, 0)


def test_the_frontier_waits_for_the_first_hole() -> None:
    offsets = fresh()
    poll(offsets, 0, 1, 2)
    assert offsets.done(2, 1)
    assert offsets.done(1, 1)
    assert offsets.commit_point().offset == 0
    assert says(offsets.commit_point()).done == (range(1, 3),)
    assert offsets.done(0, 1)
    assert offsets.commit_point().offset == 3
    assert says(offsets.commit_point()).done == ()


def test_a_completion_of_another_tenure_is_dropped() -> None:
    offsets = fresh()
    poll(offsets, 0)
    assert not offsets.done(0, 0)
    assert not offsets.done(0, 2)
    assert offsets.frontier == 0


def test_a_second_completion_and_one_of_an_offset_never_polled_are_dropped() -> None:
    offsets = fresh()
    poll(offsets, 0)
    assert offsets.done(0, 1)
    assert not offsets.done(0, 1)
    assert not offsets.done(1, 1)


def test_the_next_owner_skips_what_is_done_and_polls_the_rest() -> None:
    first = fresh()
    poll(first, 0, 1, 2, 3, 4)
    for offset in (1, 3, 4):
        first.done(offset, 1)
    second = next_tenure(first.commit_point())
    assert [second.polled(offset) for offset in range(6)] == [True, False, True, False, False, True]


def test_what_is_recovered_and_not_polled_again_is_committed_again() -> None:
    first = fresh()
    poll(first, *range(10))
    for offset in (3, 7, 8):
        first.done(offset, 1)
    second = next_tenure(first.commit_point())
    poll(second, 0, 1)
    second.done(1, 2)
    assert says(second.commit_point()).done == (range(1, 2), range(3, 4), range(7, 9))


def test_a_frontier_that_reaches_recovered_offsets_goes_past_them() -> None:
    offsets = PartitionOffsets(
        CommitPoint(5, encode(5, Progress(10, (range(6, 10),)), 64)), epoch=1, beginning=0, end=10
    )
    poll(offsets, 5)
    offsets.done(5, 1)
    assert offsets.commit_point().offset == 10
    assert not offsets.polled(6)
    assert offsets.frontier == 10


def test_gaps_count_as_done_and_with_nothing_outstanding_the_position_is_committed() -> None:
    offsets = fresh()
    poll(offsets, 3, 9)
    offsets.advance(12)
    assert offsets.frontier == 3
    offsets.done(3, 1)
    assert offsets.frontier == 9
    offsets.done(9, 1)
    assert offsets.commit_point().offset == 12  # lag reaches nought past a transaction marker


def test_a_position_that_moves_past_markers_keeps_what_is_outstanding() -> None:
    offsets = fresh()
    poll(offsets, 0)
    offsets.advance(10**18)
    assert offsets.commit_point().offset == 0
    assert offsets.position == 10**18


def test_a_position_never_moves_back() -> None:
    offsets = fresh()
    poll(offsets, 0, 1)
    offsets.advance(1)
    assert offsets.position == 2


def test_an_offset_polled_twice_is_handed_out_once() -> None:
    offsets = fresh()
    poll(offsets, 0, 1)
    assert not offsets.polled(1)
    assert offsets.outstanding == 2


@pytest.mark.parametrize(
    "metadata", ["x", "h2;0;r;00000000", "h3;0;r;00000000", "h1;0;r;00000000", "null", "h1;0;r;00000000\n"]
)
def test_metadata_that_is_not_understood_is_refused(metadata: str) -> None:
    with pytest.raises(UnreadableOffsets, match="cannot be read"):
        PartitionOffsets(CommitPoint(5, metadata), epoch=1, beginning=0, end=20)


def test_empty_metadata_says_that_nothing_above_is_done() -> None:
    offsets = PartitionOffsets(CommitPoint(5, ""), epoch=1, beginning=0, end=20)
    assert (offsets.position, offsets.frontier) == (5, 5)
    poll(offsets, 5, 6)


def test_a_negative_committed_offset_is_refused() -> None:
    with pytest.raises(UnreadableOffsets, match="-1"):
        PartitionOffsets(CommitPoint(-1, ""), epoch=1, beginning=0, end=20)


def test_a_limit_too_small_for_any_work_is_refused() -> None:
    with pytest.raises(ValueError, match="64 at least"):
        fresh(limit=63)


def test_changed_since_tells_a_new_mark_and_a_new_done_offset_from_nothing_new() -> None:
    offsets = fresh()
    assert offsets.changed_since(None)
    assert offsets.changed_since(CommitPoint(0, ""))  # the mark
    point = offsets.commit_point()
    assert not offsets.changed_since(point)
    poll(offsets, 0, 1)
    assert not offsets.changed_since(point)
    offsets.done(1, 1)
    assert offsets.changed_since(point)


def test_a_partition_given_back_untouched_changes_nothing() -> None:
    offsets = fresh(beginning=4)
    offsets.withdraw()
    assert not offsets.changed_since(CommitPoint(4, ""))


def test_polling_without_room_is_found_out_at_the_commit_and_nothing_is_forgotten() -> None:
    offsets = fresh(limit=64)
    for number in range(0, 2000, 2):  # far more holes than 64 characters can name
        offsets.polled(number)
        offsets.polled(number + 1)
        offsets.done(number + 1, 1)
    with pytest.raises(OffsetsTooLong, match="there was no room"):
        offsets.commit_point()
    assert offsets.outstanding == 1000


def test_room_comes_back_when_the_frontier_moves() -> None:
    offsets = fresh(limit=64)
    number = 0
    while offsets.fits(number):
        poll(offsets, number)
        number += 1
    assert offsets.room() == 0
    assert offsets.outstanding >= 23
    for done in range(number):
        offsets.done(done, 1)
    assert offsets.room() >= 2
    assert offsets.fits(number)


def test_room_for_distant_offsets_is_a_few_hundred_and_near_ones_fit_by_the_thousand() -> None:
    offsets = fresh()
    assert offsets.room() > 300
    number = 0
    while offsets.fits(number):
        poll(offsets, number)
        number += 1
    assert offsets.outstanding > 20_000


def test_many_done_offsets_behind_one_hole_take_no_memory() -> None:
    offsets = fresh()
    poll(offsets, 0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(1, 50_000):
        offsets.polled(number)
        offsets.done(number, 1)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert offsets.outstanding == 1
    assert grown < 4096
    assert len(offsets.commit_point().metadata) < 40
    assert says(offsets.commit_point()).done == (range(1, 50_000),)


def test_an_offset_at_the_far_end_of_the_log_is_recorded() -> None:
    last = 2**63 - 2
    offsets = fresh(limit=64)
    poll(offsets, 0)
    assert offsets.fits(last)
    poll(offsets, last)
    offsets.committed(offsets.commit_point())
    offsets.start(last)
    assert not offsets.wants_mark()  # there is nothing above
    offsets.done(last, 1)
    assert says(offsets.commit_point()) == Progress(last + 1, (range(1, last + 1),))


def test_a_successor_of_a_full_partition_has_as_much_room_as_any_other() -> None:
    first = fresh()
    number = 0
    while first.fits(number):
        poll(first, number)
        number += 1
    for done in range(1, number, 2):
        first.done(done, 1)
    assert first.room() == 0
    second = next_tenure(first.commit_point())
    assert second.room() == fresh().room()
    for again in range(0, 200, 2):
        assert second.fits(again)
        poll(second, again)
    assert second.room() == fresh().room() - 100
    second.commit_point()
