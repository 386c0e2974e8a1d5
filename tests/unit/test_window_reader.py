"""The thread that reads dedupe windows: whom it tells what, and what it does not let itself be stopped by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from waiting import wait_until

from headrace.consumers.records import AnsweredId
from headrace.schemas.errors import HeadraceError, KafkaUnavailable
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.workers import window_reader as module
from headrace.workers.window_reader import Ids, WindowReader

NAMES = ContractNames("headrace", "tagger", 1)
WITHIN_S = 10.0


class Results:
    """Stands for `RecentResults` and for the cluster behind it: each client made is the same one."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.opened = 0
        self.closed = 0
        self.failures: list[HeadraceError] = []
        self.failing_units: set[int] = set()
        self.unopenable: list[HeadraceError] = []
        self.hold = threading.Event()  # a read ends only while it is set
        self.hold.set()
        self.given_up = threading.Event()

    def open(self, _: Settings, topic: str) -> Results:
        assert topic == NAMES.results
        if self.unopenable:
            raise self.unopenable.pop(0)
        self.opened += 1
        return self

    def read(self, partition: int, window: int, deadline_s: float) -> Ids:
        self.reads.append((partition, window))
        while not self.hold.wait(0.01):
            if self.given_up.is_set():
                raise KafkaUnavailable("given up")
        if self.failures:
            raise self.failures.pop(0)
        if partition in self.failing_units:
            raise KafkaUnavailable(f"unit {partition} has no leader")
        return [AnsweredId(f"id of {partition} at read {len(self.reads)}", 7, ok=True)]

    def give_up(self) -> None:
        self.given_up.set()

    def close(self) -> None:
        self.closed += 1


class Running:
    """A reader, its thread, and what it told."""

    def __init__(self, window: int = 10) -> None:
        self.results = Results()
        self.told: list[tuple[int, Ids]] = []
        self.reader = WindowReader(Settings(), NAMES, window, self._tell, open_results=self.results.open)
        self.threads: set[int] = set()
        self.thread = threading.Thread(target=self.reader.run, daemon=True)

    def _tell(self, unit: int, ids: Ids) -> None:
        self.threads.add(threading.get_ident())
        self.told.append((unit, ids))

    def wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, WITHIN_S, what)

    def wait_for_told(self, count: int) -> list[int]:
        self.wait(lambda: len(self.told) >= count, f"{count} windows")
        assert len(self.told) == count
        return [unit for unit, _ in self.told]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)


@pytest.fixture
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    made = Running(getattr(request, "param", 10))
    made.thread.start()
    yield made
    made.reader.stop()
    made.thread.join(WITHIN_S)
    assert not made.thread.is_alive()
    assert made.results.closed == made.results.opened


def test_each_unit_is_read_with_one_client_in_the_order_of_asking(running: Running) -> None:
    running.results.hold.clear()
    for unit in (3, 1, 2):
        running.reader.ask(unit)
    running.results.hold.set()
    assert running.wait_for_told(3) == [3, 1, 2]
    assert running.results.reads == [(3, 10), (1, 10), (2, 10)]
    assert running.results.opened == 1
    assert running.told[0][1] == [("id of 3 at read 1", 7, True)]
    assert running.threads == {running.thread.ident}


@pytest.mark.parametrize("running", [0], indirect=True)
def test_without_a_window_nothing_is_read_and_none_is_told_at_once(running: Running) -> None:
    running.results.unopenable = [KafkaUnavailable("no broker")]
    running.reader.ask(3)
    assert running.wait_for_told(1) == [3]
    assert running.told == [(3, [])]
    assert running.reader.take(*running.told[0])
    assert running.results.opened == 0


def test_a_unit_that_is_forgotten_in_the_queue_is_not_read(running: Running) -> None:
    running.results.hold.clear()
    running.reader.ask(1)
    running.wait(lambda: running.results.reads, "the first read")
    running.reader.ask(2)
    running.reader.ask(3)
    running.reader.forget(2)
    running.results.hold.set()
    assert running.wait_for_told(2) == [1, 3]
    assert [unit for unit, _ in running.results.reads] == [1, 3]


def test_a_unit_that_is_forgotten_while_it_is_read_is_not_told(running: Running) -> None:
    running.results.hold.clear()
    running.reader.ask(1)
    running.wait(lambda: running.results.reads, "the first read")
    running.reader.forget(1)
    running.reader.ask(2)
    running.results.hold.set()
    assert running.wait_for_told(1) == [2]


def test_a_unit_that_went_and_came_back_while_it_was_read_is_read_anew(running: Running) -> None:
    running.results.hold.clear()
    running.reader.ask(1)
    running.wait(lambda: running.results.reads, "the first read")
    running.reader.forget(1)
    running.reader.ask(1)
    running.results.hold.set()
    assert running.wait_for_told(1) == [1]
    assert running.told[0][1] == [("id of 1 at read 2", 7, True)]


def test_what_was_told_before_the_unit_went_and_came_back_is_not_to_be_taken(running: Running) -> None:
    running.reader.ask(1)
    running.wait_for_told(1)
    running.reader.forget(1)
    assert not running.reader.take(*running.told[0])
    running.reader.ask(1)
    running.wait_for_told(2)
    running.reader.ask(1)
    running.wait_for_told(3)
    assert [running.reader.take(*told) for told in running.told] == [False, False, True]
    assert not running.reader.take(*running.told[2]), "taken twice"


def test_what_cannot_be_read_is_tried_until_it_can_and_said_once(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.results.unopenable = [KafkaUnavailable("no broker")] * 2
    running.results.failures = [KafkaUnavailable("do the topics exist?")] * 3
    running.reader.ask(1)
    assert running.wait_for_told(1) == [1]
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the last results of unit 1 cannot be read, trying on: no broker"]
    assert running.results.opened == 4, "a client that failed is not used again"
    running.results.failures = [KafkaUnavailable("again")]
    running.reader.ask(2)
    running.wait_for_told(2)
    assert [record.getMessage() for record in caplog.records][1:] == [
        "the last results of unit 2 cannot be read, trying on: again"
    ]


def test_a_unit_that_cannot_be_read_holds_up_no_other(running: Running) -> None:
    running.results.failing_units = {1}
    for unit in (1, 2, 3):
        running.reader.ask(unit)
    assert running.wait_for_told(2) == [2, 3]
    running.results.failing_units = set()
    assert running.wait_for_told(3) == [2, 3, 1]


def test_a_unit_that_cannot_be_read_and_is_forgotten_is_not_tried_on(running: Running) -> None:
    running.results.failing_units = {1}
    running.reader.ask(1)
    running.wait(lambda: len(running.results.reads) > 1, "a second try")
    running.reader.forget(1)
    running.reader.ask(2)
    running.wait_for_told(1)
    tries = len(running.results.reads)
    running.reader.ask(3)
    running.wait_for_told(2)
    assert len(running.results.reads) == tries + 1


def test_the_connections_are_closed_when_nothing_was_asked_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_CLOSE_S", 0.01)
    running = Running()
    running.thread.start()
    running.reader.ask(1)
    running.wait(lambda: running.results.closed == 1, "the connections to be closed")
    running.reader.ask(2)
    running.wait_for_told(2)
    assert running.results.opened == 2
    running.reader.stop()
    running.thread.join(WITHIN_S)
    assert running.results.closed == 2


def test_a_stop_ends_a_read_that_is_under_way_and_tells_nothing(running: Running) -> None:
    running.results.hold.clear()
    running.reader.ask(1)
    running.wait(lambda: running.results.reads, "the first read")
    running.reader.stop()
    running.thread.join(WITHIN_S)
    assert not running.thread.is_alive()
    assert running.told == []


def test_a_stop_before_the_thread_runs_is_not_lost() -> None:
    running = Running()
    running.reader.ask(1)
    running.reader.stop()
    running.reader.run()
    assert (running.told, running.results.opened) == ([], 0)
