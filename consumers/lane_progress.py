"""How far a contract's group has come with one of its lanes: looked at once a second, for whoever feeds the lane."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.consumers.backlog import backlog_of
from headrace.consumers.group import asking_about, committed_points, log_offsets, translated
from headrace.consumers.group_members import Member, described_members
from headrace.consumers.kafka_client import FetchingConsumer
from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.trying_on import read_until
from headrace.topics.admin import open_admin

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

log = logging.getLogger(__name__)

EVERY_S = 1.0
TRY_AGAIN_S = 3.0
READ_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """One look. `ahead`: requests of the lane that are not done, whoever's; `seen_s`: `time.monotonic()` before it."""

    seen_s: float
    ahead: int
    points: Mapping[TopicPartition, CommitPoint | None]
    members: tuple[Member, ...]

    @property
    def capacity(self) -> int:
        """Requests that the engines of the members that stay take at a time."""
        return sum(each.capacity for each in self.members if not each.leaving)

    def is_below_frontier(self, tp: TopicPartition, offset: int) -> bool:
        """Whether the group has committed that this request and all before it in its partition need nothing more."""
        point = self.points.get(tp)
        return point is not None and offset < point.offset


class LaneWatcher:
    """Looks at a lane. `run` is a thread's body; outages are waited out."""

    def __init__(
        self, settings: Settings, names: ContractNames, topic: str, tell: Callable[[LaneProgress], None]
    ) -> None:
        """`topic` is the lane's; `tell` is called in the looking thread."""
        self._settings = settings
        self._names = names
        self._topic = topic
        self._tell = tell
        self._stop = threading.Event()

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()

    def run(self) -> None:
        """Look until `stop()`."""
        read_until(
            self._stop,
            self._look_on,
            failing=f"the progress of {self._topic} cannot be read",
            again_s=TRY_AGAIN_S,
            log=log,
            level=logging.DEBUG,
        )

    def _look_on(self) -> None:
        partitions = partitions_of(self._settings, [self._topic])[self._topic]
        group = self._names.group
        with (
            open_admin(self._settings, f"looking at group {group}") as admin,
            asking_about(self._settings, group) as client,
        ):
            while not self._stop.is_set():
                self._tell(self._look(admin, client, partitions))
                self._stop.wait(EVERY_S)

    def _look(self, admin: Any, client: FetchingConsumer, partitions: list[TopicPartition]) -> LaneProgress:
        began = time.monotonic()
        group = self._names.group
        # Before the log's ends: what is committed meanwhile must not seem to lie beyond them.
        points = committed_points(client, group, partitions, READ_WITHIN_S)
        ends = log_offsets(client, "end_offsets", partitions, READ_WITHIN_S)
        with translated(f"describing group {group}"):
            members, _ = described_members(group, admin.describe_groups([group])[group])
        return LaneProgress(began, backlog_of(ends, points).ahead, points, tuple(members))
