"""A version in the shadow of a contract: which requests it takes, how it serves them, and what it leaves out.

It is a worker as any other, with a group and topics of its own (`topics.names.ShadowNames`). Every request of the
contract passes it; of those that any version could serve it takes a sampled share, at the backfill lane's priority, and
the offset of the rest is done at once, with nothing published. Callers hear nothing of it: no reply, and no result
anywhere but in the shadow's own topic.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.starting import Acceptance
from headrace.producers.kafka import OutgoingRecord
from headrace.schemas import headers as header
from headrace.schemas.messages import Result
from headrace.workers.answers import Answers, Served
from headrace.workers.work import Completion, Work

_HASHES = 2**64


def is_sampled(request_id: str, share: float) -> bool:
    """Whether a request is in a sample of this share (0 to 1).

    By its id alone, so that all workers agree, and a restart with them; whoever is in a sample is in each larger one.
    """
    digest = hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * _HASHES


@dataclass(frozen=True, slots=True)
class Shadow:
    """What is asked of a shadow. `share`: of the requests, above 0 and at most 1."""

    share: float

    def take(self, work: Work) -> Work | None:
        """The work as it is served here; None: it is not in the sample."""
        assert work.request is not None, "what has no error is decoded"
        if not is_sampled(work.request.id, self.share):
            return None
        request = work.request.model_copy(update={"result_topic": None, "stream": False})
        return replace(work, lane="backfill", request=request, reply_to=None)


class ShadowAnswers(Answers):
    """Answers whose records say that they are a shadow's."""

    def _completed(
        self,
        work: Work,
        served: Served,
        result: Result,
        records: list[OutgoingRecord],
        *,
        last_resort: bool = False,
    ) -> Completion:
        mark = (header.SHADOW, result.provenance.version.encode())
        marked = [record._replace(headers=(*record.headers, mark)) for record in records]
        return super()._completed(work, served, result, marked, last_resort=last_resort)


class NoControl:
    """In the place of `ControlLink`: the control topic is neither read nor written.

    A shadow's group has no plan, nothing of it is parked, and what it serves is nothing that can be asked for.
    """

    ready = True
    revision = 0

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def is_known(self, tp: TopicPartition) -> bool:
        """Nothing depends on it."""
        return False

    def accepted(self, tp: TopicPartition) -> Acceptance | None:
        """There is nothing to accept."""
        return None

    def know(self, committed: Mapping[TopicPartition, CommitPoint]) -> None:
        """Nobody asks."""

    def run(self) -> None:
        """Wait for `stop()`."""
        self._stopped.wait()

    def stop(self) -> None:
        """Let `run` return."""
        self._stopped.set()
