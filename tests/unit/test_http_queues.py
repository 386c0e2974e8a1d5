"""When a call is told that the queue is too deep, and what a backlog is made of."""

from __future__ import annotations

import pytest

from headrace.consumers.backlog import Backlog, backlog_of
from headrace.consumers.offset_encoding import Progress, encode
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.producers.http.queues import Queues
from headrace.producers.http.wanted import ApiError
from headrace.schemas.messages import Provenance, Result, Timings

CONTRACT = ("tagger", 1)
A, B = TopicPartition("requests", 0), TopicPartition("requests", 1)


def a_result(*, queued_ms: int, total_ms: int) -> Result:
    provenance = Provenance(
        model="tagger", version="1", contract=1, engine="e", engine_version="1", slot="s",
        source_topic="t", source_partition=0, source_offset=0,
    )  # fmt: skip
    return Result(
        id="r", status="ok", provenance=provenance, timings=Timings(queued_ms=queued_ms, total_ms=total_ms)
    )


def test_a_backlog_is_what_is_not_done_with_the_done_above_the_frontier_taken_off() -> None:
    metadata = encode(10, Progress(30, (range(12, 15), range(20, 21))), 4_096)
    points = {A: CommitPoint(10, metadata), B: None}
    assert backlog_of({A: 25, B: 7}, points) == Backlog(ahead=25 - 10 - 4 + 7, completions=14)


def test_metadata_that_cannot_be_read_counts_nothing_as_done_above_the_frontier() -> None:
    assert backlog_of({A: 25}, {A: CommitPoint(10, "gibberish")}) == Backlog(15, 10)


def test_a_call_that_would_wait_past_its_timeout_is_refused_and_one_with_more_patience_is_not() -> None:
    now = 0.0
    queues = Queues(clock=lambda: now)
    for second in range(20):
        now = float(second)
        queues.answered(CONTRACT, "interactive", None, a_result(queued_ms=5_000, total_ms=6_000))
        queues.look(CONTRACT, {"interactive": Backlog(ahead=600, completions=10 * second)})
    queues.check(CONTRACT, "interactive", 100)
    with pytest.raises(ApiError) as refusal:
        queues.check(CONTRACT, "interactive", 30)
    assert refusal.value.status == 429
    assert 1 <= int(refusal.value.headers["Retry-After"]) <= 120
    queues.check(CONTRACT, "standard", 1)  # another lane
    queues.check(("tagger", 2), "interactive", 1)  # another contract


def test_an_earlier_answer_that_is_found_again_is_no_sign_that_anybody_waited_now() -> None:
    now = 0.0
    queues = Queues(clock=lambda: now)
    for second in range(20):
        now = float(second)
        began = now - 0.5  # the same call again, under its Idempotency-Key
        queues.answered(CONTRACT, "interactive", began, a_result(queued_ms=5_000, total_ms=6_000))
        queues.look(CONTRACT, {"interactive": Backlog(ahead=600, completions=10 * second)})
    queues.check(CONTRACT, "interactive", 30)


def test_an_answer_that_was_made_for_this_call_counts_whether_or_not_it_has_a_key() -> None:
    now = 0.0
    queues = Queues(clock=lambda: now)
    for second in range(20):
        now = float(second)
        queues.answered(CONTRACT, "interactive", now - 7, a_result(queued_ms=5_000, total_ms=6_000))
        queues.look(CONTRACT, {"interactive": Backlog(ahead=600, completions=10 * second)})
    with pytest.raises(ApiError):
        queues.check(CONTRACT, "interactive", 30)


def test_of_a_contract_that_somebody_has_made_up_nothing_is_kept() -> None:
    queues = Queues()
    for number in range(100):
        queues.check(("made-up", number), "interactive", 30)
    assert len(queues) == 0
    queues.look(CONTRACT, {"interactive": Backlog(ahead=1, completions=0)})
    assert len(queues) == 1
