"""What a client has asked and waits for: one Exchange for each request, all of them in one table.

An exchange's life: `begin` (its turn, its record, its timers), `receive` (replies), `settle` (its one end),
`let_go` (its caller no longer waits). All of it happens on the client's event loop.
"""

# A timeout of ours is more than asyncio.timeout: reminders follow from it.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from headrace.consumers.replies import Delivery, Elsewhere, Finished, ReplyTrack, Text
from headrace.producers.transport import Transport
from headrace.schemas.errors import (
    ClientClosed,
    HeadraceError,
    MessageError,
    NoReply,
    RequestIdReused,
    StreamRestarted,
)
from headrace.schemas.messages import Cancel, Lane, Location, Reply, Request, Result

logger = logging.getLogger(__name__)

REMINDERS = 2  # how often a request with a timeout is asked again: after a third of it, and after two thirds
FIRST_REMINDER = 60.0  # seconds, for a request without a timeout; the pause doubles from there
LONGEST_REMINDER = 900.0  # seconds
CLOSING = 5.0  # seconds that `close` waits for what is being sent

# The attribute that says by its digest what was asked. A result has its request's attributes: where the two differ, an
# earlier request of the same id was answered, which asked for something else.
ASKED = "http.body"


@dataclass(eq=False, slots=True)
class Exchange:
    """One request of this client and what has come back for it."""

    request: Request
    lane: Lane
    correlation_id: str
    id_is_ours: bool  # made by the client, so that nobody else can be waiting for the same request
    outcome: asyncio.Future[Result]
    sent: asyncio.Future[Location]
    texts: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue[str | None])  # None: the end
    track: ReplyTrack = field(default_factory=ReplyTrack)
    timers: list[asyncio.TimerHandle] = field(default_factory=list[asyncio.TimerHandle])


class Exchanges:
    """The exchanges of one client, at most `max_pending` at a time."""

    def __init__(self, transport: Transport, max_pending: int) -> None:
        self._transport = transport
        self._turns = asyncio.Semaphore(max_pending)
        self._open: dict[str, Exchange] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended: tuple[str, HeadraceError | None] | None = None  # why nothing can be asked any more

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._ended is not None

    def __len__(self) -> int:
        """How many wait for their replies."""
        return len(self._open)

    def check_open(self) -> None:
        """Raises NoReply once the client was closed or has lost its replies."""
        if self._ended is not None:
            raise self._end()

    def _end(self) -> NoReply:
        reason, cause = self._ended or ("", None)
        error = ClientClosed(reason) if cause is None else NoReply(reason)
        error.__cause__ = cause
        return error

    # --- begin ----------------------------------------------------------------------------------------

    async def begin(
        self,
        request: Request,
        lane: Lane,
        timeout: float | None,  # seconds from now
        *,
        id_is_ours: bool,
    ) -> Exchange:
        """Wait for a turn, and send. Raises NoReply where the time is up before."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        await self._turn(timeout)
        outcome: asyncio.Future[Result] = loop.create_future()
        # Not every outcome is awaited (a submit's, a stream's): asyncio need not warn of those.
        outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        correlation_id = self._transport.correlation_id(next(self._numbers))
        sent = self._spawn(self._transport.send(request, lane, correlation_id))
        exchange = Exchange(request, lane, correlation_id, id_is_ours, outcome, sent)
        self._open[correlation_id] = exchange
        sent.add_done_callback(lambda task: self._was_sent(exchange, task))
        self._set_timers(exchange, started, timeout)
        return exchange

    async def _turn(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._turns.acquire()
        except TimeoutError:
            raise NoReply(f"not sent: {timeout:g} s passed while max_pending others were waiting") from None
        if self._ended is not None:
            self._turns.release()
            raise self._end()

    def _was_sent(self, exchange: Exchange, sent: asyncio.Future[Location]) -> None:
        error = None if sent.cancelled() else sent.exception()
        if isinstance(error, HeadraceError):
            self.settle(exchange, error)
        elif error is not None:
            unexpected = HeadraceError(f"{exchange.request.id}: not sent: {type(error).__name__}: {error}")
            unexpected.__cause__ = error
            self.settle(exchange, unexpected)

    def _set_timers(self, exchange: Exchange, started: float, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        if timeout is None:
            pause = FIRST_REMINDER
            exchange.timers = [loop.call_later(pause, self._remind_for_ever, exchange, pause)]
            return
        times = [started + timeout * n / (REMINDERS + 1) for n in range(1, REMINDERS + 1)]
        exchange.timers = [loop.call_at(at, self._remind, exchange) for at in times]
        exchange.timers.append(loop.call_at(started + timeout, self._time_is_up, exchange, timeout))

    def _remind(self, exchange: Exchange) -> None:
        """Ask again with the same id: a worker that has answered says where, one that is at it goes on."""
        if exchange.sent.done():
            again = self._transport.send(exchange.request, exchange.lane, exchange.correlation_id)
            self._spawn(again)  # where it fails, the first one still stands

    def _remind_for_ever(self, exchange: Exchange, pause: float) -> None:
        self._remind(exchange)
        pause = min(2 * pause, LONGEST_REMINDER)
        loop = asyncio.get_running_loop()
        exchange.timers = [loop.call_later(pause, self._remind_for_ever, exchange, pause)]

    def _time_is_up(self, exchange: Exchange, timeout: float) -> None:
        if exchange.sent.done():
            reason = f"no reply within {timeout:g} s; it may still be answered in `results`"
        else:
            reason = f"Kafka did not acknowledge it within {timeout:g} s; it may still arrive"
        self._give_up(exchange, NoReply(f"{exchange.request.id}: {reason}"))

    # --- receive --------------------------------------------------------------------------------------

    def receive(self, deliveries: list[Delivery]) -> None:
        """Take in what the reply reader has read."""
        for correlation_id, reply in deliveries:
            exchange = self._open.get(correlation_id)
            if exchange is None:
                continue  # it was given up, or has its answer
            if isinstance(reply, MessageError):
                self.settle(exchange, reply)
            else:
                self._accept(exchange, reply)

    def _accept(self, exchange: Exchange, reply: Reply) -> None:
        match exchange.track.accept(reply):
            case None:
                pass
            case Text(text):
                if exchange.request.stream:
                    exchange.texts.put_nowait(text)
            case Finished(result):
                self._finish(exchange, result)
            case Elsewhere(location):
                self._spawn(self._look_up(exchange, location))
            case _:
                self._give_up(exchange, _restarted(exchange))

    async def _look_up(self, exchange: Exchange, location: Location) -> None:
        try:
            result = await self._transport.result_at(location)
        except HeadraceError as error:
            self.settle(exchange, error)
        else:
            self._finish(exchange, result)

    def _finish(self, exchange: Exchange, result: Result) -> None:
        if _answers_another(exchange.request, result):
            reused = RequestIdReused(f"{exchange.request.id}: answered before, when something else was asked")
            self.settle(exchange, reused)
            return
        if exchange.request.stream and result.status == "ok":
            rest = exchange.track.rest(result)
            if rest is None:
                self.settle(exchange, _restarted(exchange))
                return
            exchange.texts.put_nowait(rest)
        self.settle(exchange, result)

    # --- the end --------------------------------------------------------------------------------------

    def settle(self, exchange: Exchange, outcome: Result | HeadraceError) -> None:
        """The one place where an exchange ends. What comes for it later is dropped."""
        if self._open.pop(exchange.correlation_id, None) is None:
            return
        for timer in exchange.timers:
            timer.cancel()
        self._turns.release()
        if not exchange.outcome.done():
            if isinstance(outcome, Result):
                exchange.outcome.set_result(outcome)
            else:
                exchange.outcome.set_exception(outcome)
        exchange.texts.put_nowait(None)

    def let_go(self, exchange: Exchange) -> None:
        """Its caller has the answer, or waits no longer: if nobody else can be waiting, it is cancelled."""
        self._give_up(exchange, NoReply(f"{exchange.request.id}: given up by its caller"))

    def _give_up(self, exchange: Exchange, outcome: HeadraceError) -> None:
        """End it while a worker may be at it: that one is told, unless somebody else can be waiting for it."""
        if exchange.correlation_id not in self._open:
            return
        self.settle(exchange, outcome)
        if exchange.id_is_ours:
            cancel = Cancel(id=exchange.request.id, reason="the caller no longer waits", time=now_ms())
            self._spawn(self._transport.send_cancel(cancel))

    def lose(self, cause: HeadraceError) -> None:
        """The reply reader has died: what waits cannot be answered any more."""
        self.end(f"the client's reply reader has stopped, open another client: {cause}", cause)

    def end(self, reason: str, cause: HeadraceError | None = None, *, cancel: bool = False) -> None:
        """All that waits ends with NoReply, and so does whatever is asked from now on.

        With `cancel` the workers are told, as they are when a caller lets go.
        """
        if self._ended is None:
            self._ended = (reason, cause)
        for exchange in list(self._open.values()):
            if cancel:
                self._give_up(exchange, self._end())
            else:
                self.settle(exchange, self._end())

    async def finish_sending(self) -> None:
        """Wait a while for what is being sent, then give it up."""
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks, timeout=CLOSING)
            for task in unfinished:
                task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("%s", error)  # whoever waits for it is told through the exchange


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def _answers_another(request: Request, result: Result) -> bool:
    asked, answered = request.attributes.get(ASKED), result.attributes.get(ASKED)
    return asked is not None and answered is not None and asked != answered


def _restarted(exchange: Exchange) -> StreamRestarted:
    return StreamRestarted(
        f"{exchange.request.id}: the worker was lost amid the text and another attempt has begun; "
        "ask again for the whole of it"
    )
