"""How a client's requests leave and its replies come back: the port of Kafka and of the in-memory twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.consumers.replies import Delivery
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Cancel, Lane, Location, Request, Result


class Transport(Protocol):
    """Carries messages between one client instance and the workers of one contract.

    The coroutines run on the client's loop. Both callbacks may be called from any thread.
    """

    async def open(
        self, deliver: Callable[[list[Delivery]], None], died: Callable[[HeadraceError], None]
    ) -> None:
        """Connect. When it returns, no reply to what is sent from now on can be missed.

        Raises KafkaFailed, and TopicsError where a topic does not exist.
        """
        ...

    def correlation_id(self, number: int) -> str:
        """The correlation id of the instance's request with this number; no other instance has it."""
        ...

    async def send(self, request: Request, lane: Lane, correlation_id: str | None) -> Location:
        """Hand over a request; returns when it is durable, saying where it lies.

        Without a correlation id no reply is wanted.

        Raises KafkaFailed, and MessageError for a request that does not fit on the wire.
        """
        ...

    async def send_cancel(self, cancel: Cancel) -> None:
        """Hand over a cancel; returns when it is durable. Raises KafkaFailed."""
        ...

    async def result_at(self, location: Location) -> Result:
        """The result that lies there. Raises ResultGone where none does (any more), and KafkaFailed."""
        ...

    async def close(self) -> None:
        """Let go of everything. Idempotent."""
        ...
