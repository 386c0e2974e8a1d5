"""What may be committed: the cases by hand. The laws are in tests/property/test_ledger_properties.py."""

import pytest

from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.producers.kafka import OutgoingRecord
from headrace.schemas.codec import Encoding
from headrace.schemas.messages import Lane, Location, Provenance, Result
from headrace.workers import batch as batch_module
from headrace.workers.batch import Batch
from headrace.workers.ledger import Ledger
from headrace.workers.work import Completion, ReplyAddress

A, B = TopicPartition("requests", 0), TopicPartition("requests", 1)
HERE = ReplyAddress("replies", 3, "client-1:1")


def completion(
    ledger: Ledger,
    source: TopicPartition,
    offset: int,
    *,
    urgent: bool = False,
    size: int = 10,
    epoch: int | None = None,
    lane: Lane | None = None,
) -> Completion:
    lane = lane or ("interactive" if urgent else "standard")
    result = Result(
        id=f"{source.partition}-{offset}",
        status="ok",
        provenance=Provenance(
            model="m",
            version="1",
            contract=1,
            engine="simulated",
            engine_version="1",
            slot="s",
            source_topic=source.topic,
            source_partition=source.partition,
            source_offset=offset,
        ),
    )
    return Completion(
        source=source,
        offset=offset,
        epoch=epoch if epoch is not None else ledger.epoch(source) or 0,
        lane=lane,
        size=size,
        request_id=result.id,
        records=(OutgoingRecord("results", b"", b"x" * size, ()),),
        result=result,
        encoding=Encoding.JSON,
        urgent=urgent,
    )


def assign(ledger: Ledger, source: TopicPartition, committed: CommitPoint | None = None) -> None:
    if not ledger.has_window(source.partition):
        ledger.open_window(source.partition, [], "results")
    ledger.assigned(source, committed or CommitPoint(0, ""), beginning=0, end=0)


def commit(ledger: Ledger) -> Batch | None:
    """The next batch, committed."""
    batch = ledger.take()
    if batch is not None:
        ledger.committed([None] * len(batch.completions))
    return batch


def started(
    *sources: TopicPartition, records: int = 5, window: int = 50_000, backfill_interval_s: float | None = None
) -> Ledger:
    """All polled, all begun, and the first marks committed."""
    ledger = Ledger(
        commit_interval_s=0.1,
        backfill_commit_interval_s=backfill_interval_s,
        metadata_limit=4096,
        dedupe_window=window,
    )
    for source in sources:
        assign(ledger, source)
        for offset in range(records):
            assert ledger.polled(source, offset)
    commit(ledger)
    for source in sources:
        for offset in range(records):
            ledger.handed_over(source, offset)
    return ledger


def test_a_batch_is_due_after_the_commit_interval_and_an_urgent_one_at_once() -> None:
    ledger = started(A)
    assert ledger.due_in(100.0) is None
    ledger.complete(completion(ledger, A, 0), 100.0)
    assert ledger.due_in(100.0) == pytest.approx(0.1)
    assert ledger.due_in(100.2) == 0
    ledger.complete(completion(ledger, A, 1, urgent=True), 100.01)
    assert ledger.due_in(100.01) == 0


def test_backfill_waits_longer_and_goes_along_with_what_is_due_before() -> None:
    ledger = started(A, backfill_interval_s=1.0)
    ledger.complete(completion(ledger, A, 0, lane="backfill"), 100.0)
    assert ledger.due_in(100.0) == pytest.approx(1.0)
    ledger.complete(completion(ledger, A, 1, lane="standard"), 100.5)
    assert ledger.due_in(100.5) == pytest.approx(0.1)
    ledger.complete(completion(ledger, A, 2, lane="backfill"), 100.55)
    assert ledger.due_in(100.55) == pytest.approx(0.05)
    batch = ledger.take()
    assert batch is not None
    assert [each.offset for each in batch.completions] == [0, 1, 2]


def test_a_standard_result_is_not_held_up_by_backfill_that_came_before() -> None:
    ledger = started(A, backfill_interval_s=1.0)
    ledger.complete(completion(ledger, A, 0, lane="backfill"), 100.95)
    ledger.complete(completion(ledger, A, 1, lane="standard"), 101.0)
    assert ledger.due_in(101.0) == pytest.approx(0.1)


def test_a_batch_is_due_once_its_bytes_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MAX_BATCH_BYTES", 100)
    ledger = started(A)
    ledger.complete(completion(ledger, A, 0, size=40), 100.0)
    assert ledger.due_in(100.0) == pytest.approx(0.1)
    ledger.complete(completion(ledger, A, 1, size=40), 100.0)
    assert ledger.due_in(100.0) == 0


def test_one_transaction_at_a_time() -> None:
    ledger = started(A)
    ledger.complete(completion(ledger, A, 0), 0.0)
    assert ledger.take() is not None
    ledger.complete(completion(ledger, A, 1), 0.0)
    assert ledger.due_in(10.0) is None


def test_a_completion_from_an_older_tenure_is_dropped() -> None:
    ledger = started(A)
    old = completion(ledger, A, 0)
    ledger.revoked(A)
    assign(ledger, A)
    ledger.polled(A, 0)
    assert not ledger.complete(old, 0.0)
    assert ledger.complete(completion(ledger, A, 0), 0.0)


def test_what_waits_for_a_revoked_partition_is_not_published() -> None:
    ledger = started(A, B)
    ledger.complete(completion(ledger, A, 0), 0.0)
    ledger.complete(completion(ledger, B, 0), 0.0)
    ledger.revoked(A)
    batch = ledger.take()
    assert batch is not None
    assert {each.source for each in batch.completions} == {B}
    assert set(batch.points) == {B}


def test_a_stale_batch_goes_again_without_what_was_lost_meanwhile() -> None:
    ledger = started(A, B)
    for source in (A, B):
        ledger.complete(completion(ledger, source, 0), 0.0)
    assert ledger.take() is not None
    ledger.revoked(A)
    dropped = ledger.not_committed(1.0)
    assert [each.source for each in dropped] == [A]
    again = ledger.take()
    assert again is not None
    assert [(each.source, each.offset) for each in again.completions] == [(B, 0)]
    assert again.points[B].offset == 1


def test_a_commit_point_never_speaks_of_a_result_that_waits_for_a_later_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_module, "MAX_BATCH_RECORDS", 2)
    ledger = started(A, records=3)
    for offset in range(3):
        ledger.complete(completion(ledger, A, offset), 0.0)
    first = ledger.take()
    assert first is not None
    assert (len(first.completions), first.points[A].offset) == (2, 2)
    ledger.committed([None, None])
    second = ledger.take()
    assert second is not None
    assert (len(second.completions), second.points[A].offset) == (1, 3)


def test_a_completion_larger_than_a_batch_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MAX_BATCH_BYTES", 100)
    ledger = started(A, records=2)
    ledger.complete(completion(ledger, A, 0, size=500), 0.0)
    ledger.complete(completion(ledger, A, 1), 0.0)
    batch = ledger.take()
    assert batch is not None
    assert len(batch.completions) == 1


def test_a_position_past_transaction_markers_is_committed_when_nothing_is_outstanding() -> None:
    ledger = Ledger(commit_interval_s=0.1, metadata_limit=4096)
    assign(ledger, A, CommitPoint(5, ""))
    commit(ledger)
    ledger.advanced(A, 7)
    batch = ledger.take()
    assert batch is not None
    assert (batch.completions, batch.points[A].offset) == ((), 7)
    ledger.committed([])
    assert ledger.take() is None


def test_who_asks_again_while_it_runs_is_told_at_its_commit() -> None:
    ledger = started(A)
    assert ledger.ask(A, "0-0", 0, HERE) is None
    other = ReplyAddress("replies", 1, "client-2:1")
    seen = ledger.ask(A, "0-0", 1, other)
    assert seen is not None
    assert not seen.answered
    ledger.complete(completion(ledger, A, 0), 0.0)
    ledger.take()
    location = Location(topic="results", partition=0, offset=42)
    told = ledger.committed([location])
    assert [(address, where) for _, address, where in told] == [(other, location)]


def test_who_asks_after_the_answer_learns_where_it_lies() -> None:
    ledger = started(A)
    ledger.ask(A, "0-0", 0, None)
    ledger.complete(completion(ledger, A, 0), 0.0)
    ledger.take()
    ledger.committed([Location(topic="results", partition=0, offset=42)])
    seen = ledger.ask(A, "0-0", 1, HERE)
    assert seen is not None
    assert seen.answered
    assert seen.location == Location(topic="results", partition=0, offset=42)
    assert seen.waiting == ()


def test_remembered_ids_are_bounded_but_a_running_one_is_never_forgotten() -> None:
    ledger = started(A, records=9, window=2)
    ledger.ask(A, "0-0", 0, None)
    for number in range(1, 5):
        ledger.ask(A, f"0-{number}", number, None)
    assert ledger.ask(A, "0-0", 8, None) is not None, "it still runs"
    for number in range(5):
        ledger.complete(completion(ledger, A, number), 0.0)
    commit(ledger)
    assert ledger.ask(A, "0-4", 5, None) is not None, "answered just now"
    assert ledger.ask(A, "0-0", 6, None) is None, "answered and beyond the window"


def test_a_batch_goes_at_once_when_nothing_is_in_flight_that_could_join_it() -> None:
    ledger = started(A, B, records=1)
    ledger.complete(completion(ledger, A, 0), 100.0)
    assert ledger.due_in(100.0) == pytest.approx(0.1)
    ledger.complete(completion(ledger, B, 0), 100.0)
    assert ledger.due_in(100.0) == 0


def test_what_a_lost_partition_had_in_flight_is_no_longer_waited_for() -> None:
    ledger = started(A, B, records=1)
    ledger.complete(completion(ledger, A, 0), 100.0)
    ledger.revoked(B)
    assert ledger.due_in(100.0) == 0


# --- marks, suspects and moves ---


def test_nothing_may_be_started_before_a_mark_above_it_is_committed_and_the_commit_is_due_at_once() -> None:
    ledger = Ledger(commit_interval_s=0.1, metadata_limit=4096)
    assign(ledger, A)
    ledger.polled(A, 0)
    assert not ledger.may_start(A, 0)
    assert ledger.due_in(100.0) == 0
    batch = ledger.take()
    assert batch is not None
    assert not ledger.may_start(A, 0), "it is under way"
    ledger.not_committed(100.0)
    assert not ledger.may_start(A, 0)
    assert ledger.due_in(100.0) == 0
    commit(ledger)
    assert ledger.may_start(A, 0)


def test_the_mark_moves_on_before_what_is_polled_reaches_it() -> None:
    ledger = started(A)
    for offset in range(5, 100):
        ledger.polled(A, offset)
    assert ledger.may_start(A, 99)
    assert ledger.due_in(0.0) == 0, "less than half a block is left"
    commit(ledger)
    assert ledger.due_in(0.0) is None
    assert ledger.may_start(A, 200)


def test_completions_that_a_full_batch_leaves_over_are_in_the_next_with_their_commit_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_module, "MAX_BATCH_RECORDS", 2)
    ledger = started(A, B, records=2)
    for source in (A, B):
        for offset in range(2):
            ledger.complete(completion(ledger, source, offset), 0.0)
    first = commit(ledger)
    assert first is not None
    assert set(first.points) == {A}
    assert not ledger.is_settled(B)
    second = commit(ledger)
    assert second is not None
    assert [each.source for each in second.completions] == [B, B]
    assert second.points[B].offset == 2
    assert ledger.is_settled(A)
    assert ledger.is_settled(B)


def test_a_partition_is_settled_once_all_that_is_known_of_it_is_committed() -> None:
    ledger = started(A, B)
    assert ledger.is_settled(A)
    ledger.complete(completion(ledger, A, 0), 0.0)
    assert ledger.is_unpublished(A)
    assert not ledger.is_settled(A)
    ledger.take()
    assert ledger.is_unpublished(A), "it is under way"
    ledger.not_committed(0.0)
    assert ledger.is_unpublished(A), "it goes again"
    commit(ledger)
    assert not ledger.is_unpublished(A)
    assert ledger.is_settled(A)
    ledger.withdraw(A)
    assert not ledger.is_settled(A)
    commit(ledger)
    assert ledger.is_settled(A)


def test_a_withdrawn_partition_starts_nothing_and_its_next_owner_finds_no_death() -> None:
    ledger = started(A, records=2)
    for offset in range(2):
        ledger.complete(completion(ledger, A, offset), 0.0)
    ledger.polled(A, 2)
    ledger.withdraw(A)
    assert not ledger.may_start(A, 2)
    batch = commit(ledger)
    assert batch is not None
    successor = Ledger(commit_interval_s=0.1, metadata_limit=4096)
    successor.assigned(A, batch.points[A], beginning=0, end=3)
    assert successor.vanished(A) == 0


def test_what_was_in_the_engine_when_it_died_is_suspect_and_what_was_finished_or_not_handed_over_is_not() -> (
    None
):
    ledger = started(A, records=3)
    ledger.polled(A, 3)
    ledger.complete(completion(ledger, A, 1), 0.0)
    ledger.engine_died({(A, offset) for offset in range(4)})
    batch = commit(ledger)
    assert batch is not None
    successor = Ledger(commit_interval_s=0.1, metadata_limit=4096)
    successor.assigned(A, batch.points[A], beginning=0, end=4)
    assert successor.vanished(A) == 0, "it is told, not found"
    assert [successor.suspicion(A, offset).deaths for offset in range(4)] == [1, 0, 1, 0]


def test_what_a_loop_gives_back_of_another_tenure_or_after_its_answer_is_not_taken() -> None:
    ledger = started(A, records=2)
    epoch = ledger.epoch(A)
    assert epoch is not None
    ledger.complete(completion(ledger, A, 0), 0.0)
    assert not ledger.handed_back(A, 0, epoch)
    assert not ledger.handed_back(A, 1, epoch - 1)
    assert ledger.in_flight(A.partition) == 1
    assert ledger.handed_back(A, 1, epoch)
    assert not ledger.handed_back(A, 1, epoch), "once"
    assert ledger.in_flight(A.partition) == 0


def test_a_unit_that_has_gone_altogether_forgets_what_was_answered_in_it() -> None:
    ledger = Ledger(commit_interval_s=0.1, metadata_limit=4096)
    other_lane = TopicPartition("requests.interactive", A.partition)
    assign(ledger, A)
    assign(ledger, other_lane)
    ledger.revoked(A)
    assert ledger.has_window(A.partition)
    ledger.revoked(other_lane)
    assert not ledger.has_window(A.partition)
