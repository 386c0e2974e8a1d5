"""What `headrace bench http --only vanish` makes of what its callers and Kafka say."""

from __future__ import annotations

import pytest

from headrace.ops.bench.ground import BenchFailed
from headrace.ops.bench.http_vanish import CancelFigures, Cancelled, cancels_of, errors_of
from headrace.ops.bench.http_vanish_clients import End, Phase, Plan, request_of

LEFT = 1_000.0  # seconds since the epoch


def left(number: int, phase: Phase = "waiting", *, status: int = 0, error: str = "") -> End:
    return End(number, phase, "close", LEFT, status, error)


def figures(ends: list[End], cancelled: dict[str, float], answered: dict[str, float]) -> CancelFigures:
    ids = {end.number: f"r{end.number}" for end in ends}
    cancels = {name: Cancelled(at - 0.01, at) for name, at in cancelled.items()}
    return cancels_of(ends, ids, cancels, {name: ("ok", at) for name, at in answered.items()})


def test_a_cancel_is_timed_from_the_closing_of_the_connection() -> None:
    found = figures([left(1), left(2, "answer")], {"r1": LEFT + 0.02, "r2": LEFT + 0.04}, {})
    assert (found.cancels, found.answered, found.missed) == (2, 0, 0)
    assert found.longest == pytest.approx(40)
    assert found.noticed_p50 == pytest.approx(found.p50 - 10)


def test_without_a_cancel_a_request_must_have_been_answered_by_then() -> None:
    ends = [left(1), left(2), left(3), left(4)]
    found = figures(ends, {"r1": LEFT}, {"r2": LEFT + 0.09, "r3": LEFT + 0.2})
    assert (found.cancels, found.answered, found.late, found.missed) == (1, 1, 1, 1)
    assert found.longest == pytest.approx(200)  # whoever was not heard in time


def test_who_stayed_or_was_never_heard_is_none_of_those_that_went_away() -> None:
    ends = [left(1), left(2, "end"), left(3, "body"), left(4)]
    ids = {1: "r1", 2: "r2", 3: "r3", 4: None}
    found = cancels_of(ends, ids, {"r1": Cancelled(LEFT, LEFT)}, {})
    assert (found.cancels, found.answered, found.missed) == (1, 0, 0)
    with pytest.raises(BenchFailed):
        cancels_of(ends, ids, {}, {"r1": ("ok", LEFT)})


def test_whatever_else_than_an_answer_came_is_an_error() -> None:
    ends = [
        left(1),
        left(2, "answer", status=200),
        left(3, status=503),
        left(4, error="its connection was lost"),
    ]
    assert errors_of(ends) == ["call 4: its connection was lost", "call 3: HTTP 503"]


def test_a_call_says_how_long_its_body_is() -> None:
    plan = Plan("h", 1, "m", 0, 1, 1, 8, 1.0, "s")
    head, _, body = request_of(plan, 7, stream=True).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b'"user": "caller-7"' in body
