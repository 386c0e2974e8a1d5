"""Reads what a shadow has answered, and what the callers got, and puts them side by side."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.consumers.results import ResultReader
from headrace.ops.rollouts.pairing import GAVE_UP, Pairing
from headrace.schemas.errors import MessageError, TopicsError

if TYPE_CHECKING:
    from headrace.consumers.results import ReadResult
    from headrace.schemas.messages import Result
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames, ShadowNames

CLOCKS = timedelta(minutes=1)  # by which those of brokers and workers may differ


class Comparison:
    """Of a shadow and its contract. `unreadable`: results that could not be decoded, of either side."""

    def __init__(
        self, settings: Settings, names: ContractNames, shadow: ShadowNames, pairing: Pairing
    ) -> None:
        self._settings = settings
        self._names = names
        self._shadow = shadow
        self.pairing = pairing
        self.unreadable = 0
        self._asked: dict[str, datetime] = {}  # by request that is held: when it was appended

    def read(self, since: datetime) -> None:
        """What the shadow has answered since then, and all that the callers got to the same requests.

        Raises TopicsError where there is no such shadow, KafkaUnavailable, KafkaFailed, BrokerNotFound.
        """
        self._hold(since)
        if self._asked:
            self._meet(min(self._asked.values()) - CLOCKS)

    def _hold(self, since: datetime) -> None:
        try:
            reader = ResultReader(self._settings, self._shadow, start=since)
        except TopicsError:
            raise TopicsError(
                f"version {self._shadow.version} has never run as a shadow of {self._names.base}: there is no topic "
                f"{self._shadow.results}"
            ) from None
        with reader:
            for found in reader:
                if found is None or (result := self._readable(found)) is None:
                    continue
                put_out = self.pairing.hold(result)
                if result.status not in GAVE_UP:
                    answered = datetime.fromtimestamp(max(found.timestamp_ms, 0) / 1000, UTC)
                    self._asked[result.id] = answered - timedelta(milliseconds=result.timings.total_ms)
                if put_out is not None:
                    del self._asked[put_out]

    def _meet(self, since: datetime) -> None:
        """From the first of the requests on: no answer is older than what it answers."""
        with ResultReader(self._settings, self._names, start=since) as reader:
            for found in reader:
                if self.pairing.without_partner == 0:
                    return
                if found is not None and (result := self._readable(found)) is not None:
                    self.pairing.meet(result)

    def _readable(self, found: ReadResult) -> Result | None:
        if isinstance(found.result, MessageError):
            self.unreadable += 1
            return None
        return found.result
