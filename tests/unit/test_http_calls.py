"""Calls from their first byte to their last, through the whole application, with a client in memory behind it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from http_callers import CHAT, COMPLETIONS, MODEL, Endpoint
from serving_parts import until

from headrace.consumers.contracts import ContractId
from headrace.producers.exchange import ASKED
from headrace.producers.http.caller import ANYONE, Limits
from headrace.producers.http.calls import LARGE_BODY_BYTES
from headrace.producers.http.limits import Accounts
from headrace.schemas.messages import ErrorDetail, Lane, Output, Provenance, Request, Result, Status, Usage

ONCE = {"Idempotency-Key": "once"}


def run(work: Callable[[Endpoint], Awaitable[None]], answer: Any = "It is a mill.", **options: Any) -> None:
    async def go() -> None:
        endpoint = Endpoint(answer, **options)
        try:
            await work(endpoint)
        finally:
            await endpoint.service.close()

    asyncio.run(go())


# --- deadlines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"X-Request-Timeout": "0.2"}, "within 0.2 s, the timeout that X-Request-Timeout asked for"),
        ({}, "within 0.3 s, the --timeout of this server"),
        (
            {"x-stainless-read-timeout": "0.4"},
            "within 0.38 s, all that the header x-stainless-read-timeout of",
        ),
        ({"X-Stainless-Timeout": "0.4"}, "within 0.38 s, all that the header X-Stainless-Timeout of"),
    ],
)
def test_a_deadline_that_passes_is_told_in_the_callers_words_and_stops_the_engine(
    headers: dict[str, str], said: str
) -> None:
    async def work(endpoint: Endpoint) -> None:
        endpoint.client.ignore_next()
        late = await endpoint.call(headers=headers).ended()
        assert (late.status, late.headers["x-should-retry"]) == (504, "false")
        assert said in late.error["message"]
        assert "/deadline" not in late.error["message"]
        await until(lambda: len(endpoint.client.cancels) == 1)
        assert [each.id for each in endpoint.client.cancels] == [endpoint.client.requests[0].id]
        assert endpoint.service.pending == 0

    run(work, default_timeout_s=0.3)


def test_a_worker_that_finds_the_deadline_passed_is_told_of_in_the_same_words() -> None:
    async def work(endpoint: Endpoint) -> None:
        endpoint.client.fail_next("expired", "the deadline has passed (/deadline)")
        late = await endpoint.call(headers={"X-Request-Timeout": "7"}).ended()
        assert (late.status, late.error["code"]) == (504, "expired")
        assert late.error["message"].startswith(
            "The call was not answered within 7 s, the timeout that X-Req"
        )

    run(work)


def test_a_deadline_of_an_earlier_call_is_not_laid_at_the_later_ones_door() -> None:
    async def work(endpoint: Endpoint) -> None:
        endpoint.client.fail_next("expired")
        for _ in range(2):
            late = await endpoint.call(headers=ONCE | {"X-Request-Timeout": "30"}).ended()
            assert late.status == 504
            assert "An earlier call with this Idempotency-Key" in late.error["message"]

    run(work)


def test_a_request_that_somebody_else_may_wait_for_is_not_cancelled_by_a_deadline() -> None:
    async def work(endpoint: Endpoint) -> None:
        endpoint.client.ignore_next()
        assert (await endpoint.call(headers=ONCE | {"X-Request-Timeout": "0.1"}).ended()).status == 504
        leaving = endpoint.call()
        await until(lambda: len(endpoint.client.requests) == 2)
        leaving.leave()
        await leaving.ended()
        await until(lambda: len(endpoint.client.cancels) == 1)
        assert endpoint.client.cancels[0].id == endpoint.client.requests[1].id

    async def never(_: Request) -> str:
        return await asyncio.get_running_loop().create_future()

    run(work, never)


def test_a_stream_that_begins_anew_in_another_worker_is_given_up_there() -> None:
    async def work(endpoint: Endpoint) -> None:
        endpoint.client.restart_next_stream()
        broken = await endpoint.call(stream=True).ended()
        assert broken.events[-1]["error"]["code"] == "stream_restarted"
        await until(lambda: len(endpoint.client.cancels) == 1)

    run(work)


# --- bodies -------------------------------------------------------------------------------------------------


def test_a_body_that_does_not_come_is_waited_for_so_long_and_the_connection_closed() -> None:
    async def work(endpoint: Endpoint) -> None:
        slow = endpoint.begun()
        slow.send_body(b'{"model": ', more=True)
        await slow.ended()
        assert (slow.status, slow.headers["connection"]) == (408, "close")
        assert (slow.error["code"], slow.error["type"]) == ("request_timeout", "invalid_request_error")
        assert "0.1 s" in slow.error["message"]
        assert (await endpoint.call().ended()).status == 200

    run(work, body_within_s=0.1)


def test_a_caller_that_goes_away_before_its_body_has_come_is_none_of_the_endpoints_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(endpoint: Endpoint) -> None:
        leaving = endpoint.begun()
        leaving.send_body(b"{", more=True)
        leaving.leave()
        await leaving.ended()
        assert leaving.status == 499
        assert not endpoint.client.requests

    run(work)
    assert not caplog.records


def test_the_endpoint_answers_others_while_a_large_body_is_translated() -> None:
    translating, answered = threading.Event(), threading.Event()

    def look() -> None:
        translating.set()
        assert answered.wait(10), "nobody else was answered meanwhile"

    async def work(endpoint: Endpoint) -> None:
        endpoint.known.look = look
        large = endpoint.call(messages=[{"role": "user", "content": "x" * LARGE_BODY_BYTES}])
        await until(translating.is_set)
        health = await endpoint.get("/healthz").ended()
        assert (health.status, health.content) == (200, b"ok\n")
        answered.set()
        assert (await large.ended()).text == "It is a mill."

    run(work)


def test_what_is_wrong_with_a_large_body_is_told_as_with_a_small_one() -> None:
    async def work(endpoint: Endpoint) -> None:
        large = await endpoint.call(user="u", temperature="x" * LARGE_BODY_BYTES).ended()
        assert (large.status, large.error["param"]) == (400, "temperature")

    run(work)


# --- models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/v1/models/nobodys"])
def test_what_is_said_of_models_has_a_request_id_too(path: str) -> None:
    async def work(endpoint: Endpoint) -> None:
        first, second = await endpoint.get(path).ended(), await endpoint.get(path).ended()
        assert first.headers["x-request-id"] != second.headers["x-request-id"]

    run(work)


# --- the URL ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_parameter_in_the_url_is_refused_by_name(path: str) -> None:
    async def work(endpoint: Endpoint) -> None:
        refused = await endpoint.call(path=path, query="api-version=1&temperature=0").ended()
        assert (refused.status, refused.error["param"]) == (400, "temperature")
        assert refused.error["code"] == "unknown_parameter"
        assert not endpoint.client.requests

    run(work)


def test_the_version_that_clients_for_azure_send_is_let_through() -> None:
    async def work(endpoint: Endpoint) -> None:
        assert (await endpoint.call(query="api-version=2024-10-21").ended()).status == 200

    run(work)


# --- the same call again ----------------------------------------------------------------------------------------


def test_the_same_call_again_has_the_same_answer_however_its_body_is_written() -> None:
    numbers = iter(range(10))

    def counted(_: Request) -> str:
        return str(next(numbers))

    async def work(endpoint: Endpoint) -> None:
        first = await endpoint.call(headers=ONCE, temperature=0.5).ended()
        asked = json.loads(json.dumps({"temperature": 0.5, "model": MODEL, "seed": None}))
        again = {"messages": [{"content": "Hi", "role": "user"}], **asked}
        second = await endpoint.call(again, ONCE).ended()
        assert first.text == second.text == "0"
        streamed = await endpoint.call(headers=ONCE, temperature=0.5, stream=True).ended()
        assert streamed.events[1]["choices"][0]["delta"]["content"] == "0"
        assert len(endpoint.client.generated) == 1
        assert ASKED in endpoint.client.requests[0].attributes

    run(work, counted)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("while_it_runs", [False, True])
def test_another_call_under_the_same_key_is_refused_and_sees_nothing_of_the_first_ones_answer(
    stream: bool, while_it_runs: bool
) -> None:
    async def work(endpoint: Endpoint) -> None:
        endpoint.client.delay_s = 0.2 if while_it_runs else 0
        first = endpoint.call(headers=ONCE, stream=stream)
        if while_it_runs:
            await until(lambda: len(endpoint.client.requests) == 1)
        else:
            await first.ended()
        other = await endpoint.call(headers=ONCE, stream=stream, temperature=1).ended()
        assert other.status == 422
        assert (other.error["type"], other.error["code"]) == ("idempotency_error", "idempotency_key_reused")
        assert b"mill" not in other.content
        assert b"mill" in (await first.ended()).content
        assert (await endpoint.call(headers={"Idempotency-Key": "two"}, temperature=1).ended()).status == 200

    run(work)


def test_an_answer_that_is_not_kept_any_more_is_said_to_be_gone() -> None:
    async def work(endpoint: Endpoint) -> None:
        assert (await endpoint.call(headers=ONCE).ended()).status == 200
        endpoint.client.forget_results()
        gone = await endpoint.call(headers=ONCE).ended()
        assert (gone.status, gone.error["code"]) == (410, "idempotent_answer_gone")
        assert (gone.error["type"], gone.headers["x-should-retry"]) == ("idempotency_error", "false")

    run(work)


@pytest.mark.parametrize("stream", [False, True])
def test_of_answers_under_a_key_only_those_since_the_call_began_can_tell_of_a_queue(stream: bool) -> None:
    async def work(endpoint: Endpoint) -> None:
        since: list[float | None] = []

        def note(contract: ContractId, lane: Lane, since_s: float | None, result: Result) -> None:
            since.append(since_s)

        endpoint.service.queues.answered = note
        before = time.monotonic()
        await endpoint.call(headers=ONCE, stream=stream).ended()
        await endpoint.call(stream=stream).ended()
        keyed, other = since
        assert keyed is not None
        assert before <= keyed <= time.monotonic()
        assert other is None

    run(work)


def test_without_a_key_nothing_is_noted_of_the_body() -> None:
    async def work(endpoint: Endpoint) -> None:
        await endpoint.call().ended()
        assert endpoint.client.requests[0].attributes == {}

    run(work)


# --- callers that go away -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_goes_away_gives_its_request_up_and_nothing_is_left_of_it(stream: bool) -> None:
    async def never(_: Request) -> str:
        return await asyncio.get_running_loop().create_future()

    async def work(endpoint: Endpoint) -> None:
        leaving = endpoint.call(stream=stream)
        await until(lambda: endpoint.service.pending == 1)
        assert b"headrace_http_pending_requests 1.0" in (await endpoint.get("/metrics").ended()).content
        leaving.leave()
        await leaving.ended()
        assert endpoint.service.pending == 0
        await until(lambda: len(endpoint.client.cancels) == 1)
        assert b"headrace_http_pending_requests 0.0" in (await endpoint.get("/metrics").ended()).content

    run(work, never)


# --- what they are charged ------------------------------------------------------------------------------------------


def a_result(request: Request, status: Status, tokens: int) -> Result:
    provenance = Provenance(
        model=MODEL, version="1", contract=1, engine="e", engine_version="1", slot="s",
        source_topic="t", source_partition=0, source_offset=0,
    )  # fmt: skip
    return Result(
        id=request.id,
        status=status,
        outputs=[Output(text="It is", finish_reason="length")],
        usage=Usage(prompt_tokens=10, completion_tokens=tokens - 10),
        error=ErrorDetail(code=status, message="it does not fit"),
        provenance=provenance,
    )


def tokens_left(endpoint: Endpoint) -> int:
    return int(endpoint.service.accounts.admit(ANYONE).headers["x-ratelimit-remaining-tokens"])


def limited(endpoint: Endpoint, tokens_per_minute: int) -> None:
    """Limit the caller, in a minute that does not pass."""
    endpoint.service.accounts = Accounts(lambda: 0.0, per_tenant=Limits(tokens_per_minute=tokens_per_minute))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", ["invalid_output", "truncated"])
def test_what_was_generated_and_does_not_hold_is_charged(status: Status, stream: bool) -> None:
    def unfit(request: Request) -> Result:
        return a_result(request, status, tokens=30)

    async def work(endpoint: Endpoint) -> None:
        limited(endpoint, 100)
        assert (await endpoint.call(stream=stream).ended()).status == 422
        assert tokens_left(endpoint) == 70

    run(work, unfit)


def test_a_caller_that_reads_a_text_and_leaves_before_its_end_is_charged_what_it_has_seen() -> None:
    async def work(endpoint: Endpoint) -> None:
        limited(endpoint, 100)
        endpoint.client.lose_next_reply()
        leaving = endpoint.call(stream=True)
        await leaving.has("mill")
        leaving.leave()
        await leaving.ended()
        assert tokens_left(endpoint) == 96  # of four words

    run(work)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_an_instance_that_is_to_end_lets_nobody_in_and_finishes_what_runs() -> None:
    async def work(endpoint: Endpoint) -> None:
        endpoint.client.delay_s = 0.2
        running = endpoint.call()
        await until(lambda: endpoint.service.pending == 1)
        endpoint.service.draining = True
        assert (await endpoint.get("/readyz").ended()).status == 503
        assert (await endpoint.get("/healthz").ended()).status == 200
        late = await endpoint.call().ended()
        assert (late.status, late.error["code"]) == (503, "server_shutting_down")
        assert (late.headers["retry-after"], late.headers["connection"]) == ("5", "close")
        assert (await running.ended()).text == "It is a mill."

    run(work)


def test_what_still_runs_when_the_instance_ends_is_told_so_and_given_up() -> None:
    async def slowly(request: Request) -> str:
        return await asyncio.get_running_loop().create_future()

    async def work(endpoint: Endpoint) -> None:
        whole, streamed, arriving = endpoint.call(), endpoint.call(stream=True), endpoint.begun()
        await until(lambda: endpoint.service.pending == 2)
        await endpoint.service.close()
        for each in (whole, streamed, arriving):
            await each.ended()
            assert each.is_whole
            assert (each.status, each.error["code"]) == (503, "server_shutting_down")
            assert each.headers["retry-after"]
        assert len(endpoint.client.cancels) == 2
        assert endpoint.service.pending == 0

    run(work, slowly)


def test_a_stream_that_has_begun_when_the_instance_ends_ends_with_an_error_event() -> None:
    async def work(endpoint: Endpoint) -> None:
        streamed = endpoint.call(stream=True)
        await streamed.has("keep-alive")
        await endpoint.service.close()
        await streamed.ended()
        assert (streamed.status, streamed.is_whole) == (200, True)
        assert streamed.events[-1]["error"]["code"] == "server_shutting_down"

    async def never(_: Request) -> str:
        return await asyncio.get_running_loop().create_future()

    run(work, never, keep_alive_s=0.01)
