"""Transactions that a departed slot may have left open: nobody is told where it stood before they end."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from headrace.producers.kafka import GuardedTransaction
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames


class OpenTransactions:
    """Ends them, each in a thread of its own: brokers that do not answer may keep it for a minute.

    For one thread.
    """

    def __init__(self, settings: Settings, names: ContractNames) -> None:
        self._settings = settings
        self._names = names
        self._under_way: dict[str, Future[None]] = {}

    def end(self, slot: str) -> Future[None]:
        """End what a slot that is no member any more left open, one way or the other.

        If it lives after all (it was only silent), its next commit is in doubt, is settled, and is refused: its group
        has moved on. The future has KafkaUnavailable or KafkaFailed where it could not be done.
        """
        under_way = self._under_way.get(slot)
        if under_way is not None and not under_way.done():
            return under_way  # for another of its units
        ended: Future[None] = Future()
        self._under_way[slot] = ended

        def run() -> None:
            transaction = GuardedTransaction(self._settings, self._names.transactional_id(slot))
            try:
                try:
                    transaction.open()
                finally:
                    transaction.close()
            except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
                ended.set_exception(error)
            else:
                ended.set_result(None)

        threading.Thread(target=run, name=f"ending {slot}", daemon=True).start()
        return ended
