"""Results that the broker does not take: something smaller, to the contract's own topics, in their place."""

from __future__ import annotations

import time

from headrace.schemas.errors import HeadraceError, TopicMissing
from headrace.topics.names import ContractNames
from headrace.workers.answers import Answers
from headrace.workers.ledger import Ledger
from headrace.workers.work import Completion

MISSING_KEPT_S = 60.0  # how long a result topic that did not exist is believed not to


class Refusals:
    """Owned by the consumer thread."""

    def __init__(self, *, ledger: Ledger, answers: Answers, names: ContractNames) -> None:
        self._ledger = ledger
        self._answers = answers
        self._names = names
        self._missing: dict[str, tuple[float, HeadraceError]] = {}  # topic: until when, and why

    def replace(self, refused: Completion, error: HeadraceError | None) -> None:
        """Put its last resort in the place of a completion whose record was refused. Raises `error` if that was it."""
        assert error is not None, "a refusal has its reason"
        if refused.last_resort:
            raise error
        if isinstance(error, TopicMissing):
            # To find that out takes the producer seconds, which are everybody's: not for each that names the topic.
            now = time.monotonic()
            self._missing = {topic: kept for topic, kept in self._missing.items() if kept[0] > now}
            until = now + MISSING_KEPT_S
            named = {record.topic for record in refused.records} - {self._names.results, self._names.dead}
            self._missing.update(dict.fromkeys(named, (until, error)))
        instead = self._answers.last_resort(refused, error)
        self._ledger.amend(lambda each: instead if each is refused else self.publishable(each))

    def publishable(self, completion: Completion) -> Completion:
        """The same, or its last resort where it would go to a topic that was found missing."""
        if not self._missing:
            return completion
        now = time.monotonic()
        for record in completion.records:
            until, error = self._missing.get(record.topic, (0.0, None))
            if error is not None and now < until:
                return self._answers.last_resort(completion, error)
            self._missing.pop(record.topic, None)
        return completion
