"""One instance of the endpoint: what is served, its clients, and the way of a call's requests through them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pydantic import ValidationError

from headrace.consumers.backlog import Backlog
from headrace.consumers.catalogue import CatalogueRecords
from headrace.consumers.contracts import ContractId
from headrace.producers.client import Client
from headrace.producers.http.caller import ANYONE, UNLIMITED, Caller, Limits
from headrace.producers.http.failures import CLOSE, failure_of_error, shutting_down
from headrace.producers.http.gateway import HeaderLines, for_tenant, the_only
from headrace.producers.http.keys import KeyRing
from headrace.producers.http.limits import Accounts
from headrace.producers.http.models import Served, resolve
from headrace.producers.http.queues import Queues
from headrace.producers.http.wanted import ApiError, Wanted
from headrace.schemas.codec import Codec
from headrace.schemas.field_errors import explain
from headrace.schemas.messages import Lane, Request, Result

T = TypeVar("T")

CONNECTED_WITHIN_S = 30.0
RECORD_ROOM_BYTES = 1024  # of a record beside its key and value: what it is wrapped in, and its headers


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What the operator decides."""

    keys: KeyRing | None  # None: no key is asked for
    trusts_tenant_header: bool = False
    per_tenant: Limits = field(default=UNLIMITED)
    default_timeout_s: float = 60.0  # where a call says nothing
    longest_timeout_s: float = 3600.0
    body_within_s: float = 30.0  # from a call's headers to the end of its body
    largest_request_bytes: int = 1024 * 1024  # of a record
    keep_alive_s: float = 15.0  # of silence in a stream: proxies cut a connection after a minute of it


class Known(Protocol):
    """What is needed of `consumers.catalogue.Catalogue`."""

    @property
    def ready(self) -> bool: ...
    def asked(self, ask: Callable[[CatalogueRecords], T]) -> T: ...


class Watch(Protocol):
    """What reads a backlog."""

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Something of the answer to one of a call's prompts: more text, or its result."""

    prompt: int  # its place among the call's `asked`
    piece: str | Result


class Service:
    """Belongs to one event loop. `connect` makes a client of a contract; it is opened here, on first use."""

    def __init__(
        self,
        options: ServiceOptions,
        known: Known,
        connect: Callable[[ContractId], Client],
        watch: Callable[[ContractId, Callable[[Mapping[Lane, Backlog]], None]], Watch] | None = None,
    ) -> None:
        """`watch` begins to read a contract's backlog, and tells of it in a thread of its own."""
        self.options = options
        self.accounts = Accounts(time.monotonic, per_tenant=options.per_tenant)
        self.queues = Queues()
        self.draining = False  # what runs is finished, and no other call comes in
        self._closed = False
        self._arriving: set[asyncio.Timeout] = set()  # of the bodies that have not come yet
        self._known = known
        self._connect = connect
        self._clients: dict[ContractId, Client] = {}
        self._opening: dict[ContractId, asyncio.Task[Client]] = {}
        self._watch = watch
        self._watches: dict[ContractId, Watch] = {}

    def not_ready(self) -> str | None:
        """Why no call should come here; None: all is well."""
        if self.draining:
            return "it is ending"
        return None if self._known.ready else "what is served has not been read yet"

    def check_open(self) -> None:
        """Raises ApiError (503) once the instance is to end."""
        if self.draining:
            raise shutting_down()

    @property
    def pending(self) -> int:
        """How many requests wait for their replies."""
        return sum(client.pending for client in self._clients.values())

    @contextlib.asynccontextmanager
    async def arrival(self) -> AsyncGenerator[None]:
        """While a body comes in. Raises ApiError: 408 where it takes too long, 503 where the service is closed."""
        within_s = self.options.body_within_s
        try:
            async with asyncio.timeout(within_s) as timeout:
                self._arriving.add(timeout)
                try:
                    yield
                finally:
                    self._arriving.discard(timeout)
        except TimeoutError:
            if self._closed:
                raise shutting_down() from None
            raise ApiError(
                408,
                f"The request's body has not come in whole within {within_s:g} s.",
                reason="request_timeout",
                headers=CLOSE,
            ) from None

    def caller_of(self, headers: HeaderLines) -> Caller:
        """Who calls, and for whom. Raises ApiError (401, 403, 400)."""
        keys = self.options.keys
        caller = ANYONE if keys is None else keys.authenticate(the_only(headers, "Authorization"))
        return for_tenant(caller, headers, trusted=self.options.trusts_tenant_header)

    def asked(self, ask: Callable[[CatalogueRecords], T]) -> T:
        """What the records of what is served say to a question. Raises ApiError (503) before they were read."""
        if not self._known.ready:
            raise ApiError(
                503,
                "This endpoint has just started and does not know its models yet.",
                headers={"retry-after": "1"},
            )
        return self._known.asked(ask)

    def served(self, model: str) -> Served:
        """The contract that a name means. Raises ApiError (404, 503)."""
        return self.asked(lambda records: resolve(model, records))

    async def client_of(self, contract: ContractId) -> Client:
        """The client of a contract, open. Raises what opening it raises, and ApiError (503) where that takes long.

        All calls that come while it is opened wait for the same attempt, and are told the same.
        """
        client = self._clients.get(contract)
        if client is not None and client.is_usable:
            return client
        if self._closed:
            raise shutting_down()
        opening = self._opening.get(contract)
        if opening is None:
            opening = asyncio.create_task(self._open(contract), name=f"opening {contract[0]}@{contract[1]}")
            self._opening[contract] = opening
            opening.add_done_callback(lambda done: self._opened(contract, done))
        return await asyncio.shield(opening)

    async def _open(self, contract: ContractId) -> Client:
        lost = self._clients.pop(contract, None)
        if lost is not None:
            await lost.close()
        client = self._connect(contract)
        try:
            async with asyncio.timeout(CONNECTED_WITHIN_S):
                await client.open()
        except TimeoutError:
            raise ApiError(503, "Kafka does not answer.", headers={"retry-after": "5"}) from None
        self._clients[contract] = client
        self._look_after(contract)
        return client

    def _opened(self, contract: ContractId, opening: asyncio.Task[Client]) -> None:
        del self._opening[contract]
        if not opening.cancelled():
            opening.exception()  # whoever waits is told; asyncio need not warn where nobody does any more

    def _look_after(self, contract: ContractId) -> None:
        if self._watch is None or contract in self._watches:
            return
        loop = asyncio.get_running_loop()

        def tell(backlogs: Mapping[Lane, Backlog]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(self.queues.look, contract, backlogs)

        self._watches[contract] = self._watch(contract, tell)

    async def close(self) -> None:
        """Let no other call in and close the clients: what still waits is given up, and ends with ClientClosed."""
        self.draining = self._closed = True
        for arriving in list(self._arriving):
            arriving.reschedule(asyncio.get_running_loop().time())
        while self._clients or self._opening:
            clients, self._clients = self._clients, {}
            await asyncio.gather(*(client.close(cancel=True) for client in clients.values()))
            if self._opening:
                await asyncio.wait(list(self._opening.values()))
        watches, self._watches = self._watches, {}
        for each in watches.values():
            each.stop()


def requests_of(wanted: Wanted, caller: Caller, request_id: str) -> list[Request]:
    """The requests of a call: one for each prompt. Raises ApiError (400).

    Text is streamed where a call asks for it and there is one choice to stream; else the answer comes whole.
    """
    several = len(wanted.asked) > 1
    found: list[Request] = []
    for place, asked in enumerate(wanted.asked):
        fields = wanted.fields | asked
        fields["id"] = f"{request_id}-{place}" if several else request_id
        fields["tenant"] = caller.tenant
        fields["stream"] = wanted.stream and wanted.choices == 1 and wanted.tool is None
        try:
            found.append(Request.model_validate(fields))
        except ValidationError as error:
            raise failure_of_error(explain(error, fields), wanted) from None
    return found


def check_sizes(requests: Sequence[Request], most: int) -> None:
    """Raises ApiError (413) for a request of more than `most` bytes as a record.

    The broker is not asked: kafka-python's producer does not outlive a record that a broker has refused, and all calls
    of a contract share one.
    """
    for request in requests:
        key = (request.key or request.id).encode()
        size = len(_codec().encode(request)) + len(key) + RECORD_ROOM_BYTES
        if size > most:
            raise ApiError(
                413,
                f"The request has {size} bytes as a message: at most {most} are taken.",
                reason="request_too_large",
            )


@functools.cache
def _codec() -> Codec:
    return Codec()


async def follow_all(
    client: Client, wanted: Wanted, requests: Sequence[Request], *, timeout_s: float, ids_are_ours: bool
) -> AsyncGenerator[Part]:
    """What comes back for a call's requests, as it comes. Raises what `Client.follow` raises.

    Whoever stops before the end gives all of them up.
    """
    followed = [
        client.follow(request, timeout=timeout_s, lane=wanted.lane, id_is_ours=ids_are_ours)
        for request in requests
    ]
    if len(followed) == 1:
        async with contextlib.aclosing(followed[0]) as pieces:
            async for piece in pieces:
                yield Part(0, piece)
        return
    parts: asyncio.Queue[Part | BaseException | None] = asyncio.Queue()

    async def take(place: int) -> None:
        try:
            async with contextlib.aclosing(followed[place]) as pieces:
                async for piece in pieces:
                    parts.put_nowait(Part(place, piece))
            parts.put_nowait(None)
        except Exception as error:  # noqa: BLE001  (it is raised where the parts are taken)
            parts.put_nowait(error)

    tasks = [asyncio.create_task(take(place)) for place in range(len(followed))]
    try:
        running = len(tasks)
        while running:
            part = await parts.get()
            if isinstance(part, BaseException):
                raise part
            if part is None:
                running -= 1
            else:
                yield part
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
