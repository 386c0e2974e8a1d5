"""The worker: one process, one engine, one slot of a group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from headrace.consumers.group import remove_member
from headrace.consumers.kafka import RequestConsumer
from headrace.consumers.metadata_limit import offset_metadata_limit
from headrace.producers.kafka import GuardedTransaction
from headrace.schemas import metrics
from headrace.schemas.codec import Codec, TypedResults
from headrace.schemas.enforcement import Enforcement
from headrace.schemas.errors import (
    EngineDead,
    HeadraceError,
    KafkaFailed,
    SideTaskDied,
    SlotTaken,
    StaleGeneration,
)
from headrace.schemas.package import Package
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, ShadowNames
from headrace.workers.assembly import Serves, assemble
from headrace.workers.engine import Engine
from headrace.workers.hooks import HookMethods, load_hooks
from headrace.workers.left_behind import in_thread_left_behind
from headrace.workers.pump import Pump
from headrace.workers.requests import Requests
from headrace.workers.serving import own_enforcement
from headrace.workers.shadow import Shadow
from headrace.workers.status_page import StatusPage

log = logging.getLogger(__name__)

HUNG_GRACE_S = 10.0  # a transaction that is still under way so long after its bound hangs inside the client
WATCH_S = 0.5  # how often health is looked at
EXIT_HUNG = 70


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this worker is."""

    names: ContractNames
    slot: str


class Worker:
    """Serves one package until `stop()`; `run()` is its whole life."""

    def __init__(
        self,
        *,
        settings: Settings,
        package: Package,
        engine: Engine,
        slot: str,
        result_schema: str | None = None,
        shadow: Shadow | None = None,
    ) -> None:
        """`result_schema`: of the frozen contract, for results with columns; see `schemas/avro_form.py`."""
        self._settings = settings
        self._package = package
        self._engine = engine
        self._shadow = shadow
        names = ContractNames(settings.prefix, package.model, package.contract)
        self._identity = Identity(names if shadow is None else ShadowNames.of(names, package.version), slot)
        self._result_schema = result_schema
        self._stop = asyncio.Event()
        self.ready = asyncio.Event()  # the engine has answered a probe, and the worker is in its group
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        self._opened = False  # the transaction
        self._hook_methods: HookMethods | None = None
        self._enforcement: Enforcement | None = None  # of the package's own output schema
        self._told_to_leave = False

    # --- its life ---

    async def run(self) -> None:
        """Open, load, probe, join, serve, drain, leave. Raises what made it stop, if anything did.

        1. end what a predecessor in this slot left open: others wait for those offsets, and loading takes long
        2. load the engine and have it answer a real probe: not ready means not subscribed
        3. join the group and serve until told to stop, or until a thread or the engine dies
        4. begin nothing more, let what is in flight finish within the budget, commit it, give away each unit as it is
           drained, leave the group; when the engine has died: commit what is finished, and who was in it
        5. free the engine last: nothing may be in flight in it by then
        """
        names, slot = self._identity.names, self._identity.slot
        codec = Codec.with_registry_at(self._settings.schema_registry_url)
        if self._result_schema is not None:
            codec.write_results_as(TypedResults(names.results, self._result_schema))
        transaction = GuardedTransaction(self._settings, names.transactional_id(slot))
        page = StatusPage(self._settings.metrics_port, unhealthy=self._unhealthy, not_ready=self._not_ready)
        try:
            log.info("%s: metrics on port %d", slot, page.port)
            if await self._unless_stopped(self._load(transaction)):
                log.info("%s: the engine is ready: %s", slot, self._engine.identity)
                await self._serve(codec, transaction)
        finally:
            metrics.READY.labels(names.model).set(0)
            async with contextlib.AsyncExitStack() as last:  # each, whatever becomes of those before it
                last.push_async_callback(asyncio.to_thread, page.close)
                if self._opened:
                    last.push_async_callback(asyncio.to_thread, transaction.close)
                last.push_async_callback(self._free_engine)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin the orderly end. On the loop's thread; again is no error."""
        self._told_to_leave = True
        self._stop.set()

    async def _load(self, transaction: GuardedTransaction) -> None:
        await in_thread_left_behind(transaction.open)
        self._opened = True
        # Hooks first: it is quick to see that they cannot be made, and loading an engine is not.
        self._hook_methods = await asyncio.to_thread(load_hooks, self._package)
        await self._engine.start()
        await self._engine.probe()
        self._enforcement = await own_enforcement(self._package, self._engine)

    async def _free_engine(self) -> None:
        try:
            await self._engine.shutdown()
        except Exception:
            log.exception("the engine did not shut down in order")  # why the worker ends counts more

    async def _unless_stopped(self, doing: Coroutine[None, None, None]) -> bool:
        """Whether that was done before `stop()`; what it raises. At `stop()` it is left where it stands."""
        task = asyncio.create_task(doing)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            task.cancel()
            await asyncio.wait([task])
        if task.cancelled():
            return False
        task.result()
        return not self._stop.is_set()

    async def _serve(self, codec: Codec, transaction: GuardedTransaction) -> None:
        names, slot, settings = self._identity.names, self._identity.slot, self._settings
        loop = asyncio.get_running_loop()
        transaction.metadata_limit = await asyncio.to_thread(offset_metadata_limit, settings)
        serves = Serves(
            settings=settings,
            names=names,
            slot=slot,
            package=self._package,
            engine=self._engine,
            codec=codec,
            transaction=transaction,
            hook_methods=self._hook_methods,
            enforcement=self._enforcement,
            shadow=self._shadow,
        )
        parts = assemble(
            serves,
            transaction.metadata_limit,
            call=lambda function: self._call(loop, function),
            failed=self._fail,
        )
        pump, requests, replies, side = parts.pump, parts.requests, parts.replies, parts.side
        aside = [self._thread(loop, name, reader.run) for name, reader in side.items()]
        sender = self._thread(loop, "replies", replies.run)
        # It ends when the consumer thread does, and says nothing of its own then.
        committer = self._thread(loop, "commits", pump.commits.run, ends_with_another=True)
        consuming = self._thread(loop, "consumer", pump.run)
        watch = asyncio.create_task(self._watch(pump, parts.consumer, transaction, requests), name="watch")
        watch.add_done_callback(self._watch_ended)
        # A twin that took the slot is the member now: leaving would throw it out.
        leave = True
        try:
            await self._stop.wait()
            self.ready.clear()
            if self._failure is None:
                await self._leave(pump, consuming)
        finally:
            if isinstance(self._failure, EngineDead):
                inside = frozenset((work.source, work.offset) for work in requests.stop())
                # Whoever told us to leave may have ended the engine too: nobody is to be suspected of that.
                pump.engine_died(frozenset() if self._told_to_leave else inside, self._failure.message)
            leave = not isinstance(self._failure, SlotTaken)
            pump.finish(leave_group=leave)
            await asyncio.to_thread(consuming.join)
            requests.stop()
            await requests.wait_for_end()
            if parts.hooks is not None:
                parts.hooks.threads.close()
            await asyncio.to_thread(committer.join)
            watch.cancel()
            for reader in side.values():
                reader.stop()
            for thread in aside:
                await asyncio.to_thread(thread.join)
            replies.stop()
            await asyncio.to_thread(sender.join)
            await asyncio.to_thread(parts.producer.close)
        if leave:
            try:
                await asyncio.to_thread(remove_member, settings, names.group, slot)
            except KafkaFailed as error:
                log.warning("%s stays in its group until its session times out: %s", slot, error)

    async def _leave(self, pump: Pump, consuming: threading.Thread) -> None:
        """Drain, commit and give away everything; cut short when something fails meanwhile."""
        pump.leave()
        left = asyncio.create_task(asyncio.to_thread(consuming.join), name="leaving")
        failed = asyncio.create_task(self._failed.wait())
        await asyncio.wait([left, failed], return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()

    # --- what may go wrong ---

    def _thread(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        body: Callable[[], None],
        *,
        ends_with_another: bool = False,
    ) -> threading.Thread:
        def run() -> None:
            try:
                body()
            except BaseException as error:  # noqa: BLE001 (whatever ends a thread stops the worker, and is raised there)
                failure = error
                self._call(loop, lambda: self._fail(failure))
                return
            if not (self._stop.is_set() or ends_with_another):
                self._call(loop, lambda: self._fail(SideTaskDied(f"thread {name} ended by itself")))

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            log.critical("%s stops: %s: %s", self._identity.slot, type(error).__name__, error)
            self._failure = error if isinstance(error, HeadraceError) else _died(error)
        self._failed.set()
        self._stop.set()

    def _call(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        """Call on the loop. What it raises stops the worker: asyncio would log it, and the worker limp on."""

        def call() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001 (raised where the worker ends)
                self._fail(error)

        # The loop is closed when a thread outlives it: then nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and (error := watch.exception()) is not None:
            self._fail(error)

    async def _watch(
        self, pump: Pump, consumer: RequestConsumer, transaction: GuardedTransaction, requests: Requests
    ) -> None:
        """Look at the engine and at the transaction under way, and say on the page whether all is ready."""
        while True:
            try:
                self._engine.check_health()
            except EngineDead as error:
                self._fail(error)
            bound = transaction.deadline
            if bound is not None and time.monotonic() > bound + HUNG_GRACE_S:
                # Only the end of the process lets a successor settle it.
                log.critical("a transaction hangs inside the Kafka client; the process ends")
                os._exit(EXIT_HUNG)
            if pump.joined and _is_heard(consumer) and not self._stop.is_set():
                self.ready.set()
            else:
                self.ready.clear()
            metrics.READY.labels(self._identity.names.model).set(self.ready.is_set())
            requests.expire()
            requests.show()
            await asyncio.sleep(WATCH_S)

    def _unhealthy(self) -> str | None:
        return None if self._failure is None else f"{self._failure}"

    def _not_ready(self) -> str | None:
        return (
            None
            if self.ready.is_set()
            else "the engine is loading, or the worker has not joined its group, or it is leaving"
        )


def _is_heard(consumer: RequestConsumer) -> bool:
    """Whether the group still knows us. That another process has our slot, the consumer thread says itself."""
    try:
        consumer.check_alive()
    except (StaleGeneration, SlotTaken):
        return False
    return True


def _died(error: BaseException) -> SideTaskDied:
    died = SideTaskDied(f"{type(error).__name__}: {error}")
    died.__cause__ = error
    return died
