"""vLLM passes the port's suite."""

from __future__ import annotations

from conformance.engine_port import EnginePort


class TestVllmEngine(EnginePort):
    pass
