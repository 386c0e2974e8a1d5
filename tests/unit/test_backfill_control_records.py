"""What the control topic says of backfill jobs: the last record of a key counts, and a takeover is seen."""

from __future__ import annotations

from headrace.consumers.backfill_jobs import (
    BackfillRecords,
    JobId,
    Order,
    RunningJob,
    job_record,
    order_record,
)

TAGS = JobId("movie-tagger", 1, "tags-1")


def running(incarnation: str = "a", **changes: object) -> RunningJob:
    said = RunningJob(
        incarnation=incarnation,
        host="h:1",
        output="/data/tags.parquet",
        status="running",
        rows=10,
        settled=3,
        failed=1,
        at=5,
    )
    return said.model_copy(update=changes)


def test_a_job_and_an_order_are_found_by_its_id_or_its_beginning() -> None:
    records = BackfillRecords()
    assert records.take(*job_record(TAGS, running()), 7) is None
    assert records.take(*order_record(TAGS, Order(order="pause", by="me", at=6)), 8) is None
    [known] = records.of("tags")
    assert known == records.jobs[TAGS]
    assert (known.running, known.order and known.order.by, known.claim) == (running(), "me", 7)
    assert records.of("tag-") == []


def test_an_order_that_is_taken_back_is_none() -> None:
    records = BackfillRecords()
    records.take(*order_record(TAGS, Order(order="cancel", by="me", at=6)), 1)
    assert records.jobs[TAGS].order is not None
    records.take(*order_record(TAGS, None), 2)
    assert TAGS not in records.jobs


def test_another_incarnation_is_a_new_claim_and_the_same_is_none() -> None:
    records = BackfillRecords()
    records.take(*job_record(TAGS, running("a")), 1)
    records.take(*job_record(TAGS, running("a", settled=9)), 2)
    assert records.jobs[TAGS].claim == 1
    records.take(*job_record(TAGS, running("b")), 3)
    assert records.jobs[TAGS].claim == 3


def test_what_cannot_be_read_is_told_and_changes_nothing() -> None:
    records = BackfillRecords()
    records.take(*job_record(TAGS, running()), 1)
    assert "Field required" in (records.take(TAGS.key("backfill"), b'{"incarnation": "a"}', 2) or "")
    assert records.take(b"backfill/nobody", b"{}", 3) == "its key is not backfill/<model>/<number>/<job>"
    assert records.take(b"contract/m/1", b"{", 4) is None, "of another kind"
    assert records.jobs[TAGS].running == running()
