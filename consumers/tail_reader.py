"""A consumer of single partitions without a group. With it, `kafka` uses a consumer client, and see there."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Literal, cast

from headrace.consumers.connection import client_options, connect
from headrace.consumers.group import CALL_TIMEOUT_S, CLOSE_TIMEOUT_S, log_offsets, translated
from headrace.consumers.kafka_client import FetchingConsumer, kafka_partition
from headrace.consumers.records import Record, TopicPartition
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.schemas.errors import KafkaUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.schemas.settings import Settings

logger = logging.getLogger(__name__)

# Where nothing is ever paused, an answer comes as soon as there is something: the longer the cheaper.
TAIL_FETCH_MAX_WAIT_MS = 500

Isolation = Literal["read_committed", "read_uncommitted"]


class TailReader:
    """Reads given partitions without a group, so that nothing is committed and nobody is asked. For one
    thread alone, but for `wake_up`.

    `start` is "end" (what comes from now on), "beginning", or an offset for each partition.
    """

    def __init__(
        self,
        settings: Settings,
        partitions: Collection[TopicPartition],
        start: Literal["end", "beginning"] | Mapping[TopicPartition, int],
        isolation: Isolation = "read_committed",
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Connect and take position. Raises KafkaUnavailable (also where a topic does not exist),
        KafkaFailed."""
        self._partitions = tuple(partitions)
        self._name = ", ".join(sorted({tp.topic for tp in partitions}))
        self._woken = False
        self.skipped: dict[TopicPartition, int] = {}  # records that retention removed before they were read
        with translated(f"connecting to read {self._name}"):
            self._client: FetchingConsumer = connect(
                FetchingConsumer,
                **client_options(settings),
                group_id=None,
                auto_offset_reset="none",
                enable_auto_commit=False,
                isolation_level=isolation,
                fetch_max_wait_ms=TAIL_FETCH_MAX_WAIT_MS,
            )
        try:
            self._take_position(start, timeout_s)
        except BaseException:
            self.close()
            raise

    def _take_position(self, start: str | Mapping[TopicPartition, int], timeout_s: float) -> None:
        self._client.assign([kafka_partition(tp) for tp in self._partitions])
        if start == "end":
            offsets: Mapping[TopicPartition, int] = self.end_offsets(timeout_s)
        elif start == "beginning":
            offsets = self.beginning_offsets(timeout_s)
        else:
            offsets = cast("Mapping[TopicPartition, int]", start)
        for tp in self._partitions:
            self._client.seek(kafka_partition(tp), offsets[tp])

    def poll(self, timeout_s: float, max_records: int = 500) -> list[Record]:
        """Records as they come, each partition's in order; [] after `timeout_s`. An outage is waited out.

        Where retention was faster than this reader it goes on with the first record that is left, says so
        in the log and adds the difference to `skipped`. Raises KafkaFailed for what waiting cannot mend.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = self._poll_once(max_records)
            remaining = deadline - time.monotonic()
            if found or self._woken or remaining <= 0:
                self._woken = False
                return found
            self._client.wait(remaining)

    def _poll_once(self, max_records: int) -> list[Record]:
        try:
            with translated(f"reading {self._name}"):
                records, out_of_range = self._client.fetch(max_records)
            if out_of_range:
                self._skip(out_of_range)
        except KafkaUnavailable as error:
            self._client.outage(error)
            return []
        return [record for found in records.values() for record in found]

    def _skip(self, out_of_range: Mapping[TopicPartition, int]) -> None:
        beginnings = log_offsets(self._client, "beginning_offsets", out_of_range, CALL_TIMEOUT_S)
        for tp, position in out_of_range.items():
            beginning = beginnings[tp]
            lost = max(0, beginning - position)
            self.skipped[tp] = self.skipped.get(tp, 0) + lost
            logger.warning(
                "%s-%d no longer holds offset %d: going on at %d, %d offsets were not read",
                *tp,
                position,
                beginning,
                lost,
            )
            self._client.seek(kafka_partition(tp), beginning)

    def wake_up(self) -> None:
        """Make a poll that is waiting, or else the next one, return early. From any thread."""
        self._woken = True
        self._client.wake_up()

    def position(self, tp: TopicPartition) -> int | None:
        """The offset that the next record has or is above."""
        return self._client.position_of(tp)

    def beginning_offsets(self, timeout_s: float = CALL_TIMEOUT_S) -> dict[TopicPartition, int]:
        """The first offset of each partition. Raises KafkaUnavailable, KafkaFailed."""
        return log_offsets(self._client, "beginning_offsets", self._partitions, timeout_s)

    def end_offsets(self, timeout_s: float = CALL_TIMEOUT_S) -> dict[TopicPartition, int]:
        """Where each partition ends for this reader's isolation. Raises KafkaUnavailable, KafkaFailed."""
        return log_offsets(self._client, "end_offsets", self._partitions, timeout_s)

    def close(self) -> None:
        """Close the connections. Never raises."""
        try:
            self._client.close(autocommit=False, timeout_ms=int(CLOSE_TIMEOUT_S * 1000))
        except (kafka_errors.KafkaError, OSError, RuntimeError) as error:
            logger.warning("closing the reader of %s: %s", self._name, error)
