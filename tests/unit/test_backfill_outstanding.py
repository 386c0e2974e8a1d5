"""Rows without an answer: asked again once it is sure that none will come, and a log that is blocked is told."""

from __future__ import annotations

from headrace.consumers.lane_progress import LaneProgress
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.producers.backfill.outstanding import Outstanding

LANE = "headrace.m.c1.requests.backfill"


def lane(frontier: int, at: float) -> LaneProgress:
    return LaneProgress(at, 0, {TopicPartition(LANE, 0): CommitPoint(frontier, "")}, ())


def asked(rows: int) -> Outstanding:
    outstanding = Outstanding(LANE, 1)
    for row in range(rows):
        outstanding.ask(row, "d", now_s=0.0)
        outstanding.acknowledge(row, row)
    return outstanding


def test_a_row_that_is_done_and_has_no_result_is_overdue_once_all_is_read() -> None:
    outstanding = asked(3)
    assert outstanding.overdue(lane(2, 20), {0: 0}, dict, 20) == []
    assert outstanding.overdue(lane(2, 31), {0: 0}, lambda: {0: 5}, 31) == []
    assert outstanding.overdue(lane(2, 32), {0: 4}, dict, 32) == [], "not read so far yet"
    assert outstanding.overdue(lane(2, 33), {0: 5}, dict, 33) == [0, 1]


def test_an_answer_that_came_meanwhile_is_none_that_is_missing() -> None:
    outstanding = asked(2)
    outstanding.overdue(lane(2, 20), {0: 0}, dict, 20)
    outstanding.overdue(lane(2, 31), {0: 0}, lambda: {0: 5}, 31)
    outstanding.settle(1)
    assert outstanding.overdue(lane(2, 33), {0: 5}, dict, 33) == [0]


def test_a_log_that_cannot_be_read_on_in_is_told_after_a_while() -> None:
    outstanding = asked(1)
    outstanding.overdue(lane(1, 20), {0: 3, 1: 9}, dict, 20)
    outstanding.overdue(lane(1, 31), {0: 3, 1: 9}, lambda: {0: 5, 1: 9}, 31)
    assert outstanding.blocked({0: 3, 1: 9}, 60) == []
    assert outstanding.blocked({0: 3, 1: 9}, 111) == [0]
    assert outstanding.blocked({0: 5, 1: 9}, 111) == []
