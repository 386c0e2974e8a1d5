"""Where a partition is begun, and when it is parked instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.starting import (
    Acceptance,
    Park,
    Start,
    retention_headroom,
    settling_command,
    where_to_start,
)

GROUP = "headrace.tagger.c1"
TP = TopicPartition(f"{GROUP}.requests.standard", 3)
LIMIT = 4096


def point(offset: int, done: Sequence[range] = (), started: int | None = None) -> CommitPoint:
    progress = Progress(offset if started is None else started, tuple(done))
    return CommitPoint(offset, offset_encoding.encode(offset, progress, LIMIT))


def accepting(committed: CommitPoint | None, resume_at: int) -> Acceptance:
    return Acceptance(committed, resume_at, "operator@host", 1)


def start(committed: CommitPoint | None, **how: Any) -> Start | Park:
    given: dict[str, Any] = {"beginning": 0, "end": 100, "known": True, "acceptance": None}
    return where_to_start(TP, committed, limit=LIMIT, group=GROUP, **given | how)


def parked(decision: Start | Park) -> Park:
    assert isinstance(decision, Park), decision
    return decision


# --- newly assigned -------------------------------------------------------------------------------------------


def test_a_partition_that_the_group_never_knew_is_read_from_the_beginning() -> None:
    assert start(None, known=False, beginning=7) == Start(7, None)


def test_a_known_partition_without_an_offset_is_parked() -> None:
    park = parked(start(None, beginning=7))
    assert (park.cause, park.lost, park.resume_at) == ("offsets_gone", None, 7)
    assert "offsets.retention.minutes" in park.why
    assert "`headrace offsets accept --model tagger --contract 1 standard-3`" in park.why


def test_a_known_partition_whose_log_never_held_anything_has_nothing_to_lose() -> None:
    assert start(None, beginning=0, end=0) == Start(0, None)
    assert parked(start(None, beginning=5, end=5)).cause == "offsets_gone"


@pytest.mark.parametrize("known", [True, False])  # the record may not have been written yet
def test_a_committed_offset_in_the_log_is_where_to_start(known: bool) -> None:
    committed = point(10, [range(12, 15)], started=20)
    assert start(committed, known=known, beginning=10) == Start(10, committed)
    assert start(point(100), known=known) == Start(100, point(100))


def test_without_metadata_nothing_above_the_offset_is_done() -> None:
    assert start(CommitPoint(10, "")) == Start(10, CommitPoint(10, ""))


def test_what_retention_removed_before_it_was_served_is_counted_without_what_is_done() -> None:
    park = parked(start(point(10, [range(12, 15), range(30, 40)]), beginning=20))
    assert (park.cause, park.lost, park.unanswered, park.resume_at) == ("retention", range(10, 20), 7, 20)
    assert "offsets 10 to 19" in park.why
    assert "7 requests at most are lost" in park.why
    assert "retention.bytes" in park.why


def test_when_everything_that_was_removed_is_done_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    # No format so far has the frontier itself in the done set; the rule does not lean on that.
    monkeypatch.setattr(offset_encoding, "decode", lambda *_: Progress(10, (range(10, 20),)))
    committed = CommitPoint(10, "of another format")
    assert start(committed, beginning=20) == Start(20, committed)
    assert parked(start(committed, beginning=21)).unanswered == 1


def test_a_committed_offset_beyond_the_end_is_parked() -> None:
    park = parked(start(point(101)))
    assert (park.cause, park.lost, park.resume_at) == ("log_cut_back", None, 0)
    assert "offset 101" in park.why
    assert "end 100" in park.why


def test_a_done_set_that_reaches_beyond_the_end_is_of_another_log() -> None:
    assert parked(start(point(90, [range(95, 101)]))).cause == "log_cut_back"
    assert isinstance(start(point(90, [range(95, 100)])), Start)


def test_a_started_mark_may_lie_beyond_the_end() -> None:
    assert isinstance(start(point(90, started=500)), Start)


def test_unreadable_metadata_is_parked_at_the_committed_offset() -> None:
    park = parked(start(CommitPoint(10, "h99;?")))
    assert (park.cause, park.lost, park.unanswered, park.resume_at) == ("unreadable", None, 0, 10)
    assert "cannot be read" in park.why


def test_unreadable_metadata_below_the_log_says_what_is_lost_too() -> None:
    park = parked(start(CommitPoint(10, "h99;?"), beginning=20))
    assert (park.cause, park.lost, park.unanswered, park.resume_at) == (
        "unreadable",
        range(10, 20),
        10,
        20,
    )
    assert parked(start(CommitPoint(200, "h99;?"))).resume_at == 100


# --- acceptances ----------------------------------------------------------------------------------------------


def test_an_acceptance_goes_on_where_it_says_with_nothing_done_above() -> None:
    assert start(None, acceptance=accepting(None, 40)) == Start(40, CommitPoint(40, ""))
    unreadable = CommitPoint(10, "h99;?")
    assert start(unreadable, acceptance=accepting(unreadable, 10)) == Start(10, CommitPoint(10, ""))
    beyond = point(101)
    assert start(beyond, acceptance=accepting(beyond, 0)) == Start(0, CommitPoint(0, ""))


def test_an_accepted_loss_to_retention_keeps_the_done_set() -> None:
    committed = point(10, [range(12, 15), range(30, 40)])
    decision = start(committed, beginning=20, acceptance=accepting(committed, 20))
    assert decision == Start(20, committed)


def test_an_acceptance_for_another_committed_state_does_not_count() -> None:
    committed = point(10, [range(12, 15)])
    others = [None, point(10), point(10, [range(12, 16)]), point(11, [range(12, 15)]), CommitPoint(10, "")]
    for other in others:
        assert isinstance(start(committed, beginning=20, acceptance=accepting(other, 20)), Park)
    for other in (*others[1:], committed):
        assert isinstance(start(None, acceptance=accepting(other, 20)), Park)


def test_an_acceptance_without_need_is_passed_over() -> None:
    assert start(point(10), acceptance=accepting(point(10), 50)) == Start(10, point(10))
    assert start(None, known=False, acceptance=accepting(None, 50)) == Start(0, None)


@pytest.mark.parametrize(("resume_at", "offset"), [(0, 20), (20, 20), (60, 60), (100, 100), (1000, 100)])
def test_an_acceptance_is_held_within_the_log(resume_at: int, offset: int) -> None:
    decision = start(None, beginning=20, acceptance=accepting(None, resume_at))
    assert decision == Start(offset, CommitPoint(offset, ""))


# --- the figure, and the command -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beginning", "frontier", "end", "headroom"),
    [
        (0, 0, 0, 1.0),
        (50, 50, 50, 1.0),
        (0, 100, 100, 1.0),
        (0, 120, 100, 1.0),
        (0, 0, 100, 1.0),  # retention has never removed anything
        (20, 20, 100, 0.0),
        (20, 10, 100, 0.0),
        (50, 40, 50, 0.0),
        (20, 40, 100, 0.25),
        (100, 150, 200, 0.5),
    ],
)
def test_retention_headroom(beginning: int, frontier: int, end: int, headroom: float) -> None:
    assert retention_headroom(beginning, frontier, end) == headroom


def test_the_command_names_another_prefix() -> None:
    tp = TopicPartition("p.tagger.c12.requests.interactive", 0)
    assert settling_command(tp, "p.tagger.c12") == (
        "`headrace offsets accept --model tagger --contract 12 --prefix p interactive-0`"
    )
