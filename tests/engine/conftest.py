"""Tests on a real vLLM: one engine for the whole session, for it takes half a minute to load.

Without vLLM they are skipped, saying why; with CI=true a missing vLLM is a failure.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
import warnings
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from conformance.engine_port import Port

from headrace.ops.bench.tiny_model import CONTEXT, tiny_model
from headrace.schemas.settings import Settings
from headrace.workers.vllm_engine import VllmEngine

T = TypeVar("T")
HERE = Path(__file__).parent
LOAD_SECONDS = 240.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("vllm")
            # Libraries under vLLM warn from threads of theirs, whichever test happens to run.
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def needs_vllm() -> None:
    """Skips where vLLM is not installed; fails there in CI."""
    if importlib.util.find_spec("vllm") is None:
        reason = "vLLM is not installed (`pip install -e '.[worker-cpu]'`)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


class LoopThread:
    """An asyncio loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = LOAD_SECONDS) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def vllm_loop(needs_vllm: None) -> Iterator[LoopThread]:
    """The loop that the session's engine lives on."""
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def vllm_engine(vllm_loop: LoopThread) -> Iterator[VllmEngine]:
    """The tiny model, loaded once. Use it through `vllm_loop.run`."""
    arguments = {"max_model_len": CONTEXT, "enforce_eager": True, "dtype": "float32", "max_num_seqs": 32}
    engine = VllmEngine(
        tiny_model(Settings.from_environment().cache_dir / "models"),
        engine_arguments=arguments,
        tool_parser="hermes",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vllm_loop.run(engine.start())
        vllm_loop.run(engine.probe())
    yield engine
    vllm_loop.run(engine.shutdown())


@pytest.fixture
def port(vllm_engine: VllmEngine, vllm_loop: LoopThread) -> Port:
    """What the port's suite runs on."""
    return Port(vllm_engine, vllm_loop.run, lambda: vllm_engine.running_jobs)
