"""Deaths: what a successor finds, whom it suspects, and what may be handed to an engine. An example of each rule."""

from __future__ import annotations

import pytest

from headrace.consumers import suspect_encoding, suspects
from headrace.consumers.offset_encoding import END, Progress, decode, encode
from headrace.consumers.offsets import METADATA_LIMIT, PartitionOffsets
from headrace.consumers.records import CommitPoint
from headrace.consumers.suspicion import Mode, Suspicion

ONCE, TWICE, INNOCENT = Suspicion(1), Suspicion(2), Suspicion()


def tenure(
    point: CommitPoint | None,
    *,
    end: int = 1000,
    block: int = 10,
    limit: int = METADATA_LIMIT,
    newest_format: int = 2,
) -> PartitionOffsets:
    return PartitionOffsets(
        point, epoch=1, beginning=0, end=end, block=block, limit=limit, newest_format=newest_format
    )


def left(progress: Progress, frontier: int = 0) -> CommitPoint:
    """What a predecessor left behind."""
    return CommitPoint(frontier, encode(frontier, progress, METADATA_LIMIT))


def commit(offsets: PartitionOffsets) -> CommitPoint:
    point = offsets.commit_point()
    offsets.committed(point)
    return point


def says(point: CommitPoint) -> Progress:
    return decode(point.metadata, point.offset, METADATA_LIMIT)


def run(offsets: PartitionOffsets, *numbers: int) -> None:
    """Poll these, commit, and hand them to the engine."""
    for number in numbers:
        assert offsets.polled(number)
    commit(offsets)
    for number in numbers:
        offsets.start(number)


# --- the started mark ---


def test_nothing_is_started_before_the_mark_is_committed() -> None:
    offsets = tenure(None)
    offsets.polled(0)
    assert not offsets.may_start(0)
    assert offsets.wants_mark()
    point = offsets.commit_point()
    assert not offsets.may_start(0)
    with pytest.raises(AssertionError, match="not below a committed mark"):
        offsets.start(0)
    offsets.committed(point)
    assert says(point).started == 10
    assert [offset for offset in range(20) if offsets.may_start(offset)] == list(range(10))
    assert not offsets.wants_mark()


def test_the_mark_stands_still_until_less_than_half_a_block_is_left_and_then_moves_by_a_block() -> None:
    offsets = tenure(None)
    marks: list[int] = []
    for number in range(12):
        offsets.polled(number)
        offsets.done(number, 1)
        marks.append(says(commit(offsets)).started)
    assert marks == [10] * 5 + [16] * 6 + [22]


def test_a_commit_is_wanted_when_less_than_half_a_block_is_left() -> None:
    offsets = tenure(None)
    commit(offsets)
    for number in range(5):
        offsets.polled(number)
        assert not offsets.wants_mark()
    offsets.polled(5)
    assert offsets.wants_mark()


def test_an_idle_partition_commits_its_mark_once() -> None:
    offsets = tenure(None)
    point = commit(offsets)
    assert point != CommitPoint(0, "")
    assert not offsets.changed_since(point)
    assert not tenure(point, end=0).changed_since(point)  # nor does its successor


def test_a_successor_that_finds_nobody_in_flight_starts_at_once_below_the_old_mark() -> None:
    successor = tenure(commit(tenure(None)), end=0)
    successor.polled(0)
    assert successor.vanished == 0
    assert successor.may_start(0)


def test_a_successor_does_not_take_over_a_mark_that_is_far_ahead() -> None:
    offsets = tenure(None)
    for number in range(500):
        offsets.polled(number)
    successor = tenure(commit(offsets))
    assert says(commit(successor)).started == 10


def test_the_mark_is_not_above_the_largest_offset() -> None:
    offsets = tenure(CommitPoint(END - 3, ""))
    assert says(commit(offsets)).started == END
    assert not offsets.wants_mark()


@pytest.mark.parametrize(("newest_format", "block"), [(0, 10), (2, 0)])
def test_a_format_or_a_block_of_nought_is_refused(newest_format: int, block: int) -> None:
    with pytest.raises(ValueError, match="1 at least"):
        tenure(None, newest_format=newest_format, block=block)


# --- a predecessor that vanished ---


def test_what_a_vanished_predecessor_may_have_had_in_flight_is_suspected_once() -> None:
    first = tenure(None)
    run(first, 0, 1, 2)
    first.done(1, 1)
    second = tenure(commit(first), end=5)
    # 3 and 4 were appended below the mark before the second came; 5 lies beyond the log's end.
    assert dict(second.suspects()) == {0: ONCE, 2: ONCE, 3: ONCE, 4: ONCE}
    assert second.vanished == 4
    assert second.suspicion(1) == second.suspicion(5) == INNOCENT


def test_a_death_is_counted_once_when_the_successor_vanishes_before_its_first_commit() -> None:
    first = tenure(None)
    run(first, 0)
    point = commit(first)
    second = tenure(point, end=1)
    second.polled(0)
    second.commit_point()  # it gets no farther
    assert not second.may_start(0)
    assert dict(tenure(point, end=1).suspects()) == {0: ONCE}


def test_a_death_after_the_first_commit_counts_as_another() -> None:
    first = tenure(None)
    run(first, 0)
    second = tenure(commit(first), end=1)
    point = commit(second)
    assert says(point).suspects == {0: ONCE}
    assert dict(tenure(point, end=1).suspects()) == {0: TWICE}


def test_a_clean_release_leaves_no_death() -> None:
    first = tenure(None)
    run(first, 0, 1)
    first.done(0, 1)
    first.withdraw()
    assert not first.may_start(1)
    assert not first.wants_mark()
    point = commit(first)
    assert says(point).started == point.offset == 1
    assert tenure(point).vanished == 0


def test_a_frontier_that_moves_after_the_release_takes_the_mark_along() -> None:
    first = tenure(None)
    run(first, 0, 1)
    first.withdraw()
    first.done(0, 1)
    assert says(commit(first)).started == 1


def test_suspects_whose_owner_leaves_in_order_keep_their_deaths() -> None:
    offsets = tenure(left(Progress(0, (), {3: TWICE, 4: ONCE})))
    assert dict(offsets.suspects()) == {3: TWICE, 4: ONCE}
    offsets.withdraw()
    assert dict(tenure(commit(offsets)).suspects()) == {3: TWICE, 4: ONCE}


def test_what_was_held_back_is_not_in_flight() -> None:
    offsets = tenure(left(Progress(10, (), {3: TWICE, 4: ONCE})), end=6)
    assert dict(offsets.suspects()) == {0: ONCE, 1: ONCE, 2: ONCE, 3: TWICE, 4: TWICE, 5: ONCE}


def test_a_death_during_a_trial_is_held_against_those_on_trial_alone() -> None:
    on_trial = Suspicion(2, on_trial=True)
    offsets = tenure(left(Progress(10, (), {3: TWICE, 4: on_trial, 5: ONCE}, "trial")))
    assert dict(offsets.suspects()) == {3: TWICE, 4: Suspicion(3), 5: ONCE}
    assert offsets.vanished == 1
    assert says(offsets.commit_point()).mode == "open"


def test_a_death_of_unknown_cause_while_alone_is_told_from_the_others() -> None:
    on_trial = Suspicion(2, on_trial=True)
    offsets = tenure(left(Progress(10, (), {3: TWICE, 4: on_trial}, "alone")))
    assert dict(offsets.suspects()) == {3: TWICE, 4: Suspicion(3, 1)}


def test_one_on_trial_in_another_partition_shelters_all_of_this_one() -> None:
    assert tenure(left(Progress(10, mode="trial"))).vanished == 0


def test_a_mark_of_an_older_release_is_read() -> None:
    offsets = tenure(left(Progress(3, (range(1, 2),))))
    assert dict(offsets.suspects()) == {0: ONCE, 2: ONCE}


# --- an engine that dies under a worker that lives ---


@pytest.mark.parametrize(
    ("mode", "deaths"),
    [("open", {0: 2, 1: 2, 2: 3, 3: 1}), ("trial", {0: 1, 1: 2, 2: 3}), ("alone", {0: 1, 1: 2, 2: 3})],
)
def test_an_engines_death_is_held_against_what_was_in_flight(mode: Mode, deaths: dict[int, int]) -> None:
    offsets = tenure(left(Progress(0, (), {0: ONCE, 1: TWICE, 2: TWICE})))
    for number in range(5):
        offsets.polled(number)
    commit(offsets)
    for number in (0, 1, 3, 4):
        offsets.start(number)
    offsets.set_mode(mode)
    offsets.put_on_trial({2})
    commit(offsets)
    offsets.start(2)
    offsets.engine_died({0, 1, 2, 3, 7})  # 4 is not in the engine any more; 7 is not outstanding
    assert {offset: suspicion.deaths for offset, suspicion in offsets.suspects().items()} == deaths
    assert all(suspicion.alone == 0 for suspicion in offsets.suspects().values())
    successor = tenure(commit(offsets))
    assert successor.vanished == 0
    assert {offset: suspicion.deaths for offset, suspicion in successor.suspects().items()} == deaths


def test_what_finished_before_the_engine_died_is_no_suspect() -> None:
    offsets = tenure(None)
    run(offsets, 0, 1)
    offsets.done(0, 1)
    offsets.engine_died({0, 1})
    assert dict(offsets.suspects()) == {1: ONCE}


# --- trials ---


def test_a_suspect_on_trial_is_not_started_before_the_trial_is_committed() -> None:
    offsets = tenure(left(Progress(0, (), {0: TWICE, 1: TWICE})))
    offsets.polled(0)
    commit(offsets)
    offsets.put_on_trial({0})
    assert not offsets.may_start(0)
    assert offsets.wants_mark()
    offsets.set_mode("trial")
    point = offsets.commit_point()
    assert not offsets.may_start(0)
    offsets.committed(point)
    assert offsets.may_start(0)
    assert not offsets.wants_mark()
    assert says(point).suspects == {0: Suspicion(2, on_trial=True), 1: TWICE}
    offsets.set_mode("alone")
    assert not offsets.may_start(0)
    assert offsets.may_start(2)  # no suspect: it has nothing to wait for


def test_nothing_is_started_beside_one_that_is_committed_as_alone() -> None:
    offsets = tenure(left(Progress(0, (), {0: TWICE})))
    offsets.polled(0)
    offsets.polled(1)
    offsets.put_on_trial({0})
    offsets.set_mode("alone")
    commit(offsets)
    assert offsets.may_start(0)
    assert not offsets.may_start(1)
    offsets.done(0, 1)
    offsets.set_mode("open")
    assert not offsets.may_start(1)  # a death would still be counted as one of 0 alone
    assert offsets.wants_mark()
    commit(offsets)
    assert offsets.may_start(1)


def test_a_trial_that_cannot_be_committed_goes_on_without() -> None:
    offsets = tenure(left(Progress(0, (), {0: TWICE})), newest_format=1)
    offsets.polled(0)
    commit(offsets)
    offsets.set_mode("trial")
    offsets.put_on_trial({0})
    assert offsets.commit_point().metadata.startswith("h1;")
    assert offsets.may_start(0)
    assert not offsets.wants_mark()


def test_exactly_the_chosen_suspects_are_on_trial() -> None:
    offsets = tenure(left(Progress(0, (), {0: TWICE, 1: TWICE})))
    offsets.put_on_trial({0, 2})
    assert dict(offsets.suspects()) == {0: Suspicion(2, on_trial=True), 1: TWICE}  # 2 is no suspect
    offsets.put_on_trial([1])
    assert dict(offsets.suspects()) == {0: TWICE, 1: Suspicion(2, on_trial=True)}
    offsets.put_on_trial(())
    assert dict(offsets.suspects()) == {0: TWICE, 1: TWICE}


# --- when suspicion ends ---


def test_suspicion_ends_when_its_offset_is_done() -> None:
    offsets = tenure(left(Progress(0, (), {0: TWICE, 1: ONCE})))
    offsets.polled(0)
    offsets.polled(1)
    offsets.done(0, 1)
    assert offsets.suspicion(0) == INNOCENT
    assert dict(offsets.suspects()) == {1: ONCE}


def test_a_suspect_without_a_record_is_gone_once_the_position_is_past_it() -> None:
    offsets = tenure(left(Progress(0, (), {0: ONCE, 1: ONCE, 3: ONCE})))
    offsets.polled(0)
    offsets.polled(2)
    assert dict(offsets.suspects()) == {0: ONCE, 3: ONCE}
    offsets.advance(4)
    assert dict(offsets.suspects()) == {0: ONCE}
    assert says(offsets.commit_point()).suspects == {0: ONCE}


def test_polling_a_suspect_is_like_polling_any_other() -> None:
    offsets = tenure(left(Progress(0, (), {0: TWICE})))
    assert offsets.polled(0)
    assert not offsets.polled(0)
    assert offsets.outstanding == 1


# --- size ---


def test_suspects_yield_to_the_done_set() -> None:
    offsets = tenure(None, limit=64, block=2**62)  # the mark as long as it can be
    number = 0
    while offsets.fits(number):
        offsets.polled(number)
        number += 1
    commit(offsets)
    successor = tenure(commit(offsets), limit=64, block=2**62)
    assert len(successor.suspects()) > number
    for offset in range(number):
        assert successor.polled(offset)
    for offset in range(1, number, 2):
        successor.done(offset, 1)
    point = successor.commit_point()
    assert len(point.metadata) <= 64
    assert says(point) == Progress(says(point).started, tuple(range(n, n + 1) for n in range(1, number, 2)))
    assert len(successor.suspects()) > number // 2  # not forgotten, only not written


def test_a_thousand_suspects_between_done_offsets_take_a_few_characters() -> None:
    offsets = tenure(None, block=2000)
    for number in range(2000):
        offsets.polled(number)
    for number in range(1, 2000, 2):
        offsets.done(number, 1)
    point = commit(offsets)
    successor = tenure(point, end=2000, block=2000)
    assert len(successor.suspects()) == 1000
    assert len(commit(successor).metadata) <= len(point.metadata) + 8


def test_a_forged_mark_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (suspects, suspect_encoding):
        monkeypatch.setattr(module, "MOST_SUSPECTS", 1000)
    offsets = tenure(left(Progress(2**62)), end=2**61)
    assert offsets.vanished == 1000
    assert says(offsets.commit_point()).suspects == dict.fromkeys(range(1000), ONCE)
