"""The client's synchronous twin: the same methods, without `async`; may be used from any number of threads.

with SyncClient.connect(model="movie-tagger") as client:
    tags = client.ask(movie, into=Tags, id="film-17", timeout=30)
    for delta in client.stream("Tell me of it."):
        print(delta, end="")
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast, overload

from headrace.producers.asking import Given, RequestOptions, T
from headrace.producers.client import DEFAULT_MAX_PENDING, DEFAULT_TIMEOUT, Client, Pending
from headrace.producers.exchange import CLOSING
from headrace.schemas.errors import ClientClosed, UsageError
from headrace.schemas.messages import Lane, Location, Result

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

R = TypeVar("R")


class SyncPending(Generic[T]):
    """A request that Kafka has; see `Pending`."""

    def __init__(self, pending: Pending[T], client: SyncClient) -> None:
        self._pending = pending
        self._client = client
        self.id = pending.id
        self.location = pending.location  # of the request

    def done(self) -> bool:
        """Whether `result()` returns or raises at once."""
        return self._pending.done()

    def result(self) -> T:
        """Wait for the answer. Raises what `Client.ask` raises."""
        return self._client.run(self._pending.result())

    def announce_to(self, ready: queue.SimpleQueue[SyncPending[T]]) -> None:
        """Put this into `ready` once the result is there. To be called on the client's event loop."""
        self._pending.add_done_callback(lambda _: ready.put(self))


class SyncClient:
    """A Client on an event loop in a thread of its own. Takes any client that was not opened yet, the
    in-memory one included."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None  # in which the thread is; a fork leaves it behind
        # Of `_loop`, so that nothing is handed to a loop that is being drained. The garbage collector may end a stream
        # in a thread that has it: hence reentrant, and nobody waits for the loop while he has it.
        self._taking = threading.RLock()

    @classmethod
    def connect(
        cls,
        model: str,
        contract: int = 1,
        *,
        settings: Settings | None = None,
        bootstrap_servers: str | None = None,
        max_pending: int = DEFAULT_MAX_PENDING,
    ) -> Self:
        """A client through Kafka, to be opened with `with`. See `Client.connect`."""
        return cls(
            Client.connect(
                model,
                contract,
                settings=settings,
                bootstrap_servers=bootstrap_servers,
                max_pending=max_pending,
            )
        )

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Connect. See `Client.open`."""
        if self._thread is not None:
            raise UsageError("this client has been opened before: make another")
        loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._thread = threading.Thread(target=loop.run_forever, name="headrace-client", daemon=True)
        self._loop = loop
        self._thread.start()
        try:
            self.run(self._client.open())
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """Disconnect; what still waits ends with NoReply. Idempotent, and after a fork nothing in the child."""
        if self._loop is None or self._is_another_process():
            return
        with contextlib.suppress(ClientClosed):  # by another thread, just now
            self.run(self._client.close())
        self._stop()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the client's event loop and wait for it. An interrupt cancels it."""
        future = self._hand_over(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _hand_over(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Have a coroutine run on the client's event loop. Raises UsageError, and ClientClosed once it was closed."""
        if self._is_another_process():  # asked first: the lock may have been taken when it forked
            work.close()
            raise UsageError("this client was opened in another process: open one after the fork")
        with self._taking:
            loop = self._loop
            if loop is not None:
                return asyncio.run_coroutine_threadsafe(work, loop)
        work.close()
        if self._process is None:
            raise UsageError("the client is not open: use `with SyncClient.connect(...) as client`")
        raise ClientClosed("the client was closed")

    def _is_another_process(self) -> bool:
        return self._process not in (None, os.getpid())

    def _stop(self) -> None:
        with self._taking:  # from here on nothing is taken, so that what is drained below is all there is
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.run_until_complete(_finish())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    # --- asking ---------------------------------------------------------------------------------------

    @overload
    def ask(
        self,
        given: Given,
        *,
        into: None = None,
        timeout: float = ...,
        lane: Lane = ...,
        **options: Unpack[RequestOptions],
    ) -> Result: ...
    @overload
    def ask(
        self,
        given: Given,
        *,
        into: type[T],
        timeout: float = ...,
        lane: Lane = ...,
        **options: Unpack[RequestOptions],
    ) -> T: ...
    def ask(
        self,
        given: Given,
        *,
        into: type[Any] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        lane: Lane = "interactive",
        **options: Unpack[RequestOptions],
    ) -> Any:
        """Ask, and wait for the answer. See `Client.ask`."""
        return self.run(
            self._client.ask(given, into=cast("Any", into), timeout=timeout, lane=lane, **options)
        )

    def stream(
        self,
        given: Given,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        lane: Lane = "interactive",
        **options: Unpack[RequestOptions],
    ) -> Generator[str]:
        """Ask, and yield the text as it is generated. See `Client.stream`."""
        texts = self._client.stream(given, timeout=timeout, lane=lane, **options)
        try:
            while (text := self.run(_next(texts))) is not None:
                yield text
        finally:
            # Not waited for: the garbage collector may end an abandoned stream, and in the loop's own thread.
            with contextlib.suppress(ClientClosed, UsageError):
                self._hand_over(texts.aclose())

    @overload
    def submit(
        self,
        given: Given,
        *,
        into: None = None,
        timeout: float | None = ...,
        lane: Lane = ...,
        **options: Unpack[RequestOptions],
    ) -> SyncPending[Result]: ...
    @overload
    def submit(
        self,
        given: Given,
        *,
        into: type[T],
        timeout: float | None = ...,
        lane: Lane = ...,
        **options: Unpack[RequestOptions],
    ) -> SyncPending[T]: ...
    def submit(
        self,
        given: Given,
        *,
        into: type[Any] | None = None,
        timeout: float | None = None,
        lane: Lane = "standard",
        **options: Unpack[RequestOptions],
    ) -> SyncPending[Any]:
        """Ask, and return once the request is durable in Kafka. See `Client.submit`."""
        asking = self._client.submit(given, into=cast("Any", into), timeout=timeout, lane=lane, **options)
        return SyncPending(self.run(asking), self)

    def publish(
        self, given: Given, *, lane: Lane = "standard", **options: Unpack[RequestOptions]
    ) -> tuple[str, Location]:
        """Send a request that no reply is wanted for. See `Client.publish`."""
        return self.run(self._client.publish(given, lane=lane, **options))

    def cancel(self, request_id: str, *, reason: str = "") -> None:
        """Ask the workers to give a request up. See `Client.cancel`."""
        self.run(self._client.cancel(request_id, reason=reason))

    def as_completed(self, pendings: Iterable[SyncPending[T]]) -> Iterator[SyncPending[T]]:
        """Yield each as its result comes; `done.result()` then returns, or raises, at once."""
        ready: queue.SimpleQueue[SyncPending[T]] = queue.SimpleQueue()
        wanted = list(pendings)
        self.run(_announce(wanted, ready))
        for _ in wanted:
            yield ready.get()


async def _finish() -> None:
    """What another thread has asked while the client was being closed: it is refused, and must be told so."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=CLOSING)


async def _next(texts: AsyncGenerator[str]) -> str | None:
    return await anext(texts, None)


async def _announce(wanted: Iterable[SyncPending[T]], ready: queue.SimpleQueue[SyncPending[T]]) -> None:
    """On the client's loop, since only there a result cannot come in between."""
    for pending in wanted:
        pending.announce_to(ready)
