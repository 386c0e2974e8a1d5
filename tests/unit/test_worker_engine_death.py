"""The engine of a worker dies: whoever was in it is told, unless the worker had been told to leave."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_worker import SOURCES
from held_requests import a_work
from packages import a_package
from serving_parts import until

from headrace.schemas.errors import EngineDead
from headrace.schemas.settings import Settings
from headrace.workers import assembly as assembly_module
from headrace.workers import worker as worker_module
from headrace.workers.simulated_engine import SimulatedEngine
from headrace.workers.worker import Worker

Place = tuple[Any, int]


class Everything:
    """In the place of whatever talks to Kafka: waits until it is stopped, and says nothing."""

    deadline = None

    def __init__(self, *_: object, **__: object) -> None:
        self._stopped = threading.Event()

    def run(self) -> None:
        self._stopped.wait(60)

    def stop(self) -> None:
        self._stopped.set()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Pump:
    """Notes what it is told of the engine."""

    def __init__(self, **_: object) -> None:
        self.commits = Everything()
        self.joined = True
        self.leaving = False
        self.died: list[frozenset[Place]] = []
        self._finished = threading.Event()

    def run(self) -> None:
        self._finished.wait(60)
        self.commits.stop()

    def leave(self) -> None:
        self.leaving = True

    def engine_died(self, in_flight: frozenset[Place], cause: str) -> None:
        self.died.append(in_flight)

    def finish(self, *, leave_group: bool) -> None:
        self._finished.set()


class Engine(SimulatedEngine):
    """Dies when it is told to."""

    dead = False

    def check_health(self) -> None:
        if self.dead:
            raise EngineDead("signal 9")


@pytest.mark.parametrize(
    ("told_to_leave", "suspected"),
    [(False, {(SOURCES[2], 0)}), (True, set[Place]())],
    ids=["serving", "leaving"],
)
def test_whoever_was_in_the_engine_is_suspected_unless_the_worker_was_told_to_leave_before_it_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told_to_leave: bool, suspected: set[Place]
) -> None:
    """Who told it, such as a service manager that signals every process of a unit, may have ended the engine too."""
    pumps: list[Pump] = []

    def a_pump(**_: object) -> Pump:
        pumps.append(Pump())
        return pumps[0]

    monkeypatch.setattr(assembly_module, "Pump", a_pump)
    for name in ("RequestConsumer", "PlainProducer", "ControlLink", "WindowReader", "CancelReader"):
        monkeypatch.setattr(assembly_module, name, Everything)
    monkeypatch.setattr(worker_module, "GuardedTransaction", Everything)
    monkeypatch.setattr(worker_module, "offset_metadata_limit", lambda settings: 4096)
    monkeypatch.setattr(worker_module, "remove_member", lambda *_: None)
    monkeypatch.setattr(worker_module, "WATCH_S", 0.001)
    monkeypatch.setattr(worker_module.Requests, "stop", lambda self: [a_work(0)])

    async def run() -> None:
        engine = Engine()
        settings = Settings(bootstrap_servers="127.0.0.1:1", metrics_port=0)
        worker = Worker(settings=settings, package=a_package(tmp_path), engine=engine, slot="slot-1")
        life = asyncio.create_task(worker.run())
        await asyncio.wait_for(worker.ready.wait(), 10)
        if told_to_leave:
            worker.stop()
            await until(lambda: pumps[0].leaving)
        engine.dead = True
        with pytest.raises(EngineDead):
            await asyncio.wait_for(life, 20)

    asyncio.run(run())
    assert pumps[0].died == [frozenset(suspected)]
