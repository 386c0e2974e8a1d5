"""What becomes of a doubtful transaction, decided from what is committed once it has ended."""

from __future__ import annotations

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.producers.kafka import OutgoingRecord, check_size, is_committed, record_bytes
from headrace.schemas.errors import ResultTooLarge, TransactionHung

A, B = TopicPartition("requests", 0), TopicPartition("requests", 1)
WANTED = {A: CommitPoint(5, "done 7"), B: CommitPoint(9, "")}


def test_it_was_committed_when_every_offset_with_its_metadata_is_there() -> None:
    assert is_committed(True, WANTED, {A: CommitPoint(5, "done 7"), B: CommitPoint(9, "")})


@pytest.mark.parametrize(
    "found",
    [
        {A: CommitPoint(4, ""), B: CommitPoint(8, "")},
        {A: CommitPoint(5, ""), B: CommitPoint(8, "")},
        {A: CommitPoint(6, "done 7"), B: None},
        {},
    ],
)
def test_it_was_aborted_when_nothing_of_it_is_there(found: dict[TopicPartition, CommitPoint | None]) -> None:
    assert not is_committed(True, WANTED, found)


@pytest.mark.parametrize(
    "found",
    [
        {A: CommitPoint(5, "done 7"), B: CommitPoint(8, "")},
        {A: CommitPoint(5, ""), B: CommitPoint(9, "")},
        {A: None, B: CommitPoint(9, "")},
    ],
)
def test_it_cannot_be_told_once_a_partition_has_moved_to_another_member(
    found: dict[TopicPartition, CommitPoint | None],
) -> None:
    # Published again it would be refused for one partition's sake, and then go out a second time for the other's.
    with pytest.raises(TransactionHung):
        is_committed(True, WANTED, found)


def test_it_was_aborted_when_the_commit_was_never_sent_whatever_is_there() -> None:
    assert not is_committed(False, WANTED, dict(WANTED))


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("headers", [(), (("status", b"ok"), ("ö", b""))])
def test_a_record_never_takes_more_bytes_than_are_counted(
    key: bytes | None, headers: tuple[tuple[str, bytes], ...]
) -> None:
    record = OutgoingRecord("results", key, b"v" * 70_000, headers)
    batch = DefaultRecordBatchBuilder(2, 0, 1, 1, 1, 1, 16_384)
    batch.append(0, 2**40, key, record.value, list(headers))
    taken = len(batch.build())
    assert taken <= record_bytes(record) < taken + 64


def test_the_largest_record_that_fits_and_one_byte_more() -> None:
    record = OutgoingRecord("results", b"key", b"v" * 1000)
    check_size(record, record_bytes(record))
    with pytest.raises(ResultTooLarge, match="HEADRACE_MAX_RECORD_BYTES"):
        check_size(record, record_bytes(record) - 1)
