"""The reader of a rollout's results: what it says of how far it is, before, in and after an outage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Self

import pytest
from waiting import wait_until

from headrace.ops.rollouts import reading
from headrace.ops.rollouts.reading import AnswerReader
from headrace.schemas.errors import KafkaFailed
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

WITHIN_S = 10.0


class Results:
    """A topic that is at its end at once; the connection breaks when the test says so, and the next one is behind."""

    opened = 0
    breaks: threading.Event
    opened_again: threading.Event

    def __init__(self, *_: object, **__: object) -> None:
        type(self).opened += 1
        self._first = type(self).opened == 1

    def __enter__(self) -> Self:
        if not self._first:
            self.opened_again.set()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    @property
    def is_behind(self) -> bool:
        return not self._first

    def __iter__(self) -> Iterator[None]:
        while True:
            if self._first and self.breaks.is_set():
                raise KafkaFailed("no broker")
            yield None


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> type[Results]:
    class Topic(Results):
        breaks = threading.Event()
        opened_again = threading.Event()

    monkeypatch.setattr(reading, "ResultReader", Topic)
    monkeypatch.setattr(reading, "TRY_AGAIN_S", 0.0)
    return Topic


def test_a_reader_that_begins_anew_has_not_caught_up_until_it_has_again(results: type[Results]) -> None:
    reader = AnswerReader(Settings(prefix="p"), ContractNames("p", "tagger", 1), 1)
    try:
        wait_until(reader.caught_up.is_set, WITHIN_S, "the end of the topic")
        results.breaks.set()
        wait_until(results.opened_again.is_set, WITHIN_S, "the reader to begin anew")
        assert not reader.caught_up.is_set()
    finally:
        reader.close()
