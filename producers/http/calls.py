"""A call from its first byte to its last: who, what, how long; the answer whole, or event by event."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from headrace.producers.http import answers
from headrace.producers.http.chat import wanted_of_chat
from headrace.producers.http.completions import wanted_of_completion
from headrace.producers.http.failures import failure_of, failure_of_error
from headrace.producers.http.gateway import BodyLimit, largest_body, request_id_of, timeout_of
from headrace.producers.http.given import model_of
from headrace.producers.http.service import Part, Service, check_sizes, follow_all, requests_of
from headrace.producers.http.streams import ChatStream, EventStream, TextStream
from headrace.producers.http.typed_values import without_nulls
from headrace.producers.http.wanted import ApiError, Endpoint, Wanted
from headrace.schemas import metrics
from headrace.schemas.messages import JsonObject, Request, Result
from headrace.schemas.strict_json import JsonFault, parse

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest

    from headrace.producers.client import Client
    from headrace.producers.http.limits import Lease

REQUEST_ID = "x-request-id"
LARGER_AS_RECORD = (
    8  # times: a tool's schema is there twice, and a character may take six bytes instead of two
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that came in: what it wants and what it holds."""

    wanted: Wanted
    requests: list[Request]
    request_id: str
    ids_are_ours: bool
    client: Client
    lease: Lease
    timeout_s: float
    began: float  # monotonic seconds
    created: int  # seconds since the epoch
    answered: Callable[[Result], None]  # is told of each result

    def parts(self) -> AsyncGenerator[Part]:
        """What comes back."""
        return follow_all(
            self.client, self.wanted, self.requests, timeout_s=self.timeout_s, ids_are_ours=self.ids_are_ours
        )

    def stream(self) -> EventStream:
        """Its events."""
        kind = ChatStream if self.wanted.endpoint == "chat" else TextStream
        return kind(self.wanted, request_id=self.request_id, created=self.created)

    def body(self, results: list[Result]) -> JsonObject:
        """Its answer, whole."""
        if self.wanted.endpoint == "chat":
            return answers.chat_completion(results[0], self.wanted, created=self.created)
        return answers.text_completion(results, self.wanted, created=self.created, request_id=self.request_id)


async def begin(service: Service, http: HttpRequest, endpoint: Endpoint) -> Call:
    """Let a call in. Raises ApiError, and what opening a client raises."""
    began, created = time.monotonic(), int(time.time())
    caller = service.caller_of(http.headers)
    options = service.options
    timeout = timeout_of(http.headers, default_s=options.default_timeout_s, most_s=options.longest_timeout_s)
    given_id = request_id_of(http.headers, caller.tenant)
    body, body_bytes = await _body(http, largest_body(options.largest_request_bytes))
    served = service.served(model_of(without_nulls({"model": body.get("model")})))
    if endpoint == "chat":
        wanted = wanted_of_chat(body, contract_has_output=served.has_output, has_tool_parser=False)
    else:
        wanted = wanted_of_completion(body, contract_has_output=served.has_output)
    request_id = given_id or uuid.uuid4().hex
    requests = requests_of(wanted, caller, request_id)
    if body_bytes * LARGER_AS_RECORD > options.largest_request_bytes:
        check_sizes(requests, options.largest_request_bytes)
    service.queues.check(served.contract, wanted.lane, timeout.seconds)
    lease = service.accounts.admit(caller, requests=len(requests))
    try:
        client = await service.client_of(served.contract)
    except BaseException:
        lease.give_back(0)
        raise
    return Call(
        wanted,
        requests,
        request_id,
        given_id is None,
        client,
        lease,
        timeout.seconds,
        began,
        created,
        partial(service.queues.answered, served.contract, wanted.lane),
    )


async def _body(http: HttpRequest, most: int) -> tuple[JsonObject, int]:
    """The body of at most so many bytes, and its length."""
    limit = BodyLimit(most)
    limit.announce(http.headers)
    chunks: list[bytes] = []
    async for chunk in http.stream():
        limit.count(len(chunk))
        chunks.append(chunk)
    try:
        body = parse(b"".join(chunks).decode())
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not UTF-8: {error.reason} at byte {error.start}.") from None
    except JsonFault as fault:
        raise ApiError(400, f"The body is not JSON as it should be: {fault.reason}.") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be a JSON object.")
    return cast("JsonObject", body), limit.received


# --- whole ------------------------------------------------------------------------------------------------


async def whole(call: Call) -> tuple[JsonObject, dict[str, str]]:
    """The answer and its headers. Raises ApiError."""
    results: dict[int, Result] = {}
    try:
        async with contextlib.aclosing(call.parts()) as parts:
            async for part in parts:
                if isinstance(part.piece, Result):
                    call.answered(part.piece)
                    _check(part.piece, call.wanted)
                    results[part.prompt] = part.piece
        in_order = [results[place] for place in range(len(call.requests))]
        return call.body(in_order), answers.response_headers(in_order[0])
    except ApiError:
        raise
    except Exception as error:
        raise failure_of_error(error, call.wanted) from error
    finally:
        call.lease.give_back(_tokens(results.values()) if results else None)


def _check(result: Result, wanted: Wanted) -> None:
    if result.status != "ok":
        raise failure_of(result, wanted)


def _tokens(results: Iterable[Result]) -> int:
    return sum(each.usage.prompt_tokens + each.usage.completion_tokens for each in results)


# --- event by event ---------------------------------------------------------------------------------------


async def events(call: Call, first_error: Callable[[ApiError], None]) -> AsyncGenerator[bytes]:
    """The events of a call; some may be empty.

    An error that comes before anything was yielded is raised, for it can still be a status; one that comes later is an
    event, and the last. `first_error` is told of either.
    """
    stream = call.stream()
    results: list[Result] = []
    begun = False
    try:
        async with contextlib.aclosing(call.parts()) as parts:
            async for part in parts:
                if isinstance(part.piece, str):
                    if not begun:
                        _first_token(call)
                        begun = True
                        yield stream.first()
                    yield stream.text(part.piece, part.prompt)
                    continue
                results.append(part.piece)
                call.answered(part.piece)
                _check(part.piece, call.wanted)
                last = stream.finish(part.piece, part.prompt)
                if not begun:
                    begun = True
                    last = [stream.first(), *last]
                for each in last:
                    yield each
    except GeneratorExit:
        raise
    except Exception as error:
        failure = error if isinstance(error, ApiError) else failure_of_error(error, call.wanted)
        first_error(failure)
        if not begun:
            raise failure from error
        yield stream.failed(failure)
    finally:
        call.lease.give_back(_tokens(results) if results else None)


def _first_token(call: Call) -> None:
    metrics.child(metrics.HTTP_FIRST_TOKEN_SECONDS, call.wanted.endpoint).observe(
        time.monotonic() - call.began
    )
