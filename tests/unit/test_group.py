"""What questions to a group and to the brokers become when they are answered with nothing of use."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.consumers.group import log_offsets
from headrace.consumers.kafka_client import kafka_partition
from headrace.consumers.records import TopicPartition
from headrace.schemas.errors import KafkaUnavailable


class Young:
    """A client whose newest metadata does not have a partition yet."""

    def end_offsets(self, partitions: list[Any], timeout_ms: int) -> dict[Any, int]:
        raise KeyError(partitions[0])


def test_a_partition_that_the_clients_newest_metadata_does_not_have_is_asked_for_again() -> None:
    asked = TopicPartition("young", 7)
    with pytest.raises(KafkaUnavailable, match="do not know") as found:
        log_offsets(cast("Any", Young()), "end_offsets", [asked], 1.0)
    assert str(kafka_partition(asked)) in str(found.value)
