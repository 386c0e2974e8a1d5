"""The worker's ear and mouth on the control topic: what is known of its group, and what it has to add."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping

from headrace.consumers.catalogue import ServingVersion
from headrace.consumers.control import ControlReader
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.rollouts import shown_shares
from headrace.consumers.sharing import Plan
from headrace.consumers.starting import Acceptance
from headrace.producers.control import ControlWriter
from headrace.producers.kafka import PlainProducer
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings

log = logging.getLogger(__name__)

RETRY_S = 2.0


# What the group has committed, or what is served.
_Told = Mapping[TopicPartition, CommitPoint] | ServingVersion


class ControlLink:
    """`run` is a thread's body; the rest may be called from any thread, and never waits."""

    def __init__(self, settings: Settings, group: str, offer_plan: Callable[[Plan], None]) -> None:
        """`offer_plan` is called in the reading thread with each new plan for the group."""
        self._settings = settings
        self._group = group
        self._reader = ControlReader(settings, self._changed)
        self._offer_plan = offer_plan
        self._plan: Plan | None = None
        self._revision = 0
        self._told: queue.SimpleQueue[_Told | None] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def _changed(self) -> None:
        self._revision += 1
        plan = self._reader.plan(self._group)
        if plan is not None and plan != self._plan:
            self._plan = plan
            log.info(
                "plan %d of rollout %s: %s",
                plan.revision,
                plan.rollout,
                shown_shares(plan.shares) or "equal shares",
            )
            self._offer_plan(plan)

    @property
    def ready(self) -> bool:
        """Whether all has been read that was there at first."""
        return self._reader.ready

    @property
    def revision(self) -> int:
        """Grows with each change."""
        return self._revision

    def is_known(self, tp: TopicPartition) -> bool:
        """Whether the group has committed offsets for the partition at some time."""
        return self._reader.is_known(self._group, tp)

    def accepted(self, tp: TopicPartition) -> Acceptance | None:
        """An operator's word on a parked partition."""
        return self._reader.accepted(self._group, tp)

    def know(self, committed: Mapping[TopicPartition, CommitPoint]) -> None:
        """The group has committed these now: write down what is not known yet."""
        self._told.put(dict(committed))

    def serves(self, serving: ServingVersion) -> None:
        """The engine is ready: write down what is served."""
        self._told.put(serving)

    def run(self) -> None:
        """Read, and write, until `stop()`."""
        writing = threading.Thread(target=self._write, name="control writer", daemon=True)
        writing.start()
        self._reader.run()
        writing.join()

    def stop(self) -> None:
        """Let `run` return once what was told is written, or cannot be."""
        self._stopping.set()
        self._told.put(None)
        self._reader.stop()

    def _write(self) -> None:
        producer: PlainProducer | None = None
        while (told := self._told.get()) is not None:
            producer = self._write_one(producer, told)
        if producer is not None:
            producer.close()

    def _write_one(self, producer: PlainProducer | None, told: _Told) -> PlainProducer | None:
        """Try until it is written, or we are to stop; the producer to go on with."""
        while True:
            try:
                producer = producer or PlainProducer(self._settings)
                writer = ControlWriter(producer, prefix=self._settings.prefix, group=self._group)
                if isinstance(told, ServingVersion):
                    writer.serves(told)
                else:
                    writer.know(told, self._reader)
            except HeadraceError as error:
                log.warning("the control topic cannot be written, trying on: %s", error)
                if self._stopping.wait(RETRY_S):
                    return producer
            else:
                return producer
