"""The verdict finds what was planted: a loss, a duplicate, a wrong answer, a broken order, a lag."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.consumers.records import RecordLocation, TopicPartition
from headrace.ops.faults.verdict import Answer, Asked, Verdict, details, judge

REQUESTS = "p.m.c1.requests.standard"
RESULTS = "p.m.c1.results"
IDS = ["a", "b", "c"]
RIGHT = {each: f"the answer to {each}" for each in IDS}


def asked(id_: str, offset: int, partition: int = 0, key: str | None = "k") -> Asked:
    return Asked(id_, key, RecordLocation(REQUESTS, partition, offset))


def answer(id_: str, offset: int, at: int | None = None, partition: int = 0, **changes: Any) -> Answer:
    """The right answer to the request at `offset`, lying at `at`."""
    made = Answer(
        id=id_,
        status="ok",
        code=None,
        text=RIGHT.get(id_),
        at=RecordLocation(RESULTS, partition, offset if at is None else at),
        source=RecordLocation(REQUESTS, partition, offset),
        slot="w1",
        attempt=1,
    )
    return replace(made, **changes)


ASKED = [asked(each, offset) for offset, each in enumerate(IDS)]
ANSWERS = [answer(each, offset) for offset, each in enumerate(IDS)]


def verdict(asked: list[Asked], answers: list[Answer], **options: Any) -> Verdict:
    given: dict[str, Any] = {"expected": RIGHT, "in_order": True} | options
    return judge(asked, answers, **given)


def found(verdict: Verdict) -> dict[str, int]:
    return {name: count for name, count in verdict.findings() if count}


def test_one_right_answer_each_passes() -> None:
    judged = verdict(ASKED, ANSWERS, acknowledged=IDS, lag={TopicPartition(REQUESTS, 0): 0})
    assert judged.passed
    assert (judged.asked, judged.answered, judged.resent) == (3, 3, 0)
    assert details(judged, ASKED, ANSWERS) == []


def test_a_run_in_which_nothing_was_asked_does_not_pass() -> None:
    assert not verdict([], []).passed


@pytest.mark.parametrize("missing", range(3))
def test_a_request_without_an_answer_is_lost(missing: int) -> None:
    answers = [each for each in ANSWERS if each.id != IDS[missing]]
    judged = verdict(ASKED, answers)
    assert not judged.passed
    assert judged.lost == [IDS[missing]]
    assert details(judged, ASKED, answers)[0] == f"lost: {IDS[missing]}"


def test_an_acknowledged_request_that_lies_nowhere_is_lost() -> None:
    judged = verdict(ASKED[:2], ANSWERS[:2], acknowledged=IDS)
    assert judged.lost == ["c"]
    assert not judged.passed


def test_two_answers_to_one_request_are_a_duplicate_and_both_are_shown() -> None:
    answers = [*ANSWERS, answer("a", 0, at=9, slot="w2", attempt=2)]
    judged = verdict(ASKED, answers, in_order=False)
    assert found(judged) == {"duplicated": 1}
    shown = "\n".join(details(judged, ASKED, answers))
    assert "answer  results-0@0  ok, slot w1, attempt 1, of requests.standard-0@0" in shown
    assert "answer  results-0@9  ok, slot w2, attempt 2, of requests.standard-0@0" in shown


def test_a_request_that_was_sent_twice_has_one_answer() -> None:
    twice = [*ASKED, asked("a", 7)]
    judged = verdict(twice, ANSWERS)
    assert judged.passed
    assert judged.resent == 1
    assert found(verdict(twice, [*ANSWERS, answer("a", 7)])) == {"duplicated": 1}


def test_without_deduplication_each_record_has_an_answer_of_its_own_and_no_more() -> None:
    twice = [*ASKED, asked("a", 7)]
    both = [*ANSWERS, answer("a", 7)]
    judged = verdict(twice, both, each_record=True)
    assert judged.passed
    assert list(judged.straddling) == ["a"]
    assert found(verdict(twice, [*both, answer("a", 7, at=9)], each_record=True)) == {"duplicated": 1}
    assert found(verdict(ASKED, both, each_record=True)) == {"duplicated": 1}, "it was asked once"


def test_two_answers_are_apart_only_where_the_request_lies_in_both_units() -> None:
    straddling = [*ASKED, asked("a", 0, partition=4)]
    answers = [*ANSWERS, answer("a", 0, partition=4)]
    judged = verdict(straddling, answers)
    assert judged.passed
    assert list(judged.straddling) == ["a"]
    assert found(verdict(ASKED, answers)) == {"duplicated": 1}, "nothing was ever asked in unit 4"
    again = [*answers, answer("a", 0, at=5, partition=4)]
    assert found(verdict(straddling, again)) == {"duplicated": 1}, "twice in one of the units"


def test_another_prompts_text_is_wrong() -> None:
    answers = [ANSWERS[0], replace(ANSWERS[1], text=RIGHT["a"]), ANSWERS[2]]
    judged = verdict(ASKED, answers)
    assert found(judged) == {"wrong": 1}
    assert judged.wrong[0].id == "b"


def test_what_is_not_ok_fails_unless_it_is_tolerated() -> None:
    answers = [*ANSWERS[:2], answer("c", 2, status="failed", code="poison_request", text=None)]
    assert found(verdict(ASKED, answers)) == {"not ok": 1}

    def may_fail(each: Answer) -> bool:
        return each.code == "poison_request"

    judged = verdict(ASKED, answers, tolerated=may_fail)
    assert judged.passed
    assert [each.id for each in judged.tolerated] == ["c"]


def test_an_answer_to_nothing_is_found() -> None:
    assert found(verdict(ASKED, [*ANSWERS, answer("x", 3)])) == {"never asked for": 1}


def test_answers_of_a_key_in_another_order_than_its_requests_are_found() -> None:
    answers = [answer("a", 0, at=0), answer("b", 1, at=2), answer("c", 2, at=1)]
    judged = verdict(ASKED, answers)
    assert found(judged) == {"out of order": 1}
    assert [(before.id, after.id) for before, after in judged.out_of_order] == [("c", "b")]
    assert verdict(ASKED, answers, in_order=False).passed
    other_keys = [asked("a", 0), asked("b", 1, key="other"), asked("c", 2)]
    assert verdict(other_keys, answers).passed, "of different keys"


def test_what_the_group_has_not_read_fails() -> None:
    judged = verdict(ASKED, ANSWERS, lag={TopicPartition(REQUESTS, 0): 0, TopicPartition(REQUESTS, 1): 2})
    assert found(judged) == {"lag": 2}
    assert details(judged, ASKED, ANSWERS) == [f"lag: {REQUESTS}-1 2"]
