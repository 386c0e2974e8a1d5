"""The simulated engine passes the port's suite."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from conformance.engine_port import WAIT_SECONDS, EnginePort, Port
from conformance.engine_port_calls import EngineCallsPort

from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile

T = TypeVar("T")


@pytest.fixture
def port() -> Iterator[Port]:
    """Time passes, though fast: a long job can be caught running."""
    profile = SimulatedProfile(max_model_len=1024, decode_seconds_per_token=0.02, time_scale=0.05)
    engine = SimulatedEngine(profile)
    with asyncio.Runner() as runner:

        def run(coroutine: Coroutine[Any, Any, T]) -> T:
            return runner.run(asyncio.wait_for(coroutine, WAIT_SECONDS))

        runner.run(engine.start())
        yield Port(engine, run, lambda: engine.running_jobs)
        runner.run(engine.shutdown())


class TestSimulatedEngine(EnginePort):
    pass


class TestSimulatedEngineCalls(EngineCallsPort):
    pass
