"""A call from its first byte to its last: who, what, how long; the answer whole, or event by event."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from headrace.producers.exchange import ASKED
from headrace.producers.http import answers
from headrace.producers.http.chat import wanted_of_chat
from headrace.producers.http.completions import wanted_of_completion
from headrace.producers.http.failures import NO_RETRY, failure_of, failure_of_error
from headrace.producers.http.gateway import (
    BodyLimit,
    Timeout,
    body_digest,
    check_content_type,
    check_query,
    largest_body,
    request_id_of,
    timed_out,
    timeout_of,
)
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

    from headrace.consumers.contracts import ContractId
    from headrace.producers.client import Client
    from headrace.producers.http.caller import Caller
    from headrace.producers.http.limits import Lease

REQUEST_ID = "x-request-id"
CHARACTERS_OF_A_TOKEN = 4  # about, of text
LARGER_AS_RECORD = (
    8  # times: a tool's schema is there twice, and a character may take six bytes instead of two
)
LARGE_BODY_BYTES = (
    64 * 1024
)  # a thread takes it: one of very many parts would hold up all other calls for a second


@dataclass(frozen=True, slots=True)
class Call:
    """A call that came in: what it wants and what it holds."""

    wanted: Wanted
    requests: list[Request]
    request_id: str
    ids_are_ours: bool
    client: Client
    lease: Lease
    timeout: Timeout
    began: float  # monotonic seconds
    created: int  # seconds since the epoch
    answered: Callable[[Result], None]  # is told of each result

    def parts(self) -> AsyncGenerator[Part]:
        """What comes back."""
        return follow_all(
            self.client,
            self.wanted,
            self.requests,
            timeout_s=_left(self.timeout, self.began),
            ids_are_ours=self.ids_are_ours,
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
    """Let a call in. Raises ApiError, ClientDisconnect, and what opening a client raises."""
    began, created = time.monotonic(), int(time.time())
    service.check_open()
    caller = service.caller_of(http.headers)
    check_query(http.query_params)
    check_content_type(http.headers.get("content-type"))
    options = service.options
    timeout = timeout_of(http.headers, default_s=options.default_timeout_s, most_s=options.longest_timeout_s)
    given_id = request_id_of(http.headers, caller.tenant)
    async with service.arrival():
        body = await _body(http, largest_body(options.largest_request_bytes))
    translate = partial(_translated, service, caller, endpoint, body, given_id)
    in_thread = len(body) > LARGE_BODY_BYTES
    asked = await asyncio.to_thread(translate) if in_thread else translate()
    service.queues.check(asked.contract, asked.wanted.lane, timeout.seconds)
    lease = service.accounts.admit(caller, requests=len(asked.requests))
    try:
        async with asyncio.timeout(_left(timeout, began)):
            client = await service.client_of(asked.contract)
    except TimeoutError:
        lease.give_back(0)
        raise ApiError(504, timed_out(timeout), reason="no_reply", headers=NO_RETRY) from None
    except BaseException:
        lease.give_back(0)
        raise
    return Call(
        asked.wanted,
        asked.requests,
        asked.request_id,
        given_id is None,
        client,
        lease,
        timeout,
        began,
        created,
        # A result under an id that the caller gave may have been made for an earlier call.
        partial(
            service.queues.answered,
            asked.contract,
            asked.wanted.lane,
            None if given_id is None else began,
        ),
    )


def _left(timeout: Timeout, began: float) -> float:
    """Seconds of a call's time that are left."""
    return max(0.001, began + timeout.seconds - time.monotonic())


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a body asks for."""

    contract: ContractId
    wanted: Wanted
    requests: list[Request]
    request_id: str


def _translated(
    service: Service, caller: Caller, endpoint: Endpoint, content: bytes, given_id: str | None
) -> _Asked:
    """From a body's bytes to its requests. Raises ApiError. May be called in any thread."""
    body = _parsed(content)
    served = service.served(model_of(without_nulls({"model": body.get("model")})))
    if endpoint == "chat":
        wanted = wanted_of_chat(
            body, contract_has_output=served.has_output, has_tool_parser=served.has_tool_parser
        )
    else:
        wanted = wanted_of_completion(body, contract_has_output=served.has_output)
    if given_id is not None:
        attributes: JsonObject = {**wanted.fields.get("attributes", {}), ASKED: body_digest(body, endpoint)}
        wanted = replace(wanted, fields=wanted.fields | {"attributes": attributes})
    request_id = given_id or uuid.uuid4().hex
    requests = requests_of(wanted, caller, request_id)
    if len(content) * LARGER_AS_RECORD > service.options.largest_request_bytes:
        check_sizes(requests, service.options.largest_request_bytes)
    return _Asked(served.contract, wanted, requests, request_id)


async def _body(http: HttpRequest, most: int) -> bytes:
    """The body of at most so many bytes."""
    limit = BodyLimit(most)
    limit.announce(http.headers)
    chunks: list[bytes] = []
    async for chunk in http.stream():
        limit.count(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


def _parsed(content: bytes) -> JsonObject:
    try:
        body = parse(content.decode())
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not UTF-8: {error.reason} at byte {error.start}.") from None
    except JsonFault as fault:
        raise ApiError(400, f"The body is not JSON as it should be: {fault.reason}.") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be a JSON object.")
    return cast("JsonObject", body)


# --- whole ------------------------------------------------------------------------------------------------


async def whole(call: Call) -> tuple[JsonObject, dict[str, str]]:
    """The answer and its headers. Raises ApiError."""
    results: dict[int, Result] = {}
    try:
        async with contextlib.aclosing(call.parts()) as parts:
            async for part in parts:
                if isinstance(part.piece, Result):
                    results[part.prompt] = part.piece  # first: what does not hold was generated too
                    call.answered(part.piece)
                    _check(part.piece, call.wanted)
        in_order = [results[place] for place in range(len(call.requests))]
        return call.body(in_order), answers.response_headers(in_order[0])
    except Exception as error:
        raise _failure(error, call) from error
    finally:
        call.lease.give_back(_tokens(results, {}) if results else None)


def _check(result: Result, wanted: Wanted) -> None:
    if result.status != "ok":
        raise failure_of(result, wanted)


def _failure(error: Exception, call: Call) -> ApiError:
    """What the caller is told. Of a deadline only the endpoint knows who set it."""
    failure = failure_of_error(error, call.wanted)
    if failure.status != 504:
        return failure
    message = timed_out(call.timeout)
    if not call.ids_are_ours and time.monotonic() - call.began < call.timeout.seconds / 2:
        message = (
            "An earlier call with this Idempotency-Key was not answered within its timeout: send another key."
        )
    return ApiError(504, message, reason=failure.reason, headers=failure.headers)


def _tokens(results: Mapping[int, Result], said: Mapping[int, Sequence[str]]) -> int:
    """What a call is charged: as counted, and for no prompt less than the text that was seen of it.

    A caller that has read its text and leaves before the result comes has had those tokens all the same. Each piece of
    text is one or more of them, each of which has four characters or so.
    """
    taken = {
        prompt: result.usage.prompt_tokens + result.usage.completion_tokens
        for prompt, result in results.items()
    }
    for prompt, pieces in said.items():
        seen = max(len(pieces), sum(map(len, pieces)) // CHARACTERS_OF_A_TOKEN)
        taken[prompt] = max(taken.get(prompt, 0), seen)
    return sum(taken.values())


# --- event by event ---------------------------------------------------------------------------------------


async def events(call: Call, first_error: Callable[[ApiError], None]) -> AsyncGenerator[bytes]:
    """The events of a call; some may be empty.

    An error that comes before anything was yielded is raised, for it can still be a status; one that comes later is an
    event, and the last. `first_error` is told of either.
    """
    stream = call.stream()
    results: dict[int, Result] = {}
    said: defaultdict[int, list[str]] = defaultdict(list)  # of each prompt: the pieces of its text
    begun = False
    try:
        async with contextlib.aclosing(call.parts()) as parts:
            async for part in parts:
                if isinstance(part.piece, str):
                    said[part.prompt].append(part.piece)
                    if not begun:
                        _first_token(call)
                        begun = True
                        yield stream.first()
                    yield stream.text(part.piece, part.prompt)
                    continue
                results[part.prompt] = part.piece
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
        failure = _failure(error, call)
        first_error(failure)
        if not begun:
            raise failure from error
        yield stream.failed(failure)
    finally:
        call.lease.give_back(_tokens(results, said) if results or said else None)


def _first_token(call: Call) -> None:
    metrics.child(metrics.HTTP_FIRST_TOKEN_SECONDS, call.wanted.endpoint).observe(
        time.monotonic() - call.began
    )
