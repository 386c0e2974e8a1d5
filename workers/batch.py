"""What goes into one transaction. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.workers.work import Completion

MAX_BATCH_RECORDS = 500  # completions in one transaction: about 60 ms of a broker's time
MAX_BATCH_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes into one transaction."""

    completions: tuple[Completion, ...]
    points: dict[TopicPartition, CommitPoint]
    epochs: dict[TopicPartition, int]


def how_many_fit(again: Sequence[Completion], pending: Sequence[Completion]) -> int:
    """How many of the pending completions go with those that go again; the first always, if nothing goes again."""
    size = sum(completion.bytes_to_publish for completion in again)
    room = max(0, MAX_BATCH_RECORDS - len(again))
    for count, completion in enumerate(pending[:room]):
        size += completion.bytes_to_publish
        if (count or again) and size > MAX_BATCH_BYTES:
            return count
    return min(len(pending), room)


def fills(completions: int, size: int) -> bool:
    """Whether so many completions, of `size` bytes together, are worth a transaction at once."""
    return completions >= MAX_BATCH_RECORDS or size >= MAX_BATCH_BYTES


def weight(completion: Completion) -> int:
    """Bytes that a completion holds in memory: what it publishes, and the request that it keeps."""
    return completion.bytes_to_publish + completion.size
