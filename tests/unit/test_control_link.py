"""What a worker has to say on the control topic is written, whatever the brokers do meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from waiting import wait_until

from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.schemas.errors import KafkaUnavailable
from headrace.schemas.settings import Settings
from headrace.workers import control_link as module
from headrace.workers.control_link import ControlLink

TP = TopicPartition("requests", 0)
POINT = CommitPoint(1, "")


class Brokers:
    """As many failures as a test asks for, then all is well."""

    def __init__(self) -> None:
        self.connecting_fails = 0
        self.writing_fails = 0
        self.producers = 0
        self.closed = 0
        self.written: list[Mapping[TopicPartition, CommitPoint]] = []

    def producer(self, settings: Settings) -> Brokers:
        if self.connecting_fails:
            self.connecting_fails -= 1
            raise KafkaUnavailable("no broker answers")
        self.producers += 1
        return self

    def writer(self, producer: object, **_: Any) -> Brokers:
        return self

    def know(self, told: Mapping[TopicPartition, CommitPoint], view: object) -> None:
        if self.writing_fails:
            self.writing_fails -= 1
            raise KafkaUnavailable("no answer")
        self.written.append(told)

    def close(self) -> None:
        self.closed += 1


class Reader:
    """The other half, which is not tested here."""

    def __init__(self, *_: object) -> None:
        self._stopped = threading.Event()

    def run(self) -> None:
        self._stopped.wait(60)

    def stop(self) -> None:
        self._stopped.set()


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    monkeypatch.setattr(module, "PlainProducer", made.producer)
    monkeypatch.setattr(module, "ControlWriter", made.writer)
    monkeypatch.setattr(module, "ControlReader", Reader)
    return made


@pytest.fixture
def running(brokers: Brokers) -> Iterator[tuple[ControlLink, threading.Thread]]:
    link = ControlLink(Settings(bootstrap_servers="127.0.0.1:1"), "group", lambda _: None)
    thread = threading.Thread(target=link.run)
    thread.start()
    yield link, thread
    link.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_producer_that_cannot_connect_at_first_does_not_silence_the_worker_for_good(
    brokers: Brokers, running: tuple[ControlLink, threading.Thread]
) -> None:
    link, thread = running
    brokers.connecting_fails = 3
    link.know({TP: POINT})
    wait_until(lambda: brokers.written, 10, "it to be written")
    link.know({TP: CommitPoint(2, "")})
    wait_until(lambda: len(brokers.written) == 2, 10, "the next")
    link.stop()
    thread.join(10)
    assert (brokers.producers, brokers.closed) == (1, 1)


def test_what_could_not_be_written_is_written_later_and_in_order(
    brokers: Brokers, running: tuple[ControlLink, threading.Thread]
) -> None:
    link, _ = running
    brokers.writing_fails = 2
    link.know({TP: POINT})
    link.know({TP: CommitPoint(2, "")})
    wait_until(lambda: len(brokers.written) == 2, 10, "both to be written")
    assert [told[TP].offset for told in brokers.written] == [1, 2]


def test_a_worker_that_ends_does_not_wait_for_brokers_that_are_out_of_reach(
    brokers: Brokers, running: tuple[ControlLink, threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, thread = running
    monkeypatch.setattr(module, "RETRY_S", 3600)
    brokers.connecting_fails = 10**9
    link.know({TP: POINT})
    wait_until(lambda: brokers.connecting_fails < 10**9, 10, "it to try")
    link.stop()
    thread.join(10)
    assert not thread.is_alive()
