"""What the control topic says of a contract's last rollout, followed in a thread."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from headrace.consumers.control import ControlFollower, ControlRecords
from headrace.consumers.rollouts import RolloutState

if TYPE_CHECKING:
    from types import TracebackType

    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames


class LastRollout:
    """Followed from `with` to its end."""

    def __init__(self, settings: Settings, names: ContractNames) -> None:
        self._group = names.group
        self._control = ControlFollower(settings, ControlRecords)
        self._thread = threading.Thread(target=self._control.run, name="control reader", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.stop()
        self._thread.join()

    def look(self) -> tuple[str, RolloutState]:
        """Its id and how it stands now; "" and an empty one before there is any."""

        def last(records: ControlRecords) -> tuple[str, RolloutState]:
            states = [each for each in records.rollouts.states(self._group) if each[1].rollout is not None]
            # A copy: records go on being taken in another thread.
            return (states[-1][0], replace(states[-1][1])) if states else ("", RolloutState())

        return self._control.asked(last)

    def state(self) -> RolloutState:
        """How it stands now."""
        return self.look()[1]
