"""A worker before it joins its group: told to stop, or with an engine or a broker that does not come up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from packages import a_package

from headrace.schemas.errors import EngineError, KafkaUnavailable
from headrace.schemas.settings import Settings
from headrace.workers import assembly as assembly_module
from headrace.workers import worker as worker_module
from headrace.workers.simulated_engine import SimulatedEngine
from headrace.workers.worker import Worker


class Transaction:
    """A transaction whose opening can take for ever."""

    made: ClassVar[list[Transaction]] = []

    def __init__(self, settings: Settings, transactional_id: str) -> None:
        self.hangs = False
        self.fails = False
        self.released = threading.Event()
        self.opening = threading.Event()
        self.opened = False
        self.closed = False
        self.made.append(self)

    def open(self) -> None:
        self.opening.set()
        if self.fails:
            raise KafkaUnavailable("no broker answers")
        if self.hangs:
            self.released.wait(60)
        self.opened = True

    def close(self) -> None:
        assert self.opened, "never closed while it opens in another thread"
        self.closed = True


class Engine(SimulatedEngine):
    """One that may take for ever to load, or not answer its probe."""

    def __init__(self) -> None:
        super().__init__()
        self.loading = asyncio.Event()
        self.hangs = False
        self.probe_fails = False
        self.shut_down = False

    async def start(self) -> None:
        self.loading.set()
        if self.hangs:
            await asyncio.Event().wait()
        await super().start()

    async def probe(self) -> None:
        if self.probe_fails:
            raise EngineError("no token came")

    async def shutdown(self) -> None:
        self.shut_down = True
        await super().shutdown()


@pytest.fixture(autouse=True)
def transactions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Transaction]]:
    def no_consumer(*_: Any, **__: Any) -> Any:
        raise AssertionError("it joins its group only once its engine is ready")

    monkeypatch.setattr(worker_module, "GuardedTransaction", Transaction)
    monkeypatch.setattr(assembly_module, "RequestConsumer", no_consumer)
    monkeypatch.setattr(assembly_module, "PlainProducer", no_consumer)
    Transaction.made = []
    yield Transaction.made
    for each in Transaction.made:
        each.released.set()


def a_worker(directory: Path, engine: Engine) -> Worker:
    settings = Settings(bootstrap_servers="127.0.0.1:1", metrics_port=0)
    return Worker(settings=settings, package=a_package(directory), engine=engine, slot="slot-1")


def test_stop_while_the_engine_loads_leaves_at_once_and_frees_everything(
    tmp_path: Path, transactions: list[Transaction]
) -> None:
    async def run() -> Engine:
        engine = Engine()
        engine.hangs = True
        worker = a_worker(tmp_path, engine)
        life = asyncio.create_task(worker.run())
        await engine.loading.wait()
        worker.stop()
        await asyncio.wait_for(life, 10)
        return engine

    assert asyncio.run(run()).shut_down
    assert transactions[0].closed


def test_stop_while_the_predecessors_transaction_is_being_ended_waits_for_no_broker(
    tmp_path: Path, transactions: list[Transaction], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transaction, "open", lambda self: (self.opening.set(), self.released.wait(60)))

    async def run() -> Engine:
        engine = Engine()
        worker = a_worker(tmp_path, engine)
        life = asyncio.create_task(worker.run())
        while not transactions or not transactions[0].opening.is_set():  # noqa: ASYNC110 (set in another thread)
            await asyncio.sleep(0.001)
        worker.stop()
        await asyncio.wait_for(life, 10)
        return engine

    engine = asyncio.run(run())
    assert not engine.loading.is_set(), "it does not even begin to load"
    assert not transactions[0].closed


def test_stop_before_run_is_not_lost(tmp_path: Path) -> None:
    async def run() -> Engine:
        engine = Engine()
        engine.hangs = True
        worker = a_worker(tmp_path, engine)
        worker.stop()
        await asyncio.wait_for(worker.run(), 10)
        return engine

    assert asyncio.run(run()).shut_down


def test_an_engine_that_does_not_answer_its_probe_never_joins(
    tmp_path: Path, transactions: list[Transaction]
) -> None:
    async def run() -> Engine:
        engine = Engine()
        engine.probe_fails = True
        with pytest.raises(EngineError, match="no token came"):
            await a_worker(tmp_path, engine).run()
        return engine

    assert asyncio.run(run()).shut_down
    assert transactions[0].closed


def test_a_broker_that_does_not_answer_is_what_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(self: Transaction) -> None:
        raise KafkaUnavailable("no broker answers")

    monkeypatch.setattr(Transaction, "open", unavailable)

    async def run() -> Engine:
        engine = Engine()
        with pytest.raises(KafkaUnavailable):
            await a_worker(tmp_path, engine).run()
        return engine

    assert asyncio.run(run()).shut_down


def test_an_engine_that_does_not_shut_down_in_order_does_not_hide_why_the_worker_ended(
    tmp_path: Path, transactions: list[Transaction], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Engine) -> None:
        raise RuntimeError("a process is gone")

    monkeypatch.setattr(Engine, "shutdown", fails)

    async def run() -> None:
        engine = Engine()
        engine.probe_fails = True
        with pytest.raises(EngineError, match="no token came"):
            await a_worker(tmp_path, engine).run()

    asyncio.run(run())
    assert transactions[0].closed
