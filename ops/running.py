"""Running one worker in this process: which engine, which slot, and what signals do."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from headrace.ops.heap import freeze_heap
from headrace.schemas.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.schemas.package import Package
    from headrace.schemas.settings import Settings
    from headrace.workers.engine import Engine
    from headrace.workers.worker import Worker

EngineKind = Literal["vllm", "simulated"]
LEFT_AT_ONCE = 130  # the exit code after a second signal

log = logging.getLogger(__name__)


def engine_for(kind: EngineKind, package: Package, settings: Settings) -> Engine:
    """The engine that a package is served with. Imports vLLM only when it is asked for."""
    if kind == "simulated":
        from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile
        from headrace.workers.simulated_failures import Script

        script = Script.from_json(settings.simulated_failures) if settings.simulated_failures else None
        return SimulatedEngine(SimulatedProfile(time_scale=settings.simulated_time_scale), script)
    from headrace.workers.vllm_engine import VllmEngine

    return VllmEngine(
        package.weights,
        engine_arguments=package.engine,
        structured_outputs_backend=package.backend,
        tokenizer=package.tokenizer,
        revision=package.revision,
        reasoning_parser=package.reasoning_parser,
        tool_parser=package.tool_parser,
    )


def with_weights(package: Package, weights: Path | None) -> Package:
    """The package with a local copy of its weights; None: as it is."""
    if weights is None:
        return package
    return replace(package, weights=weights.absolute(), revision=None)


def slot_for(settings: Settings) -> str:
    """The slot that was set, else the host's name: a pod's name is stable and unique, which is what a slot needs."""
    if settings.slot is not None:
        return settings.slot
    name = "".join(each if each.isalnum() or each in "._-" else "-" for each in socket.gethostname())
    if not name:
        raise SettingsError("this host has no name to call the slot by; set HEADRACE_SLOT or --slot")
    return name[:100]


def run_worker(
    settings: Settings,
    package: Package,
    kind: EngineKind,
    *,
    shadow_share: float | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT: the first drains and leaves, a second leaves at once.

    `shadow_share`: as a shadow, this part of the requests (above 0, at most 1). `on_ready` is called once the engine
    has answered a probe and the worker is in its group.
    Raises PackageError where the package does not speak its frozen contract, TopicsError where a shadow's topics are
    not there, and what made the worker stop, if it was anything else.
    """
    from headrace.ops.contracts import contract_to_serve

    engine, slot = (
        engine_for(kind, package, settings),
        slot_for(settings),
    )  # nothing is loaded or connected yet
    frozen = contract_to_serve(settings, package)
    if shadow_share is not None:
        from headrace.ops.shadow_topics import check_shadow_topics

        check_shadow_topics(settings, package)
        log.info(
            "version %s runs as a shadow of %.3g %% of the requests", package.version, 100 * shadow_share
        )

    # Before vLLM's import: it reads the environment, and torch its thread settings, only then.
    from headrace.workers.shadow import Shadow
    from headrace.workers.worker import Worker

    async def serve() -> None:
        worker = Worker(
            settings=settings,
            package=package,
            engine=engine,
            slot=slot,
            result_schema=None if frozen is None else frozen.result_schema,
            shadow=None if shadow_share is None else Shadow(shadow_share),
        )
        signals = 0

        def told() -> None:
            nonlocal signals
            signals += 1
            if signals > 1:
                log.warning("told twice: leaving at once; what was in flight is begun anew by the next owner")
                logging.shutdown()
                os._exit(LEFT_AT_ONCE)
            log.info("told to stop: finishing what is in flight (once more: leave at once)")
            worker.stop()

        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, told)
        ready = asyncio.create_task(_when_ready(worker, on_ready))
        try:
            await worker.run()
        finally:
            ready.cancel()

    asyncio.run(serve())


async def _when_ready(worker: Worker, on_ready: Callable[[], None]) -> None:
    await worker.ready.wait()
    freeze_heap()
    on_ready()
