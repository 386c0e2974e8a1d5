"""vLLM passes the port's suite."""

from __future__ import annotations

from conformance.engine_port import EnginePort
from conformance.engine_port_calls import EngineCallsPort


class TestVllmEngine(EnginePort):
    pass


class TestVllmEngineCalls(EngineCallsPort):
    pass
