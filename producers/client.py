"""The client: asks a model through Kafka and awaits the answer.

async with Client.connect(model="movie-tagger") as client:
    tags = await client.ask(movie, into=Tags, id="film-17", timeout=30)
"""

# A timeout of ours is more than asyncio.timeout: it is also the request's deadline.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, cast, overload

from headrace.producers.asking import Given, RequestOptions, T, build_request, raise_for_status, unpack
from headrace.producers.exchange import Exchange, Exchanges, now_ms
from headrace.producers.transport import Transport
from headrace.schemas.errors import UsageError
from headrace.schemas.messages import Cancel, Lane, Location, Request, Result

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

DEFAULT_TIMEOUT = 60.0  # seconds
DEFAULT_MAX_PENDING = 10_000  # requests


def way_back(timeout: float) -> float:
    """Seconds that the deadline lies before the client's timeout: for the commit and the reply."""
    return min(1.0, timeout / 20)


def _deadline(timeout: float) -> int:
    """Of a request whose caller waits so many seconds from now; ms since the epoch."""
    return int((time.time() + timeout - way_back(timeout)) * 1000)


class Pending(Generic[T]):
    """A request that Kafka has; its result may be awaited, several times over if need be."""

    def __init__(self, exchange: Exchange, location: Location, into: type[T] | None) -> None:
        self._exchange = exchange
        self._into = into
        self.id = exchange.request.id
        self.location = location  # of the request

    def done(self) -> bool:
        """Whether `result()` returns or raises at once."""
        return self._exchange.outcome.done()

    async def result(self) -> T:
        """The answer, as `Client.ask` returns it. Raises what that raises."""
        return cast("T", unpack(await asyncio.shield(self._exchange.outcome), self._into))

    def add_done_callback(self, callback: Callable[[Self], None]) -> None:
        """Have `callback` called on the client's event loop once the result is there."""
        self._exchange.outcome.add_done_callback(lambda _: callback(self))

    def __repr__(self) -> str:
        return f"<Pending {self.id} {'done' if self.done() else 'waiting'}>"


class Client:
    """Asks one contract of a model. Belongs to the event loop it was opened on; `SyncClient` is its twin.

    What is not `ok` is an exception that carries the whole Result: Rejected, InvalidOutput, Truncated,
    Failed, Expired, Cancelled. NoReply: the time is up, and the result may still appear in `results`.

    At most `max_pending` requests wait for their replies at a time; one more waits for its turn.
    """

    def __init__(self, transport: Transport, *, max_pending: int = DEFAULT_MAX_PENDING) -> None:
        if max_pending < 1:
            raise UsageError(f"max_pending is {max_pending}: at least 1")
        self._transport = transport
        self._exchanges = Exchanges(transport, max_pending)
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def connect(
        cls,
        model: str,
        contract: int = 1,
        *,
        settings: Settings | None = None,
        bootstrap_servers: str | None = None,
        max_pending: int = DEFAULT_MAX_PENDING,
    ) -> Client:
        """A client through Kafka, to be opened with `async with`. Settings come from HEADRACE_* unless given.

        Raises SettingsError.
        """
        from headrace.producers.kafka_transport import KafkaTransport  # the in-memory twin does without
        from headrace.schemas.settings import Settings

        if settings is None:
            settings = Settings.from_environment(bootstrap_servers=bootstrap_servers)
        elif bootstrap_servers is not None:
            settings = settings.model_copy(update={"bootstrap_servers": bootstrap_servers})
        return Client(KafkaTransport(settings, model, contract), max_pending=max_pending)

    # --- its life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. Raises KafkaUnavailable, BrokerNotFound, and TopicsError where a topic does not exist."""
        if self._loop is not None:
            raise UsageError("this client has been opened before: make another")
        self._loop = asyncio.get_running_loop()
        try:
            await self._transport.open(
                self._on_loop(self._exchanges.receive), self._on_loop(self._exchanges.lose)
            )
        except BaseException:
            self._exchanges.end("the client could not be opened")
            await self._transport.close()
            raise

    async def close(self, *, cancel: bool = False) -> None:
        """Disconnect; what still waits ends with ClientClosed. Idempotent.

        With `cancel` what waits is given up; else it may still be answered in `results`.
        """
        self._exchanges.end(
            "the client was closed; what was sent may still be answered in `results`", cancel=cancel
        )
        await self._exchanges.finish_sending()
        await self._transport.close()

    def _on_loop(self, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        loop = asyncio.get_running_loop()

        def call(argument: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback, argument)

        return call

    @property
    def is_usable(self) -> bool:
        """Whether it is open and hears its replies; once it has lost them it never will again."""
        return self._loop is not None and not self._exchanges.has_ended

    @property
    def pending(self) -> int:
        """How many requests wait for their replies."""
        return len(self._exchanges)

    # --- asking ---------------------------------------------------------------------------------------

    @overload
    async def ask(
        self,
        given: Given,
        *,
        into: None = None,
        timeout: float = ...,
        lane: Lane = ...,
        **options: Unpack[RequestOptions],
    ) -> Result: ...
    @overload
    async def ask(
        self,
        given: Given,
        *,
        into: type[T],
        timeout: float = ...,
        lane: Lane = ...,
        **options: Unpack[RequestOptions],
    ) -> T: ...
    async def ask(
        self,
        given: Given,
        *,
        into: type[T] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        lane: Lane = "interactive",
        **options: Unpack[RequestOptions],
    ) -> T | Result:
        """Ask, and wait for the answer for at most `timeout` seconds; the request's deadline is set to that.

        `given`: a pydantic model or a dict holds the variables of the package's template, a str is a
        prompt, a list holds the messages of a conversation. `into`: the type that the (first) output is to
        be read as; without it the whole Result is returned. The request is asked again with the same id
        when its reply is overdue, so that a reply that was lost in a crash is found.
        """
        exchange = await self._begin(given, into, timeout, lane, False, options)
        try:
            return unpack(await exchange.outcome, into)
        finally:
            self._exchanges.let_go(exchange)

    async def stream(
        self,
        given: Given,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        lane: Lane = "interactive",
        **options: Unpack[RequestOptions],
    ) -> AsyncGenerator[str]:
        """Ask, and yield the text as it is generated; what must be validated first comes in one piece.

        At the end raises as `ask` does, and StreamRestarted when the worker was lost amid the text.
        """
        exchange = await self._begin(given, None, timeout, lane, True, options)
        try:
            while (text := await exchange.texts.get()) is not None:
                if text:
                    yield text
            raise_for_status(exchange.outcome.result())
        finally:
            self._exchanges.let_go(exchange)

    async def follow(
        self,
        request: Request,
        *,
        timeout: float,
        lane: Lane = "interactive",
        id_is_ours: bool = True,
    ) -> AsyncGenerator[str | Result]:
        """Ask, and yield the text as it is generated and at last the Result, whatever its status.

        Without `request.stream` the Result alone comes. With `id_is_ours` nobody else can be waiting for the same
        request: it is cancelled where the caller stops before its end. Raises what `ask` raises where no result
        comes (NoReply), and StreamRestarted.
        """
        self._check_open()
        asked = build_request(request, deadline=_deadline(timeout), stream=request.stream)
        exchange = await self._exchanges.begin(asked, lane, timeout, id_is_ours=id_is_ours)
        try:
            while (text := await exchange.texts.get()) is not None:
                if text:
                    yield text
            yield exchange.outcome.result()
        finally:
            self._exchanges.let_go(exchange)

    @overload
    async def submit(
        self,
        given: Given,
        *,
        into: None = None,
        timeout: float | None = ...,
        lane: Lane = ...,
        **options: Unpack[RequestOptions],
    ) -> Pending[Result]: ...
    @overload
    async def submit(
        self,
        given: Given,
        *,
        into: type[T],
        timeout: float | None = ...,
        lane: Lane = ...,
        **options: Unpack[RequestOptions],
    ) -> Pending[T]: ...
    async def submit(
        self,
        given: Given,
        *,
        into: type[Any] | None = None,
        timeout: float | None = None,
        lane: Lane = "standard",
        **options: Unpack[RequestOptions],
    ) -> Pending[Any]:
        """Ask, and return once the request is durable in Kafka; `await pending.result()` for the answer.

        Without a `timeout` the request has no deadline; its result is awaited for as long as the client
        lives.
        """
        exchange = await self._begin(given, into, timeout, lane, False, options)
        try:
            await asyncio.wait({exchange.sent, exchange.outcome}, return_when=asyncio.FIRST_COMPLETED)
            if not exchange.sent.done():
                exchange.outcome.result()  # raises where the time was up before Kafka had it
            return Pending(exchange, await asyncio.shield(exchange.sent), into)
        except BaseException:
            self._exchanges.let_go(exchange)
            raise

    async def publish(
        self, given: Given, *, lane: Lane = "standard", **options: Unpack[RequestOptions]
    ) -> tuple[str, Location]:
        """Send a request that no reply is wanted for; its result goes to `results`.

        Returns, once it is durable, its id and where it lies.
        """
        self._check_open()
        request = build_request(given, **options)
        return request.id, await self._transport.send(request, lane, None)

    async def cancel(self, request_id: str, *, reason: str = "") -> None:
        """Ask the workers to give a request up: it ends as `cancelled`, unless it is answered before."""
        self._check_open()
        await self._transport.send_cancel(Cancel(id=request_id, reason=reason, time=now_ms()))

    async def as_completed(self, pendings: Iterable[Pending[T]]) -> AsyncIterator[Pending[T]]:
        """Yield each as its result comes; `await done.result()` then returns, or raises, at once."""
        ready: asyncio.Queue[Pending[T]] = asyncio.Queue()
        count = 0
        for pending in pendings:
            pending.add_done_callback(ready.put_nowait)
            count += 1
        for _ in range(count):
            yield await ready.get()

    async def _begin(
        self,
        given: Given,
        into: Any,
        timeout: float | None,
        lane: Lane,
        stream: bool,
        options: RequestOptions,
    ) -> Exchange:
        self._check_open()
        if timeout is not None and not timeout > 0:
            raise UsageError(f"timeout is {timeout}: a number of seconds above 0")
        deadline = None if timeout is None else _deadline(timeout)
        request = build_request(given, into=into, deadline=deadline, stream=stream, **options)
        if stream and request.sampling is not None and (request.sampling.n or 1) > 1:
            raise UsageError("a stream has one choice: sampling.n must be 1")
        id_is_ours = "id" not in options and not isinstance(given, Request)
        return await self._exchanges.begin(request, lane, timeout, id_is_ours=id_is_ours)

    def _check_open(self) -> None:
        if self._loop is None:
            raise UsageError("the client is not open: use `async with Client.connect(...) as client`")
        if self._loop is not asyncio.get_running_loop():
            raise UsageError(
                "a client belongs to the event loop it was opened on; in threads use a SyncClient"
            )
        self._exchanges.check_open()
