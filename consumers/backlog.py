"""How much lies before a request that is sent now: read once a second, for whoever must tell a caller to wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.consumers import offset_encoding
from headrace.consumers.group import asking_about, committed_points, log_offsets
from headrace.consumers.kafka_client import FetchingConsumer
from headrace.consumers.metadata_limit import LONGEST_METADATA
from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.trying_on import read_until
from headrace.schemas.errors import UnreadableOffsets

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
        read_until(
            self._stop,
            self._read,
            failing=f"the backlog of {self._names.base} cannot be read",
            again_s=TRY_AGAIN_S,
            log=log,
            level=logging.DEBUG,
        )

    def _read(self) -> None:
        topics: dict[Lane, str] = {lane: self._names.requests(lane) for lane in self._lanes}
        found = partitions_of(self._settings, topics.values())
        with asking_about(self._settings, self._names.group) as client:
            while not self._stop.wait(EVERY_S):
                self._tell({lane: self._look(client, found[topic]) for lane, topic in topics.items()})

    def _look(self, client: FetchingConsumer, partitions: list[TopicPartition]) -> Backlog:
        deadline = time.monotonic() + READ_WITHIN_S
        # Before the logs' ends: what is committed meanwhile must not seem to lie beyond them.
        points = committed_points(client, self._names.group, partitions, READ_WITHIN_S)
        ends = log_offsets(client, "end_offsets", partitions, max(1.0, deadline - time.monotonic()))
        return backlog_of(ends, points)
