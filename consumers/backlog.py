"""How much lies before a request that is sent now: read once a second, for whoever must tell a caller to wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.consumers import offset_encoding
from headrace.consumers.connection import client_options, connect
from headrace.consumers.group import CLOSE_TIMEOUT_S, committed_points, log_offsets, translated
from headrace.consumers.kafka_client import FetchingConsumer
from headrace.consumers.metadata_limit import LONGEST_METADATA
from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.schemas.errors import HeadraceError, UnreadableOffsets

if TYPE_CHECKING:
    from headrace.schemas.messages import Lane
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

log = logging.getLogger(__name__)

EVERY_S = 1.0
TRY_AGAIN_S = 5.0
READ_WITHIN_S = 10.0


class Backlog(NamedTuple):
    """Of a lane: requests that are not done, those in an engine too; and a running count of those that are."""

    ahead: int
    completions: int


def backlog_of(
    ends: Mapping[TopicPartition, int], points: Mapping[TopicPartition, CommitPoint | None]
) -> Backlog:
    """From the logs' ends and what the group has committed. A partition without a committed offset has all ahead."""
    ahead = completions = 0
    for tp, end in ends.items():
        point = points.get(tp)
        done = 0 if point is None else point.offset + _done_above(point)
        ahead += max(0, end - done)
        completions += done
    return Backlog(ahead, completions)


def _done_above(point: CommitPoint) -> int:
    """Offsets above the frontier that are done too; what cannot be read counts as none."""
    try:
        progress = offset_encoding.decode(point.metadata, point.offset, LONGEST_METADATA)
    except UnreadableOffsets:
        return 0
    return sum(map(len, progress.done))


class BacklogReader:
    """Reads the backlog of some lanes of a contract. `run` is a thread's body; outages are waited out."""

    def __init__(
        self,
        settings: Settings,
        names: ContractNames,
        lanes: tuple[Lane, ...],
        tell: Callable[[Mapping[Lane, Backlog]], None],
    ) -> None:
        """`tell` is called in the reading thread."""
        self._settings = settings
        self._names = names
        self._lanes = lanes
        self._tell = tell
        self._stop = threading.Event()

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()

    def run(self) -> None:
        """Read until `stop()`."""
        while not self._stop.is_set():
            try:
                self._read()
            except HeadraceError as error:
                log.debug("the backlog of %s cannot be read, trying on: %s", self._names.base, error)
                self._stop.wait(TRY_AGAIN_S)

    def _read(self) -> None:
        topics: dict[Lane, str] = {lane: self._names.requests(lane) for lane in self._lanes}
        found = partitions_of(self._settings, topics.values())
        with translated(f"connecting to read the backlog of {self._names.base}"):
            client: FetchingConsumer = connect(
                FetchingConsumer,
                **client_options(self._settings),
                group_id=self._names.group,  # asked about, not joined
                auto_offset_reset="none",
                enable_auto_commit=False,
                isolation_level="read_uncommitted",  # an open transaction is not waited for
            )
        try:
            while not self._stop.wait(EVERY_S):
                self._tell({lane: self._look(client, found[topic]) for lane, topic in topics.items()})
        finally:
            client.close(autocommit=False, timeout_ms=int(CLOSE_TIMEOUT_S * 1000))

    def _look(self, client: FetchingConsumer, partitions: list[TopicPartition]) -> Backlog:
        deadline = time.monotonic() + READ_WITHIN_S
        # Before the logs' ends: what is committed meanwhile must not seem to lie beyond them.
        points = committed_points(client, self._names.group, partitions, READ_WITHIN_S)
        ends = log_offsets(client, "end_offsets", partitions, max(1.0, deadline - time.monotonic()))
        return backlog_of(ends, points)
