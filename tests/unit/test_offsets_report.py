"""What an operator is shown of a partition's offsets, and told before something is accepted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.starting import Acceptance, Park, where_to_start
from headrace.ops.offsets import (
    Consequence,
    PartitionOffsetsReport,
    choose_parked,
    consequence,
    named_partition,
    place_to_resume,
)
from headrace.schemas.errors import UsageError
from headrace.topics.names import ContractNames

NAMES = ContractNames("headrace", "tagger", 1)
LIMIT = 4096


def point(offset: int, done: Sequence[range] = (), started: int | None = None) -> CommitPoint:
    progress = Progress(offset if started is None else started, tuple(done))
    return CommitPoint(offset, offset_encoding.encode(offset, progress, LIMIT))


def report(
    committed: CommitPoint | None,
    beginning: int = 0,
    end: int = 100,
    *,
    known: bool = True,
    resume_at: int | None = None,
    partition: int = 0,
) -> PartitionOffsetsReport:
    tp = TopicPartition(NAMES.requests("standard"), partition)
    acceptance = None if resume_at is None else Acceptance(committed, resume_at, "a@b", 1)
    decisions = [
        where_to_start(
            tp,
            committed,
            beginning=beginning,
            end=end,
            known=known,
            acceptance=each,
            limit=LIMIT,
            group=NAMES.group,
        )
        for each in (acceptance, None)
    ]
    return PartitionOffsetsReport(tp, "standard", beginning, end, committed, *decisions)


# --- a row ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (report(point(10)), "ok"),
        (report(None, known=False), "no offset yet"),
        (report(None), "parked"),
        (report(None, resume_at=5), "accepted"),
        (report(point(10), resume_at=5), "ok"),
        (report(point(10), 20), "parked"),
    ],
)
def test_state(row: PartitionOffsetsReport, state: str) -> None:
    assert row.state == state


def test_what_is_done_and_what_is_in_doubt_are_told_apart() -> None:
    row = report(point(10, [range(12, 15), range(18, 20)], started=25))
    assert (row.frontier, row.done, row.in_doubt, row.lag) == (10, 5, 10, 90)
    assert row.headroom == 1.0, "retention has never removed anything"


def test_a_mark_written_ahead_beyond_the_log_puts_nothing_in_doubt_that_is_not_there() -> None:
    row = report(point(98, started=500))
    assert (row.in_doubt, row.lag) == (2, 2)
    assert report(point(100, started=500)).in_doubt == 0


def test_without_a_committed_offset_the_whole_log_is_unread() -> None:
    row = report(None, beginning=30, known=False)
    assert (row.frontier, row.done, row.in_doubt, row.lag, row.headroom) == (30, 0, 0, 70, 0.0)


def test_a_lag_counts_only_what_the_log_holds() -> None:
    assert report(point(10), 40).lag == 60
    assert report(point(120)).lag == 0


# --- what accepting means -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "at", "told"),
    [
        # Offsets gone: either all of the log again, or none of it.
        (report(None, 20), None, Consequence(20, 80, 0, 0)),
        (report(None, 20), "end", Consequence(100, 0, 80, 0)),
        (report(None, 20), 50, Consequence(50, 50, 30, 0)),
        # Retention: what is done above stays done, so nothing is answered again.
        (report(point(10, [range(30, 40)]), 20), None, Consequence(20, 0, 0, 10)),
        (report(point(10, [range(30, 40)]), 20), "end", Consequence(100, 0, 70, 10)),
        (report(point(10, [range(12, 25)]), 20), 30, Consequence(30, 0, 5, 2)),
        # Beyond the end: whose log it is cannot be told.
        (report(point(120)), None, Consequence(0, 100, 0, 0)),
        (report(point(120)), "end", Consequence(100, 0, 100, 0)),
        # Unreadable: below the committed offset all is done, above it nobody knows.
        (report(CommitPoint(40, "?")), None, Consequence(40, 60, 0, 0)),
        (report(CommitPoint(40, "?")), "beginning", Consequence(0, 100, 0, 0)),
        (report(CommitPoint(40, "?")), "end", Consequence(100, 0, 60, 0)),
        (report(CommitPoint(10, "?"), 20), None, Consequence(20, 80, 0, 10)),
    ],
)
def test_consequence(row: PartitionOffsetsReport, at: int | None, told: Consequence) -> None:
    assert consequence(row, place_to_resume(row, at)) == told


@pytest.mark.parametrize("offset", [19, 101])
def test_an_offset_that_is_not_in_the_log_is_refused(offset: int) -> None:
    with pytest.raises(UsageError, match="20 to 100"):
        place_to_resume(report(None, 20), offset)


# --- which partitions -----------------------------------------------------------------------------------------


def test_only_what_is_parked_can_be_accepted() -> None:
    fine, parked = report(point(1), partition=0), report(None, partition=1)
    waiting = report(None, resume_at=1, partition=2)
    assert choose_parked([fine, parked, waiting], None) == [parked]
    assert choose_parked([fine, parked], [parked.tp, parked.tp]) == [parked]
    with pytest.raises(UsageError, match=r"standard-0 is not parked: .* nothing was changed"):
        choose_parked([fine, parked], [parked.tp, fine.tp])
    with pytest.raises(UsageError, match="standard-2 was accepted already"):
        choose_parked([waiting], [waiting.tp])
    with pytest.raises(UsageError, match=r"there is no partition .*standard-7"):
        choose_parked([fine, parked], [fine.tp._replace(partition=7)])


def test_a_partition_is_named_by_its_lane_or_by_its_topic() -> None:
    expected = TopicPartition("headrace.tagger.c1.requests.backfill", 12)
    assert named_partition("backfill-12", NAMES) == expected
    assert named_partition("headrace.tagger.c1.requests.backfill-12", NAMES) == expected


@pytest.mark.parametrize(
    "given",
    ["", "backfill", "backfill-", "-1", "batch-1", "other.tagger.c1.requests.backfill-1", "backfill-x"],
)
def test_a_name_that_is_none_is_explained(given: str) -> None:
    with pytest.raises(UsageError, match="as standard-3"):
        named_partition(given, NAMES)


def test_the_reason_ends_with_the_command_that_settles_it() -> None:
    decision = report(None).decision
    assert isinstance(decision, Park)
    assert "`headrace offsets accept --model tagger --contract 1 standard-0`" in decision.why
